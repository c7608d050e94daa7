//! What is shown by topic and of the database, and which series are shown at all.

use std::collections::BTreeSet;

use serde_json::json;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

use super::{Measured, Scrape, is_the_table};
use crate::support::{
    self,
    served::{Client, partition_path, until},
};

/// Of a stored record of one digit.
const LINE_BYTES: f64 = "{\"value\":1}\n".len() as f64;

const OTHERS: [(&str, &str); 2] = [("tenant", "(other)"), ("topic", "(other)")];

fn of(topic: &str) -> [(&str, &str); 2] {
    [("tenant", "default"), ("topic", topic)]
}

/// The topics that a metric shows by name.
fn topics(scrape: &Scrape, name: &str) -> BTreeSet<String> {
    let all = scrape.series().into_iter().filter(|(found, _)| found == name);
    all.map(|(_, labels)| labels["topic"].clone()).filter(|topic| topic != "(other)").collect()
}

/// As many digits to one topic.
async fn append(client: &Client, topic: &str, count: usize) {
    client.append(topic, 0, &vec![json!(1); count]).await;
}

/// Records and bytes appended, records and bytes read.
#[track_caller]
fn traffic(scrape: &Scrape, labels: &[(&str, &str)]) -> [f64; 4] {
    ["appended_records", "appended_bytes", "read_records", "read_bytes"]
        .map(|name| scrape.sum(&format!("oncelog_topic_{name}_total"), labels))
}

/// Waits until a topic is shown by name, which happens soon after its first record.
async fn until_shown(measured: &Measured, topic: &str) -> Scrape {
    until(&format!("{topic} to be shown"), async || {
        let scrape = measured.scrape().await;
        let shown = topics(&scrape, "oncelog_topic_appended_records_total");
        shown.contains(topic).then_some(scrape)
    })
    .await
}

#[tokio::test]
async fn records_and_bytes_by_topic() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let client = &measured.client;
    assert_eq!(traffic(&measured.scrape().await, &OTHERS), [0.0; 4]);
    for topic in ["plain", "staged", "quiet"] {
        client.put_topic(topic, 1).await;
    }
    append(client, "plain", 3).await;
    let session = client.post("/v1/sessions", &json!({})).await.ok(201);
    let numbered = json!({"producer_id": session["producer_id"], "epoch": session["epoch"],
        "sequence": 0, "records": [{"value": 1}]});
    for _ in 0..2 {
        // the repeat is not stored and not counted
        client.post(&partition_path("plain", 0), &numbered).await.ok(200);
    }
    let appends = |topic| json!([{"topic": topic, "records": [{"value": 1}, {"value": 2}]}]);
    let whole = json!({"appends": appends("staged"), "commit": true});
    client.post("/v1/transactions", &whole).await.ok(201);
    let begun = json!({"appends": appends("staged")});
    let begun = client.post("/v1/transactions", &begun).await.ok(201);
    let path = format!("/v1/transactions/{}", begun["transaction_id"].as_str().unwrap());
    let more = json!({"appends": appends("staged")});
    client.post(&format!("{path}/records"), &more).await.ok(200);
    client.post(&format!("{path}/abort"), &json!({})).await.ok(200);
    // of one partition, of all of them, and by a group
    client.read("plain", 0, "offset=1&limit=2").await.ok(200);
    client.get("/v1/topics/plain/records").await.ok(200);
    let joined = json!({"topics": ["plain", "staged"], "auto_offset_reset": "earliest"});
    let joined = client.post("/v1/groups/g/members", &joined).await.ok(201);
    let fetch = format!("/v1/groups/g/members/{}/records", joined["member_id"].as_str().unwrap());
    client.get(&fetch).await.ok(200);

    until_shown(&measured, "plain").await;
    let scrape = until_shown(&measured, "staged").await;
    let counts = |appended, read| [appended, appended * LINE_BYTES, read, read * LINE_BYTES];
    assert_eq!(traffic(&scrape, &of("plain")), counts(4.0, 2.0 + 4.0 + 4.0));
    assert_eq!(traffic(&scrape, &of("staged")), counts(6.0, 2.0));
    assert_eq!(traffic(&scrape, &OTHERS), [0.0; 4]);
    is_the_table(&scrape);
    // a deleted topic is shown no more
    client.delete("/v1/topics/plain").await;
    until("the series of the deleted topic to end", async || {
        let shown = topics(&measured.scrape().await, "oncelog_topic_read_records_total");
        (shown == BTreeSet::from(["staged".to_owned()])).then_some(())
    })
    .await;
}

