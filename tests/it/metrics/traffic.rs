//! Traffic of all kinds, and the numbers it leaves.

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{ConnectOptions, Connection};
use tokio::task::JoinHandle;

use super::{Measured, Scrape, is_the_table};
use crate::support::{
    self,
    served::{Answer, Client, partition_path, until},
};

/// Of a stored record of one digit.
const LINE_BYTES: f64 = "{\"value\":1}\n".len() as f64;

fn numbered(producer: &Value, sequence: i64, records: Value) -> Value {
    json!({"producer_id": producer["producer_id"], "epoch": producer["epoch"],
        "sequence": sequence, "records": records})
}

async fn open(client: &Client, body: Value) -> Value {
    client.post("/v1/sessions", &body).await.json()
}

fn wait_at(client: &Client, query: &'static str) -> JoinHandle<Answer> {
    let client = client.clone();
    tokio::spawn(async move { client.read("t", 0, query).await })
}

/// Name, labels, sum.
type Sum<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

/// Sums as they must be.
#[track_caller]
fn hold(scrape: &Scrape, sums: &[Sum<'_>]) {
    for (name, labels, value) in sums {
        let name = format!("oncelog_{name}");
        assert_eq!(scrape.sum(&name, labels), *value, "{name} {labels:?}");
    }
}

#[tokio::test]
async fn sessions() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let client = &measured.client;
    open(client, json!({"transactional_id": "p"})).await;
    let by_id = json!({"transactional_id": "p", "open_id": uuid::Uuid::now_v7()});
    open(client, by_id.clone()).await;
    open(client, by_id).await;
    let other = open(client, json!({})).await;
    for _ in 0..3 {
        let key = [("idempotency-key", "k")];
        client.send(Method::POST, "/v1/sessions", &key, None).await.unwrap();
    }
    let path = format!("/v1/sessions/{}", other["producer_id"]);
    client.delete(&path).await;
    client.delete(&path).await;
    hold(
        &measured.scrape().await,
        &[
            ("sessions_total", &[("event", "opened")], 3.0),
            ("sessions_total", &[("event", "reopened")], 1.0),
            ("sessions_total", &[("event", "repeated")], 3.0),
            ("duplicates_total", &[("kind", "idempotency_key"), ("call", "open")], 2.0),
            ("sessions_total", &[("event", "ended")], 1.0),
            ("http_requests_total", &[("operation", "end_session"), ("status", "204")], 2.0),
        ],
    );
}

#[tokio::test]
async fn appends() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[("ONCELOG_GAP_WAIT_MS", "2000")]).await;
    let client = &measured.client;
    client.put_topic("t", 2).await;
    let path = partition_path("t", 0);
    let old = open(client, json!({"transactional_id": "p"})).await;
    let new = open(client, json!({"transactional_id": "p"})).await;
    let three = json!([{"value": 1}, {"value": 2}, {"value": 3}]);
    let send = async |producer: &Value, sequence, records: &Value| {
        client.post(&path, &numbered(producer, sequence, records.clone())).await
    };
    send(&old, 0, &three).await.ok(409);
    send(&new, 0, &three).await.ok(200);
    send(&new, 0, &three).await.ok(200);
    send(&new, 0, &json!([{"value": "other"}])).await.ok(422);
    send(&new, 99, &three).await.ok(409);
    // 2 overtakes 1 and waits for it; 4 waits in vain
    let ahead = tokio::spawn({
        let (client, path, body) = (client.clone(), path.clone(), numbered(&new, 2, three.clone()));
        async move { client.post(&path, &body).await }
    });
    measured.until("oncelog_parked_appends", &[], 1.0).await;
    send(&new, 1, &three).await.ok(200);
    ahead.await.unwrap().ok(200);
    send(&new, 4, &three).await.ok(409);
    client.post("/v1/topics/none/records", &json!({"records": three})).await.ok(404);
    client.post("/v1/topics/t/records", &json!({"records": [{"value": 1}]})).await.ok(200);
    client.post(&path, &json!({"records": "none"})).await.ok(400);

    let scrape = measured.scrape().await;
    appends_are_counted(&scrape);
    lanes_are_measured(&scrape);
    is_the_table(&scrape);
}

