//! One-request transactions with an `Idempotency-Key` of any form: once for each key.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::model::Code;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Executor, PgConnection};
use uuid::Uuid;

use super::{
    ALL, KEY, append, begin, committed_offset, id_at, number, read, replica_of, step,
    waiting_for_locks,
};
use crate::{
    metrics::Measured,
    support::{
        self,
        http::{Answer, Server, token},
        served::until,
    },
};

const HOUR_MS: i64 = 3_600_000;
const MADE_3_HOURS_OLDER: &str =
    "update oncelog.transactions set remembered_from = remembered_from - interval '3 hours'";

async fn served() -> Server {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    server.topic("paid", 1).await;
    server
}

/// One record under a key.
fn whole(key: &str, value: &Value) -> Value {
    json!({KEY: key, "commit": true, "appends": [append("orders", 0, std::slice::from_ref(value))]})
}

async fn values(server: &Server, partition: i32) -> Vec<Value> {
    super::values(server, "orders", partition).await
}

/// Refused, with the header named.
fn is_invalid(answer: Answer, wanted: &str) {
    let problem = answer.refused(Code::InvalidRequest);
    let error = &problem["errors"][0];
    assert_eq!(error["pointer"], KEY, "{problem}");
    assert!(error["detail"].as_str().unwrap().contains(wanted), "{problem}");
}

#[tokio::test]
async fn any_key_makes_a_transaction_safe_to_repeat() {
    let here = served().await;
    let there = replica_of(&here).await;
    let v7 = Uuid::now_v7().to_string();
    let ahead = id_at(24 * HOUR_MS - 60_000).to_string();
    let keys = ["evt_1P2", "a", &"k".repeat(255), "a b~!\"", &v7, &v7.to_uppercase(), &ahead];
    for (number, key) in keys.into_iter().enumerate() {
        let body = whole(key, &json!(number));
        let first = begin(&here, &body).await;
        let id = first.json()["transaction_id"].as_str().unwrap().to_owned();
        assert_eq!(first.header("location").unwrap(), format!("{ALL}/{id}"));
        let mut first = first.created();
        assert_eq!((&first["duplicate"], &first["state"]), (&json!(false), &json!("committed")));
        first["duplicate"] = json!(true);
        for replica in [&here, &there] {
            assert_eq!(begin(replica, &body).await.ok(), first, "{key}");
            let other = whole(key, &json!("other"));
            begin(replica, &other).await.refused(Code::IdempotencyKeyReused);
        }
        // an append's key is another
        let records = json!({"records": [{"value": key}]});
        let append = here.post("/v1/topics/orders/partitions/1/records").json(records);
        assert_eq!(append.header(KEY, key).await.ok()["duplicate"], false);
    }
    let wanted: Vec<Value> = (0..keys.len()).map(|number| json!(number)).collect();
    assert_eq!(values(&there, 0).await, wanted);
}

#[tokio::test]
async fn a_key_is_its_tenants() {
    let server = Server::signed().await;
    for tenant in ["one", "two"] {
        let token = token(tenant, "admin produce");
        let topic = server.put("/v1/topics/orders").json(json!({"partition_count": 1}));
        topic.token(&token).await.created();
        let body = whole("evt_1", &json!(tenant));
        begin(&server, &body).token(&token).await.created();
        assert_eq!(begin(&server, &body).token(&token).await.ok()["duplicate"], true);
    }
}

#[tokio::test]
async fn a_key_that_cannot_be_taken_is_refused() {
    let server = served().await;
    let body = |key: &str| whole(key, &json!(1));
    is_invalid(begin(&server, &body("")).await, "1 to 255 printable");
    is_invalid(begin(&server, &body(&"k".repeat(256))).await, "1 to 255 printable");
    let twice = server.post(ALL).json(json!({"commit": true}));
    is_invalid(twice.header(KEY, "a").header(KEY, "a").await, "only once");
    let mut both = body("k");
    both["transaction_id"] = json!(Uuid::now_v7());
    is_invalid(begin(&server, &both).await, "not both");
    for commit in [json!(false), Value::Null] {
        let mut open = body("k");
        open["commit"] = commit;
        is_invalid(begin(&server, &open).await, "only with \"commit\": true");
    }
    let id = super::begun(&server, json!({})).await;
    for verb in ["records", "offsets", "prepare", "commit", "abort"] {
        let call = super::call(&server, id, verb, &json!({})).header(KEY, "k");
        is_invalid(call.await, "only a one-request transaction");
    }
    let too_far = id_at(24 * HOUR_MS + 60_000).to_string();
    is_invalid(begin(&server, &body(&too_far)).await, "at most 24 hours ahead");
    assert!(values(&server, 0).await.is_empty());
    assert_eq!(number(&server, "select count(*) from oncelog.transactions").await, 1);
}

