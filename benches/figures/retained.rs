//! Rounds of appends to a topic with a small `retention_bytes`: the janitor removes rows meanwhile,
//! vacuum frees their space, and tables and indexes must not grow.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, Executor, PgConnection, postgres::PgConnectOptions};

use crate::{
    Effort,
    place::{Brokers, Place},
};

/// The number of rounds, each followed by a vacuum: autovacuum runs once a minute, and a round is
/// shorter.
const ROUNDS: usize = 8;
/// The rounds until the index settles: a page that one vacuum empties is reused after the next.
const SETTLING_ROUNDS: usize = 2;
const SAMPLED_EVERY: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(60);

/// The last round's result, with the sizes of the table and its index after the first settled round
/// and the last, and the longest wait for a row lock meanwhile.
pub async fn run(
    place: &mut Place,
    database: &str,
    arguments: &[&str],
    retention_bytes: i64,
    effort: Effort,
) -> anyhow::Result<Value> {
    let brokers = Brokers::start(place, database, 1).await?;
    let settings = json!({"retention_bytes": retention_bytes});
    brokers.put_topic("bench", &json!({"settings": settings})).await?;
    place.settle().await?;
    let options = place.options(database);
    let mut connection = options.connect().await?;
    let (mut rounds, mut result, mut longest_us) = (Vec::new(), Value::Null, 0.0_f64);
    for _ in 0..ROUNDS {
        let bench = brokers.bench(arguments, effort);
        let (benched, waited_us) = watched(&options, bench).await?;
        (result, longest_us) = (benched, longest_us.max(waited_us));
        until_trimmed(&mut connection, retention_bytes).await?;
        connection.execute("vacuum oncelog.batches").await?;
        rounds.push(sizes(&mut connection).await?);
    }
    connection.close().await?;
    brokers.stop().await?;
    let sizes = [("first", rounds.get(SETTLING_ROUNDS)), ("last", rounds.last())];
    for (name, (table, index)) in sizes.map(|(name, of)| (name, of.copied().unwrap_or_default())) {
        result[format!("{name}_table_bytes")] = table.into();
        result[format!("{name}_index_bytes")] = index.into();
    }
    result["rounds"] = json!(rounds);
    result["longest_lock_wait_us"] = longest_us.into();
    Ok(result)
}

/// The sizes of the log's table, and of its index.
async fn sizes(connection: &mut PgConnection) -> anyhow::Result<(i64, i64)> {
    let sql = "select pg_table_size('oncelog.batches'), pg_indexes_size('oncelog.batches')";
    Ok(sqlx::query_as(sql).fetch_one(connection).await?)
}

async fn until_trimmed(connection: &mut PgConnection, retention_bytes: i64) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let sql = "select max(size_bytes) from oncelog.logs";
        let kept: i64 = sqlx::query_scalar(sql).fetch_one(&mut *connection).await?;
        if kept <= retention_bytes {
            return Ok(());
        }
        ensure!(begun.elapsed() < PATIENCE, "{kept} bytes are still kept");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Samples waits for row locks meanwhile: the longest, in microseconds. The appends of one broker
/// wait for nothing but the janitor.
async fn watched(
    options: &PgConnectOptions,
    bench: impl Future<Output = anyhow::Result<Value>>,
) -> anyhow::Result<(Value, f64)> {
    let mut connection = options.connect().await?;
    let sql = "select coalesce(max(extract(epoch from clock_timestamp() - query_start)), 0)::float8 * 1e6 \
        from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
            and wait_event in ('transactionid', 'tuple')";
    let mut bench = std::pin::pin!(bench);
    let mut longest_us = 0.0_f64;
    let result = loop {
        tokio::select! {
            result = &mut bench => break result?,
            () = tokio::time::sleep(SAMPLED_EVERY) => {
                let waited: f64 = sqlx::query_scalar(sql).fetch_one(&mut connection).await.context(sql)?;
                longest_us = longest_us.max(waited);
            }
        }
    };
    connection.close().await?;
    Ok((result, longest_us))
}