fn appends_are_counted(scrape: &Scrape) {
    let refused = |code| [("outcome", "refused"), ("code", code)];
    let of_partition = ("operation", "append_to_partition");
    hold(
        scrape,
        &[
            ("appends_total", &[("outcome", "appended"), ("code", "none")], 4.0),
            ("appends_total", &[("outcome", "duplicate")], 1.0),
            ("appends_total", &refused("producer_fenced"), 1.0),
            ("appends_total", &refused("sequence_reused"), 1.0),
            ("appends_total", &refused("out_of_order_sequence"), 2.0),
            ("appends_total", &refused("topic_not_found"), 1.0),
            ("appends_total", &[("outcome", "failed")], 0.0),
            ("appended_records_total", &[], 10.0),
            ("appended_bytes_total", &[], 10.0 * LINE_BYTES),
            ("http_requests_total", &[of_partition, ("status", "200")], 4.0),
            ("http_requests_total", &[of_partition, ("status", "409")], 3.0),
            ("http_request_duration_seconds_count", &[of_partition], 9.0),
            ("http_requests_in_flight", &[of_partition], 0.0),
            ("http_requests_in_flight", &[("operation", "metrics")], 1.0),
            ("errors_total", &[("code", "invalid_request")], 1.0),
            ("errors_total", &[("code", "producer_fenced")], 1.0),
        ],
    );
    assert!(scrape.sum("oncelog_http_request_bytes_total", &[]) > 300.0);
    assert!(scrape.sum("oncelog_http_answer_bytes_total", &[of_partition]) > 300.0);
}

fn lanes_are_measured(scrape: &Scrape) {
    hold(
        scrape,
        &[
            ("parked_appends", &[], 0.0),
            ("parked_duration_seconds_count", &[("outcome", "appended")], 1.0),
            ("parked_duration_seconds_count", &[("outcome", "refused")], 1.0),
            ("queued_appends", &[], 0.0),
            // those that reached a lane: all but the unknown topic and the malformed one
            ("queue_duration_seconds_count", &[], 9.0),
            ("passes_total", &[("outcome", "overtaken")], 0.0),
            ("redone_appends_total", &[], 0.0),
        ],
    );
    let passed = scrape.sum("oncelog_passes_total", &[("outcome", "passed")]);
    assert_eq!(passed, scrape.sum("oncelog_pass_duration_seconds_count", &[]));
    for kind in ["quick", "full"] {
        assert!(scrape.sum("oncelog_passes_total", &[("kind", kind)]) > 0.0, "{kind}");
    }
    assert!(scrape.sum("oncelog_remembered_producers", &[]) >= 2.0);
    // what waited was in a group more than once
    assert!(scrape.sum("oncelog_group_requests_sum", &[]) > 9.0);
    assert!(scrape.sum("oncelog_group_records_sum", &[]) > 9.0 * 2.0);
    assert!(scrape.sum("oncelog_database_connects_total", &[]) >= 3.0);
}

