//! Calls with an `Idempotency-Key` other than appends: opens of sessions, joins of groups, commits
//! of offsets. To simulate time, the tests change timestamps in the database.

mod expiry;
mod fencing;
mod payloads;
mod races;

use oncelog::model::Code;
use serde_json::{Value, json};

use crate::support::http::{Answer, Call, Server, Setup, shared_keys, token};

const OPEN: &str = "/v1/sessions";
const JOIN: &str = "/v1/groups/g/members";
const COMMIT: &str = "/v1/groups/h/offsets";

/// Each call, and what it may ask for on a server with the topic `orders`.
fn calls() -> [(&'static str, Value); 3] {
    [
        (OPEN, json!({"transactional_id": "p"})),
        (JOIN, json!({"topics": ["orders"]})),
        (
            COMMIT,
            json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 0, "metadata": "m"}]}),
        ),
    ]
}

/// How often the calls above have been done: in epochs, members, commits.
const DONE: &str = "select coalesce((select sum(epoch + 1) from oncelog.sessions), 0)::bigint \
    + (select count(*) from oncelog.group_members) \
    + (select count(*) from oncelog.group_offsets where committed_offset is not null)";

impl Server {
    fn keyed(&self, path: &str, key: &str, body: &Value) -> Call {
        self.post(path).json(body).header("idempotency-key", key)
    }
}

async fn server() -> Server {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server
}

/// The text of the answer to a repeat of what was answered so.
fn repeated(first: &Answer) -> String {
    let text = first.text();
    match text.strip_suffix(r#""duplicate":false}"#) {
        Some(rest) => format!(r#"{rest}"duplicate":true}}"#),
        None => format!(r#"{},"duplicate":true}}"#, text.strip_suffix('}').unwrap()),
    }
}

#[track_caller]
fn is_repeat(again: &Answer, first: &Answer) {
    assert_eq!((again.status, again.text()), (first.status, &*repeated(first)));
    assert_eq!(again.header("location"), first.header("location"));
}

#[tokio::test]
async fn a_repeat_is_answered_as_the_first_one_was() {
    let server = server().await;
    for (path, body) in calls() {
        let first = server.keyed(path, "k", &body).await;
        assert_eq!(first.status, if path == COMMIT { 200 } else { 201 });
        assert_ne!(first.json()["duplicate"], true);
        let done = server.number(DONE).await;
        is_repeat(&server.keyed(path, "k", &body).await, &first);
        // what is asked for counts, not how it is written
        let mut spacious = body.clone();
        let absent = match path {
            OPEN => "open_id",
            JOIN => "instance_id",
            _ => "cursor",
        };
        spacious[absent] = Value::Null;
        let spacious = serde_json::to_string_pretty(&spacious).unwrap();
        let again = server.post(path).json(spacious).header("Idempotency-Key", "k");
        is_repeat(&again.header("traceparent", "00-1-2-03").await, &first);
        assert_eq!(server.number(DONE).await, done);
        // another key is another call
        server.keyed(path, "l", &body).await;
    }
    assert_eq!(server.number("select count(*) from oncelog.dedup_keys").await, 6);
}

#[tokio::test]
async fn a_repeat_is_answered_as_it_was_whatever_came_since() {
    let server = server().await;
    let (p, _) = server.session("p").await;
    let append = async |epoch: i64, sequence: i64| {
        let body = json!({"producer_id": p, "epoch": epoch, "sequence": sequence,
            "records": [{"value": 1}]});
        server.post("/v1/topics/orders/records").json(body).await.ok()
    };
    append(0, 0).await;
    let [(_, open), (_, join), (_, commit)] = calls();
    let opened = server.keyed(OPEN, "k", &open).await;
    let next = json!([{"topic": "orders", "next_sequence": 1}]);
    assert_eq!(opened.created()["next_sequences"], next);
    append(1, 1).await;
    let joined = server.keyed(JOIN, "k", &join).await;
    let member = joined.created()["member_id"].as_str().unwrap().to_owned();
    server.delete(&format!("{JOIN}/{member}")).await.no_content();
    let committed = server.keyed(COMMIT, "k", &commit).await;
    committed.ok();
    server.delete("/v1/groups/h").await.no_content();
    server.patch("/v1/settings").json(json!({"session_timeout_max_ms": 1_000})).await.ok();
    server.delete("/v1/topics/orders").await.no_content();
    // also where the call would be refused by now
    is_repeat(&server.keyed(OPEN, "k", &open).await, &opened);
    is_repeat(&server.keyed(JOIN, "k", &join).await, &joined);
    is_repeat(&server.keyed(COMMIT, "k", &commit).await, &committed);
    assert_eq!(server.number("select epoch from oncelog.sessions").await, 1);
    assert_eq!(server.number("select count(*) from oncelog.group_members").await, 0);
    server.get("/v1/groups/h").await.refused(Code::GroupNotFound);
}

#[tokio::test]
async fn what_is_refused_leaves_its_key_free() {
    let server = Server::start().await;
    let [(_, mut open), (_, join), (_, commit)] = calls();
    open["transaction_timeout_ms"] = json!(900_001);
    server.keyed(OPEN, "k", &open).await.invalid(&["/transaction_timeout_ms"]);
    server.keyed(JOIN, "k", &join).await.refused(Code::TopicNotFound);
    server.keyed(COMMIT, "k", &commit).await.refused(Code::TopicNotFound);
    assert_eq!(server.number("select count(*) from oncelog.dedup_keys").await, 0);
    assert_eq!(server.number("select count(*) from oncelog.groups").await, 0);
    server.topic("orders", 2).await;
    let longer = json!({"max_transaction_timeout_ms": 900_001});
    server.patch("/v1/settings").json(longer).await.ok();
    for (path, body) in [(OPEN, open), (JOIN, join), (COMMIT, commit)] {
        let first = server.keyed(path, "k", &body).await;
        assert!(first.status < 300 && first.json()["duplicate"] != true, "{}", first.text());
        is_repeat(&server.keyed(path, "k", &body).await, &first);
    }
    // a refusal under the lock
    let body = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 0,
        "expected_offset": 7}]});
    server.keyed(COMMIT, "l", &body).await.refused(Code::OffsetCommitConflict);
    server.sql("update oncelog.group_offsets set committed_offset = 7").await;
    assert!(server.keyed(COMMIT, "l", &body).await.ok().get("duplicate").is_none());
}

