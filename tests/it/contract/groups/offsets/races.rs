//! Commits that meet: each other, through several replicas, and the deletion of a topic.

use std::sync::Arc;

use futures_util::future::join_all;
use oncelog::{
    model::{Code, LogId, Name, TenantId},
    rules::group::offsets::OffsetPlace,
    store::{self, Store, group::offsets::OffsetWrite},
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::json;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};

use super::{offsets, over, told};
use crate::support::{
    self,
    http::{Server, Setup},
    name,
    served::until,
};

#[tokio::test]
async fn of_those_that_take_the_same_step_one_wins() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 2, 9).await;
    for step in 0..8_i64 {
        let expected = if step == 0 { json!(null) } else { json!(step) };
        let steps = (0..20).map(|racer| {
            let replica = if racer % 2 == 0 { &server } else { &other };
            // the one that loses in one partition moves nothing in the other
            let mut both =
                [over(0, expected.clone(), step + 1), over(1, expected.clone(), step + 1)];
            both[0]["metadata"] = json!(format!("by {racer}"));
            both[1]["metadata"] = json!(format!("by {racer}"));
            replica.commit("g", json!({"offsets": both})).into_future()
        });
        let answers = join_all(steps).await;
        let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
        assert_eq!((won.len(), lost.len()), (1, 19), "step {step}");
        for answer in lost {
            let problem = answer.refused(Code::OffsetCommitConflict);
            assert_eq!(problem["committed_offset"], step + 1);
        }
        assert_eq!(told(&server.committed("g").await), told(won[0]), "step {step}");
    }
}

#[tokio::test]
async fn commits_of_many_partitions_in_any_order_do_not_deadlock() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("orders", 6, 9).await;
    let mut random = StdRng::seed_from_u64(5);
    for round in 0..10 {
        // groups that nobody has committed in yet: rows are made and locked at the same time
        let group = format!("g{round}");
        let commits: Vec<_> = (0..24)
            .map(|racer| {
                let mut partitions: Vec<i32> = (0..6).collect();
                partitions.shuffle(&mut random);
                partitions.truncate(random.random_range(1..=6));
                let of: Vec<_> = partitions.iter().map(|p| ("orders", *p, racer % 10)).collect();
                let replica = if racer % 2 == 0 { &server } else { &other };
                replica.commit(&group, offsets(&of)).into_future()
            })
            .collect();
        for answer in join_all(commits).await {
            answer.ok();
        }
    }
}

/// As transactions do: several groups and logs at once, rows made and locked, some held for a
/// while.
#[tokio::test]
async fn places_of_many_groups_are_locked_without_deadlock() {
    let server = Server::start().await;
    server.filled_topic("orders", 4, 9).await;
    let tenant = support::tenant(&server.broker).await;
    let logs = log_ids(&server).await;
    let store = Arc::new(Store::new(server.options.clone(), 12));
    let worker = async |seed: u64| {
        let mut random = StdRng::seed_from_u64(seed);
        for round in 0..15 {
            let place = |random: &mut StdRng| OffsetPlace {
                group: name(&format!("g{}", round * 3 + random.random_range(0..3))),
                log_id: logs[random.random_range(0..logs.len())],
            };
            let places: Vec<OffsetPlace> =
                (0..random.random_range(1..8)).map(|_| place(&mut random)).collect();
            let work = store.transaction(async move |c| commit_all(c, tenant, places).await);
            assert!(work.await.unwrap());
        }
    };
    join_all((0..12).map(worker)).await;
}

async fn commit_all(
    connection: &mut PgConnection,
    tenant: TenantId,
    places: Vec<OffsetPlace>,
) -> Result<bool, store::Error> {
    let rows = store::group::offsets::lock(connection, tenant, &places).await?;
    assert!(places.iter().all(|place| rows.contains_key(place)));
    let groups: Vec<Name> = rows.keys().map(|place| place.group.clone()).collect();
    let nobody = Default::default();
    let facts = store::group::offsets::groups(connection, tenant, &groups, &nobody).await?;
    assert!(groups.iter().all(|group| facts.contains_key(group)));
    let next = |(place, row): (OffsetPlace, oncelog::rules::group::offsets::OffsetRow)| {
        let offset = row.committed_offset.unwrap_or(0) + 1;
        OffsetWrite { place, offset, metadata: None }
    };
    let commits: Vec<OffsetWrite> = rows.into_iter().map(next).collect();
    store::group::offsets::commit(connection, tenant, &commits).await
}

