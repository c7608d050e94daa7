//! What became of a transaction is told to who begins it again, before anything else of the request
//! is judged: who has lost the answer always learns it, whatever has changed since.

use oncelog::model::Code;
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, Executor};
use uuid::Uuid;

use super::{KEY, append, begin, call, number, read, replica_of, see, until, waiting_for_locks};
use crate::support::http::Server;

const TIMEOUT_MS: i64 = 600_000;

async fn served() -> Server {
    let server = Server::start().await;
    topics(&server).await;
    server
}

async fn topics(server: &Server) {
    server.topic("orders", 2).await;
    server.topic("carts", 2).await;
    for cart in 0..18 {
        let path = format!("/v1/topics/carts/partitions/{}/records", cart % 2);
        server.post(&path).json(json!({"records": [{"value": "cart"}]})).await.ok();
    }
}

/// Has a key instead of an id: every other one is a UUIDv7.
fn keyed(mut body: Value, number: usize) -> Value {
    body.as_object_mut().unwrap().remove("transaction_id");
    body[KEY] = match number % 2 {
        0 => json!(Uuid::now_v7()),
        _ => json!(format!("evt_{number}")),
    };
    body
}

/// Makes another transaction of a body.
fn rename(body: &mut Value) {
    match body.get(KEY) {
        Some(key) => body[KEY] = json!(format!("{}-other", key.as_str().unwrap())),
        None => body["transaction_id"] = json!(Uuid::now_v7()),
    }
}

