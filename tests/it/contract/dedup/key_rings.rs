//! Rings of keys turn when their periods are over, and what has expired goes as a whole. Nobody
//! waits for that here: instants in the database are moved.

use std::{collections::BTreeMap, sync::Arc};

use oncelog::{
    broker::{Broker, ServiceConfig},
    model::dedup::Ring,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, PgConnection, postgres::PgConnectOptions};

use crate::support::{self, served::until};

struct World {
    options: PgConnectOptions,
    broker: Arc<Broker>,
    hand: PgConnection,
}

async fn world() -> World {
    let options = support::database().await;
    let broker = support::broker(&options, ServiceConfig::default());
    let hand = options.connect().await.unwrap();
    World { options, broker, hand }
}

impl World {
    async fn sql(&mut self, sql: &str) {
        self.hand.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
    }

    async fn sweep(&self) {
        self.broker.sweep().await.unwrap();
    }

    /// Three keys into each of these partitions.
    async fn fill(&mut self, slots: impl IntoIterator<Item = i16>) {
        for slot in slots {
            let fill = format!(
                "insert into oncelog.dedup_keys (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at) \
                select {slot}, 1, 2, gen_random_uuid(), 3, now(), 'infinity' from generate_series(1, 3)"
            );
            self.sql(&fill).await;
        }
    }

    /// Of each partition that has some.
    async fn keys(&mut self) -> BTreeMap<i16, i64> {
        let sql = "select slot, count(*) from oncelog.dedup_keys group by slot";
        let rows: Vec<(i16, i64)> = sqlx::query_as(sql).fetch_all(&mut self.hand).await.unwrap();
        rows.into_iter().collect()
    }

    async fn slot(&mut self, ring: Ring) -> i16 {
        let query = sqlx::query_scalar("select slot from oncelog.key_rings where ring = $1");
        query.bind(ring.0).fetch_one(&mut self.hand).await.unwrap()
    }

    /// The ring's period ends in that many milliseconds.
    async fn end_in(&mut self, ms: i64, ring: Ring) {
        let end = format!(
            "update oncelog.key_rings set turned_at = clock_timestamp() \
                + ({ms} - period_ms) * interval '1 millisecond' where ring = {}",
            ring.0
        );
        self.sql(&end).await;
    }

    /// When it turned, and its horizon.
    async fn turned_at(&mut self, ring: Ring) -> (String, String) {
        let sql = "select turned_at::text, horizon::text from oncelog.key_rings where ring = $1";
        sqlx::query_as(sql).bind(ring.0).fetch_one(&mut self.hand).await.unwrap()
    }
}

fn rings() -> impl Iterator<Item = Ring> {
    Ring::all().filter(|ring| *ring != Ring::FOREVER)
}

#[tokio::test]
async fn a_ring_turns_when_its_period_is_over_and_empties_what_comes_next() {
    let mut world = world().await;
    world.fill(0..=18).await;
    let all = world.keys().await;
    assert_eq!(all.len(), 19);
    world.sweep().await;
    assert_eq!(world.keys().await, all);
    for ring in rings() {
        let mut left = world.keys().await;
        let [first, second, third] = ring.slots();
        // once around: three turns
        for (slot, next) in [(first, second), (second, third), (third, first)] {
            assert_eq!(world.slot(ring).await, slot);
            world.end_in(60_000, ring).await;
            world.sweep().await;
            assert_eq!(world.slot(ring).await, slot, "{ring:?}: a minute too soon");
            world.end_in(-1_000, ring).await;
            let (turned_at, _) = world.turned_at(ring).await;
            world.sweep().await;
            assert_eq!(world.slot(ring).await, next, "{ring:?}");
            let (turned_again_at, horizon) = world.turned_at(ring).await;
            assert_eq!(horizon, turned_at, "what was emptied came before");
            left.remove(&next);
            assert_eq!(world.keys().await, left, "{ring:?}");
            // it has turned just now
            world.sweep().await;
            assert_eq!(world.turned_at(ring).await, (turned_again_at, horizon));
        }
    }
    assert_eq!(world.keys().await, BTreeMap::from([(18, 3)]));
}

#[tokio::test]
async fn a_ring_without_a_period_never_turns() {
    let mut world = world().await;
    world.fill([18]).await;
    world.sql("update oncelog.key_rings set turned_at = 'epoch' where period_ms is null").await;
    world.sweep().await;
    assert_eq!(world.slot(Ring::FOREVER).await, 18);
    assert_eq!(world.keys().await, BTreeMap::from([(18, 3)]));
}

#[tokio::test]
async fn a_clock_that_goes_back_turns_nothing_and_moves_no_horizon_back() {
    let mut world = world().await;
    let ring = Ring(0);
    world.fill(ring.slots()).await;
    world.sql("update oncelog.key_rings set turned_at = now() + interval '1 day'").await;
    world.sweep().await;
    assert_eq!(world.slot(ring).await, 0);
    assert_eq!(world.keys().await.len(), 3);
    // a horizon of before the clock went back stays
    world.sql("update oncelog.key_rings set horizon = now() + interval '1 day'").await;
    world.end_in(-1_000, ring).await;
    let (_, before) = world.turned_at(ring).await;
    world.sweep().await;
    assert_eq!(world.slot(ring).await, 1);
    assert_eq!(world.turned_at(ring).await.1, before);
}

