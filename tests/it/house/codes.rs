//! Every error code there is comes out of a real server, and is all that the contract says of it.

use std::collections::BTreeSet;

use oncelog::{
    broker::ServiceConfig,
    http::Limits,
    model::{Code, Retry},
};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use crate::support::{
    self,
    http::{Answer, Server, Setup, token},
    proxy::Proxy,
};

/// The facts the contract lists for a code.
fn facts(code: Code) -> &'static [&'static str] {
    match code {
        Code::InvalidRequest | Code::DuplicateRecord | Code::RecordIdReused => &["errors"],
        Code::Forbidden => &["required_scope"],
        Code::ProducerFenced | Code::InvalidProducerEpoch => &["current_epoch"],
        Code::OffsetMismatch => &["expected_offset", "next_offset"],
        Code::UnknownProducerState => &["expected"],
        Code::OutOfOrderSequence => &["expected", "received"],
        Code::PayloadTooLarge | Code::BatchTooLarge => &["limit"],
        Code::QuotaExceeded | Code::RateLimited => &["limit"],
        Code::OffsetOutOfRange => &["log_start_offset", "high_watermark"],
        Code::InvalidTransactionState => &["state", "reason"],
        Code::OffsetCommitConflict => &["expected_offset", "committed_offset"],
        Code::AppendsMissing => &["expected", "received"],
        Code::IllegalGeneration => &["generation"],
        Code::ConcurrentTransactions | Code::TopicInUse => &["transaction_id"],
        Code::TransactionTooLarge => &["limit"],
        _ => &[],
    }
}

const MEMBERS: [&str; 8] =
    ["type", "title", "status", "detail", "instance", "code", "retry", "side_effects"];

/// All that a problem of this code has to be.
#[track_caller]
fn check(code: Code, answer: &Answer) {
    let problem = answer.refused(code);
    let text = code.as_str();
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{text}");
    assert_eq!(problem["type"], format!("urn:oncelog:problem:{text}"));
    assert_eq!(problem["title"], code.title());
    assert_eq!(problem["status"], code.status());
    assert_eq!(problem["retry"], code.retry().as_str());
    assert_eq!(problem["side_effects"], code.side_effects().as_str());
    assert!(!problem["detail"].as_str().unwrap().is_empty(), "{text}");
    let id = answer.header("x-request-id").unwrap();
    assert_eq!(problem["instance"], format!("urn:oncelog:request:{id}"));
    let mut members: Vec<&str> = MEMBERS.iter().chain(facts(code)).copied().collect();
    members.sort_unstable();
    let mut got: Vec<&str> = problem.as_object().unwrap().keys().map(String::as_str).collect();
    got.sort_unstable();
    assert_eq!(got, members, "{text}");
    // a limit of the tenant does not pass by itself
    let patient = code.retry() == Retry::Later || code.status() == 503;
    let seconds = answer.header("retry-after").map(|text| text.parse::<u64>().unwrap());
    assert_eq!(seconds.is_some_and(|seconds| seconds > 0), patient, "{text}: {seconds:?}");
    let challenge = (code == Code::Unauthenticated).then_some("Bearer");
    assert_eq!(answer.header("www-authenticate"), challenge, "{text}");
    assert_eq!(answer.header("allow").is_some(), code == Code::MethodNotAllowed, "{text}");
}

type Produced = Vec<(Code, Answer)>;

#[tokio::test]
async fn every_code_is_produced() {
    let mut produced = of_shape().await;
    produced.extend(of_tokens().await);
    produced.extend(of_topics().await);
    produced.extend(of_producers().await);
    produced.extend(of_keys().await);
    produced.extend(of_transaction_ids().await);
    produced.extend(of_transactions().await);
    produced.extend(of_groups().await);
    produced.extend(of_sick_databases().await);
    produced.push((Code::OutcomeUnknown, lost_outcome().await));
    let codes: BTreeSet<Code> = produced.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, Code::ALL.iter().copied().collect(), "a code without a row");
    for (code, answer) in &produced {
        check(*code, answer);
    }
}

async fn of_keys() -> Produced {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let path = "/v1/topics/orders/records";
    let send = |value: i64, on_duplicate: &str| {
        let records = json!([{"id": "a", "value": value}]);
        server.post(path).json(json!({"on_duplicate": on_duplicate, "records": records}))
    };
    send(1, "skip").await.ok();
    let old = "01000000-0000-7000-8000-000000000000";
    let keyed = server.post(path).header("idempotency-key", old);
    vec![
        (Code::RecordIdReused, send(2, "skip").await),
        (Code::DuplicateRecord, send(1, "refuse").await),
        (Code::IdempotencyKeyExpired, keyed.json(json!({"records": [{"value": 1}]})).await),
    ]
}