#[tokio::test]
async fn reads_and_their_waits() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[("ONCELOG_MAX_WAITING_READS", "1")]).await;
    let elsewhere = Measured::start(&options, &[]).await;
    let client = &measured.client;
    client.put_topic("t", 1).await;
    client.append("t", 0, &[json!(1), json!(2)]).await;
    client.read("t", 0, "offset=0").await.ok(200);
    client.read("t", 0, "offset=0").await.ok(200);
    client.read("t", 0, "offset=latest&wait_ms=30").await.ok(200);
    let long = "offset=latest&wait_ms=60000";

    let waiting = wait_at(client, long);
    measured.until("oncelog_waiting_reads", &[], 1.0).await;
    // no room for another one
    client.read("t", 0, long).await.ok(503);
    client.append("t", 0, &[json!(3)]).await;
    waiting.await.unwrap().ok(200);
    let scrape = measured.scrape().await;
    let reads = [("operation", "read_partition")];
    hold(
        &scrape,
        &[
            ("reads_total", &[], 4.0),
            ("read_records_total", &[], 5.0),
            ("read_bytes_total", &[], 5.0 * LINE_BYTES),
            ("waiting_reads", &[], 0.0),
            ("read_wait_duration_seconds_count", &[("outcome", "records")], 1.0),
            ("read_wait_duration_seconds_count", &[("outcome", "nothing")], 1.0),
            ("wakeup_duration_seconds_count", &[], 1.0),
            ("wakeup_duration_seconds_count", &[("source", "commit")], 1.0),
            ("refused_for_load_total", &[("limit", "waiting_reads")], 1.0),
            ("http_requests_total", &[("operation", "read_partition"), ("status", "503")], 1.0),
            ("http_request_duration_seconds_count", &reads, 5.0),
            ("look_reads_sum", &[], 5.0),
            ("page_lookups_total", &[("result", "hit")], 1.0),
            ("page_lookups_total", &[("result", "miss")], 2.0),
        ],
    );
    assert!(scrape.sum("oncelog_read_wait_duration_seconds_sum", &[("outcome", "nothing")]) > 0.0);
    assert!(scrape.sum("oncelog_page_cache_bytes", &[]) > 0.0);
    assert!(scrape.sum("oncelog_page_loaded_bytes_total", &[]) > 0.0);

    // what another replica commits is heard of, or seen by the poll
    let waiting = wait_at(client, long);
    measured.until("oncelog_waiting_reads", &[], 1.0).await;
    elsewhere.client.append("t", 0, &[json!(4)]).await;
    waiting.await.unwrap().ok(200);
    measured.until("oncelog_wakeup_duration_seconds_count", &[], 2.0).await;
    until("a notice to be sent and heard", async || {
        let sent = elsewhere.scrape().await.sum("oncelog_notices_total", &[("direction", "sent")]);
        let heard = measured.scrape().await;
        let heard = heard.sum("oncelog_notices_total", &[("direction", "received")]);
        (sent >= 1.0 && heard >= 1.0).then_some(())
    })
    .await;
}

/// A client that hangs up, and a topic that goes away, end a wait as well.
#[tokio::test]
async fn waits_that_come_to_nothing() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let client = &measured.client;
    let (long, reads) = ("offset=latest&wait_ms=60000", [("operation", "read_partition")]);
    client.put_topic("t", 1).await;
    let waiting = wait_at(client, long);
    measured.until("oncelog_waiting_reads", &[], 1.0).await;
    waiting.abort();
    measured.until("oncelog_http_requests_abandoned_total", &reads, 1.0).await;
    measured.until("oncelog_waiting_reads", &[], 0.0).await;
    let waiting = wait_at(client, long);
    measured.until("oncelog_waiting_reads", &[], 1.0).await;
    client.delete("/v1/topics/t").await;
    waiting.await.unwrap().ok(404);
    let gone = [("outcome", "gone")];
    measured.until("oncelog_read_wait_duration_seconds_count", &gone, 1.0).await;
    is_the_table(&measured.scrape().await);
}

#[tokio::test]
async fn offset_commits() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let client = &measured.client;
    client.put_topic("t", 1).await;
    client.append("t", 0, &[json!(1), json!(2)]).await;
    let commit = async |member: Value, offset: i64| {
        let mut commit = member;
        commit["offsets"] = json!([{"topic": "t", "partition": 0, "offset": offset}]);
        client.post("/v1/groups/g/offsets", &commit).await
    };
    commit(json!({}), 1).await.ok(200);
    commit(json!({}), 9).await.ok(416);
    commit(json!({}), -1).await.ok(400);
    let member = || json!({"member_id": "m", "generation": 0});
    commit(member(), 1).await.ok(404);
    let mut connection = options.connect().await.unwrap();
    let join = "insert into oncelog.group_members select tenant_id, name, 'm' from oncelog.groups; \
        update oncelog.group_offsets set member_id = 'm', owned_since = 0";
    sqlx::raw_sql(join).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    for offset in [2, 1, 0] {
        commit(member(), offset).await.ok(200);
    }
    commit(json!({}), 1).await.ok(409);
    let outcome = |outcome| [("outcome", outcome)];
    hold(
        &measured.scrape().await,
        &[
            ("offset_commits_total", &outcome("committed"), 2.0),
            ("offset_commits_total", &outcome("unchanged"), 2.0),
            // what is malformed is no commit yet
            ("offset_commits_total", &outcome("refused"), 3.0),
            ("offset_commits_total", &outcome("failed"), 0.0),
            ("errors_total", &[("code", "group_not_empty")], 1.0),
            ("fenced_commits_total", &[("form", "plain")], 1.0),
            ("fenced_commits_total", &[("form", "transaction")], 0.0),
        ],
    );
    let fenced = json!({"group": "g", "member_id": "gone", "generation": 0, "topic": "t",
        "partition": 0, "offset": 2});
    client.post("/v1/transactions", &json!({"offsets": [fenced], "commit": true})).await.ok(404);
    hold(
        &measured.scrape().await,
        &[
            ("fenced_commits_total", &[("form", "plain")], 1.0),
            ("fenced_commits_total", &[("form", "transaction")], 1.0),
        ],
    );
}