/// A body under a new id, of a session or of none.
fn body(form: &str, number: usize, signature: &Value) -> Value {
    let moved = json!({"group": format!("g-{number}"), "topic": "carts", "partition": 1,
        "expected_offset": null, "offset": 9});
    let appends = json!([append("orders", 1, &[json!(form)]),
        {"topic": "orders", "records": [{"key": "k", "value": form}, {"value": form}]}]);
    let mut body = json!({"transaction_id": Uuid::now_v7(), "timeout_ms": TIMEOUT_MS});
    if form.contains("records") {
        body["appends"] = appends;
    }
    if form.contains("offsets") {
        body["offsets"] = json!([moved]);
    }
    if form.starts_with("whole") {
        body["commit"] = json!(true);
    }
    for (name, value) in signature.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

const FORMS: [&str; 7] = [
    "whole records",
    "whole offsets",
    "whole records offsets",
    "staged",
    "staged records",
    "staged offsets",
    "staged records offsets",
];

/// Every form, done: what was sent, and how it stands.
async fn all(here: &Server) -> Vec<(Value, Value)> {
    let mut done = Vec::new();
    for (is_signed, is_keyed) in [(false, false), (false, true), (true, false), (true, true)] {
        for form in FORMS.into_iter().filter(|form| !is_keyed || form.starts_with("whole")) {
            let mut signature = json!({});
            if is_signed {
                let (p, epoch) = here.session(&format!("p-{}", done.len())).await;
                signature = json!({"producer_id": p, "epoch": epoch});
            }
            let mut body = body(form, done.len(), &signature);
            if is_keyed {
                body = keyed(body, done.len());
            }
            let mut stands = begin(here, &body).await.created();
            if form.starts_with("staged") {
                let id = body["transaction_id"].as_str().unwrap().parse().unwrap();
                call(here, id, "commit", &signature).await.ok();
                stands = see(here, id).await;
            }
            assert_eq!(stands["state"], "committed");
            stands["duplicate"] = json!(true);
            done.push((body, stands));
        }
    }
    done
}

/// What may have changed before a request comes again, one after the other.
const CHANGES: [&str; 12] = [
    "nothing",
    "offsets moved",
    "records trimmed",
    "members came",
    "limits lowered",
    "sessions opened",
    "sessions ended",
    "topics gone",
    "topics created again",
    "topics made smaller",
    "sessions expired",
    "groups gone",
];

fn is_signed(body: &Value) -> bool {
    body["producer_id"].is_i64()
}

fn of_sessions(done: &[(Value, Value)]) -> impl Iterator<Item = &Value> {
    done.iter().map(|(body, _)| body).filter(|body| is_signed(body))
}

async fn make(change: &str, here: &Server, there: &Server, done: &[(Value, Value)]) {
    match change {
        "offsets moved" => {
            for group in 0..done.len() {
                let offset = json!({"topic": "carts", "partition": 1, "offset": group % 3});
                let path = format!("/v1/groups/g-{group}/offsets");
                here.post(&path).json(json!({"offsets": [offset]})).await.ok();
            }
        }
        "records trimmed" => {
            here.sql("update oncelog.logs set log_start_offset = next_offset where partition >= 0")
                .await;
        }
        "members came" => {
            for group in 0..done.len() {
                let path = format!("/v1/groups/g-{group}/members");
                here.post(&path).json(json!({"topics": ["carts"]})).await.created();
            }
        }
        "limits lowered" => {
            let lower = json!({"max_transaction_timeout_ms": 1_000, "transaction_timeout_ms": 1_000,
                "max_transaction_batches": 1, "max_batch_records": 1, "dedup_window_ms": 0});
            for replica in [here, there] {
                replica.patch("/v1/settings").json(&lower).await.ok();
            }
        }
        "sessions opened" => {
            for (name, _) in done.iter().enumerate().filter(|(_, (body, _))| is_signed(body)) {
                here.session(&format!("p-{name}")).await;
            }
        }
        "sessions ended" => {
            for body in of_sessions(done) {
                here.delete(&format!("/v1/sessions/{}", body["producer_id"])).await.no_content();
            }
        }
        "topics gone" | "topics made smaller" => {
            for topic in ["orders", "carts"] {
                there.delete(&format!("/v1/topics/{topic}")).await.no_content();
                if change == "topics made smaller" {
                    there.topic(topic, 1).await;
                }
            }
        }
        "topics created again" => topics(there).await,
        "sessions expired" => {
            here.sql("delete from oncelog.producer_states; delete from oncelog.sessions").await;
        }
        "groups gone" => {
            for table in ["group_offsets", "group_members", "groups"] {
                here.sql(format!("delete from oncelog.{table}")).await;
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn a_repeat_gets_its_outcome_after_any_change() {
    let here = served().await;
    let there = replica_of(&here).await;
    let done = all(&here).await;
    let orders = read(&here, "orders", 1).await;
    for change in CHANGES {
        make(change, &here, &there, &done).await;
        for (body, stands) in &done {
            for replica in [&here, &there] {
                let told = begin(replica, body).await;
                assert_eq!(told.status, 200, "{change}: {body}: {}", told.text());
                assert_eq!(told.json(), *stands, "{change}: {body}");
            }
            // of another payload the id is another's, and that is told as well
            let mut other = body.clone();
            other["timeout_ms"] = json!(TIMEOUT_MS + 1);
            let reused = match body.get(KEY) {
                Some(_) => Code::IdempotencyKeyReused,
                None => Code::TransactionReused,
            };
            let refused = begin(&there, &other).await.refused(reused);
            assert_eq!(refused["side_effects"], "none", "{change}");
            // under another id it is judged
            let mut fresh = body.clone();
            rename(&mut fresh);
            fresh["timeout_ms"] = json!(null);
            if change == "topics gone" && body.get("appends").is_some() {
                begin(&there, &fresh).await.refused(Code::TopicNotFound);
            }
        }
    }
    // nothing was done again
    assert_eq!(orders.len(), read_before(&done));
    assert!(read(&here, "orders", 0).await.is_empty());
    let rows = "select count(*) from oncelog.transactions";
    assert_eq!(number(&here, rows).await, done.len() as i64);
}

/// The calls of a session go by its epoch, as ever.
#[tokio::test]
async fn a_fenced_commit_is_refused_although_its_begin_is_answered() {
    let here = served().await;
    let done = all(&here).await;
    make("sessions opened", &here, &here, &done).await;
    for body in of_sessions(&done) {
        let begun = begin(&here, body).await.ok();
        let id = begun["transaction_id"].as_str().unwrap().parse().unwrap();
        let signature = json!({"producer_id": body["producer_id"], "epoch": body["epoch"]});
        call(&here, id, "commit", &signature).await.refused(Code::ProducerFenced);
    }
}

/// As of a begin, so of a commit that brings the last records.
#[tokio::test]
async fn a_commit_gets_its_outcome_although_its_topics_are_gone() {
    let here = served().await;
    let last = json!({"expected_appends": 1,
        "appends": [{"topic": "fleeting", "records": [{"value": 1}]}]});
    let begin = async || {
        let open = here.post("/v1/transactions").await.created();
        format!("/v1/transactions/{}/commit", open["transaction_id"].as_str().unwrap())
    };
    let (done, open) = (begin().await, begin().await);
    here.topic("fleeting", 1).await;
    let mut first = here.post(&done).json(&last).await.ok();
    first["duplicate"] = json!(true);
    assert_eq!(here.post(&done).json(&last).await.ok(), first);
    here.delete("/v1/topics/fleeting").await.no_content();
    assert_eq!(here.post(&done).json(&last).await.ok(), first);
    // what is not committed is judged, and so is who asks
    here.post(&open).json(&last).await.refused(Code::TopicNotFound);
    let (producer_id, epoch) = here.session("another").await;
    let mut others = last.clone();
    others["producer_id"] = json!(producer_id);
    others["epoch"] = json!(epoch);
    here.post(&done).json(&others).await.refused(Code::TopicNotFound);
}

/// How many records of partition 1 the outcomes tell of.
fn read_before(done: &[(Value, Value)]) -> usize {
    let appends = done.iter().flat_map(|(_, stands)| stands["appends"].as_array().unwrap());
    let here = appends.filter(|append| append["partition"] == 1);
    here.map(|append| append["record_count"].as_u64().unwrap() as usize).sum()
}

/// One that is at work is waited for: its repeat is not refused while it may still be done.
#[tokio::test]
async fn a_repeat_that_would_be_refused_waits_for_the_one_at_work() {
    for form in ["whole records", "whole records offsets"] {
        for (is_signed, is_keyed) in [(false, false), (true, false), (true, true)] {
            let here = served().await;
            let there = replica_of(&here).await;
            let mut signature = json!({});
            if is_signed {
                let (p, epoch) = here.session("p").await;
                signature = json!({"producer_id": p, "epoch": epoch});
            }
            let mut body = body(form, 0, &signature);
            if is_keyed {
                body = keyed(body, 1);
            }
            let mut connection = here.options.connect().await.unwrap();
            let mut held = connection.begin().await.unwrap();
            held.execute("select from oncelog.logs for no key update").await.unwrap();
            let first = begin(&here, &body).into_future();
            let repeat = async {
                let waits = async |many: i64| {
                    until("calls to wait", async || {
                        (waiting_for_locks(&here.options).await >= many).then_some(())
                    })
                    .await;
                };
                waits(1).await;
                let lower =
                    json!({"max_transaction_timeout_ms": 1_000, "transaction_timeout_ms": 1_000});
                there.patch("/v1/settings").json(lower).await.ok();
                let repeat = begin(&there, &body).into_future();
                let release = async {
                    waits(2).await;
                    held.commit().await.unwrap();
                };
                tokio::join!(repeat, release).0
            };
            let (first, repeat) = tokio::join!(first, repeat);
            let mut first = first.created();
            first["duplicate"] = json!(true);
            assert_eq!(repeat.ok(), first, "{form}");
        }
    }
}
