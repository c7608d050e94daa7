//! Tenants' settings over HTTP: what is told, changed and refused, and that each does what it says.

use oncelog::model::{Code, settings::Key};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection, Executor};

use crate::support::{
    http::{Answer, Server, Setup, token},
    served::until,
};

const SETTINGS: &str = "/v1/settings";
const RECORDS: &str = "/v1/topics/orders/partitions/0/records";

fn of(answer: &Answer, key: &str) -> (Value, Value) {
    let settings = answer.ok();
    (settings["settings"][key].clone(), settings["origins"][key].clone())
}

fn etag(answer: &Answer) -> String {
    let etag = answer.header("etag").unwrap();
    assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() > 2, "{etag}");
    etag.to_owned()
}

#[tokio::test]
async fn settings_are_told_with_their_origins_and_maxima() {
    let server = Server::start().await;
    let settings = server.get(SETTINGS).await.ok();
    let names: Vec<&String> = settings.as_object().unwrap().keys().collect();
    assert_eq!(names, ["maxima", "origins", "settings"]);
    for key in Key::ALL {
        let row = key.setting();
        assert_eq!(settings["settings"][row.name], json!(row.default), "{}", row.name);
        assert_eq!(settings["origins"][row.name], "default", "{}", row.name);
        let maximum = row.choices.is_empty().then(|| json!(row.maximum));
        assert_eq!(settings["maxima"].get(row.name), maximum.as_ref(), "{}", row.name);
    }
    let day_ms = 86_400_000;
    for (key, want) in [
        ("transaction_timeout_ms", 60_000),
        ("max_transaction_timeout_ms", 900_000),
        ("transaction_retention_ms", 7 * day_ms),
        ("max_transaction_batches", 10_000),
        ("producer_expiry_ms", 7 * day_ms),
        ("transactional_id_expiry_ms", 7 * day_ms),
        ("max_batch_records", 1_000),
        ("max_batch_bytes", 1 << 20),
        ("max_record_bytes", 1 << 20),
        ("max_topics", 1_000),
        ("max_partitions", 10_000),
    ] {
        assert_eq!(settings["settings"][key], want, "{key}");
    }
    assert_eq!(settings["settings"].as_object().unwrap().len(), Key::ALL.len());
}