/// With as many series as topics all have names; with one less, the least has none.
#[tokio::test]
async fn as_many_topics_are_shown_as_there_are_series() {
    let options = support::database().await;
    let limit = |limit: &'static str| [("ONCELOG_MAX_TOPIC_SERIES", limit)];
    let enough = Measured::start(&options, &limit("3")).await;
    let scarce = Measured::start(&options, &limit("2")).await;
    for (topic, count) in [("one", 3), ("two", 2), ("three", 1)] {
        enough.client.put_topic(topic, 1).await;
        append(&enough.client, topic, count).await;
        append(&scarce.client, topic, count).await;
        if topic != "three" {
            until_shown(&scarce, topic).await;
        }
        let scrape = until_shown(&enough, topic).await;
        assert_eq!(traffic(&scrape, &of(topic))[0], count as f64);
    }
    let scrape = enough.scrape().await;
    assert_eq!(traffic(&scrape, &OTHERS), [0.0; 4]);
    let scrape = scarce.scrape().await;
    let counter = "oncelog_topic_appended_records_total";
    assert_eq!(topics(&scrape, counter), BTreeSet::from(["one", "two"].map(str::to_owned)));
    assert_eq!(traffic(&scrape, &OTHERS)[0], 1.0);

    // what is stored is measured when a replica starts
    let stored = "oncelog_topic_stored_bytes";
    for (limit, shown, others) in [
        (limit("3"), vec!["one", "three", "two"], 0.0),
        (limit("2"), vec!["one", "two"], 2.0 * LINE_BYTES),
    ] {
        let measured = Measured::start(&options, &limit).await;
        measured.until(stored, &[], 12.0 * LINE_BYTES).await;
        let scrape = measured.scrape().await;
        assert_eq!(topics(&scrape, stored), shown.into_iter().map(str::to_owned).collect());
        assert_eq!(scrape.sum(stored, &of("one")), 6.0 * LINE_BYTES);
        assert_eq!(scrape.sum(stored, &OTHERS), others);
    }
    let none = Measured::start(&options, &limit("0")).await;
    append(&none.client, "one", 1).await;
    let scrape = none.scrape().await;
    assert!(scrape.series().iter().all(|(name, _)| !name.starts_with("oncelog_topic_")));
}

/// A lag in seconds is the age of the first record that is not committed, with its limit as that in
/// records.
#[tokio::test]
async fn a_lag_in_seconds_is_the_age_of_the_oldest_record() {
    let options = support::database().await;
    let first = Measured::start(&options, &[]).await;
    let client = &first.client;
    client.put_topic("t", 2).await;
    for partition in [0, 1] {
        for _ in 0..3 {
            client.append("t", partition, &[json!(1), json!(2)]).await;
        }
    }
    let commit = async |group: &str, offsets: [i64; 2]| {
        let offsets: Vec<_> = (0..)
            .zip(offsets)
            .map(|(p, offset)| json!({"topic": "t", "partition": p, "offset": offset}))
            .collect();
        let commit = json!({"offsets": offsets});
        client.post(&format!("/v1/groups/{group}/offsets"), &commit).await.ok(200);
    };
    commit("first", [0, 6]).await;
    commit("second", [5, 3]).await;
    commit("done", [6, 6]).await;
    // three hours ago, two and one, by batch
    let mut connection = options.connect().await.unwrap();
    let ages = "update oncelog.batches \
        set appended_at = now() - (3 - base_offset / 2) * interval '1 hour' where records is not null";
    connection.execute(ages).await.unwrap();
    connection.close().await.unwrap();
    let seconds = "oncelog_consumer_lag_seconds";
    let group = |group| [("tenant", "default"), ("group", group), ("topic", "t")];
    let all = Measured::start(&options, &[]).await;
    all.until("oncelog_consumer_groups", &[("state", "empty")], 3.0).await;
    let scrape = all.scrape().await;
    for (name, hours) in [("first", 3.0), ("second", 2.0)] {
        let age = scrape.sum(seconds, &group(name));
        let hours = hours * 3_600.0;
        assert!((hours..hours + 600.0).contains(&age), "{name}: {age}");
    }
    assert_eq!(scrape.sum(seconds, &group("done")), 0.0);
    is_the_table(&scrape);
    let one = Measured::start(&options, &[("ONCELOG_MAX_LAG_SERIES", "1")]).await;
    one.until("oncelog_consumer_groups", &[("state", "empty")], 3.0).await;
    let scrape = one.scrape().await;
    let shown: Vec<_> = scrape.series().into_iter().filter(|(name, _)| name == seconds).collect();
    assert_eq!(shown.len(), 1);
    assert!(scrape.sum(seconds, &group("first")) > 0.0);
}

