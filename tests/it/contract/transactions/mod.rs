//! Transactions over HTTP and in the broker.

mod beside;
mod corners;
mod doomed;
mod forgetting;
mod http;
mod ids;
mod keys;
mod lost;
mod members;
mod races;
mod remembered;
pub mod staged;
mod transfers;
mod zombie;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use crate::support::{
    self,
    http::{Answer, Call, Server, Setup},
    proxy::Proxy,
    served::until,
};

const ALL: &str = "/v1/transactions";

/// One more replica over the same database.
async fn replica_of(server: &Server) -> Server {
    Server::on(&server.options, Setup::default()).await
}

/// In a body of these tests: the header of this name.
const KEY: &str = "Idempotency-Key";

fn post(server: &Server, path: &str, body: &Value) -> Call {
    let mut body = body.clone();
    match body.as_object_mut().and_then(|fields| fields.remove(KEY)) {
        Some(key) => server.post(path).json(body).header(KEY, key.as_str().unwrap()),
        None => server.post(path).json(body),
    }
}

fn begin(server: &Server, body: &Value) -> Call {
    post(server, ALL, body)
}

fn call(server: &Server, id: Uuid, call: &str, body: &Value) -> Call {
    server.post(&format!("{ALL}/{id}/{call}")).json(body)
}

async fn see(server: &Server, id: Uuid) -> Value {
    server.get(&format!("{ALL}/{id}")).await.ok()
}

/// Begins one of this body under a new id.
async fn begun(server: &Server, mut body: Value) -> Uuid {
    let id = Uuid::now_v7();
    body["transaction_id"] = json!(id);
    begin(server, &body).await.created();
    id
}

/// An append of these values to one partition.
fn append(topic: &str, partition: i32, values: &[Value]) -> Value {
    let records: Vec<Value> = values.iter().map(|value| json!({"value": value})).collect();
    json!({"topic": topic, "partition": partition, "records": records})
}

/// Group `g` goes from one offset of a partition to another.
fn step(topic: &str, partition: i32, from: Value, to: i64) -> Value {
    json!({"group": "g", "topic": topic, "partition": partition, "expected_offset": from,
        "offset": to})
}

/// What lies in a partition, dense from 0: value and transaction.
async fn read(server: &Server, topic: &str, partition: i32) -> Vec<(Value, Value)> {
    let mut records = Vec::new();
    loop {
        let path = format!("/v1/topics/{topic}/partitions/{partition}/records");
        let query = format!("offset={}&limit=10000&max_bytes=16777216", records.len());
        let page = server.get(&format!("{path}?{query}")).await.ok();
        for record in page["records"].as_array().unwrap() {
            assert_eq!(record["offset"], json!(records.len()), "offsets are dense");
            records.push((record["value"].clone(), record["transaction_id"].clone()));
        }
        assert_eq!(page["next_offset"], json!(records.len()));
        if page["next_offset"] == page["high_watermark"] {
            return records;
        }
    }
}

async fn values(server: &Server, topic: &str, partition: i32) -> Vec<Value> {
    read(server, topic, partition).await.into_iter().map(|(value, _)| value).collect()
}

/// The offset that group `g` has committed in a partition.
async fn committed_offset(server: &Server, topic: &str, partition: i32) -> Option<i64> {
    let answer = server.get("/v1/groups/g/offsets").await;
    if answer.status == 404 {
        return None;
    }
    let answer = answer.ok();
    let here = |offset: &&Value| offset["topic"] == topic && offset["partition"] == partition;
    answer["offsets"].as_array().unwrap().iter().find(here)?["offset"].as_i64()
}

/// The one number that a query answers.
async fn number(server: &Server, sql: impl Into<String>) -> i64 {
    support::number(&server.options, sql).await
}

/// Database transactions that have begun and wait for a lock.
async fn waiting_for_locks(options: &PgConnectOptions) -> i64 {
    let sql = "select count(*) from pg_stat_activity \
        where datname = current_database() and wait_event_type = 'Lock'";
    support::number(options, sql).await
}

/// A transaction id whose instant lies so far from now.
fn id_at(from_now_ms: i64) -> Uuid {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let at = (now + from_now_ms) as u64;
    let nanos = (at % 1_000) as u32 * 1_000_000;
    Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, at / 1_000, nanos))
}

/// Makes a call of a server behind a proxy, which is held after that many messages to the database
/// until something else is done, or waits for what the call has locked.
async fn held_while<T>(
    proxy: &Proxy,
    steps: u64,
    call: Call,
    other: impl Future<Output = T>,
    watcher: &Server,
) -> (Answer, T) {
    proxy.close_gate();
    proxy.let_through(steps);
    let call = tokio::spawn(call.into_future());
    let held = async || (call.is_finished() || proxy.held() > 0).then_some(());
    until("the call to be held", held).await;
    let done = AtomicBool::new(false);
    let other = async {
        let answer = other.await;
        done.store(true, Ordering::SeqCst);
        answer
    };
    let release = async {
        let over = async || {
            let waits = waiting_for_locks(&watcher.options).await > 0;
            (waits || done.load(Ordering::SeqCst)).then_some(())
        };
        until("the other to be done, or to wait", over).await;
        proxy.open_gate();
    };
    let (other, ()) = tokio::join!(other, release);
    (call.await.unwrap(), other)
}
