//! Record ids in transactions of several requests: reserved at the prepare, or else at the commit.

mod claims;
mod prepared;
mod races;

use oncelog::model::Code;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{begin, begun, call, number, read, replica_of, see, values};
use crate::support::http::{Answer, Server};

/// A record with an id; the value is its payload.
fn known(id: &str, value: i64) -> Value {
    json!({"id": id, "key": "k", "value": value})
}

/// An append of records to partition 0.
fn to(topic: &str, records: &[Value]) -> Value {
    json!({"topic": topic, "partition": 0, "records": records})
}

async fn server() -> Server {
    let server = Server::start().await;
    for topic in ["t", "u"] {
        server.topic(topic, 2).await;
    }
    server
}

/// Sent to partition 0 of topic t, without a transaction.
async fn plain(server: &Server, records: &[Value]) -> Answer {
    let path = "/v1/topics/t/partitions/0/records";
    server.post(path).json(json!({"records": records})).await
}

/// It was stored before: where.
#[track_caller]
fn is_known(answer: &Answer, offset: i64) {
    let told = answer.ok();
    assert_eq!(told["duplicate"], true, "{told}");
    let place = &told["offsets"][0];
    assert_eq!((&place["duplicate"], &place["offset"]), (&json!(true), &json!(offset)), "{told}");
}

/// One that has these appends staged, each by its own call.
async fn staging(server: &Server, appends: &[Value]) -> Uuid {
    let id = begun(server, json!({})).await;
    for append in appends {
        call(server, id, "records", &json!({"appends": [append]})).await.ok();
    }
    id
}

async fn end(server: &Server, id: Uuid, verb: &str) -> Answer {
    call(server, id, verb, &json!({})).await
}

/// (base offset, record count) of each append of a committed one.
fn places(transaction: &Value) -> Vec<(Option<i64>, i64)> {
    let place =
        |append: &Value| (append["base_offset"].as_i64(), append["record_count"].as_i64().unwrap());
    transaction["appends"].as_array().unwrap().iter().map(place).collect()
}

/// Committed, with its appends there; and it stays so.
async fn committed(server: &Server, id: Uuid, want: &[(Option<i64>, i64)]) {
    let answer = end(server, id, "commit").await.ok();
    assert_eq!(answer["state"], "committed");
    assert_eq!(places(&answer), want);
    let again = end(server, id, "commit").await.ok();
    assert_eq!((&again["duplicate"], &again["appends"]), (&json!(true), &answer["appends"]));
    assert_eq!(see(server, id).await["appends"], answer["appends"]);
}

/// The pointers that a refusal names.
#[track_caller]
fn named(answer: &Answer, code: Code) -> Vec<String> {
    let problem = answer.refused(code);
    let errors = problem["errors"].as_array().unwrap();
    errors.iter().map(|error| error["pointer"].as_str().unwrap().to_owned()).collect()
}

/// Held by that prepared transaction.
#[track_caller]
fn is_held(answer: &Answer, by: Uuid) {
    let problem = answer.refused(Code::ConcurrentTransactions);
    assert_eq!(problem["transaction_id"], json!(by));
}

/// Everything that is remembered has been so for so much longer.
async fn age(server: &Server, interval: &str) {
    let older = |column: &str| format!("{column} = {column} - interval '{interval}'");
    let (seen, expiry) = (older("first_seen_at"), older("expires_at"));
    server.sql(format!("update oncelog.dedup_keys set {seen}, {expiry}")).await;
}

async fn count(server: &Server, table: &str) -> i64 {
    number(server, format!("select count(*) from oncelog.{table}")).await
}
