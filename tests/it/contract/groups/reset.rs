//! Resets: where they go, and what refuses them.

use oncelog::model::{Code, group::AutoOffsetReset};
use serde_json::{Value, json};

use super::offsets::{offsets, told};
use crate::support::http::{Server, Setup};

/// Partition 0 holds [2, 10), its records from 6 on are of later; partition 1 holds nothing.
async fn world() -> Server {
    let server = Server::start().await;
    server.topic("orders", 2).await;
    for (records, appended_at) in [(6, "2001-01-01"), (4, "2001-02-01")] {
        let records = vec![json!({"value": 1}); records];
        let path = "/v1/topics/orders/partitions/0/records";
        server.post(path).json(json!({"records": records})).await.ok();
        let age = format!(
            "update oncelog.batches set appended_at = '{appended_at}T00:00:00Z' \
             where appended_at > '2001-03-01'"
        );
        server.sql(age).await;
    }
    server.delete("/v1/topics/orders/partitions/0/records?before=2").await.no_content();
    server.topic("audit", 1).await;
    server
}

#[tokio::test]
async fn offsets_go_where_they_are_told_and_stay_in_the_log() {
    let server = world().await;
    let other = Server::on(&server.options, Setup::default()).await;
    let table = [
        (json!("earliest"), "orders/0 2, orders/1 0"),
        (json!("latest"), "orders/0 10, orders/1 0"),
        (json!({"offset": 0}), "orders/0 2, orders/1 0"),
        (json!({"offset": 2}), "orders/0 2, orders/1 0"),
        (json!({"offset": 3}), "orders/0 3, orders/1 0"),
        (json!({"offset": 10}), "orders/0 10, orders/1 0"),
        (json!({"offset": 11}), "orders/0 10, orders/1 0"),
        (json!({"offset": 9_007_199_254_740_991_i64}), "orders/0 10, orders/1 0"),
        (json!({"by": -2}), "orders/0 3, orders/1 0"),
        (json!({"by": -3}), "orders/0 2, orders/1 0"),
        (json!({"by": -100}), "orders/0 2, orders/1 0"),
        (json!({"by": 5}), "orders/0 10, orders/1 0"),
        (json!({"by": 6}), "orders/0 10, orders/1 0"),
        (json!({"by": 0}), "orders/0 5, orders/1 0"),
        (json!({"timestamp": "2000-12-31T00:00:00Z"}), "orders/0 2, orders/1 0"),
        (json!({"timestamp": "2001-01-01T00:00:00.001Z"}), "orders/0 6, orders/1 0"),
        (json!({"timestamp": "2001-02-01T01:00:00+01:00"}), "orders/0 6, orders/1 0"),
        (json!({"timestamp": "2001-02-01T00:00:00.001Z"}), "orders/0 10, orders/1 0"),
    ];
    for (to, want) in table {
        let commit = json!({"offsets": [
            {"topic": "orders", "partition": 0, "offset": 5, "metadata": "m"},
            {"topic": "orders", "partition": 1, "offset": 0}]});
        server.commit("g", commit).await.ok();
        let rehearsed = other.reset("g", json!({"to": to, "dry_run": true})).await;
        assert_eq!(told(&rehearsed), want, "{to}");
        assert_eq!(told(&server.committed("g").await), "orders/0 5 m, orders/1 0", "{to}");
        let reset = other.reset("g", json!({"to": to, "dry_run": false})).await;
        assert_eq!(reset.ok(), rehearsed.ok(), "{to}");
        assert_eq!(server.committed("g").await.ok(), reset.ok(), "{to}");
    }
}

#[tokio::test]
async fn all_is_reset_that_the_group_has_to_do_with_or_the_topics_that_are_named() {
    let server = world().await;
    server.commit("g", offsets(&[("orders", 0, 5)])).await.ok();
    assert_eq!(told(&server.reset("g", json!({"to": "latest"})).await), "orders/0 10");
    // all partitions of a topic, whether anything was committed there or not
    let named = |topics: Value| server.reset("g", json!({"topics": topics, "to": "latest"}));
    assert_eq!(told(&named(json!(["orders"])).await), "orders/0 10, orders/1 0");
    assert_eq!(
        told(&named(json!(["audit", "orders", "audit"])).await),
        "audit/0 0, orders/0 10, orders/1 0"
    );
    assert_eq!(told(&server.committed("g").await), "audit/0 0, orders/0 10, orders/1 0");
    // what it has subscribed to counts, too
    let joined = server.member("h", &["orders"], None).await;
    server.leave("h", &joined).await;
    assert_eq!(told(&server.reset("h", json!({"to": "earliest"})).await), "orders/0 2, orders/1 0");
    named(json!(["orders", "none"])).await.refused(Code::TopicNotFound);
    // a topic that was made again is another one
    server.delete("/v1/topics/audit").await.no_content();
    named(json!(["audit"])).await.refused(Code::TopicNotFound);
    server.topic("audit", 2).await;
    assert_eq!(told(&named(json!(["audit"])).await), "audit/0 0, audit/1 0");
}