#[tokio::test]
async fn a_refused_transaction_leaves_its_key_free() {
    let server = served().await;
    let (producer_id, epoch) = server.session("p").await;
    let mut bodies = Vec::new();
    for key in ["topic", "offset", "offsets alone", "session"] {
        let mut body = whole(key, &json!(key));
        match key {
            "topic" => body["appends"][0]["topic"] = json!("later"),
            "session" => (body["producer_id"], body["epoch"]) = (json!(producer_id), json!(9)),
            _ => body["offsets"] = json!([step("paid", 0, json!(7), 0)]),
        }
        if key == "offsets alone" {
            body.as_object_mut().unwrap().remove("appends");
        }
        bodies.push(body);
    }
    let wanted = [
        Code::TopicNotFound,
        Code::OffsetCommitConflict,
        Code::OffsetCommitConflict,
        Code::InvalidProducerEpoch,
    ];
    for (body, code) in bodies.iter().zip(wanted) {
        begin(&server, body).await.refused(code);
    }
    assert_eq!(number(&server, "select count(*) from oncelog.transactions").await, 0);
    server.topic("later", 1).await;
    let mut from = Value::Null;
    for body in &mut bodies {
        if let Some(offset) = body.get_mut("offsets") {
            *offset = json!([step("paid", 0, from, 0)]);
            from = json!(0);
        }
        if body.get("epoch").is_some() {
            body["epoch"] = json!(epoch);
        }
        begin(&server, body).await.created();
        begin(&server, body).await.ok();
    }
    assert_eq!(committed_offset(&server, "paid", 0).await, Some(0));
}

#[tokio::test]
async fn a_session_with_an_ongoing_transaction_is_told_so_and_the_key_stays_free() {
    let server = served().await;
    let (producer_id, epoch) = server.session("p").await;
    let signature = json!({"producer_id": producer_id, "epoch": epoch});
    let ongoing = super::begun(&server, signature.clone()).await;
    let empty = json!({KEY: "empty", "commit": true});
    let mut offsets = json!({KEY: "offsets", "commit": true});
    offsets["offsets"] = json!([step("paid", 0, Value::Null, 0)]);
    let bodies = [empty, offsets, whole("records", &json!(1))].map(|mut body| {
        (body["producer_id"], body["epoch"]) = (json!(producer_id), json!(epoch));
        body
    });
    for body in &bodies {
        begin(&server, body).await.refused(Code::ConcurrentTransactions);
    }
    super::call(&server, ongoing, "abort", &signature).await.ok();
    for body in &bodies {
        begin(&server, body).await.created();
        assert_eq!(begin(&server, body).await.ok()["duplicate"], true);
    }
}

/// A key with an instant never runs twice; any other is new again.
#[tokio::test]
async fn a_key_is_forgotten_with_its_outcome() {
    let server = served().await;
    // the window of ids and of other keys plays no part
    server.patch("/v1/settings").json(json!({"dedup_window_ms": 0})).await.ok();
    let remember_for = async |ms: i64| {
        let body = json!({"transaction_retention_ms": ms});
        server.patch("/v1/settings").json(body).await.ok();
    };
    remember_for(HOUR_MS).await;
    let of = |from_now_ms: i64| id_at(from_now_ms).to_string();
    let (old, late, ahead) = (of(-HOUR_MS / 2), of(-2 * HOUR_MS), of(6 * HOUR_MS));
    begin(&server, &whole(&late, &json!("late"))).await.refused(Code::IdempotencyKeyExpired);
    for key in ["evt_1", &old, &ahead] {
        begin(&server, &whole(key, &json!(key))).await.created();
    }
    server.sql(MADE_3_HOURS_OLDER).await;
    // a row always wins: nobody has forgotten it yet
    for key in ["evt_1", &old, &ahead] {
        begin(&server, &whole(key, &json!(key))).await.ok();
    }
    remember_for(1_000).await;
    server.broker.sweep().await.unwrap();
    assert_eq!(number(&server, "select count(*) from oncelog.transactions").await, 1);
    for retention_ms in [1_000, 24 * HOUR_MS] {
        remember_for(retention_ms).await;
        let refused = begin(&server, &whole(&old, &json!(old))).await;
        assert_eq!(refused.refused(Code::IdempotencyKeyExpired)["retry"], "never");
    }
    begin(&server, &whole(&ahead, &json!(ahead))).await.ok();
    begin(&server, &whole("evt_1", &json!("again"))).await.created();
    assert_eq!(
        values(&server, 0).await,
        [json!("evt_1"), json!(old), json!(ahead), json!("again")]
    );
}