#[tokio::test]
async fn a_patch_merges() {
    let server = Server::start().await;
    let patch = |body: Value| server.patch(SETTINGS).json(body);
    let patched = patch(json!({"max_topics": 5, "producer_expiry_ms": null})).await;
    assert_eq!(of(&patched, "max_topics"), (json!(5), json!("tenant")));
    assert_eq!(of(&patched, "producer_expiry_ms"), (Value::Null, json!("tenant")));
    assert_eq!(of(&patched, "max_partitions"), (json!(10_000), json!("default")));
    let read = server.get(SETTINGS).await;
    assert_eq!((read.ok(), etag(&read)), (patched.ok(), etag(&patched)));
    // what is absent stays; what is the default all the same is the tenant's
    let second = patch(json!({"max_topics": "default", "max_partitions": 10_000})).await;
    assert_eq!(of(&second, "max_topics"), (json!(1_000), json!("default")));
    assert_eq!(of(&second, "max_partitions"), (json!(10_000), json!("tenant")));
    assert_eq!(of(&second, "producer_expiry_ms"), (Value::Null, json!("tenant")));
    assert_ne!(etag(&second), etag(&patched));
    // repeated, nothing changes, and nothing at all with an empty one
    for body in [json!({"max_topics": "default", "max_partitions": 10_000}), json!({})] {
        let again = patch(body).await;
        assert_eq!((again.ok(), etag(&again)), (second.ok(), etag(&second)));
    }
    assert_eq!(server.patch(SETTINGS).await.ok(), second.ok());
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_changes() {
    let server = Server::start().await;
    let before = server.patch(SETTINGS).json(json!({"max_topics": 7})).await;
    let table: &[(Value, &[&str])] = &[
        (json!({"max_topic": 1}), &["/max_topic"]),
        (json!({"max_topics": 1, "settings": {}}), &["/settings"]),
        (json!({"max_topics": -1}), &["/max_topics"]),
        (json!({"max_topics": 1.5}), &["/max_topics"]),
        (json!({"max_topics": "5"}), &["/max_topics"]),
        (json!({"max_topics": true}), &["/max_topics"]),
        (json!({"max_topics": [1]}), &["/max_topics"]),
        (json!({"max_topics": u64::MAX}), &["/max_topics"]),
        // null is forever, where a setting knows that
        (json!({"max_topics": null}), &["/max_topics"]),
        (json!({"transaction_retention_ms": null}), &["/transaction_retention_ms"]),
        (json!({"max_transaction_timeout_ms": null}), &["/max_transaction_timeout_ms"]),
        (
            json!({"transaction_timeout_ms": 0, "max_transaction_timeout_ms": 86_400_001,
                "transaction_retention_ms": 999, "max_transaction_batches": 100_001}),
            &[
                "/transaction_timeout_ms",
                "/max_transaction_timeout_ms",
                "/transaction_retention_ms",
                "/max_transaction_batches",
            ],
        ),
        (json!({"producer_expiry_ms": 999}), &["/producer_expiry_ms"]),
        (json!({"transactional_id_expiry_ms": 1_i64 << 40}), &["/transactional_id_expiry_ms"]),
        (
            json!({"max_batch_bytes": 0, "max_record_bytes": null, "max_topics": 9}),
            &["/max_batch_bytes", "/max_record_bytes"],
        ),
        (json!([]), &[""]),
        (json!(null), &[""]),
    ];
    for (body, pointers) in table {
        server.patch(SETTINGS).json(body).await.invalid(pointers);
    }
    let twice = r#"{"max_topics": 1, "max_topics": 2}"#;
    server.patch(SETTINGS).json(twice).await.invalid(&["/max_topics"]);
    server.patch(&format!("{SETTINGS}?dry=1")).json("{}").await.invalid(&["?dry"]);
    server.get(&format!("{SETTINGS}?dry=1")).await.invalid(&["?dry"]);
    server.put(SETTINGS).json("{}").await.refused(Code::MethodNotAllowed);
    server.get(SETTINGS).header("accept", "text/html").await.refused(Code::NotAcceptable);
    let after = server.get(SETTINGS).await;
    assert_eq!((after.ok(), etag(&after)), (before.ok(), etag(&before)));
    // settings of the tenant alone are none of a topic's
    server.topic("orders", 1).await;
    let topic = server.patch("/v1/topics/orders").json(json!({"settings": {"max_topics": 1}}));
    topic.await.invalid(&["/settings/max_topics"]);
}

#[tokio::test]
async fn conditions_are_held_against_the_present_state() {
    let server = Server::start().await;
    let patch = |value: i64, if_match: &str| {
        server.patch(SETTINGS).header("if-match", if_match).json(json!({"max_topics": value}))
    };
    let first = etag(&server.get(SETTINGS).await);
    let second = etag(&patch(5, &first).await);
    for stale in [&*first, "\"x\"", &format!("W/{second}"), "x", ""] {
        let problem = patch(6, stale).await.refused(Code::PreconditionFailed);
        assert_eq!(problem["retry"], "never");
    }
    // a stale condition is told before nothing is to change, too
    patch(5, &first).await.refused(Code::PreconditionFailed);
    assert_eq!(of(&server.get(SETTINGS).await, "max_topics").0, 5);
    // malformed comes before the condition
    let malformed =
        server.patch(SETTINGS).header("if-match", "\"x\"").json(json!({"max_topics": -1}));
    malformed.await.invalid(&["/max_topics"]);
    patch(6, "*").await.ok();
    let third = etag(&server.get(SETTINGS).await);
    let last = etag(&patch(7, &format!("\"x\", {third}")).await);
    // back to what it was is another state all the same
    let back = etag(&patch(6, &last).await);
    assert_ne!(back, third);

    let known = |tags: &str| server.get(SETTINGS).header("if-none-match", tags);
    for tags in [&*back, &format!("W/{back}"), &format!("{third}, {back}"), "*"] {
        let answer = known(tags).await;
        assert_eq!((answer.status, answer.text(), etag(&answer)), (304, "", back.clone()));
    }
    assert_eq!(known(&third).await.ok(), server.get(SETTINGS).await.ok());
}

/// One patch of many that expect the same state wins.
#[tokio::test]
async fn patches_follow_each_other() {
    let server = Server::start().await;
    let before = etag(&server.get(SETTINGS).await);
    let patch = async |value: i64| {
        let call = server.patch(SETTINGS).header("if-match", &before);
        call.json(json!({"max_topics": value})).await.status
    };
    let all = futures_util::future::join_all((1..=8).map(patch)).await;
    assert_eq!(all.iter().filter(|status| **status == 200).count(), 1, "{all:?}");
    assert_eq!(all.iter().filter(|status| **status == 412).count(), 7, "{all:?}");
}

#[tokio::test]
async fn settings_are_the_tenants_alone() {
    let server = Server::signed().await;
    let (ours, theirs) = (token("acme", "admin"), token("rival", "admin"));
    server.patch(SETTINGS).token(&ours).json(json!({"max_topics": 0})).await.ok();
    let refused = server.put("/v1/topics/orders").token(&ours).await.refused(Code::QuotaExceeded);
    assert_eq!((&refused["limit"], &refused["retry"]), (&json!(0), &json!("never")));
    server.put("/v1/topics/orders").token(&theirs).await.created();
    assert_eq!(of(&server.get(SETTINGS).token(&theirs).await, "max_topics").0, 1_000);
    // one that may see to some topics sees the limits, and changes none
    let narrow = token("acme", "admin:orders.*");
    assert_eq!(of(&server.get(SETTINGS).token(&narrow).await, "max_topics").0, 0);
    let patch = server.patch(SETTINGS).token(&narrow).json(json!({"max_topics": 9}));
    patch.await.refused(Code::Forbidden);
}

#[tokio::test]
async fn quotas_hold_from_the_answer_on() {
    let server = Server::start().await;
    let patch = async |body: Value| drop(server.patch(SETTINGS).json(body).await.ok());
    let put = |name: &str, count: i32| {
        server.put(&format!("/v1/topics/{name}")).json(json!({"partition_count": count}))
    };
    let grow = |name: &str, count: i32| {
        server.patch(&format!("/v1/topics/{name}")).json(json!({"partition_count": count}))
    };
    patch(json!({"max_topics": 2, "max_partitions": 5})).await;
    put("a", 2).await.created();
    assert_eq!(put("b", 4).await.refused(Code::QuotaExceeded)["limit"], 5);
    put("b", 3).await.created();
    assert_eq!(put("c", 1).await.refused(Code::QuotaExceeded)["limit"], 2);
    assert_eq!(grow("a", 3).await.refused(Code::QuotaExceeded)["limit"], 5);
    patch(json!({"max_partitions": 6})).await;
    grow("a", 3).await.ok();
    grow("a", 4).await.refused(Code::QuotaExceeded);
    // lowered below what is there: nothing goes, nothing comes
    patch(json!({"max_topics": 1, "max_partitions": 7})).await;
    put("a", 3).await.ok();
    grow("a", 4).await.ok();
    server.delete("/v1/topics/b").await.no_content();
    put("c", 1).await.refused(Code::QuotaExceeded);
    patch(json!({"max_topics": "default"})).await;
    put("c", 1).await.created();
}

const DEFAULT: &str = "/v1/tenants/default";

/// What an operator lets the tenant `default` have.
async fn limit(server: &Server, maxima: Value) {
    server.patch(DEFAULT).json(json!({"maxima": maxima})).await.ok();
}

#[tokio::test]
async fn nothing_is_above_the_operators_maxima() {
    let server = Server::start().await;
    let patch = |body: Value| server.patch(SETTINGS).json(body);
    let before = patch(json!({"max_topics": 7, "retention_ms": null})).await;
    limit(
        &server,
        json!({"max_topics": 5, "retention_ms": 9_000, "max_batch_bytes": 2_000_000,
        "dedup_window_ms": 1_000}),
    )
    .await;
    let shown = server.get(SETTINGS).await;
    // of what the tenant has said itself, of the default, of what lies below
    assert_eq!(of(&shown, "max_topics"), (json!(5), json!("operator")));
    assert_eq!(of(&shown, "retention_ms"), (json!(9_000), json!("operator")));
    assert_eq!(of(&shown, "dedup_window_ms"), (json!(1_000), json!("operator")));
    assert_eq!(of(&shown, "max_batch_bytes"), (json!(1 << 20), json!("default")));
    let maxima = &shown.ok()["maxima"];
    assert_eq!((&maxima["max_topics"], &maxima["retention_ms"]), (&json!(5), &json!(9_000)));
    assert_eq!(maxima["max_partitions"], Key::MaxPartitions.setting().maximum);
    assert_eq!(maxima.get("dedup"), None);
    // anyone who goes by the former state learns of it
    let stale = server.patch(SETTINGS).header("if-match", &etag(&before));
    stale.json(json!({"max_topics": 3})).await.refused(Code::PreconditionFailed);

    let above = json!({"max_topics": 6, "retention_ms": null, "max_partitions": 9});
    let refused = patch(above).await;
    refused.invalid(&["/retention_ms", "/max_topics"]);
    let why = "null exceeds 9000, the operator's maximum for this tenant";
    assert_eq!(refused.json()["errors"][0]["detail"], why);
    assert_eq!(of(&server.get(SETTINGS).await, "max_partitions").1, "default");
    let at_most = patch(json!({"max_topics": 5, "retention_ms": 8_999})).await;
    assert_eq!(of(&at_most, "max_topics"), (json!(5), json!("tenant")));
    assert_eq!(of(&at_most, "retention_ms"), (json!(8_999), json!("tenant")));
    // without the maximum, what the tenant said holds
    patch(json!({"dedup_window_ms": 1_000})).await.ok();
    limit(&server, json!({"dedup_window_ms": 0})).await;
    assert_eq!(of(&server.get(SETTINGS).await, "dedup_window_ms"), (json!(0), json!("operator")));
    limit(&server, json!({"dedup_window_ms": "default"})).await;
    let shown = server.get(SETTINGS).await;
    assert_eq!(of(&shown, "dedup_window_ms"), (json!(1_000), json!("tenant")));
}

#[tokio::test]
async fn topics_stay_within_the_operators_maxima() {
    let server = Server::start().await;
    let own = |records: Value| json!({"settings": {"max_batch_records": records}});
    let put = |name: &str, records: i64| {
        server.put(&format!("/v1/topics/{name}")).json(own(json!(records)))
    };
    put("orders", 4).await.created();
    append(&server, None, 4).await.ok();
    limit(&server, json!({"max_batch_records": 3})).await;
    // at once, though the topic goes on saying what it said
    assert_eq!(append(&server, None, 4).await.refused(Code::BatchTooLarge)["limit"], 3);
    append(&server, None, 3).await.ok();
    assert_eq!(put("orders", 4).await.ok()["settings"], own(json!(4))["settings"]);

    let pointer = &["/settings/max_batch_records"];
    put("orders", 5).await.invalid(pointer);
    put("another", 4).await.invalid(pointer);
    server.get("/v1/topics/another").await.refused(Code::TopicNotFound);
    let patch = |body: Value| server.patch("/v1/topics/orders").json(body);
    patch(own(json!(4))).await.invalid(pointer);
    let mut both = own(json!(4));
    both["partition_count"] = json!(2);
    patch(both).await.invalid(pointer);
    assert_eq!(server.get("/v1/topics/orders").await.ok()["partition_count"], 1);
    // what is not touched is not judged
    patch(json!({"partition_count": 2})).await.ok();
    patch(own(json!(2))).await.ok();
    append(&server, None, 3).await.refused(Code::BatchTooLarge);
    patch(own(json!("default"))).await.ok();
    assert_eq!(append(&server, None, 4).await.refused(Code::BatchTooLarge)["limit"], 3);
}

#[tokio::test]
async fn maxima_are_followed_by_other_replicas() {
    let here = Server::start().await;
    let there = Server::on(&here.options, Setup::default()).await;
    here.topic("orders", 1).await;
    append(&there, None, 3).await.ok();
    limit(&here, json!({"max_batch_records": 2})).await;
    append(&here, None, 3).await.refused(Code::BatchTooLarge);
    assert_eq!(of(&there.get(SETTINGS).await, "max_batch_records").1, "operator");
    until("the limit there", async || (append(&there, None, 3).await.status == 413).then_some(()))
        .await;
}

fn append(server: &Server, numbered: Option<(i64, i64)>, count: i64) -> crate::support::http::Call {
    let records: Vec<Value> = (0..count).map(|value| json!({"value": value})).collect();
    let body = match numbered {
        Some((id, sequence)) => {
            json!({"producer_id": id, "epoch": 0, "sequence": sequence, "records": records})
        }
        None => json!({"records": records}),
    };
    server.post(RECORDS).json(body)
}

#[tokio::test]
async fn limits_of_appends_are_the_topics_else_the_tenants() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let (p, _) = server.session("p").await;
    let tenant = async |body: Value| drop(server.patch(SETTINGS).json(body).await.ok());
    let topic = async |value: Value| {
        let body = json!({"settings": {"max_batch_records": value}});
        server.patch("/v1/topics/orders").json(body).await.ok();
    };
    append(&server, Some((p, 0)), 3).await.ok();
    tenant(json!({"max_batch_records": 2})).await;
    let problem = append(&server, None, 3).await.refused(Code::BatchTooLarge);
    assert_eq!(problem["limit"], 2);
    append(&server, None, 2).await.ok();
    // judged for what would be appended: a repeat is none, and a refusal uses up no number
    assert_eq!(append(&server, Some((p, 0)), 3).await.ok()["duplicate"], true);
    append(&server, Some((p, 1)), 3).await.refused(Code::BatchTooLarge);
    append(&server, Some((p, 1)), 2).await.ok();
    topic(json!(4)).await;
    append(&server, None, 4).await.ok();
    assert_eq!(append(&server, None, 5).await.refused(Code::BatchTooLarge)["limit"], 4);
    topic(json!("default")).await;
    append(&server, None, 3).await.refused(Code::BatchTooLarge);
    tenant(json!({"max_batch_records": "default", "max_batch_bytes": 30})).await;
    append(&server, None, 2).await.ok();
    assert_eq!(append(&server, None, 3).await.refused(Code::BatchTooLarge)["limit"], 30);
    tenant(json!({"max_batch_bytes": "default", "max_record_bytes": 10})).await;
    let problem = append(&server, None, 1).await.refused(Code::BatchTooLarge);
    assert_eq!(problem["limit"], 10);
    tenant(json!({"max_record_bytes": 11})).await;
    append(&server, None, 1).await.ok();
}