#[tokio::test]
async fn an_open_that_an_open_id_repeats_is_remembered_as_that() {
    let server = server().await;
    let open = json!({"transactional_id": "p", "open_id": uuid::Uuid::now_v7()});
    server.post(OPEN).json(&open).await.created();
    let first = server.keyed(OPEN, "k", &open).await;
    assert_eq!(first.ok()["duplicate"], true);
    // opened by others since: the key answers what it has answered
    server.session("p").await;
    let again = server.keyed(OPEN, "k", &open).await;
    assert_eq!((again.status, again.text()), (200, first.text()));
}

#[tokio::test]
async fn a_key_belongs_to_its_tenant_and_path() {
    let server = Server::with(Setup { keys: shared_keys(), ..Setup::default() }).await;
    let scope = "produce consume group admin";
    let [one, other] = ["one", "other"].map(|tenant| token(tenant, scope));
    for token in [&one, &other] {
        let topic = server.put("/v1/topics/orders").json(json!({"partition_count": 2}));
        topic.token(token).await.created();
    }
    let [(_, open), (_, join), (_, commit)] = calls();
    let places = [(OPEN, &open), (JOIN, &join), ("/v1/groups/G/members", &join), (COMMIT, &commit)];
    for (path, body) in places.into_iter().chain([("/v1/groups/H/offsets", &commit)]) {
        for token in [&one, &other] {
            let first = server.keyed(path, "k", body).token(token).await;
            assert!(first.status < 300 && first.json()["duplicate"] != true, "{}", first.text());
            is_repeat(&server.keyed(path, "k", body).token(token).await, &first);
        }
    }
    // written otherwise it is the same path
    let again = server.keyed("/v1/groups/%67/members", "k", &join).token(&one).await;
    assert_eq!(again.created()["duplicate"], true);
}

#[tokio::test]
async fn a_key_is_1_to_255_printable_characters_given_once() {
    let server = server().await;
    let (longest, too_long) = ("k".repeat(255), "k".repeat(256));
    for (path, body) in calls() {
        let first = server.keyed(path, &longest, &body).await;
        is_repeat(&server.keyed(path, &longest, &body).await, &first);
        for bad in ["", &too_long, "a\tb"] {
            server.keyed(path, bad, &body).await.invalid(&["Idempotency-Key"]);
        }
        let twice = server.keyed(path, "k", &body).header("idempotency-key", "k");
        twice.await.invalid(&["Idempotency-Key"]);
    }
}

#[tokio::test]
async fn calls_that_need_no_key_refuse_it_or_ignore_it() {
    let server = server().await;
    let joined = server.post(JOIN).json(json!({"topics": ["orders"]})).await.created();
    let member = format!("{JOIN}/{}", joined["member_id"].as_str().unwrap());
    let heartbeat = format!("{member}/heartbeat");
    let reset = json!({"to": "earliest"});
    for (path, body) in [(&*heartbeat, json!({})), ("/v1/groups/g/offsets/reset", reset)] {
        server.keyed(path, "k", &body).await.invalid(&["Idempotency-Key"]);
    }
    let put = server.put("/v1/topics/orders").json(json!({"partition_count": 2}));
    put.header("idempotency-key", "k").await.ok();
    server.get("/v1/topics").header("idempotency-key", "k").await.ok();
    server.delete(&member).header("idempotency-key", "k").await.no_content();
    assert_eq!(server.number("select count(*) from oncelog.dedup_keys").await, 0);
}