/// Whatever the transaction does, and however it is written.
#[tokio::test]
async fn a_key_from_the_future_is_remembered_until_then_and_as_long_after() {
    let server = served().await;
    let (producer_id, epoch) = server.session("p").await;
    let mut offsets = json!({"commit": true, "offsets": [step("paid", 0, Value::Null, 0)]});
    begin(&server, &offsets).await.created();
    offsets["offsets"][0]["expected_offset"] = json!(0);
    let records = whole("", &json!(1));
    let mut of_session = records.clone();
    (of_session["producer_id"], of_session["epoch"]) = (json!(producer_id), json!(epoch));
    let mut both = records.clone();
    both["offsets"] = offsets["offsets"].clone();
    let forms = [records, of_session, offsets, both, json!({"commit": true})];
    let mut bodies = Vec::new();
    for body in &forms {
        for key in [id_at(6 * HOUR_MS), id_at(-HOUR_MS)] {
            let mut body = body.clone();
            body[KEY] = json!(key);
            begin(&server, &body).await.created();
            bodies.push(body);
        }
    }
    server.sql(MADE_3_HOURS_OLDER).await;
    server.patch("/v1/settings").json(json!({"transaction_retention_ms": 1_000})).await.ok();
    server.broker.sweep().await.unwrap();
    for pair in bodies.chunks(2) {
        assert_eq!(begin(&server, &pair[0]).await.ok()["duplicate"], true, "{}", pair[0]);
        begin(&server, &pair[1]).await.refused(Code::IdempotencyKeyExpired);
    }
    assert_eq!(values(&server, 0).await.len(), 6);
}

/// Many clients send the same few transactions through two replicas, in any order, with keys, with
/// ids and with neither, beside each other in one pass or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_random_each_key_is_done_once() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let here = served().await;
    let replicas = [replica_of(&here).await, here];
    for round in 0..12 {
        let mut rng = StdRng::seed_from_u64(seed + round);
        let keys: Vec<String> = (0..24)
            .map(|n| match n % 3 {
                0 => Uuid::now_v7().to_string(),
                _ => format!("{round}-{n}"),
            })
            .collect();
        let ids = keys.iter().map(|_| Uuid::now_v7()).collect::<Vec<_>>();
        let body = |n: usize| {
            let mut body = json!({"commit": true});
            if n % 6 != 5 {
                let values = [json!(format!("{round}-{n}"))];
                body["appends"] = json!([append("orders", (n % 2) as i32, &values)]);
            }
            match n % 4 {
                3 => body["transaction_id"] = json!(ids[n]),
                _ => body[KEY] = json!(keys[n]),
            }
            body
        };
        let bodies: Vec<Value> = (0..keys.len()).map(body).collect();
        let mut order: Vec<usize> = (0..bodies.len()).chain(0..bodies.len()).collect();
        order.extend((0..bodies.len()).filter(|_| rng.random_ratio(1, 2)));
        order.shuffle(&mut rng);
        let calls: Vec<_> = order
            .iter()
            .map(|n| {
                let call = begin(&replicas[rng.random_range(0..2)], &bodies[*n]);
                tokio::spawn(call.into_future())
            })
            .collect();
        let mut told: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        for (n, call) in order.iter().zip(calls) {
            let answer = call.await.unwrap();
            assert!([200, 201].contains(&answer.status), "{}", answer.text());
            told.entry(*n).or_default().push(answer.json());
        }
        for (n, mut answers) in told {
            let firsts = answers.iter().filter(|answer| answer["duplicate"] == false).count();
            assert_eq!(firsts, 1, "{}: {answers:?}", bodies[n]);
            let strip = |answer: &mut Value| {
                answer.as_object_mut().unwrap().remove("duplicate");
            };
            answers.iter_mut().for_each(strip);
            answers.dedup();
            assert_eq!(answers.len(), 1, "{}: {answers:?}", bodies[n]);
        }
    }
    for partition in 0..2 {
        let records = read(&replicas[0], "orders", partition).await;
        let distinct: BTreeSet<String> =
            records.iter().map(|(value, _)| value.to_string()).collect();
        assert_eq!(distinct.len(), records.len(), "a transaction was done twice");
        let wanted = (0..24).filter(|n| n % 2 == partition as usize && n % 6 != 5).count() * 12;
        assert_eq!(records.len(), wanted);
    }
    assert_eq!(crate::support::deadlocks(&replicas[0].options), 0);
}