#[tokio::test]
async fn other_replicas_follow() {
    let here = Server::start().await;
    let there = Server::on(&here.options, Setup::default()).await;
    here.topic("orders", 1).await;
    append(&there, None, 3).await.ok();
    here.patch(SETTINGS).json(json!({"max_batch_records": 2})).await.ok();
    // asked for, they are fresh there, too
    assert_eq!(of(&there.get(SETTINGS).await, "max_batch_records").0, 2);
    until("the limit there", async || (append(&there, None, 3).await.status == 413).then_some(()))
        .await;
    here.patch(SETTINGS).json(json!({"max_batch_records": 3})).await.ok();
    append(&here, None, 3).await.ok();
    until("the limit there", async || (append(&there, None, 3).await.status == 200).then_some(()))
        .await;
}

/// Settings that are in use are read again before they are too old: while that read is held up,
/// appends go on by what is known, and after it by what it brought.
#[tokio::test]
async fn settings_in_use_are_read_again() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    server.patch(SETTINGS).json(json!({"max_batch_records": 3})).await.ok();
    append(&server, None, 3).await.ok();
    // nobody can read a tenant's row
    let mut connection = server.options.connect().await.unwrap();
    let mut holder = connection.begin().await.unwrap();
    holder.execute("lock table oncelog.tenants in access exclusive mode").await.unwrap();
    let waits = "select count(*) from pg_locks \
        where not granted and relation = 'oncelog.tenants'::regclass";
    let use_them = async {
        loop {
            append(&server, None, 3).await.ok();
        }
    };
    let reader = until("a reader", async || {
        let count: i64 = sqlx::query_scalar(waits).fetch_one(&mut *holder).await.unwrap();
        (count > 0).then_some(())
    });
    tokio::select! {
        () = use_them => {}
        () = reader => {}
    }
    let raise = "update oncelog.tenants set settings = '{\"max_batch_records\": 4}'";
    holder.execute(raise).await.unwrap();
    holder.commit().await.unwrap();
    until("the limit", async || (append(&server, None, 4).await.status == 200).then_some(())).await;
}
