//! Readers of all kinds see the same: what is left, each at its offset and once.

use std::future::IntoFuture;

use serde_json::{Value, json};

use super::{World, world};
use crate::contract::reads::{ends, offsets};

/// Rows with holes at their beginning, middle and end, and holes between them.
async fn a_log_with_holes() -> World {
    let mut world = world().await;
    for text in
        ["a=1 b=1 =1 c=1", "a=2 b=2", "d=1 a=3", "c=2 c=3 c=4", "a=4 e=1 a=5", "c=5 b=3 a=6"]
    {
        world.append(text).await;
    }
    world.sweep().await;
    assert_eq!(world.left(), [2, 6, 12, 14, 15, 16]);
    world
}

#[tokio::test]
async fn from_any_offset_the_next_record_is_read() {
    let world = a_log_with_holes().await;
    let left = world.left();
    for from in 0..=17 {
        let next: Vec<i64> = left.iter().copied().filter(|offset| *offset >= from).collect();
        for limit in [1, 2, 10] {
            let page = world.read(&format!("offset={from}&limit={limit}")).await.ok();
            assert_eq!(offsets(&page), next[..limit.min(next.len())], "{from} {limit}");
            let (next_offset, _, high_watermark) = ends(&page);
            assert_eq!(high_watermark, 17);
            let last = offsets(&page).last().map_or(17, |last| last + 1);
            assert!(next_offset >= last, "{page}");
            assert!(next.get(limit).is_none_or(|next| next_offset <= *next), "{page}");
        }
        // and with a page cache that has met every offset first
        let again = world.fresh();
        let path = format!("/v1/topics/t/partitions/0/records?offset={from}&limit=1");
        let page = again.await.get(&path).await.ok();
        assert_eq!(offsets(&page), next[..1.min(next.len())], "{from}");
    }
}

#[tokio::test]
async fn lines_are_the_same_records() {
    let world = a_log_with_holes().await;
    let page = world.read("").await.ok();
    let path = "/v1/topics/t/partitions/0/records";
    for (from, limit) in [(0, 100), (3, 2), (7, 100)] {
        let query = format!("{path}?offset={from}&limit={limit}");
        let answer = world.server.get(&query).header("accept", "application/x-ndjson").await;
        let lines = answer.text().lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        let all = page["records"].as_array().unwrap().iter();
        let want = all.filter(|record| record["offset"].as_i64().unwrap() >= from).take(limit);
        assert_eq!(lines, want.cloned().collect::<Vec<_>>());
        lines.iter().for_each(|record| world.check(record));
    }
}

#[tokio::test]
async fn an_instant_is_found_beside_holes() {
    let world = a_log_with_holes().await;
    // a minute for every offset
    let base = "timestamptz '2026-11-21T08:00:00Z'";
    let moved = "update oncelog.batches set appended_at";
    world.sql(&format!("{moved} = {base} + base_offset * interval '1 minute'")).await;
    let rows = [(0, 4, 2), (6, 8, 6), (11, 14, 12), (14, 17, 14)];
    for minute in 0..20 {
        for second in [0, 1] {
            let query = format!("timestamp=2026-11-21T08:{minute:02}:{second:02}.000Z&limit=1");
            let page = world.read(&query).await.ok();
            let row = rows.iter().find(|(base, ..)| base * 60 >= minute * 60 + second);
            let want: Vec<i64> = row.map(|(.., first)| *first).into_iter().collect();
            assert_eq!(offsets(&page), want, "{minute}:{second}");
        }
    }
}

#[tokio::test]
async fn a_cursor_passes_over_holes() {
    let world = a_log_with_holes().await;
    let (mut cursor, mut all) = (String::new(), Vec::new());
    loop {
        let path = format!("/v1/topics/t/records?limit=2{cursor}");
        let page = world.server.get(&path).await.ok();
        if offsets(&page).is_empty() {
            assert_eq!(page["partitions"][0]["next_offset"], 17);
            break;
        }
        all.extend(offsets(&page));
        cursor = format!("&cursor={}", page["cursor"].as_str().unwrap());
    }
    assert_eq!(all, world.left());
}

