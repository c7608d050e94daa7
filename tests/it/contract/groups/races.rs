//! Deletions and resets that meet joins, commits and transactions.

use std::future::IntoFuture;

use futures_util::future::join_all;
use oncelog::model::Code;
use serde_json::json;
use sqlx::{ConnectOptions, Connection};

use super::offsets::{offsets, told};
use crate::support::{
    http::{Server, Setup},
    served::until,
};

const WAITING: &str = "select count(*) from pg_stat_activity \
    where datname = current_database() and wait_event_type = 'Lock'";
const STRAYS: &str = "select count(*) from oncelog.group_offsets o where not exists ( \
    select from oncelog.groups g where g.tenant_id = o.tenant_id and g.name = o.group_name)";

/// Whatever a deletion meets, everybody is answered as if one had come after the other.
#[tokio::test]
async fn groups_come_and_go_under_commits_and_joins() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 3, 9).await;
    let deletes = (0..2).map(async |n| {
        let replica = if n == 0 { &server } else { &other };
        for round in 0..40 {
            let answer = replica.delete_group(&format!("g{}", round % 2)).await;
            match answer.status {
                204 => {}
                404 => drop(answer.refused(Code::GroupNotFound)),
                _ => drop(answer.refused(Code::GroupNotEmpty)),
            }
        }
    });
    let commits = (0..4).map(async |n| {
        let replica = if n % 2 == 0 { &server } else { &other };
        for round in 0..30_i64 {
            let group = format!("g{}", (round + n) % 2);
            let of = [("orders", 2, round % 9), ("orders", 0, 1)];
            let answer = replica.commit(&group, offsets(&of[..1 + (n as usize % 2)])).await;
            if answer.status != 200 {
                answer.refused(Code::GroupNotEmpty);
            }
            // offsets of both groups in one transaction
            let item = |group: &str| {
                json!({"group": group, "topic": "orders", "partition": 1, "offset": 1,
                    "expected_offset": null})
            };
            let both = json!({"offsets": [item("g0"), item("g1")], "commit": true});
            let answer = replica.post("/v1/transactions").json(both).await;
            if answer.status != 201 {
                let code = answer.json()["code"].as_str().unwrap().to_owned();
                // a group that goes again and again under a commit is too much at the same rows
                let codes = ["offset_commit_conflict", "group_not_empty", "unavailable"];
                assert!(codes.contains(&&*code), "{code}");
            }
        }
    });
    let joins = (0..2).map(async |n| {
        let replica = if n == 0 { &server } else { &other };
        for round in 0..15 {
            let group = format!("g{}", (round + n) % 2);
            let joined = replica.member(&group, &["orders"], None).await;
            replica.leave(&group, &joined).await;
        }
    });
    tokio::join!(join_all(deletes), join_all(commits), join_all(joins));
    assert_eq!(server.number(STRAYS).await, 0);
    for group in ["g0", "g1"] {
        let answer = server.delete_group(group).await;
        assert!([204, 404].contains(&answer.status), "{}", answer.text());
    }
    assert_eq!(server.number("select count(*) from oncelog.group_offsets").await, 0);
}

/// A commit that is in flight when the group is deleted comes before the deletion, whether it is
/// the first in its partition or not; one that comes while the group is being deleted makes it
/// again.
#[tokio::test]
async fn a_deletion_and_a_commit_come_one_after_the_other() {
    let server = Server::start().await;
    server.filled_topic("orders", 2, 9).await;
    for partition in [0, 1] {
        server.commit("g", offsets(&[("orders", 0, 1)])).await.ok();
        let mut connection = server.options.connect().await.unwrap();
        let mut held = connection.begin().await.unwrap();
        let lock = "select 1 from oncelog.groups for update";
        sqlx::query(lock).execute(&mut *held).await.unwrap();
        let delete = "delete from oncelog.group_offsets";
        sqlx::query(delete).execute(&mut *held).await.unwrap();
        let delete = "delete from oncelog.groups";
        sqlx::query(delete).execute(&mut *held).await.unwrap();
        let commit = server.commit("g", offsets(&[("orders", partition, 5)]));
        let release = async {
            until("the commit to wait", async || (server.number(WAITING).await > 0).then_some(()))
                .await;
            held.commit().await.unwrap();
        };
        let (answer, ()) = tokio::join!(commit.into_future(), release);
        let want = format!("orders/{partition} 5");
        assert_eq!((told(&answer), told(&server.committed("g").await)), (want.clone(), want));
        assert_eq!(server.number(STRAYS).await, 0);
    }
    // and one that has made its rows is waited for
    server.delete_group("g").await.no_content();
    let mut connection = server.options.connect().await.unwrap();
    let mut first = connection.begin().await.unwrap();
    let tenant = server.tenant_id().await;
    let place = oncelog::rules::group::offsets::OffsetPlace {
        group: crate::support::name("g"),
        log_id: oncelog::model::LogId(
            server.number("select min(log_id) from oncelog.logs where partition = 0").await,
        ),
    };
    let rows =
        oncelog::store::group::offsets::lock(&mut first, tenant, std::slice::from_ref(&place))
            .await;
    assert_eq!(rows.unwrap().len(), 1);
    let commit = oncelog::store::group::offsets::OffsetWrite { place, offset: 7, metadata: None };
    assert!(oncelog::store::group::offsets::commit(&mut first, tenant, &[commit]).await.unwrap());
    // a group that nobody else sees yet is not there
    server.delete_group("g").await.refused(Code::GroupNotFound);
    first.commit().await.unwrap();
    server.delete_group("g").await.no_content();
    assert_eq!(server.number("select count(*) from oncelog.group_offsets").await, 0);
}
