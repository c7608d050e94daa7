//! Compacted topics: which records stay, how they are read, and concurrent work. To simulate time,
//! the tests change timestamps in the database.

mod producers;
mod races;
mod readers;
mod tombstones;

use std::collections::HashSet;

use serde_json::{Value, json};

use crate::{
    contract::reads::{ends, offsets},
    support::{
        self,
        http::{Answer, Server, Setup},
    },
};

/// A record: its key if it has one, and its value.
type Record = (Option<&'static str>, Value);

/// A server with a compacted topic `t` of one partition.
struct World {
    server: Server,
    /// What was appended, by offset.
    appended: Vec<Record>,
}

async fn world() -> World {
    world_of(json!({"cleanup": "compact"})).await
}

async fn world_of(settings: Value) -> World {
    let server = Server::start().await;
    let topic = json!({"partition_count": 1, "settings": settings});
    server.put("/v1/topics/t").json(topic).await.created();
    World { server, appended: Vec::new() }
}

/// `a=1 b= =2`: with a key, a tombstone, without a key.
fn records(text: &'static str) -> Vec<Record> {
    let record = |word: &'static str| {
        let (key, value) = word.split_once('=').unwrap();
        let value = value.parse().map_or(Value::Null, |value: i64| json!(value));
        ((!key.is_empty()).then_some(key), value)
    };
    text.split_whitespace().map(record).collect()
}

fn sent(records: &[Record]) -> Value {
    let record = |(key, value): &Record| match key {
        Some(key) => json!({"key": key, "value": value}),
        None => json!({"value": value}),
    };
    records.iter().map(record).collect()
}

impl World {
    /// An append, which is a row.
    async fn append(&mut self, text: &'static str) {
        self.append_all(records(text)).await;
    }

    async fn append_all(&mut self, records: Vec<Record>) {
        let body = json!({"records": sent(&records)});
        let answer = self.server.post("/v1/topics/t/partitions/0/records").json(body).await.ok();
        assert_eq!(answer["base_offset"], json!(self.appended.len()));
        self.appended.extend(records);
    }

    async fn sweep(&self) {
        self.server.broker.sweep().await.unwrap();
    }

    async fn sql(&self, sql: &str) {
        support::execute(&self.server.options, sql).await;
    }

    async fn number(&self, sql: &str) -> i64 {
        support::number(&self.server.options, sql).await
    }

    async fn read(&self, query: &str) -> Answer {
        self.server.get(&format!("/v1/topics/t/partitions/0/records?{query}")).await
    }

    /// A replica that has read nothing yet.
    async fn fresh(&self) -> Server {
        Server::on(&self.server.options, Setup::default()).await
    }

    /// Offsets of all records, read in pages of that many by a fresh replica.
    async fn read_all(&self, limit: usize) -> Vec<i64> {
        let fresh = self.fresh().await;
        let (mut all, mut next) = (Vec::new(), 0);
        loop {
            let query = format!("offset={next}&limit={limit}");
            let path = format!("/v1/topics/t/partitions/0/records?{query}");
            let page = fresh.get(&path).await.ok();
            let (found, (next_offset, _, high_watermark)) = (offsets(&page), ends(&page));
            for record in page["records"].as_array().unwrap() {
                self.check(record);
            }
            assert!(found.iter().all(|offset| (next..next_offset).contains(offset)), "{page}");
            assert!(found.is_sorted());
            all.extend(found);
            if next_offset == high_watermark {
                return all;
            }
            assert!(!offsets(&page).is_empty() && next_offset > next, "{page}");
            next = next_offset;
        }
    }

    /// A record as it was appended.
    fn check(&self, record: &Value) {
        let offset = record["offset"].as_u64().unwrap() as usize;
        let (key, value) = &self.appended[offset];
        assert_eq!((&record["value"], record["key"].as_str()), (value, *key), "{record}");
    }

    /// Offsets of what is to be left: the last record of each key, and those without a key.
    fn left(&self) -> Vec<i64> {
        let mut later = HashSet::new();
        let is_left = |(_, (key, _)): &(usize, &Record)| key.is_none_or(|key| later.insert(key));
        let records = self.appended.iter().enumerate().rev();
        let mut left: Vec<i64> = records.filter(is_left).map(|(offset, _)| offset as i64).collect();
        left.reverse();
        left
    }

    /// Rows, and the log's size as it is told and as it is.
    async fn sizes(&self) -> (i64, i64) {
        let told = self.number("select sum(size_bytes)::bigint from oncelog.logs").await;
        let is = "select (select coalesce(sum(octet_length(records)), 0) from oncelog.batches)::bigint \
            + (select coalesce(sum(octet_length(records)), 0) from oncelog.staged_batches)::bigint";
        assert_eq!(told, self.number(is).await);
        let rows = self.number("select count(*) from oncelog.batches where records is not null or staged_ordinal is not null");
        (rows.await, told)
    }
}