/// Also as a role without rights over others sees it: only in transactions then.
#[tokio::test]
async fn the_oldest_transaction_of_the_database() {
    let options = support::database().await;
    Measured::start(&options, &[]).await;
    let mut old = options.connect().await.unwrap();
    old.execute("begin; select pg_current_xact_id()").await.unwrap();
    let mut other = options.connect().await.unwrap();
    for _ in 0..50 {
        other.execute("select pg_current_xact_id()").await.unwrap();
    }
    other.execute("select pg_sleep(0.2)").await.unwrap();
    let measured = Measured::start(&options, &[]).await;
    let xmin = "oncelog_database_oldest_xmin_age_transactions";
    until("the transaction to be seen", async || {
        (measured.scrape().await.sum(xmin, &[]) >= 50.0).then_some(())
    })
    .await;
    let scrape = measured.scrape().await;
    let age = "oncelog_database_oldest_transaction_age_seconds";
    assert!(scrape.sum(age, &[]) >= 0.2, "{}", scrape.sum(age, &[]));
    let table = |table| scrape.sum("oncelog_database_table_bytes", &[("table", table)]);
    assert!(table("logs") > 0.0 && table("dedup_keys") > 0.0 && table("(other)") > 0.0);

    // the same statement, by a role that sees no begin of others
    let role = format!("plain_{}", uuid::Uuid::now_v7().simple());
    let create = format!("create role {role}; grant usage on schema oncelog to {role}");
    other.execute(AssertSqlSafe(create)).await.unwrap();
    other.execute(AssertSqlSafe(format!("set role {role}"))).await.unwrap();
    let seen = oncelog::store::janitor::measure::oldest_transaction(&mut other).await.unwrap();
    assert!(seen.xmin_age_transactions >= 50, "{seen:?}");
    assert!((0.0..0.2).contains(&seen.age_seconds), "{seen:?}");
    oncelog::store::janitor::measure::tables(&mut other).await.unwrap();
    other
        .execute(AssertSqlSafe(format!("reset role; drop owned by {role}; drop role {role}")))
        .await
        .unwrap();
    old.close().await.unwrap();
}

/// What was never called has no series; what an alert counts has them from the start.
#[tokio::test]
async fn what_never_happened_is_not_shown_unless_an_alert_counts_it() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[]).await;
    let scrape = measured.scrape().await;
    let operations = |scrape: &Scrape| -> BTreeSet<String> {
        let series = scrape.series().into_iter();
        series.filter_map(|(_, mut labels)| labels.remove("operation")).collect()
    };
    let idle = operations(&scrape);
    assert!(idle.contains("metrics") && !idle.contains("append_to_partition"), "{idle:?}");
    assert!(idle.iter().all(|operation| ["metrics", "readyz", "livez"].contains(&&**operation)));
    // every buckets' histogram with labels was observed
    for (name, labels) in scrape.series().iter().filter(|(name, _)| name.ends_with("_count")) {
        let pairs: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (&**k, &**v)).collect();
        let is_observed = scrape.sum(name, &pairs) > 0.0;
        let is_beginning = labels.contains_key("operation");
        assert!(labels.is_empty() || is_observed || is_beginning, "{name} {labels:?}");
    }
    for (name, labels) in [
        ("errors_total", ("code", "internal")),
        ("appends_total", ("code", "producer_fenced")),
        ("refused_for_load_total", ("limit", "waiting_reads")),
        ("database_errors_total", ("kind", "unavailable")),
        ("janitor_contended_total", ("task", "key_rings")),
        ("transactions_aborted_total", ("reason", "timeout")),
        ("rebalances_total", ("cause", "late")),
    ] {
        assert_eq!(scrape.sum(&format!("oncelog_{name}"), &[labels]), 0.0);
    }
    measured.client.put_topic("t", 1).await;
    append(&measured.client, "t", 1).await;
    let scrape = measured.scrape().await;
    let calls = "oncelog_http_requests_total";
    let called = ("operation", "append_to_partition");
    assert_eq!(scrape.sum(calls, &[called, ("status", "200")]), 1.0);
    assert_eq!(scrape.sum(calls, &[called, ("status", "503")]), 0.0);
    assert_eq!(operations(&scrape).len(), idle.len() + 2);
}