#[tokio::test]
async fn a_member_fetches_what_is_left() {
    let world = a_log_with_holes().await;
    let join = json!({"topics": ["t"], "auto_offset_reset": "earliest"});
    let joined = world.server.post("/v1/groups/g/members").json(join).await.created();
    let path = format!("/v1/groups/g/members/{}/records", joined["member_id"].as_str().unwrap());
    let (mut all, mut cursor) = (Vec::new(), String::new());
    while all.len() < 6 {
        let page = world.server.get(&format!("{path}?limit=2{cursor}")).await.ok();
        assert!(!offsets(&page).is_empty(), "{page}");
        all.extend(offsets(&page));
        cursor = format!("&cursor={}", page["cursor"].as_str().unwrap());
    }
    assert_eq!(all, world.left());
    let waiting = world.server.get(&format!("{path}?wait_ms=30000{cursor}"));
    let waiting = tokio::spawn(waiting.into_future());
    let append = json!({"records": [{"key": "z", "value": 1}]});
    world.server.post("/v1/topics/t/partitions/0/records").json(append).await.ok();
    assert_eq!(offsets(&waiting.await.unwrap().ok()), [17]);
}

/// The log ends in a hole where its last records were tombstones.
#[tokio::test]
async fn an_end_that_is_a_hole_is_passed_and_then_waited_at() {
    let mut world = super::world_of(json!({"cleanup": "compact", "retention_ms": 1000})).await;
    world.append("a=1 b=1").await;
    world.append("c=1 a= b=").await;
    world.append("c=").await;
    world.sweep().await;
    assert_eq!(world.read_all(1).await, [3, 4, 5]);
    world.sql("update oncelog.compactions set settled_at = settled_at - interval '1 day'").await;
    world.sweep().await;
    // by replicas that know nothing, and from anywhere
    for from in 0..=6 {
        let fresh = world.fresh().await;
        let path = format!("/v1/topics/t/partitions/0/records?offset={from}");
        let page = fresh.get(&path).await.ok();
        assert_eq!((offsets(&page), ends(&page).0), (vec![], 6), "{from}");
        let page = fresh.get("/v1/topics/t/records").await.ok();
        assert_eq!(page["partitions"][0]["next_offset"], 6);
        let cursor = page["cursor"].as_str().unwrap();
        let page = fresh.get(&format!("/v1/topics/t/records?cursor={cursor}")).await.ok();
        assert_eq!(page["partitions"][0]["next_offset"], 6);
    }
    let fresh = world.fresh().await;
    let waiting = fresh.get("/v1/topics/t/partitions/0/records?offset=6&wait_ms=30000");
    let waiting = tokio::spawn(waiting.into_future());
    world.append("d=1").await;
    assert_eq!(offsets(&waiting.await.unwrap().ok()), [6]);
    let page = fresh.get("/v1/topics/t/partitions/0/records?offset=1").await.ok();
    assert_eq!(offsets(&page), [6]);
}

/// More offsets than any page covers are gone: anyone who reads from the start is not kept busy by
/// it.
#[tokio::test]
async fn a_long_hole_is_one_step() {
    let mut world = world().await;
    world.append("=1").await;
    for _ in 0..12 {
        let many = (0..1_000).map(|n| (Some("k"), json!(n))).collect();
        world.append_all(many).await;
    }
    world.append("=2").await;
    world.sweep().await;
    let page = world.read("offset=0").await.ok();
    assert_eq!(offsets(&page), [0, 12_000, 12_001]);
    assert_eq!(ends(&page).0, 12_002);
    // hundreds of rows with a record each
    for round in 0..300 {
        let keys = ["a", "b", "c"].iter().map(|key| (Some(*key), json!(round)));
        world.append_all(keys.chain([(None, json!(0))]).collect()).await;
    }
    world.sweep().await;
    assert_eq!(world.read_all(10_000).await, world.left());
    assert_eq!(world.read_all(7).await, world.left());
}