/// Each replica shows what it last measured, which it does when it starts: the greatest by name.
#[tokio::test]
async fn groups_and_their_lags() {
    let options = support::database().await;
    let first = Measured::start(&options, &[]).await;
    let client = &first.client;
    client.put_topic("t", 2).await;
    for partition in [0, 1] {
        client.append("t", partition, &[json!(1), json!(2), json!(3)]).await;
    }
    let commit = async |group: &str, partition: i32, offset: i64| {
        let commit = json!({"offsets": [{"topic": "t", "partition": partition, "offset": offset}]});
        client.post(&format!("/v1/groups/{group}/offsets"), &commit).await.ok(200);
    };
    commit("far", 0, 0).await;
    commit("far", 1, 1).await;
    commit("near", 0, 1).await;
    commit("there", 1, 3).await;
    let lag = "oncelog_consumer_lag_records";
    let of = |group| [("tenant", "default"), ("group", group), ("topic", "t")];
    let others = [("tenant", "(other)"), ("group", "(other)"), ("topic", "(other)")];
    let all = Measured::start(&options, &[]).await;
    let groups = [("state", "empty")];
    all.until("oncelog_consumer_groups", &groups, 3.0).await;
    let shown = all.scrape().await;
    is_the_table(&shown);
    hold(
        &shown,
        &[
            ("consumer_lag_records", &of("far"), 5.0),
            ("consumer_lag_records", &of("near"), 2.0),
            ("consumer_lag_records", &of("there"), 0.0),
            ("consumer_lag_records", &others, 0.0),
            ("consumer_groups", &[("state", "alive")], 0.0),
            ("consumer_group_members", &[], 0.0),
        ],
    );
    let one = Measured::start(&options, &[("ONCELOG_MAX_LAG_SERIES", "1")]).await;
    one.until("oncelog_consumer_groups", &groups, 3.0).await;
    let shown = one.scrape().await;
    let sums: &[Sum<'_>] =
        &[("consumer_lag_records", &of("far"), 5.0), ("consumer_lag_records", &others, 2.0)];
    hold(&shown, sums);
    let series = |scrape: &Scrape| scrape.series().iter().filter(|(name, _)| name == lag).count();
    assert_eq!(series(&shown), 2);
    let none = Measured::start(&options, &[("ONCELOG_MAX_LAG_SERIES", "0")]).await;
    none.until("oncelog_consumer_groups", &groups, 3.0).await;
    assert_eq!(series(&none.scrape().await), 0);
}

#[tokio::test]
async fn two_replicas_at_one_topic() {
    let options = support::database().await;
    let (one, two) = (Measured::start(&options, &[]).await, Measured::start(&options, &[]).await);
    one.client.put_topic("t", 1).await;
    let session = open(&one.client, json!({})).await;
    for sequence in 0..6 {
        let client = if sequence % 2 == 0 { &one.client } else { &two.client };
        let body = numbered(&session, sequence, json!([{"value": sequence}]));
        client.post(&partition_path("t", 0), &body).await.ok(200);
    }
    let overtaken = [("kind", "quick"), ("outcome", "overtaken")];
    let (one, two) = (one.scrape().await, two.scrape().await);
    // each finds the log moved by the other, from its second turn on
    for scrape in [&one, &two] {
        assert!(scrape.sum("oncelog_passes_total", &overtaken) >= 1.0);
        hold(scrape, &[("appended_records_total", &[], 3.0)]);
    }
}

#[tokio::test]
async fn limits_that_are_reached() {
    let options = support::database().await;
    let bytes = 1 << 16;
    let limit = bytes.to_string();
    let small =
        [("ONCELOG_MAX_BODY_BYTES", limit.as_str()), ("ONCELOG_MAX_IN_FLIGHT_BYTES", &limit)];
    let measured = Measured::start(&options, &small).await;
    let client = &measured.client;
    client.put_topic("t", 1).await;
    for _ in 0..2 {
        client.append("t", 0, &[json!("x".repeat(bytes - 1_000))]).await;
    }
    client.read("t", 0, "offset=0").await.ok(503);
    // a body that stays away holds what it has sent
    let (sender, body) = tokio::sync::mpsc::channel::<std::io::Result<Vec<u8>>>(1);
    let body = futures_util::stream::unfold(body, async |mut body| {
        body.recv().await.map(|chunk| (chunk, body))
    });
    let slow = client
        .http
        .post(format!("{}{}", client.url, partition_path("t", 0)))
        .bearer_auth(super::token("default"))
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap_stream(body));
    let slow = tokio::spawn(slow.send());
    sender.send(Ok(b" ".repeat(bytes - 100))).await.unwrap();
    let held = ("oncelog_http_held_bytes", [("held", "requests")]);
    measured.until(held.0, &held.1, (bytes - 100) as f64).await;
    let body = json!({"records": [{"value": "x".repeat(200)}]});
    client.post(&partition_path("t", 0), &body).await.ok(503);
    drop(sender);
    assert_eq!(slow.await.unwrap().unwrap().status(), 400);
    measured.until(held.0, &held.1, 0.0).await;
    hold(
        &measured.scrape().await,
        &[
            ("refused_for_load_total", &[("limit", "answer_bytes")], 1.0),
            ("refused_for_load_total", &[("limit", "request_bytes")], 1.0),
            ("refused_for_load_total", &[("limit", "queued_appends")], 0.0),
            ("errors_total", &[("code", "unavailable")], 2.0),
        ],
    );
}

