//! Retention: rows that are too old, or too many, are removed as a whole, the oldest first, and
//! never one that is still needed. To simulate time, the tests change timestamps in the database.

mod holders;
mod readers;
mod steady;

use oncelog::{
    model::{Code, LogId, TenantId},
    store::{self, Store},
};
use serde_json::{Value, json};

use crate::support::{
    self,
    http::{Server, Setup},
};

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

async fn orders(partition_count: i32) -> Server {
    let server = Server::start().await;
    server.topic("orders", partition_count).await;
    server
}

async fn replica_of(server: &Server) -> Server {
    Server::on(&server.options, Setup::default()).await
}

fn records(partition: i32) -> String {
    format!("/v1/topics/orders/partitions/{partition}/records")
}

/// That many records in each of that many rows.
async fn append(server: &Server, partition: i32, rows: i64, each: i64) {
    let records: Vec<Value> = (0..each).map(|n| json!({"value": n})).collect();
    for _ in 0..rows {
        let body = json!({"records": records});
        server.post(&self::records(partition)).json(body).await.ok();
    }
}

/// The one number that a query answers.
async fn number(server: &Server, sql: impl Into<String>) -> i64 {
    support::number(&server.options, sql).await
}

/// The records of a partition before an offset were appended so much earlier.
async fn age(server: &Server, partition: i32, before: i64, ms: i64) {
    let sql = format!(
        "update oncelog.batches b set appended_at = b.appended_at - interval '{ms} ms' from oncelog.logs l \
         where l.tenant_id = b.tenant_id and l.log_id = b.log_id and l.partition = {partition} and b.base_offset < {before}"
    );
    server.sql(sql).await;
}

async fn of_topic(server: &Server, settings: Value) {
    server.patch("/v1/topics/orders").json(json!({"settings": settings})).await.ok();
}

async fn of_tenant(server: &Server, settings: Value) {
    server.patch("/v1/settings").json(settings).await.ok();
}

/// One round: what a snapshot has not passed yet is removed by the next.
async fn sweep(server: &Server) {
    server.broker.sweep().await.unwrap();
    server.broker.sweep().await.unwrap();
}

/// Log start, high watermark, number of records, bytes, as the topic says.
async fn seen(server: &Server, partition: usize) -> [i64; 4] {
    let topic = server.get("/v1/topics/orders").await.ok();
    let partition = &topic["partitions"][partition];
    ["log_start_offset", "high_watermark", "record_count", "size_bytes"]
        .map(|name| partition[name].as_i64().unwrap())
}

/// The bytes of all rows of partitions, as they lie there.
async fn stored_bytes(server: &Server) -> i64 {
    let sql = "select coalesce(sum(coalesce(octet_length(b.records), octet_length(s.records))), 0)::bigint \
        from oncelog.batches b left join oncelog.staged_batches s on s.tenant_id = b.tenant_id \
            and s.transaction_id = b.transaction_id and s.ordinal = b.staged_ordinal";
    number(server, sql).await
}

#[tokio::test]
async fn records_older_than_the_limit_go_and_no_others() {
    let server = orders(1).await;
    append(&server, 0, 4, 5).await;
    let [.., bytes] = seen(&server, 0).await;
    // a week by default
    age(&server, 0, 10, 7 * DAY_MS - HOUR_MS).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [0, 20, 20, bytes]);
    age(&server, 0, 10, 2 * HOUR_MS).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [10, 20, 10, bytes / 2]);
    assert_eq!(number(&server, "select min(base_offset) from oncelog.batches").await, 10);
    let problem = server.get(&format!("{}?offset=9", records(0))).await;
    let problem = problem.refused(Code::OffsetOutOfRange);
    assert_eq!(
        (&problem["log_start_offset"], &problem["high_watermark"]),
        (&json!(10), &json!(20))
    );
    let page = server.get(&records(0)).await.ok();
    assert_eq!(page["records"][0]["offset"], 10);
    // everything may go, and the log goes on where it was
    age(&server, 0, 20, 8 * DAY_MS).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [20, 20, 0, 0]);
    sweep(&server).await;
    append(&server, 0, 1, 5).await;
    assert_eq!(seen(&server, 0).await, [20, 25, 5, bytes / 4]);
}