/// However many sweep at a time, a ring turns once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_turn_a_ring_once() {
    let mut world = world().await;
    let other = support::broker(&world.options, ServiceConfig::default());
    let ring = Ring(1);
    for round in 1..=9 {
        world.fill(ring.slots()).await;
        world.end_in(-1_000, ring).await;
        let before = world.keys().await;
        let (one, two) = tokio::join!(world.broker.sweep(), other.sweep());
        one.unwrap();
        two.unwrap();
        let slot = world.slot(ring).await;
        assert_eq!(slot, ring.slots()[round % 3]);
        let mut left = before;
        left.remove(&slot);
        assert_eq!(world.keys().await, left, "round {round}");
    }
}

/// A backup reads for hours: the ring turns later, and nobody has to wait for the backup's end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_is_read_for_long_is_emptied_later() {
    let mut world = world().await;
    let (ring, other) = (Ring(0), Ring(1));
    world.fill(0..6).await;
    let mut reader = world.options.connect().await.unwrap();
    reader.execute("begin; select count(*) from oncelog.dedup_keys_1").await.unwrap();
    for ring in [ring, other] {
        world.end_in(-1_000, ring).await;
    }
    let (turned_at, horizon) = world.turned_at(ring).await;
    // anyone who looks keys up meanwhile gets through while the backup still reads
    let mut looks = world.options.connect().await.unwrap();
    let sweeping = {
        let broker = world.broker.clone();
        tokio::spawn(async move { broker.sweep().await })
    };
    let mut looked = 0;
    while !sweeping.is_finished() || looked < 10 {
        looks.execute("select count(*) from oncelog.dedup_keys").await.unwrap();
        looked += 1;
    }
    sweeping.await.unwrap().unwrap();
    assert_eq!(world.slot(ring).await, 0);
    assert_eq!(world.turned_at(ring).await, (turned_at, horizon));
    assert_eq!(world.slot(other).await, 4, "another ring does not wait for this one");
    assert_eq!(world.keys().await.len(), 5);
    world.sweep().await;
    assert_eq!(world.slot(ring).await, 0, "tried again, in vain");
    reader.execute("commit").await.unwrap();
    world.sweep().await;
    assert_eq!(world.slot(ring).await, 1);
    assert_eq!(world.keys().await.len(), 4);
}

/// Emptying is for a partition that has something: nobody is kept from looking keys up for nothing.
#[tokio::test]
async fn what_is_empty_is_not_emptied() {
    let mut world = world().await;
    let file = "select pg_relation_filenode('oncelog.dedup_keys_1')::bigint";
    let before: i64 = sqlx::query_scalar(file).fetch_one(&mut world.hand).await.unwrap();
    world.end_in(-1_000, Ring(0)).await;
    world.sweep().await;
    assert_eq!(world.slot(Ring(0)).await, 1);
    let after: i64 = sqlx::query_scalar(file).fetch_one(&mut world.hand).await.unwrap();
    assert_eq!(after, before);
}

/// Who serves need not own the tables.
#[tokio::test]
async fn a_role_without_rights_of_its_own_turns_rings() {
    let mut world = world().await;
    let role = format!("clerk_{}", world.options.get_database().unwrap());
    world.fill([1]).await;
    world.end_in(-1_000, Ring(0)).await;
    world
        .sql(&format!(
            "create role {role} login; grant usage on schema oncelog to {role}; \
            grant execute on all functions in schema oncelog to {role}; \
            grant select, insert, update, delete on all tables in schema oncelog to {role}"
        ))
        .await;
    let clerk = support::broker(&world.options.clone().username(&role), ServiceConfig::default());
    clerk.sweep().await.unwrap();
    assert_eq!(world.slot(Ring(0)).await, 1);
    assert!(world.keys().await.is_empty());
    clerk.stop().await;
    world.sql(&format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn what_rings_hold_is_measured() {
    let mut world = world().await;
    world.fill([0, 1, 18]).await;
    world.sql("analyze oncelog.dedup_keys").await;
    let measured = crate::metrics::Measured::start(&world.options, &[]).await;
    let name = "oncelog_dedup_keys";
    let keys = async || {
        let scrape = measured.scrape().await;
        let keys = |ring| scrape.sum(name, &[("ring", ring)]);
        [keys("15m"), keys("2h"), keys("forever")]
    };
    until("the keys to be counted", async || (keys().await[0] > 0.0).then_some(())).await;
    assert_eq!(keys().await, [6.0, 0.0, 3.0]);
    let scrape = measured.scrape().await;
    let bytes = |ring| scrape.sum("oncelog_dedup_keys_bytes", &[("ring", ring)]);
    assert!(bytes("forever") >= 16_384.0, "a page of keys, and one of the index");
    assert!(bytes("15m") > bytes("2h"));
}
