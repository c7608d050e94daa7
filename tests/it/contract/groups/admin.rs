//! List, describe, delete.

use oncelog::model::{Code, group::AutoOffsetReset};
use serde_json::{Value, json};

use super::{
    each,
    offsets::{offsets, told},
};
use crate::support::{
    http::{Server, Setup, token},
    proxy::Proxy,
};

#[tokio::test]
async fn lists_show_what_the_scopes_cover_page_by_page() {
    let server = Server::signed().await;
    let all = token("acme", "admin group consume");
    server.put("/v1/topics/t").token(&all).await.created();
    for group in ["b.1", "a.1", "b.3", "B.1", "b.2", "c"] {
        let commit = server.commit(group, offsets(&[("t", 0, 0)])).token(&all);
        commit.await.ok();
    }
    let list = async |scope: &str, query: &str| -> (Vec<String>, Value) {
        let path = format!("/v1/groups{query}");
        let list = server.get(&path).token(&token("acme", scope)).await.ok();
        let groups = list["groups"].as_array().unwrap().iter();
        let names = groups.map(|group| group["group"].as_str().unwrap().to_owned()).collect();
        (names, list["next_after"].clone())
    };
    assert_eq!(list("group", "").await.0, ["B.1", "a.1", "b.1", "b.2", "b.3", "c"]);
    assert_eq!(list("group", "?limit=6").await.1, Value::Null);
    assert_eq!(list("group", "?limit=5").await.1, json!("b.3"));
    assert_eq!(list("group", "?after=b.3").await.0, ["c"]);
    assert_eq!(list("group:b.* group:c", "").await.0, ["b.1", "b.2", "b.3", "c"]);
    // neither a short page nor next_after shows names that are not covered
    let first = list("group:b.*", "?limit=2").await;
    assert_eq!(first, (vec!["b.1".into(), "b.2".into()], json!("b.2")));
    assert_eq!(list("group:b.*", "?limit=2&after=b.2").await, (vec!["b.3".into()], Value::Null));
    assert_eq!(list("group:x", "").await, (vec![], Value::Null));
    for (query, pointer) in [("?limit=0", "?limit"), ("?limit=1001", "?limit"), ("?x=1", "?x")] {
        server.get(&format!("/v1/groups{query}")).token(&all).await.invalid(&[pointer]);
    }
}

#[tokio::test]
async fn a_group_is_described_as_it_is_by_every_replica() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 2, 5).await;
    server.group("g").await.refused(Code::GroupNotFound);
    let commit = json!({"offsets": [
        {"topic": "orders", "partition": 1, "offset": 2, "metadata": "m"}]});
    server.commit("g", commit).await.ok();
    let alone = other.group("g").await.ok();
    assert_eq!((&alone["generation"], &alone["members"]), (&json!(0), &json!([])));
    let place = &alone["partitions"][0];
    let committed_at = place["committed_at"].as_str().unwrap();
    let want = json!({"topic": "orders", "partition": 1, "committed_offset": 2, "metadata": "m",
        "committed_at": committed_at, "log_start_offset": 0, "high_watermark": 5, "lag": 3,
        "member_id": null, "owned_since": null, "owned_at": null, "assigned_to": null,
        "pinned_by": null, "pinned_at": null});
    assert_eq!(alone["partitions"], json!([want]));

    let joined = server.member("g", &["orders"], Some(AutoOffsetReset::Latest)).await;
    let group = other.group("g").await.ok();
    assert_eq!(group["generation"], json!(joined.generation));
    assert_eq!(group["auto_offset_reset"], "latest");
    let member = &group["members"][0];
    assert_eq!(member["member_id"], joined.member_id);
    assert_eq!(member["assignment"], json!([{"topic": "orders", "partitions": [0, 1]}]));
    assert_eq!(member["topics"], json!(["orders"]));
    assert_eq!((&member["instance_id"], &member["topic_pattern"]), (&Value::Null, &Value::Null));
    assert_eq!(member["session_timeout_ms"], 45_000);
    assert_eq!(member["lease_expires_at"], joined.lease_expires_at.to_string());
    for place in group["partitions"].as_array().unwrap() {
        assert_eq!(place["member_id"], joined.member_id);
        assert_eq!(place["owned_since"], json!(joined.generation));
        // since when: since it joined
        assert_eq!(place["owned_at"], member["joined_at"]);
    }
    let list = server.get("/v1/groups").await.ok();
    assert_eq!(list["groups"][0]["member_count"], 1);
    assert_eq!(list["groups"][0]["auto_offset_reset"], "latest");
    // a second one gets a partition only when the first has let go of it
    let second = server.member("g", &["orders"], None).await;
    let group = other.group("g").await.ok();
    assert_eq!(group["members"].as_array().unwrap().len(), 2);
    let moving: Vec<&Value> = group["partitions"].as_array().unwrap().iter().collect();
    let to: Vec<&Value> = moving.iter().map(|place| &place["assigned_to"]).collect();
    assert!(to.contains(&&json!(second.member_id)) && to.contains(&&Value::Null), "{to:?}");
    assert!(moving.iter().all(|place| place["member_id"] == joined.member_id));
}

