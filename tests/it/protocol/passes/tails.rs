//! Logs that nobody numbers: their rows are folded into snapshots like others, and anyone who
//! numbers the first request in them reads none of them.

use serde_json::{Value, json};
use sqlx::{ConnectOptions, PgConnection};

use crate::support::http::{Server, Setup};
use oncelog::model::Code;

const PARTITION: &str = "/v1/topics/t/partitions/0/records";

async fn number(connection: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

/// Rows of that many records each, as unnumbered appends leave them.
async fn feed(server: &Server, rows: i64, record_count: i64) {
    server
        .sql(format!(
            "with l as (select tenant_id, log_id, next_offset, date_trunc('milliseconds', clock_timestamp()) as now \
                from oncelog.logs where partition = 0), \
            row as (insert into oncelog.batches (tenant_id, log_id, base_offset, record_count, appended_at, records) \
                select tenant_id, log_id, next_offset + n * {record_count}, {record_count}, l.now, '{{}}' \
                from l, generate_series(0, {rows} - 1) n) \
            update oncelog.logs set next_offset = next_offset + {rows} * {record_count}, \
                last_appended_at = (select now from l) where partition = 0"
        ))
        .await;
}

async fn open(server: &Server, name: &str) -> Value {
    server.post("/v1/sessions").json(json!({"transactional_id": name})).await.created()
}

fn numbered(session: &Value, sequence: i64) -> Value {
    json!({"producer_id": session["producer_id"], "epoch": session["epoch"], "sequence": sequence,
        "records": [{"value": sequence}]})
}

/// Without its first row the log cannot be read whole: anyone who tried would find a hole.
const HOLE: &str = "delete from oncelog.batches where base_offset = 0";

#[tokio::test]
async fn the_first_request_that_stands_on_a_position_reads_no_row_before_it() {
    let server = Server::start().await;
    server.topic("t", 1).await;
    feed(&server, 200_000, 1).await;
    server.sql(HOLE).await;
    let session = open(&server, "p").await;
    let first = server.post(PARTITION).json(numbered(&session, 0)).await.ok();
    assert_eq!(first["base_offset"], 200_000);
    let again = Server::on(&server.options, Setup::default()).await;
    let repeat = again.post(PARTITION).json(numbered(&session, 0)).await.ok();
    assert_eq!((&repeat["base_offset"], &repeat["duplicate"]), (&json!(200_000), &json!(true)));
    let keyed = again.post(PARTITION).header("idempotency-key", "k");
    assert_eq!(keyed.json(json!({"records": [{"value": 1}]})).await.ok()["base_offset"], 200_001);
    let whole = json!({"commit": true, "appends": [{"topic": "t", "partition": 0, "records": [{"value": 2}]}]});
    let whole = again.post("/v1/transactions").json(whole).await.created();
    assert_eq!(whole["appends"][0]["base_offset"], 200_002);
}

#[tokio::test]
async fn the_janitor_takes_snapshots_of_logs_that_nobody_numbers() {
    let server = Server::start().await;
    server.topic("t", 1).await;
    let mut sql = server.options.connect().await.unwrap();
    let snapshot = "select snapshot_offset from oncelog.logs where partition = 0";
    feed(&server, 50_000, 1).await;
    server.broker.sweep().await.unwrap();
    assert_eq!(number(&mut sql, snapshot).await, 0, "so few are read at once");
    feed(&server, 1, 1).await;
    // there is no producer to fold them into, so none of them is read: nobody could
    server.sql("update oncelog.batches set producers = '\\xff'").await;
    server.broker.sweep().await.unwrap();
    assert_eq!(number(&mut sql, snapshot).await, 50_001);
    // what was numbered in between is folded on the way
    let session = open(&server, "p").await;
    server.post(PARTITION).json(numbered(&session, 0)).await.ok();
    feed(&server, 50_001, 1).await;
    server.broker.sweep().await.unwrap();
    assert_eq!(number(&mut sql, snapshot).await, 100_003);
    let again = Server::on(&server.options, Setup::default()).await;
    let repeat = again.post(PARTITION).json(numbered(&session, 0)).await.ok();
    assert_eq!((&repeat["base_offset"], &repeat["duplicate"]), (&json!(50_001), &json!(true)));
}

/// Of a time before snapshots were taken of such logs.
#[tokio::test]
async fn a_tail_too_long_to_be_read_at_once_is_folded_first() {
    let server = Server::start().await;
    server.topic("t", 1).await;
    let session = open(&server, "p").await;
    server.post(PARTITION).json(numbered(&session, 0)).await.ok();
    // a row at the limit is still read
    feed(&server, 1, 200_000 - 1).await;
    let cold = Server::on(&server.options, Setup::default()).await;
    assert_eq!(cold.post(PARTITION).json(numbered(&session, 0)).await.ok()["duplicate"], true);
    feed(&server, 3, 200_000).await;
    let cold = Server::on(&server.options, Setup::default()).await;
    let mut refused = 0;
    let stored = loop {
        assert!(refused < 1_000, "the snapshot does not come nearer");
        let answer = cold.post(PARTITION).json(numbered(&session, 1)).await;
        if answer.status == 200 {
            break answer.ok();
        }
        let problem = answer.refused(Code::Unavailable);
        assert_eq!(
            (&problem["retry"], &problem["side_effects"]),
            (&json!("later"), &json!("none"))
        );
        assert!(answer.header("retry-after").is_some());
        // others in the same log need none of it
        let plain = json!({"records": [{"value": 1}]});
        cold.post(PARTITION).json(plain).await.ok();
        refused += 1;
    };
    assert!(refused > 0 && stored["duplicate"] == false, "{stored}");
    // an open, and a look at a session, wait for the snapshot
    feed(&server, 2, 200_000).await;
    let seen = server.get(&format!("/v1/sessions/{}", session["producer_id"])).await.ok();
    assert_eq!(seen["next_sequences"][0]["next_sequence"], 2);
    feed(&server, 2, 200_000).await;
    let reopened = open(&server, "p").await;
    assert_eq!(reopened["next_sequences"][0]["next_sequence"], 2);
}

/// What a pass finds wrong by itself, and not the database, undoes what it has locked at once.
#[tokio::test]
async fn a_pass_that_fails_here_holds_no_locks() {
    let server = Server::start().await;
    server.topic("t", 1).await;
    let session = open(&server, "p").await;
    server.post(PARTITION).json(numbered(&session, 0)).await.ok();
    // a head that no row bears out
    server.sql("update oncelog.logs set next_offset = next_offset + 1 where partition = 0").await;
    server.post(PARTITION).json(numbered(&session, 1)).await.refused(Code::Internal);
    server.sql("select from oncelog.logs where partition = 0 for update nowait").await;
}