#[tokio::test]
async fn a_partition_keeps_so_many_bytes_and_always_its_newest_row() {
    let server = orders(2).await;
    append(&server, 0, 4, 5).await;
    append(&server, 1, 2, 5).await;
    let [.., bytes] = seen(&server, 0).await;
    let row = bytes / 4;
    let table = [(4 * row, 0), (4 * row - 1, 5), (2 * row, 10), (2 * row - 1, 15), (1, 15)];
    for (limit, start) in table {
        of_topic(&server, json!({"retention_bytes": limit})).await;
        sweep(&server).await;
        let left = (20 - start) / 5 * row;
        assert_eq!(seen(&server, 0).await, [start, 20, 20 - start, left], "{limit}");
    }
    // each partition by itself
    assert_eq!(seen(&server, 1).await, [5, 10, 5, row]);
    append(&server, 0, 1, 5).await;
    sweep(&server).await;
    assert_eq!(seen(&server, 0).await, [20, 25, 5, row]);
    assert_eq!(stored_bytes(&server).await, 2 * row);
}

#[tokio::test]
async fn rows_that_are_still_to_be_removed_do_not_count_twice() {
    let server = orders(1).await;
    append(&server, 0, 6, 5).await;
    let [.., bytes] = seen(&server, 0).await;
    let row = bytes / 6;
    // by hand, inside a row; no snapshot has passed it
    server.delete(&format!("{}?before=12", records(0))).await.no_content();
    of_topic(&server, json!({"retention_bytes": 4 * row})).await;
    for _ in 0..3 {
        server.broker.sweep().await.unwrap();
        let [start, ..] = seen(&server, 0).await;
        assert_eq!(start, 12, "rows of four times the bytes are left, the first one in part");
    }
    assert_eq!(seen(&server, 0).await, [12, 30, 18, 4 * row]);
    of_topic(&server, json!({"retention_bytes": 4 * row - 1})).await;
    server.broker.sweep().await.unwrap();
    assert_eq!(seen(&server, 0).await, [15, 30, 15, 3 * row]);
}

#[tokio::test]
async fn a_topic_overrides_its_tenant_and_a_change_counts_at_once() {
    let server = orders(1).await;
    append(&server, 0, 4, 5).await;
    let [.., bytes] = seen(&server, 0).await;
    let row = bytes / 4;
    age(&server, 0, 15, 400 * DAY_MS).await;
    age(&server, 0, 5, 400 * DAY_MS).await;
    let kept = async || {
        sweep(&server).await;
        seen(&server, 0).await[0]
    };
    of_topic(&server, json!({"retention_ms": null})).await;
    of_tenant(&server, json!({"retention_ms": HOUR_MS, "retention_bytes": 3 * row})).await;
    assert_eq!(kept().await, 5, "by the tenant's bytes");
    of_topic(&server, json!({"retention_bytes": null})).await;
    of_tenant(&server, json!({"retention_bytes": 1})).await;
    assert_eq!(kept().await, 5, "nothing limits the topic");
    of_topic(&server, json!({"retention_ms": 401 * DAY_MS})).await;
    assert_eq!(kept().await, 5, "they are of 400 days ago");
    of_topic(&server, json!({"retention_ms": "default", "cleanup": "compact"})).await;
    assert_eq!(kept().await, 5, "what is compacted goes by key");
    of_tenant(&server, json!({"cleanup": "compact"})).await;
    of_topic(&server, json!({"cleanup": "default"})).await;
    assert_eq!(kept().await, 5);
    of_topic(&server, json!({"cleanup": "delete"})).await;
    assert_eq!(kept().await, 15, "by the tenant's hour");
}

/// Every log of every tenant comes up, however small the pages.
#[tokio::test]
async fn a_round_comes_by_all_logs_of_all_tenants() {
    let server = Server::signed().await;
    let json = |body: Value| body.to_string();
    for tenant in ["a", "b", "c"] {
        let token = crate::support::http::token(tenant, "admin produce consume");
        for topic in ["t", "u"] {
            let path = format!("/v1/topics/{topic}");
            let put = server.put(&path).token(&token).json(json(json!({"partition_count": 2})));
            assert_eq!(put.await.status, 201);
        }
        let post = server.post("/v1/topics/u/partitions/1/records").token(&token);
        post.json(json(json!({"records": [{"value": 1}]}))).await.ok();
    }
    let store = Store::new(server.options.clone(), 1);
    let mut connection = store.connection().await.unwrap();
    let (mut after, mut logs, mut filled) = ((TenantId(0), LogId(0)), Vec::new(), 0);
    loop {
        let page = store::janitor::retention::page(&mut connection, after, 2).await.unwrap();
        filled += page.iter().filter(|seen| seen.oldest.is_some()).count();
        logs.extend(page.iter().map(|seen| seen.log));
        match page.last() {
            Some(last) if page.len() == 2 => after = last.log,
            _ => break,
        }
    }
    assert_eq!((logs.len(), filled), (18, 3), "{logs:?}");
    assert!(logs.is_sorted());
}