/// Without a committed offset a lag counts from where the group would begin.
#[tokio::test]
async fn a_lag_is_what_is_still_to_be_processed() {
    let server = Server::start().await;
    server.filled_topic("orders", 4, 10).await;
    for (reset, before, trimmed) in [
        (AutoOffsetReset::Earliest, "0 10, 1 6, 2 0, 3 10", "0 5, 1 5, 2 0, 3 5"),
        (AutoOffsetReset::Latest, "0 0, 1 6, 2 0, 3 0", "0 0, 1 0, 2 0, 3 0"),
        (AutoOffsetReset::Error, "0 null, 1 6, 2 0, 3 null", "0 null, 1 null, 2 0, 3 null"),
    ] {
        let group = reset.as_str();
        let joined = server.member(group, &["orders"], Some(reset)).await;
        server.leave(group, &joined).await;
        server.commit(group, offsets(&[("orders", 1, 4), ("orders", 2, 10)])).await.ok();
        assert_eq!(each(&server.group(group).await, "lag"), before, "{group}");
        // the whole of it: what was made later is begun at its start
        assert_eq!(
            each(&server.group(group).await, "committed_offset"),
            "0 null, 1 4, 2 10, 3 null"
        );
        server
            .sql("update oncelog.logs set log_start_offset = 5 where partition is not null")
            .await;
        assert_eq!(each(&server.group(group).await, "lag"), trimmed, "{group}");
        server
            .sql("update oncelog.logs set log_start_offset = 0 where partition is not null")
            .await;
    }
    // what was made after it subscribed is begun at its start, whatever it says otherwise
    let joined = server.member("late", &["orders"], Some(AutoOffsetReset::Error)).await;
    server.patch("/v1/topics/orders").json(json!({"partition_count": 5})).await.ok();
    server.broker.sweep().await.unwrap();
    server.leave("late", &joined).await;
    assert_eq!(each(&server.group("late").await, "lag"), "0 null, 1 null, 2 null, 3 null, 4 0");
    server
        .post("/v1/topics/orders/partitions/4/records")
        .json(json!({"records": [{"value": 1}]}))
        .await
        .ok();
    assert!(each(&server.group("late").await, "lag").ends_with("4 1"));
}

/// Commits at the high watermark race with appends and descriptions on another replica.
#[tokio::test]
async fn a_lag_is_never_negative() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.topic("orders", 1).await;
    let path = "/v1/topics/orders/partitions/0/records";
    let produce = async {
        for end in 1..=60 {
            server.post(path).json(json!({"records": [{"value": end}]})).await.ok();
            server.commit("g", offsets(&[("orders", 0, end)])).await.ok();
        }
    };
    let describe = async {
        for _ in 0..60 {
            let answer = other.group("g").await;
            if answer.status == 200 {
                let lag = answer.json()["partitions"][0]["lag"].as_i64().unwrap();
                assert!((0..=1).contains(&lag), "{lag}");
            }
        }
    };
    tokio::join!(produce, describe);
    assert_eq!(each(&other.group("g").await, "lag"), "0 0");
}

#[tokio::test]
async fn how_long_a_partition_is_pinned_is_told() {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 5).await;
    let id = server.pin("g", "orders", 1, Value::Null).await;
    let prepared = server.get(&format!("/v1/transactions/{id}")).await.ok();
    let group = server.group("g").await.ok();
    // nothing is committed there yet, yet it is listed
    let place = &group["partitions"][0];
    assert_eq!((&place["partition"], &place["committed_offset"]), (&json!(1), &Value::Null));
    assert_eq!((&place["pinned_by"], &place["pinned_at"]), (&json!(id), &prepared["prepared_at"]));
    assert!(place["pinned_at"].is_string());
    server.post(&format!("/v1/transactions/{id}/commit")).await.ok();
    assert_eq!(each(&server.group("g").await, "pinned_by"), "1 null");
    assert_eq!(each(&server.group("g").await, "committed_offset"), "1 3");
}

const GROUP_ID: &str = "select group_id from oncelog.groups where name = 'g'";
const ROWS: &str = "select count(*) from oncelog.group_offsets";

