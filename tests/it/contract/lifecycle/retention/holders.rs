//! What goes with records, and what holds them: journals, what was staged, prepared transactions,
//! replicas that are at it at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

async fn transaction(server: &Server, id: Uuid, path: &str, body: Value) -> Value {
    let call = server.post(&format!("/v1/transactions/{id}/{path}"));
    call.json(body).await.ok()
}

async fn begun(server: &Server, body: Value) -> Uuid {
    let id = Uuid::now_v7();
    let mut begin = body;
    begin["transaction_id"] = json!(id);
    server.post("/v1/transactions").json(begin).await.created();
    id
}

fn offsets(partition: i32, offset: i64) -> Value {
    json!({"offsets": [{"group": "g", "topic": "orders", "partition": partition, "offset": offset,
        "expected_offset": null}]})
}

#[tokio::test]
async fn what_a_prepared_transaction_is_to_commit_stays_readable() {
    let server = orders(2).await;
    for partition in [0, 1] {
        append(&server, partition, 4, 5).await;
        age(&server, partition, 20, 8 * DAY_MS).await;
    }
    let id = begun(&server, json!({})).await;
    transaction(&server, id, "offsets", offsets(0, 12)).await;
    // of an ongoing one nothing is held; this one is prepared before anybody sweeps
    let other = begun(&server, json!({})).await;
    let mut of_other = offsets(1, 3);
    of_other["offsets"][0]["group"] = json!("h");
    transaction(&server, other, "offsets", of_other).await;
    transaction(&server, id, "prepare", json!({})).await;
    for limit in [json!(null), json!(1)] {
        of_topic(&server, json!({"retention_bytes": limit})).await;
        sweep(&server).await;
        assert_eq!(seen(&server, 0).await[0], 10, "the row of offset 12 stays");
        assert_eq!(seen(&server, 1).await[0], 20);
    }
    let page = server.get(&format!("{}?offset=12", records(0))).await.ok();
    assert_eq!(page["records"][0]["offset"], 12);
    // two hold: the least of what they hold counts; what is aborted holds nothing
    let second = begun(&server, json!({})).await;
    let mut earlier = offsets(0, 17);
    earlier["offsets"][0]["group"] = json!("i");
    transaction(&server, second, "offsets", earlier).await;
    transaction(&server, second, "prepare", json!({})).await;
    transaction(&server, id, "abort", json!({})).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await[0], 15);
    transaction(&server, second, "commit", json!({})).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [20, 20, 0, 0]);
}

#[tokio::test]
async fn what_was_staged_goes_with_the_rows_that_point_to_it() {
    let server = orders(1).await;
    append(&server, 0, 1, 5).await;
    let appends = |count: i64| {
        let records: Vec<Value> = (0..count).map(|n| json!({"value": n})).collect();
        json!({"appends": [{"topic": "orders", "partition": 0, "records": records}]})
    };
    let (committed, ongoing) = (begun(&server, json!({})).await, begun(&server, json!({})).await);
    for count in [5, 10] {
        transaction(&server, committed, "records", appends(count)).await;
    }
    transaction(&server, committed, "commit", json!({})).await;
    transaction(&server, ongoing, "records", appends(5)).await;
    let [_, high_watermark, _, bytes] = seen(&server, 0).await;
    assert_eq!((high_watermark, stored_bytes(&server).await), (20, bytes));
    // its staged rows are of one size, whatever holds them
    let row = bytes / 4;
    let staged = "select count(*) from oncelog.staged_batches";
    assert_eq!(number(&server, staged).await, 3);
    of_topic(&server, json!({"retention_bytes": 3 * row})).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [5, 20, 15, 3 * row]);
    of_topic(&server, json!({"retention_bytes": 3 * row - 1})).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [10, 20, 10, 2 * row]);
    assert_eq!(number(&server, staged).await, 2);
    of_topic(&server, json!({"retention_bytes": null})).await;
    age(&server, 0, 20, 8 * DAY_MS).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [20, 20, 0, 0]);
    assert_eq!(number(&server, staged).await, 1, "what is ongoing is no record yet");
    transaction(&server, ongoing, "commit", json!({})).await;
    assert_eq!(seen(&server, 0).await, [20, 25, 5, row]);
}

