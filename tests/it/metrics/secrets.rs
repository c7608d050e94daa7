//! What never leaves: the secret of tokens, tokens, the password of the database, and names of
//! clients as labels, but for a limited number of topics.

use serde_json::json;

use super::{Measured, is_the_table, token};
use crate::support::{self, http::SECRET, served::until};

#[tokio::test]
async fn logs_and_metrics_hold_no_secrets() {
    let options = support::database().await;
    let settings = [("ONCELOG_LOG_LEVEL", "trace"), ("ONCELOG_MAX_TOPIC_SERIES", "0")];
    let mut measured = Measured::start(&options, &settings).await;
    let client = &measured.client;
    client.put_topic("t", 1).await;
    client.append("t", 0, &[json!("a value nobody else sees")]).await;
    client.read("t", 0, "offset=0").await.ok(200);
    client.read("t", 0, "offset=7").await.ok(416);
    let mut bad = token("default");
    bad.push_str("AAAA");
    client.showing(Some(bad)).get("/v1/topics").await.ok(401);
    let metrics = client.admin().get("/metrics").await.text;
    measured.process.signal(nix::sys::signal::Signal::SIGTERM);
    measured.process.exit().await;
    let log = measured.process.log();
    assert!(log.contains("request answered"), "{log}");
    for secret in [SECRET, "hunter2", &token("default")[..40], "a value nobody else sees"] {
        assert!(!log.contains(secret), "{secret} in {log}");
        assert!(!metrics.contains(secret), "{secret} in {metrics}");
    }
    // the topic is in nobody's labels either
    assert!(!metrics.contains("\"t\"") && !metrics.contains("\"default\""), "{metrics}");
}

/// A line at start, a line at the end, and none for what goes well.
#[tokio::test]
async fn normal_service_is_silent() {
    let options = support::database().await;
    let mut measured = Measured::start(&options, &[]).await;
    let before = measured.process.log().lines().count();
    let client = &measured.client;
    client.put_topic("t", 1).await;
    for value in 0..20 {
        client.append("t", 0, &[json!(value)]).await;
        client.read("t", 0, "offset=0").await.ok(200);
        client.read("t", 0, "offset=latest&wait_ms=1").await.ok(200);
    }
    client.read("t", 0, "offset=100").await.ok(416);
    client.get("/v1/topics/none").await.ok(404);
    client.delete("/v1/topics/t").await;
    assert_eq!(measured.process.log().lines().count(), before, "{}", measured.process.log());
    measured.process.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(measured.process.exit().await.success());
    // what it said last may still be on its way
    let ended = async || measured.process.log().contains("stopped").then_some(());
    until("its last words", ended).await;
    let log = measured.process.log();
    let said: Vec<&str> = log.lines().skip(before).collect();
    assert!(said.len() == 2 && said[1].contains("stopped"), "{said:#?}");
}

#[tokio::test]
async fn no_label_comes_from_a_client_but_those_of_a_few_topics() {
    let options = support::database().await;
    let measured = Measured::start(&options, &[("ONCELOG_MAX_TOPIC_SERIES", "5")]).await;
    let client = &measured.client;
    let hit = async |n: usize| {
        let other = client.showing(None);
        let tenant = client.showing(Some(token(&format!("tenant-{n}"))));
        tenant.put_topic(&format!("topic-{n}"), 1).await;
        tenant.append(&format!("topic-{n}"), 0, &[json!(n)]).await;
        tenant.read(&format!("topic-{n}"), 0, "").await.ok(200);
        tenant.get(&format!("/v1/topics/none-{n}")).await.ok(404);
        tenant.post("/v1/sessions", &json!({"transactional_id": format!("t-{n}")})).await.ok(201);
        other.get(&format!("/nowhere/{n}")).await.ok(404);
        other.get(&format!("/v1/topics/topic-{n}")).await.ok(401);
        other.admin().delete(&format!("/metrics?{n}")).await.ok(405);
    };
    hit(0).await;
    let before = measured.scrape().await.series();
    for n in (1..=1_000).step_by(20) {
        futures_util::future::join_all((n..n + 20).map(hit)).await;
    }
    let scrape = measured.scrape().await;
    is_the_table(&scrape);
    let after = scrape.series();
    // histograms, whose labels are all of closed sets, are shown when something was measured
    let is_histogram = |name: &str| ["_count", "_sum"].iter().any(|end| name.ends_with(end));
    let (of_topics, new): (Vec<_>, Vec<_>) = after
        .difference(&before)
        .filter(|(name, _)| !is_histogram(name))
        .partition(|(name, _)| name.starts_with("oncelog_topic_"));
    // stored bytes, and records and bytes appended and read
    assert!(of_topics.len() <= 5 * 5, "{of_topics:#?}");
    assert!(new.is_empty(), "{new:#?}");
    assert!(after.len() < 1_200, "{} series", after.len());
}
