//! Months in a minute: steady appends of all kinds, and retention that keeps up with them, leave
//! tables and indexes as large as they were. Vacuum is run by hand, as autovacuum would later.

use std::collections::BTreeMap;

use oncelog::broker::ServiceConfig;
use sqlx::{ConnectOptions, Connection, PgConnection};
use uuid::Uuid;

use super::*;

const PARTITIONS: i32 = 4;
const APPENDS_A_ROUND: i64 = 400;
/// Until then they grow to what they need.
const FIRST_ROUNDS: u64 = 3;

async fn a_round(server: &Server, producer: (i64, i64), next_sequence: &mut i64) {
    let text = "0123456789abcdef".repeat(20);
    for n in 0..APPENDS_A_ROUND {
        let partition = n as i32 % PARTITIONS;
        let records: Vec<Value> =
            (0..10).map(|i| json!({"key": i.to_string(), "value": [n, i, text]})).collect();
        match n % 8 {
            // staged, so that rows point to it
            0 => {
                let id = Uuid::now_v7();
                let part = json!({"topic": "orders", "partition": partition, "records": records});
                let work = json!({"transaction_id": id, "appends": [part]});
                server.post("/v1/transactions").json(work).await.created();
                let path = format!("/v1/transactions/{id}/commit");
                server.post(&path).json(json!({})).await.ok();
            }
            // numbered in topic scope, so that the journal grows
            1 => {
                let (producer_id, epoch) = producer;
                let body = json!({"producer_id": producer_id, "epoch": epoch,
                    "sequence": *next_sequence, "records": records});
                server.post("/v1/topics/orders/records").json(body).await.ok();
                *next_sequence += 1;
            }
            _ => {
                let body = json!({"records": records});
                server.post(&self::records(partition)).json(body).await.ok();
            }
        }
    }
}

/// Bytes of tables, and of their indexes.
async fn sizes(connection: &mut PgConnection) -> BTreeMap<String, i64> {
    let sql = "select c.relname::text, s.bytes from pg_class c \
        cross join lateral (values (pg_relation_size(c.oid) + case when c.reltoastrelid = 0 then 0 \
            else pg_relation_size(c.reltoastrelid) end)) as s (bytes) \
        where c.relnamespace = 'oncelog'::regnamespace and c.relkind in ('r', 'i') \
            and c.relname like any ('{batches%,staged_batches%,logs%}')";
    let rows: Vec<(String, i64)> = sqlx::query_as(sql).fetch_all(connection).await.unwrap();
    rows.into_iter().collect()
}

#[tokio::test]
#[ignore = "long; `make torture`"]
async fn a_long_history_of_appends_and_trims_grows_no_table() {
    let rounds = std::env::var("ONCELOG_TEST_ROUNDS").ok().and_then(|value| value.parse().ok());
    let rounds = FIRST_ROUNDS + rounds.unwrap_or(20_u64);
    // a journal goes by its snapshots
    let settings = ServiceConfig { snapshot_rows: 50, ..ServiceConfig::default() };
    let server = Server::with(Setup { settings, ..Setup::default() }).await;
    server.topic("orders", PARTITIONS).await;
    of_topic(&server, json!({"retention_bytes": 200_000})).await;
    let (producer, mut next_sequence) = (server.session("p").await, 0);
    let mut connection = server.options.connect().await.unwrap();
    let mut first = BTreeMap::new();
    for round in 0..rounds {
        a_round(&server, producer, &mut next_sequence).await;
        sweep(&server).await;
        for table in ["batches", "staged_batches", "logs"] {
            server.sql(format!("vacuum oncelog.{table}")).await;
        }
        let sizes = sizes(&mut connection).await;
        println!("round {round}: {sizes:?}");
        if round + 1 == FIRST_ROUNDS {
            first = sizes;
        } else if round + 1 > FIRST_ROUNDS {
            for (name, bytes) in sizes {
                // a page more or less of a small index is nothing
                let most = first[&name] * 12 / 10 + 32_768;
                assert!(bytes <= most, "{name} had {} bytes and has {bytes}", first[&name]);
            }
        }
    }
    assert!(stored_bytes(&server).await <= 200_000 * i64::from(PARTITIONS));
    connection.close().await.unwrap();
}