/// A journal has nothing that readers could miss: it goes by its snapshots alone. And a producer is
/// known after all its records have gone.
#[tokio::test]
async fn journals_go_by_their_snapshots_and_producers_stay_known() {
    let server = orders(2).await;
    let (producer_id, epoch) = server.session("p").await;
    let send = async |sequence: i64| {
        let records: Vec<Value> =
            (0..4).map(|n| json!({"value": n, "key": n.to_string()})).collect();
        let body = json!({"producer_id": producer_id, "epoch": epoch, "sequence": sequence,
            "records": records});
        server.post("/v1/topics/orders/records").json(body).await.ok()
    };
    for sequence in 0..3 {
        send(sequence).await;
    }
    server.sql("update oncelog.batches set appended_at = appended_at - interval '8 days'").await;
    let journal = "select count(*) from oncelog.batches b join oncelog.logs l using (tenant_id, log_id) where l.partition is null";
    assert_eq!(number(&server, journal).await, 3);
    sweep(&server).await;
    assert_eq!(number(&server, journal).await, 3, "no snapshot has passed them");
    let left = seen(&server, 0).await[2] + seen(&server, 1).await[2];
    assert_eq!(left, 0);
    assert_eq!(send(2).await["duplicate"], true);
    assert_eq!(send(3).await["duplicate"], false);
    let left = seen(&server, 0).await[2] + seen(&server, 1).await[2];
    assert_eq!(left, 4);
}

/// Three replicas' janitors at once, and two that append: nothing goes twice, nothing too early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn janitors_and_appends_do_not_disturb_each_other() {
    const PARTITIONS: i32 = 12;
    let server = orders(PARTITIONS).await;
    for partition in 0..PARTITIONS {
        append(&server, partition, 10, 3).await;
        age(&server, partition, 15, 8 * DAY_MS).await;
    }
    let [.., bytes] = seen(&server, 0).await;
    let row = bytes / 10;
    of_topic(&server, json!({"retention_bytes": 8 * row})).await;
    let replicas = [replica_of(&server).await, replica_of(&server).await];
    let done = Arc::new(AtomicBool::new(false));
    let appending = async {
        for _ in 0..4 {
            for partition in 0..PARTITIONS {
                append(&server, partition, 1, 3).await;
            }
        }
        done.store(true, Ordering::Relaxed);
    };
    let sweeping = async |server: &Server| {
        while !done.load(Ordering::Relaxed) {
            server.broker.sweep().await.unwrap();
        }
    };
    tokio::join!(appending, sweeping(&server), sweeping(&replicas[0]), sweeping(&replicas[1]));
    sweep(&server).await;
    for partition in 0..PARTITIONS as usize {
        // of 14 rows the 5 that were old, and one more for the bytes
        assert_eq!(seen(&server, partition).await, [18, 42, 24, 8 * row], "{partition}");
    }
    assert_eq!(stored_bytes(&server).await, i64::from(PARTITIONS) * 8 * row);
    assert_eq!(number(&server, "select count(*) from oncelog.batches").await, 8 * 12);
    let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
    assert_eq!(number(&server, deadlocks).await, 0);
}

/// A step is bounded; a round goes on until the log is as it should be.
#[tokio::test]
async fn long_logs_go_in_steps() {
    let server = orders(1).await;
    append(&server, 0, 1, 1).await;
    let rows = 2_500;
    server
        .sql(format!(
            "insert into oncelog.batches (tenant_id, log_id, base_offset, record_count, appended_at, records) \
             select tenant_id, log_id, n, 1, appended_at, records from oncelog.batches, generate_series(1, {rows} - 1) n"
        ))
        .await;
    server
        .sql(format!(
            "update oncelog.logs set next_offset = {rows}, size_bytes = {rows} * size_bytes, \
                snapshot_offset = {rows} where partition is not null"
        ))
        .await;
    let [.., bytes] = seen(&server, 0).await;
    of_topic(&server, json!({"retention_bytes": bytes / rows * 100})).await;
    server.broker.sweep().await.unwrap();
    assert_eq!(seen(&server, 0).await, [2_400, 2_500, 100, bytes / 25]);
    assert_eq!(number(&server, "select count(*) from oncelog.batches").await, 100);
}