#[tokio::test]
async fn what_has_committed_nothing_goes_by_where_it_would_begin() {
    let server = world().await;
    for (reset, want) in [
        (AutoOffsetReset::Earliest, Some("orders/0 3, orders/1 0")),
        (AutoOffsetReset::Latest, Some("orders/0 10, orders/1 0")),
        (AutoOffsetReset::Error, None),
    ] {
        let group = reset.as_str();
        let joined = server.member(group, &["orders"], Some(reset)).await;
        server.leave(group, &joined).await;
        let answer = server.reset(group, json!({"to": {"by": 1}})).await;
        match want {
            Some(want) => assert_eq!(told(&answer), want, "{group}"),
            None => {
                let refused = answer.refused(Code::OffsetOutOfRange);
                assert_eq!(refused["log_start_offset"], 2);
                assert_eq!(told(&server.committed(group).await), "");
            }
        }
    }
}

#[tokio::test]
async fn one_pinned_partition_refuses_the_whole_reset() {
    let server = world().await;
    server.filled_topic("more", 2, 5).await;
    server.commit("g", offsets(&[("more", 0, 1), ("more", 1, 1), ("orders", 0, 2)])).await.ok();
    let id = server.pin("g", "more", 1, json!(1)).await;
    for dry_run in [true, false] {
        let reset = server.reset("g", json!({"to": "latest", "dry_run": dry_run})).await;
        let refused = reset.refused(Code::OffsetCommitConflict);
        assert_eq!(
            (&refused["transaction_id"], &refused["committed_offset"]),
            (&json!(id), &json!(1))
        );
        assert!(refused["detail"].as_str().unwrap().contains("more/1"), "{refused}");
    }
    assert_eq!(told(&server.committed("g").await), "more/0 1, more/1 1, orders/0 2");
    // other topics are not concerned
    let orders = server.reset("g", json!({"topics": ["orders"], "to": "latest"}));
    assert_eq!(told(&orders.await), "orders/0 10, orders/1 0");
    server.post(&format!("/v1/transactions/{id}/abort")).await.ok();
    let all = server.reset("g", json!({"to": "latest"}));
    assert_eq!(told(&all.await), "more/0 5, more/1 5, orders/0 10, orders/1 0");
}

#[tokio::test]
async fn what_is_wrong_with_a_reset_is_named() {
    let server = world().await;
    server.reset("none", json!({"to": "latest"})).await.refused(Code::GroupNotFound);
    server.commit("g", offsets(&[("orders", 0, 5)])).await.ok();
    let topics = |count| vec!["orders"; count];
    let table = [
        (json!({}), vec!["/to"]),
        (json!({"to": null}), vec!["/to"]),
        (json!({"to": 5}), vec!["/to"]),
        (json!({"to": "newest"}), vec!["/to"]),
        (json!({"to": {}}), vec!["/to"]),
        (json!({"to": {"offset": 1, "by": 1}}), vec!["/to"]),
        (json!({"to": {"offset": -1}}), vec!["/to/offset"]),
        (json!({"to": {"offset": 9_007_199_254_740_992_i64}}), vec!["/to/offset"]),
        (json!({"to": {"by": 9_007_199_254_740_992_i64}}), vec!["/to/by"]),
        (json!({"to": {"timestamp": "today"}}), vec!["/to/timestamp"]),
        (json!({"to": {"offsets": 1}}), vec!["/to/offsets"]),
        (json!({"to": "latest", "topics": []}), vec!["/topics"]),
        (json!({"to": "latest", "topics": topics(1_001)}), vec!["/topics"]),
        (json!({"to": "latest", "topics": ["orders", "a b"]}), vec!["/topics/1"]),
        (json!({"to": "latest", "dryrun": true}), vec!["/dryrun"]),
    ];
    for (reset, pointers) in table {
        server.reset("g", reset).await.invalid(&pointers);
    }
    assert_eq!(told(&server.committed("g").await), "orders/0 5");
    server.reset("g", json!({"to": "latest", "topics": topics(1_000)})).await.ok();
    let least = json!({"to": {"by": -9_007_199_254_740_991_i64}});
    assert_eq!(told(&server.reset("g", least).await), "orders/0 2, orders/1 0");
}

/// The replica that resets knows the topic as it was before it grew through another.
#[tokio::test]
async fn a_partition_that_another_replica_made_is_reset_with_the_others() {
    let server = world().await;
    let other = Server::on(&server.options, Setup::default()).await;
    let commit = json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 5}]});
    server.commit("g", commit).await.ok();
    let all = json!({"topics": ["orders"], "to": "earliest"});
    assert_eq!(told(&server.reset("g", all.clone()).await), "orders/0 2, orders/1 0");
    other.patch("/v1/topics/orders").json(json!({"partition_count": 3})).await.ok();
    assert_eq!(told(&server.reset("g", all).await), "orders/0 2, orders/1 0, orders/2 0");
}