async fn of_shape() -> Produced {
    let limits = Limits { max_body_bytes: 1_000, body_timeout_ms: 100, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    let sessions = || server.post("/v1/sessions");
    let slow = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 9\r\n\r\n{";
    vec![
        (Code::InvalidRequest, sessions().json(json!({"producer": 1})).await),
        (Code::RouteNotFound, server.get("/v2/topics").await),
        (Code::MethodNotAllowed, server.post("/v1/topics").await),
        (Code::NotAcceptable, server.get("/v1/topics").header("accept", "text/html").await),
        (Code::RequestTimeout, server.raw(slow).await),
        (Code::PayloadTooLarge, sessions().json(" ".repeat(1_001)).await),
        (Code::UnsupportedMediaType, sessions().header("content-type", "text/plain").await),
    ]
}

async fn of_tokens() -> Produced {
    let server = Server::signed().await;
    let consumer = token("acme", "consume");
    let operator = token("acme", "operator");
    vec![
        (Code::TenantNotFound, server.get("/v1/tenants/none").token(&operator).await),
        (Code::Unauthenticated, server.get("/v1/topics").await),
        (Code::Forbidden, server.put("/v1/topics/orders").token(&consumer).await),
    ]
}

async fn of_topics() -> Produced {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let append = |partition: &str| {
        let path = format!("/v1/topics/orders/partitions/{partition}/records");
        server.post(&path).json(json!({"expected_offset": 5, "records": [{"value": 1}]}))
    };
    let two = json!({"partition_count": 2});
    let many: Vec<_> = (0..1_001).map(|value| json!({"value": value})).collect();
    let many = server.post("/v1/topics/orders/records").json(json!({"records": many}));
    let mut produced = vec![
        (Code::TopicNotFound, server.get("/v1/topics/none").await),
        (Code::PartitionNotFound, append("1").await),
        (Code::TopicExists, server.put("/v1/topics/orders").json(two).await),
        (Code::OffsetMismatch, append("0").await),
        (Code::BatchTooLarge, many.await),
        (
            Code::OffsetOutOfRange,
            server.get("/v1/topics/orders/partitions/0/records?offset=1").await,
        ),
    ];
    server
        .sql(
            "insert into oncelog.topics (tenant_id, name, partition_count) \
            select tenant_id, 'filler-' || i, 1 from oncelog.tenants, generate_series(1, 999) i",
        )
        .await;
    produced.push((Code::QuotaExceeded, server.put("/v1/topics/one-more").await));
    let conditional = server.patch("/v1/settings").header("if-match", "\"another\"").json("{}");
    produced.push((Code::PreconditionFailed, conditional.await));
    server.patch("/v1/settings").json(json!({"max_bytes_in_per_s": 1})).await.ok();
    server.patch("/v1/settings").json(json!({"max_topics": 7})).await.ok();
    produced.push((Code::RateLimited, server.get("/v1/topics").await));
    produced
}

async fn of_producers() -> Produced {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    let (p, _) = server.session("p").await;
    server.session("p").await;
    let append = |id: i64, epoch: i64, partition: i32, sequence: i64, value: i64| {
        let path = format!("/v1/topics/orders/partitions/{partition}/records");
        server.post(&path).json(json!({"producer_id": id, "epoch": epoch, "sequence": sequence,
            "records": [{"value": value}]}))
    };
    append(p, 1, 0, 0, 7).await.ok();
    let open_id = uuid::Uuid::now_v7();
    let open = |id: &str| json!({"transactional_id": id, "open_id": open_id});
    server.post("/v1/sessions").json(open("a")).await.created();
    vec![
        (Code::UnknownProducer, append(p + 1_000, 0, 0, 0, 7).await),
        (Code::ProducerFenced, append(p, 0, 0, 1, 7).await),
        (Code::InvalidProducerEpoch, append(p, 2, 0, 1, 7).await),
        (Code::UnknownProducerState, append(p, 1, 1, 9, 7).await),
        (Code::OutOfOrderSequence, append(p, 1, 0, 9, 7).await),
        (Code::SequenceReused, append(p, 1, 0, 0, 8).await),
        (Code::IdempotencyKeyReused, server.post("/v1/sessions").json(open("b")).await),
        (Code::IdempotencyKeyExpired, {
            let key = "017f22e2-79b0-7cc3-98c4-dc0c0c07398f";
            server.post("/v1/sessions").header("idempotency-key", key).await
        }),
    ]
}

async fn of_transaction_ids() -> Produced {
    let server = Server::start().await;
    let begin = |body: Value| server.post("/v1/transactions").json(body);
    let get = |id: &str| server.get(&format!("/v1/transactions/{id}"));
    let id = Uuid::now_v7();
    begin(json!({"transaction_id": id})).await.created();
    vec![
        (Code::InvalidTransactionId, get("7").await),
        (Code::TransactionNotFound, get(&Uuid::now_v7().to_string()).await),
        (Code::TransactionExpired, get("01900000-0000-7000-8000-000000000000").await),
        (Code::TransactionReused, begin(json!({"transaction_id": id, "timeout_ms": 1_000})).await),
    ]
}

async fn of_transactions() -> Produced {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let (p, _) = server.session("p").await;
    let begin = |body: Value| server.post("/v1/transactions").json(body);
    let call = |id: &Value, call: &str, body: Value| {
        server.post(&format!("/v1/transactions/{}/{call}", id.as_str().unwrap())).json(body)
    };
    let session = json!({"producer_id": p, "epoch": 0});
    let id = &begin(session.clone()).await.created()["transaction_id"];
    let record = json!({"topic": "orders", "records": [{"value": 1}]});
    let mut produced = vec![
        (Code::ConcurrentTransactions, begin(session.clone()).await),
        (
            Code::ProducerMismatch,
            call(id, "prepare", json!({"producer_id": server.session("q").await.0, "epoch": 0}))
                .await,
        ),
        (
            Code::AppendsMissing,
            call(id, "commit", json!({"producer_id": p, "epoch": 0, "expected_appends": 1})).await,
        ),
    ];
    let append = json!({"producer_id": p, "epoch": 0, "appends": [record]});
    call(id, "records", append).await.ok();
    call(id, "prepare", session.clone()).await.ok();
    produced.push((Code::TopicInUse, server.delete("/v1/topics/orders").await));
    call(id, "abort", session.clone()).await.ok();
    produced.push((Code::InvalidTransactionState, call(id, "commit", session).await));
    server.patch("/v1/settings").json(json!({"max_transaction_batches": 1})).await.ok();
    let two = begin(json!({"appends": [record, record]}));
    produced.push((Code::TransactionTooLarge, two.await));
    produced
}

async fn of_groups() -> Produced {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let commit = |group: &str, commit: Value| {
        server.post(&format!("/v1/groups/{group}/offsets")).json(commit)
    };
    let offset = |member: Value| {
        let mut commit = member;
        commit["offsets"] = json!([{"topic": "orders", "partition": 0, "offset": 0}]);
        commit
    };
    let member = || json!({"member_id": "m", "generation": 0});
    let mut by_cursor = member();
    by_cursor["cursor"] = json!("none of ours");
    let mut over = offset(json!({}));
    over["offsets"][0]["expected_offset"] = json!(5);
    commit("billing", offset(json!({}))).await.ok();
    let mut produced = vec![
        (Code::GroupNotFound, server.get("/v1/groups/none/offsets").await),
        (Code::InvalidCursor, commit("billing", by_cursor).await),
        (Code::UnknownMember, commit("billing", offset(member())).await),
        (Code::OffsetCommitConflict, commit("billing", over).await),
    ];
    let join = "insert into oncelog.group_members select tenant_id, name, 'm' from oncelog.groups";
    server.sql(join).await;
    produced.push((Code::IllegalGeneration, commit("billing", offset(member())).await));
    produced.push((Code::GroupNotEmpty, commit("billing", offset(json!({}))).await));
    produced
}

async fn of_sick_databases() -> Produced {
    // A server that is not there: its socket's directory is not.
    let nowhere = PgConnectOptions::new_without_pgpass().socket("/nonexistent/postgres");
    let lost = Server::on(&nowhere, Setup::default()).await;
    let unavailable = lost.get("/v1/topics").await;
    let mut not_ready = {
        let id = unavailable.header("x-request-id").unwrap();
        let readyz = lost.get("/readyz").header("x-request-id", id).await;
        readyz.refused(Code::Unavailable)
    };
    assert_eq!(not_ready.as_object_mut().unwrap().remove("reason"), Some(json!("database")));
    assert_eq!(not_ready, unavailable.refused(Code::Unavailable));
    // A row that cannot be.
    let broken = Server::start().await;
    broken.topic("orders", 1).await;
    broken.sql("update oncelog.topics set name = 'not a name'").await;
    let internal = broken.get("/v1/topics").await;
    assert!(!internal.text().contains("not a name"), "a client sees no data of the database");
    // One that shuts down.
    let leaving = Server::start().await;
    leaving.broker.drain();
    assert_eq!(leaving.get("/readyz").await.refused(Code::Draining)["reason"], "draining");
    leaving.get("/livez").await.ok();
    let draining = leaving.get("/v1/topics").await;
    vec![(Code::Unavailable, unavailable), (Code::Internal, internal), (Code::Draining, draining)]
}

/// The database goes away after it was sent an append that nothing makes repeatable.
async fn lost_outcome() -> Answer {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 7).await;
    let setup = Setup { settings: ServiceConfig::default(), ..Setup::default() };
    let server = Server::on(&proxy.options(&options), setup).await;
    server.topic("orders", 1).await;
    let append = || server.post("/v1/topics/orders/records").json(r#"{"records":[{"value":1}]}"#);
    for _ in 0..20 {
        // the topic is resolved, the lane connected and warm
        let warm = [append().await.status, append().await.status];
        if warm != [200, 200] {
            continue;
        }
        proxy.close_gate();
        let cut = async {
            while proxy.held() == 0 {
                tokio::task::yield_now().await;
            }
            proxy.cut_all();
            proxy.open_gate();
        };
        let (answer, ()) = tokio::join!(append(), cut);
        // on a slow machine the name had to be resolved again, and that was cut
        if answer.json()["code"] != Code::Unavailable.as_str() {
            return answer;
        }
    }
    panic!("the append itself was never cut");
}