#[tokio::test]
async fn the_janitors_work() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let client = &measured.client;
    client.put_topic("t", 1).await;
    let session = open(client, json!({})).await;
    for sequence in 0..5 {
        let body = numbered(&session, sequence, json!([{"value": sequence}]));
        client.post(&partition_path("t", 0), &body).await.ok(200);
    }
    client.delete("/v1/topics/t/partitions/0/records?before=3").await;
    let rows = "oncelog_janitor_rows_total";
    measured.until(rows, &[("task", "trim")], 3.0).await;
    hold(
        &measured.scrape().await,
        &[
            ("janitor_rows_total", &[("task", "snapshot")], 5.0),
            ("janitor_due_total", &[("task", "trim")], 1.0),
            ("janitor_due_total", &[("task", "snapshot")], 1.0),
            ("snapshots_total", &[], 1.0),
        ],
    );
    let commit = json!({"offsets": [{"topic": "t", "partition": 0, "offset": 5}]});
    client.post("/v1/groups/g/offsets", &commit).await.ok(200);
    client.delete("/v1/topics/t").await;
    // two rows, the producer's state and the group's offset
    measured.until(rows, &[("task", "doomed_logs")], 4.0).await;
    until("every task to have come to its end", async || {
        let scrape = measured.scrape().await;
        let done = |task| {
            let labels = [("task", task)];
            let name = "oncelog_janitor_last_success_timestamp_seconds";
            scrape.sum(name, &labels) > 1e9
                && scrape.sum("oncelog_janitor_duration_seconds_count", &labels) > 0.0
        };
        ["trim", "snapshot", "doomed_logs", "expiry", "open_ids"]
            .into_iter()
            .all(done)
            .then_some(())
    })
    .await;
    hold(&measured.scrape().await, &[("janitor_failures_total", &[], 0.0)]);
}