#[tokio::test]
async fn a_deleted_group_is_gone_and_its_name_free() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 3, 5).await;
    server.delete_group("g").await.refused(Code::GroupNotFound);
    server.commit("g", offsets(&[("orders", 0, 1), ("orders", 2, 5)])).await.ok();
    server.commit("h", offsets(&[("orders", 0, 2)])).await.ok();
    let former = server.number(GROUP_ID).await;
    other.delete_group("g").await.no_content();
    server.group("g").await.refused(Code::GroupNotFound);
    server.committed("g").await.refused(Code::GroupNotFound);
    server.delete_group("g").await.refused(Code::GroupNotFound);
    assert_eq!(server.number(ROWS).await, 1);
    assert_eq!(told(&server.committed("h").await), "orders/0 2");
    // another life under the same name
    server.commit("g", offsets(&[("orders", 1, 4)])).await.ok();
    assert_eq!(told(&other.committed("g").await), "orders/1 4");
    assert_ne!(server.number(GROUP_ID).await, former);
}

#[tokio::test]
async fn a_group_with_members_is_neither_deleted_nor_reset() {
    let server = Server::start().await;
    server.filled_topic("orders", 1, 5).await;
    let joined = server.member("g", &["orders"], None).await;
    let refused = server.delete_group("g").await.refused(Code::GroupNotEmpty);
    assert!(refused["detail"].as_str().unwrap().ends_with("The group was not deleted."));
    let reset = || server.reset("g", json!({"to": "latest"}));
    let refused = reset().await.refused(Code::GroupNotEmpty);
    assert!(refused["detail"].as_str().unwrap().ends_with("Nothing was reset."));
    server.reset("g", json!({"to": "latest", "dry_run": true})).await.refused(Code::GroupNotEmpty);
    server.leave("g", &joined).await;
    assert_eq!(told(&reset().await), "orders/0 5");
    // one whose lease has run out is none, whether the janitor has come by or not
    for call in ["reset", "delete"] {
        server.member("g", &["orders"], None).await;
        server
            .sql("update oncelog.group_members set lease_expires_at = now() - interval '1 s'")
            .await;
        match call {
            "reset" => drop(reset().await.ok()),
            _ => server.delete_group("g").await.no_content(),
        }
    }
    server.group("g").await.refused(Code::GroupNotFound);
}

#[tokio::test]
async fn what_a_prepared_transaction_is_to_commit_keeps_its_group() {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 5).await;
    server.commit("g", offsets(&[("orders", 0, 1), ("orders", 1, 1)])).await.ok();
    for end in ["abort", "commit"] {
        let id = server.pin("g", "orders", 1, json!(1)).await;
        let refused = server.delete_group("g").await.refused(Code::OffsetCommitConflict);
        assert_eq!(refused["transaction_id"], id);
        assert_eq!(refused["committed_offset"], 1);
        server.post(&format!("/v1/transactions/{id}/{end}")).await.ok();
    }
    assert_eq!(told(&server.committed("g").await), "orders/0 1, orders/1 3");
    server.delete_group("g").await.no_content();
    assert_eq!(server.number(ROWS).await, 0);
}

/// What is staged is not prepared: its group may go. Its commit is judged by what there is then,
/// and makes the group again.
#[tokio::test]
async fn a_staged_offset_of_a_deleted_group_is_judged_at_its_commit() {
    let server = Server::start().await;
    server.filled_topic("orders", 1, 5).await;
    for (expected, made) in [(json!(null), true), (json!(2), false)] {
        if !made {
            server.commit("g", offsets(&[("orders", 0, 2)])).await.ok();
        } else {
            server
                .commit("g", json!({"offsets": [{"topic": "orders", "partition": 0, "offset": 2}]}))
                .await
                .ok();
        }
        let offset = json!({"group": "g", "topic": "orders", "partition": 0, "offset": 4,
            "expected_offset": expected});
        let begin = server.post("/v1/transactions").json(json!({"offsets": [offset]}));
        let id = begin.await.created()["transaction_id"].as_str().unwrap().to_owned();
        server.delete_group("g").await.no_content();
        let commit = server.post(&format!("/v1/transactions/{id}/commit")).await;
        if made {
            commit.ok();
            assert_eq!(told(&server.committed("g").await), "orders/0 4");
            server.delete_group("g").await.no_content();
        } else {
            let refused = commit.refused(Code::OffsetCommitConflict);
            assert_eq!(refused["committed_offset"], Value::Null);
            server.group("g").await.refused(Code::GroupNotFound);
        }
    }
}

/// A read has changed nothing, wherever the database goes away.
#[tokio::test]
async fn a_description_that_is_cut_off_has_a_known_outcome() {
    let server = Server::start().await;
    server.topic("t", 1).await;
    server.commit("g", offsets(&[("t", 0, 0)])).await.ok();
    let proxy = Proxy::start(&server.options, 1).await;
    let replica = Server::on(&proxy.options(&server.options), Setup::default()).await;
    for arrives in [false, true] {
        replica.get("/v1/groups/g").await.ok();
        proxy.cut_at("COMMIT", arrives);
        let problem = replica.get("/v1/groups/g").await.refused(Code::Unavailable);
        assert_eq!((&problem["side_effects"], proxy.cut_nowhere()), (&json!("none"), true));
    }
}