/// Passes that want the same keys cannot wait for each other in a circle: each claims its keys in
/// the order of their hashes. Here one waits in the middle of its keys, and holds none beyond it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pass_claims_its_keys_in_one_order() {
    // the hashes of the keys are the same in every database
    let elsewhere = served().await;
    let names: Vec<String> = (0..12).map(|n| format!("evt_{n}")).collect();
    let mut keys = Vec::new();
    for name in &names {
        begin(&elsewhere, &whole(name, &json!(0))).await.created();
        let hash = "select key from oncelog.transaction_keys order by transaction_id desc limit 1";
        let mut connection = elsewhere.options.connect().await.unwrap();
        keys.push((
            sqlx::query_scalar::<_, Uuid>(hash).fetch_one(&mut connection).await.unwrap(),
            name,
        ));
    }
    let (_, first) = keys[0];
    keys[1..].sort();
    let middle = keys.len() / 2;

    let options = support::database().await;
    let here = Measured::start(&options, &[]).await;
    here.client.put_topic("orders", 1).await;
    let [mut for_first, mut for_middle, mut other] =
        [options.connect().await, options.connect().await, options.connect().await]
            .map(Result::unwrap);
    let claim = async |connection: &mut PgConnection, key: Uuid| {
        let claim = "insert into oncelog.transaction_keys (tenant_id, key, transaction_id) \
            select tenant_id, $1, gen_random_uuid() from oncelog.tenants where name = 'default'";
        sqlx::query(claim).bind(key).execute(connection).await
    };
    for (connection, key) in [(&mut for_first, keys[0].0), (&mut for_middle, keys[middle].0)] {
        connection.execute("begin").await.unwrap();
        claim(connection, key).await.unwrap();
    }
    let send = |name: &str| {
        let (client, name) = (here.client.clone(), name.to_owned());
        let body = json!({"commit": true, "appends": [append("orders", 0, &[json!(name)])]});
        tokio::spawn(async move {
            let headers = [("content-type", "application/json"), (KEY, &name)];
            client.send(Method::POST, ALL, &headers, Some(body.to_string())).await.unwrap().ok(201)
        })
    };
    let waits = async || (waiting_for_locks(&options).await > 0).then_some(());
    let mut calls = vec![send(first)];
    until("the lane to be busy", waits).await;
    // ids are made at arrival: in the opposite order
    for (queued, (_, name)) in keys[1..].iter().rev().enumerate() {
        calls.push(send(name));
        here.until("oncelog_queued_appends", &[], queued as f64 + 1.0).await;
    }
    for_first.execute("rollback").await.unwrap();
    here.until("oncelog_queued_appends", &[], 0.0).await;
    until("the pass to wait for the key in the middle", waits).await;

    other.execute("begin; set local lock_timeout = '100ms'").await.unwrap();
    for (key, _) in &keys[1..middle] {
        other.execute("savepoint held").await.unwrap();
        claim(&mut other, *key).await.unwrap_err();
        other.execute("rollback to held").await.unwrap();
    }
    other.execute("set local lock_timeout = '10s'").await.unwrap();
    for (key, _) in &keys[middle + 1..] {
        claim(&mut other, *key).await.unwrap();
    }
    other.execute("rollback").await.unwrap();
    for_middle.execute("rollback").await.unwrap();
    for call in calls {
        call.await.unwrap();
    }
}