#[tokio::test]
async fn producers_that_expire() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let client = &measured.client;
    client.put_topic("t", 1).await;
    open(client, json!({"transactional_id": "p"})).await;
    let unnamed = open(client, json!({"open_id": uuid::Uuid::now_v7()})).await;
    let append = numbered(&unnamed, 0, json!([{"value": 1}]));
    client.post(&partition_path("t", 0), &append).await.ok(200);
    let mut connection = options.connect().await.unwrap();
    let eight_days_go_by = "\
        update oncelog.batches set appended_at = appended_at - interval '8 days'; \
        update oncelog.logs set last_appended_at = last_appended_at - interval '8 days'; \
        update oncelog.sessions set opened_at = opened_at - interval '8 days', \
            active_at = active_at - interval '8 days'";
    sqlx::raw_sql(eight_days_go_by).execute(&mut connection).await.unwrap();
    // two sessions, and the state of the one that appended
    let rows = "oncelog_janitor_rows_total";
    measured.until(rows, &[("task", "expiry")], 3.0).await;
    hold(
        &measured.scrape().await,
        &[
            ("expired_producers_total", &[("kind", "named")], 1.0),
            ("expired_producers_total", &[("kind", "unnamed")], 1.0),
            ("janitor_due_total", &[("task", "expiry")], 2.0),
            ("janitor_due_total", &[("task", "open_ids")], 0.0),
        ],
    );
    client.post(&partition_path("t", 0), &append).await.ok(404);
    let long_ago =
        "update oncelog.session_opens set open_id = '00000000-0001-7000-8000-000000000001'";
    sqlx::raw_sql(long_ago).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    measured.until(rows, &[("task", "open_ids")], 1.0).await;
    hold(&measured.scrape().await, &[("janitor_failures_total", &[], 0.0)]);
}

#[tokio::test]
async fn a_lost_database() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let client = &measured.client;
    client.put_topic("t", 1).await;
    client.append("t", 0, &[json!(1)]).await;
    client.read("t", 0, "offset=0").await.ok(200);
    let before = measured.scrape().await;
    let connects = before.sum("oncelog_database_connects_total", &[]);
    measured.proxy.cut_all();
    // its outcome is not known: it has no sequence
    let answer = client.post(&partition_path("t", 0), &json!({"records": [{"value": 2}]})).await;
    assert_eq!(answer.problem(), (503, "outcome_unknown".into()));
    let scrape = measured.scrape().await;
    hold(
        &scrape,
        &[
            ("passes_total", &[("kind", "quick"), ("outcome", "outcome_unknown")], 1.0),
            ("appends_total", &[("outcome", "failed"), ("code", "outcome_unknown")], 1.0),
            ("errors_total", &[("code", "outcome_unknown")], 1.0),
        ],
    );
    // reads lose the pool's connections, and get others
    until("a read to succeed again", async || {
        (client.read("t", 0, "offset=0").await.status == 200).then_some(())
    })
    .await;
    until("the losses to be noticed", async || {
        let scrape = measured.scrape().await;
        let lost = scrape.sum("oncelog_database_losses_total", &[]) >= 1.0;
        let connected = scrape.sum("oncelog_database_connects_total", &[]) > connects;
        (lost && connected && scrape.sum("oncelog_listening", &[]) == 1.0).then_some(())
    })
    .await;
    let scrape = measured.scrape().await;
    let pool = |state| scrape.sum("oncelog_database_pool_connections", &[("state", state)]);
    assert!(pool("idle") + pool("in_use") >= 1.0);
    assert!(scrape.sum("oncelog_database_pool_max_connections", &[]) >= pool("idle"));
    assert!(scrape.sum("oncelog_database_pool_acquire_duration_seconds_count", &[]) >= 2.0);
    // the janitor may be waiting for a moment
    until("nobody to wait for a connection", async || {
        let waiting = measured.scrape().await.sum("oncelog_database_pool_waiting", &[]);
        (waiting == 0.0).then_some(())
    })
    .await;
}
