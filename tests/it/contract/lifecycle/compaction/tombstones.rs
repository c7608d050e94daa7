//! A record whose value is null says that its key is gone, and goes itself when it has said so for
//! long enough.

use serde_json::json;

use super::{World, world_of};

/// Tombstones stay for a minute after what they speak of has gone, and after the ten minutes for
/// which a replica may know more.
async fn world() -> World {
    world_of(json!({"cleanup": "compact", "retention_ms": 60_000})).await
}

impl World {
    /// That many seconds go by.
    async fn age(&self, seconds: i64) {
        for (table, column) in [("batches", "appended_at"), ("compactions", "settled_at")] {
            let past = format!("{column} - interval '{seconds} seconds'");
            self.sql(&format!("update oncelog.{table} set {column} = {past}")).await;
        }
    }
}

#[tokio::test]
async fn tombstones_go_after_their_delay() {
    let mut world = world().await;
    world.append("a=1 b=1 c=1").await;
    world.append("a= =7").await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [1, 2, 3, 4]);
    world.age(600).await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [1, 2, 3, 4]);
    world.age(61).await;
    world.sweep().await;
    // nothing without a key is a tombstone
    assert_eq!(world.read_all(10).await, [1, 2, 4]);
}

/// However old a tombstone is when compaction first meets it: who has just read what it speaks of
/// has to read it, too.
#[tokio::test]
async fn the_delay_begins_when_what_is_gone_has_gone() {
    let mut world = world().await;
    world.append("a=1 b=1").await;
    world.append("a=").await;
    world.age(100_000).await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [1, 2]);
    // another one comes meanwhile: it is not settled with the first
    world.age(400).await;
    world.append("b= c=1").await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [2, 3, 4]);
    world.age(261).await;
    world.sweep().await;
    assert_eq!(world.number("select tombstones from oncelog.compactions").await, 1);
    world.age(661).await;
    world.sweep().await;
    assert_eq!(world.number("select tombstones from oncelog.compactions").await, 0);
    assert_eq!(world.number("select left_records from oncelog.compactions").await, 1);
    world.sizes().await;
}

#[tokio::test]
async fn tombstones_may_stay_without_limit() {
    let mut world = world_of(json!({"cleanup": "compact", "retention_ms": null})).await;
    world.append("a=1 a=").await;
    for _ in 0..2 {
        world.age(1_000_000_000).await;
        world.sweep().await;
        assert_eq!(world.read_all(10).await, [1]);
    }
}

#[tokio::test]
async fn a_key_may_come_back() {
    let mut world = world().await;
    world.append("a=1").await;
    world.append("a=").await;
    world.sweep().await;
    world.append("a=2").await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [2]);
    world.age(1_000).await;
    world.sweep().await;
    assert_eq!(world.read_all(10).await, [2]);
}