/// The logs of `orders` by partition.
async fn log_ids(server: &Server) -> Vec<LogId> {
    let mut connection = server.options.connect().await.unwrap();
    let ids: Vec<i64> = sqlx::query_scalar(
        "select log_id from oncelog.logs l join oncelog.topics t using (tenant_id, topic_id) \
         where t.name = 'orders' and partition is not null order by partition",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    ids.into_iter().map(LogId).collect()
}

const WAITING: &str = "select count(*) from pg_stat_activity \
    where datname = current_database() and wait_event_type = 'Lock'";
const ORPHANS: &str = "select count(*) from oncelog.group_offsets o \
    where not exists (select from oncelog.logs l where l.log_id = o.log_id)";

/// The topic of a commit goes, rows and all, while the commit has made its row and waits for
/// another: it is told that the topic is not there, and leaves nothing.
#[tokio::test]
async fn a_commit_in_a_topic_that_vanishes_meanwhile_leaves_nothing() {
    for is_first in [true, false] {
        let server = Server::start().await;
        server.filled_topic("orders", 1, 9).await;
        server.filled_topic("audit", 1, 9).await;
        server.commit("g", offsets(&[("orders", 0, 1)])).await.ok();
        if !is_first {
            server.commit("g", offsets(&[("audit", 0, 1)])).await.ok();
        }
        let orders = log_ids(&server).await[0].0;
        let mut connection = server.options.connect().await.unwrap();
        let mut held = connection.begin().await.unwrap();
        let lock = format!(
            "select 1 from oncelog.group_offsets where log_id = {orders} for no key update"
        );
        sqlx::query(AssertSqlSafe(lock)).execute(&mut *held).await.unwrap();
        let commit = server.commit("g", offsets(&[("audit", 0, 5), ("orders", 0, 5)]));
        let meanwhile = async {
            until("the commit to wait", async || (server.number(WAITING).await > 0).then_some(()))
                .await;
            server.delete("/v1/topics/audit").await.no_content();
            server.broker.sweep().await.unwrap();
            held.commit().await.unwrap();
        };
        let (answer, ()) = tokio::join!(commit.into_future(), meanwhile);
        answer.refused(Code::TopicNotFound);
        assert_eq!(told(&server.committed("g").await), "orders/0 1");
        server.broker.sweep().await.unwrap();
        assert_eq!(server.number(ORPHANS).await, 0, "{is_first}");
        assert_eq!(server.number("select count(*) from oncelog.group_offsets").await, 1);
        assert_eq!(server.number("select count(*) from oncelog.doomed_logs").await, 0);
    }
}

/// A first commit that is about to be acknowledged holds the deletion up, so that the janitor sees
/// its row.
#[tokio::test]
async fn a_deletion_waits_for_the_first_commit_in_a_partition() {
    let server = Server::start().await;
    server.filled_topic("orders", 1, 9).await;
    let tenant = support::tenant(&server.broker).await;
    let place = OffsetPlace { group: name("g"), log_id: log_ids(&server).await[0] };
    let mut connection = server.options.connect().await.unwrap();
    let mut first = connection.begin().await.unwrap();
    assert!(commit_all(&mut first, tenant, vec![place]).await.unwrap());
    let release = async {
        until("the deletion to wait", async || (server.number(WAITING).await > 0).then_some(()))
            .await;
        first.commit().await.unwrap();
    };
    let (answer, ()) = tokio::join!(server.delete("/v1/topics/orders").into_future(), release);
    answer.no_content();
    assert_eq!(server.number(ORPHANS).await, 1);
    server.broker.sweep().await.unwrap();
    assert_eq!(server.number(ORPHANS).await, 0);
}

/// Topics come and go under commits; what is left in the end belongs to what is there.
#[tokio::test]
async fn topics_that_come_and_go_under_commits_leave_no_offsets() {
    let server = Server::start().await;
    let other = Server::on(&server.options, Setup::default()).await;
    server.filled_topic("audit", 1, 9).await;
    let come_and_go = async {
        for _ in 0..15 {
            server.topic("orders", 2).await;
            server.broker.sweep().await.unwrap();
            other.delete("/v1/topics/orders").await.no_content();
            server.broker.sweep().await.unwrap();
        }
    };
    let commits = (0..8).map(async |racer| {
        let mut found = 0;
        for round in 0..25 {
            let replica = if racer % 2 == 0 { &server } else { &other };
            let group = format!("g{}", (racer + round) % 5);
            let of = [("orders", 1, 0), ("audit", 0, round % 9), ("orders", 0, 0)];
            let answer = replica.commit(&group, offsets(&of)).await;
            match answer.status {
                200 => found += 1,
                _ => drop(answer.refused(Code::TopicNotFound)),
            }
        }
        found
    });
    let (found, ()) = tokio::join!(join_all(commits), come_and_go);
    println!("{} of 200 commits found the topic", found.iter().sum::<i32>());
    server.broker.sweep().await.unwrap();
    assert_eq!(server.number(ORPHANS).await, 0);
}