#[tokio::test]
async fn the_last_record_of_each_key_stays_at_its_offset() {
    let mut world = world().await;
    world.append("a=1 b=1 =1 a=2").await;
    world.append("a=3 c=1").await;
    world.append("b=2 b=3 b=4").await;
    world.append("=2").await;
    let (rows, size) = world.sizes().await;
    assert_eq!(rows, 4);
    world.sweep().await;
    assert_eq!(world.left(), [2, 4, 5, 8, 9]);
    let (rows, left) = world.sizes().await;
    assert!(rows == 4 && left < size, "{rows} {left}");
    for limit in [1, 2, 3, 100] {
        assert_eq!(world.read_all(limit).await, world.left(), "{limit}");
    }
    // a row of which nothing is left goes
    world.append("a=4 b=5 c=2").await;
    world.append("a=5 a=6").await;
    world.sweep().await;
    assert_eq!(world.left(), [2, 9, 11, 12, 14]);
    assert_eq!(world.sizes().await.0, 4);
    assert_eq!(world.read_all(2).await, world.left());
    let topic = world.server.get("/v1/topics/t").await.ok();
    assert_eq!(topic["partitions"][0]["record_count"], 5);
    assert_eq!(topic["partitions"][0]["high_watermark"], 15);
    // people see the same
    let seen = "select count(*) from oncelog.records where \"offset\" in (2, 9, 11, 12, 14)";
    assert_eq!(world.number(seen).await, 5);
    let seen = "select sum((record ->> 'value')::bigint * \"offset\")::bigint from oncelog.records";
    assert_eq!(world.number(seen).await, 2 + 2 * 9 + 5 * 11 + 2 * 12 + 6 * 14);
}

/// Rows of many appends, and pages of few: every reader passes many holes.
#[tokio::test]
async fn rounds_follow_each_other() {
    const KEYS: [&str; 7] = ["a", "b", "c", "d", "e", "\"", "ü\n"];
    let mut world = world().await;
    let mut random: u64 = 1;
    for _ in 0..6 {
        for _ in 0..8 {
            let record = |_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pick = (random >> 33) as usize;
                (KEYS.get(pick % 8).copied(), json!({"key": pick % 100, "x": ["}", "\""]}))
            };
            world.append_all((0..5).map(record).collect()).await;
        }
        world.sweep().await;
        // enough is dirty each time: half of the log at least
        assert_eq!(world.read_all(3).await, world.left());
        assert_eq!(world.read_all(10_000).await, world.left());
        world.sizes().await;
    }
    assert!(world.appended.len() - world.left().len() > 100);
}

#[tokio::test]
async fn a_few_dirty_records_wait_for_more() {
    let mut world = world().await;
    world.append("a=1 b=1 c=1 d=1").await;
    world.sweep().await;
    world.append("a=2 b=2 c=2").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, Vec::from_iter(0..7));
    world.append("d=2").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [4, 5, 6, 7]);
}

#[tokio::test]
async fn a_topic_is_compacted_while_it_says_so() {
    let mut world = world_of(json!({})).await;
    let patch = async |world: &World, cleanup: &str| {
        let patch = json!({"settings": {"cleanup": cleanup}});
        world.server.patch("/v1/topics/t").json(patch).await.ok();
    };
    world.append("a=1 a=2").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [0, 1]);
    // the tenant's word, but for what the topic says
    world.server.patch("/v1/settings").json(json!({"cleanup": "compact"})).await.ok();
    patch(&world, "delete").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [0, 1]);
    patch(&world, "default").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [1]);
    patch(&world, "delete").await;
    world.append("a=3 a=4").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [1, 2, 3]);
    patch(&world, "compact").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [3]);
}

#[tokio::test]
async fn what_transactions_have_staged_is_compacted_as_well() {
    let mut world = world().await;
    world.append("a=1 b=1 =1").await;
    let begun = world.server.post("/v1/transactions").json(json!({})).await.created();
    let id = begun["transaction_id"].as_str().unwrap().to_owned();
    for text in ["a=2 c=1", "a=3 a=4", "d=1 b=2"] {
        let append = json!({"topic": "t", "partition": 0, "records": sent(&records(text))});
        let path = format!("/v1/transactions/{id}/records");
        world.server.post(&path).json(json!({"appends": [append]})).await.ok();
        world.appended.extend(records(text));
    }
    // what is open is no part of the log
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [0, 1, 2]);
    world.server.post(&format!("/v1/transactions/{id}/commit")).json(json!({})).await.ok();
    world.append("c=2").await;
    let staged = "select count(*) from oncelog.staged_batches";
    assert_eq!(world.number(staged).await, 3);
    world.sweep().await;
    assert_eq!(world.left(), [2, 6, 7, 8, 9]);
    assert_eq!(world.read_all(100).await, world.left());
    // the row of which all is left points as before; of the others nothing is staged any more
    assert_eq!(world.number(staged).await, 1);
    world.sizes().await;
    let page = world.read("offset=0").await.ok();
    let of: Vec<bool> = (0..5).map(|n| page["records"][n]["transaction_id"] == id).collect();
    assert_eq!(of, [false, true, true, true, false]);
    world.server.delete("/v1/topics/t").await.no_content();
    world.sweep().await;
    assert_eq!(world.number(staged).await, 0);
    assert_eq!(world.number("select count(*) from oncelog.batches").await, 0);
}

#[tokio::test]
async fn a_trim_by_hand_works_as_ever() {
    let mut world = world().await;
    world.append("a=1 b=1 c=1 d=1").await;
    world.append("a=2 b=2").await;
    world.append("e=1 =1 f=1").await;
    world.sweep().await;
    assert_eq!(world.read_all(100).await, [2, 3, 4, 5, 6, 7, 8]);
    for (before, first) in [(1, 2), (3, 3), (5, 5), (8, 8), (9, 9)] {
        let path = format!("/v1/topics/t/partitions/0/records?before={before}");
        assert!(world.server.delete(&path).await.status < 300);
        for _ in 0..2 {
            let page = world.read("").await.ok();
            assert_eq!(ends(&page), (9, before, 9));
            assert_eq!(offsets(&page), Vec::from_iter(first..9), "{before}");
            let below = world.read(&format!("offset={}", before - 1)).await;
            below.refused(oncelog::model::Code::OffsetOutOfRange);
            world.sweep().await;
        }
    }
    world.sizes().await;
    world.append("e=1 e=2").await;
    world.sweep().await;
    assert_eq!(offsets(&world.read("").await.ok()), [10]);
}
