//! Producers that append all the time, and what they were told.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{At, GROWN, NEW, TOPICS, World};
use crate::support::served::partition_path;

/// (producer, number) of every acknowledged record, and where it was said to be.
#[derive(Default)]
pub struct Appended(BTreeMap<(i64, i64), (At, i64)>);

impl Appended {
    /// What is stored was acknowledged, once, where it was said to be, and in order.
    pub fn judge(&self, inputs: &BTreeMap<At, Vec<Value>>) {
        let mut stored = 0;
        for (at, values) in inputs {
            let mut last = BTreeMap::new();
            for (offset, value) in (0..).zip(values) {
                let [producer, number] = ["producer", "number"].map(|f| value[f].as_i64().unwrap());
                let told = self.0.get(&(producer, number));
                assert_eq!(told, Some(&(at.clone(), offset)), "{value}");
                assert!(last.insert(producer, number) < Some(number), "{value} out of order");
                stored += 1;
            }
        }
        assert_eq!(stored, self.0.len(), "acknowledged records are lost");
    }
}

struct Producer {
    world: Arc<World>,
    rng: StdRng,
    producer: i64,
    /// Of the next record.
    number: i64,
}

/// One in sequence to each topic that is spread by key, and one that expects offsets.
pub fn producers(world: &Arc<World>, rng: &mut StdRng) -> Vec<JoinHandle<()>> {
    let mut producer = |producer| {
        let rng = StdRng::seed_from_u64(rng.random());
        Producer { world: world.clone(), rng, producer, number: 0 }
    };
    let (first, second, third) = (producer(0), producer(1), producer(2));
    vec![
        tokio::spawn(first.in_sequence(TOPICS[0].0)),
        tokio::spawn(second.in_sequence(TOPICS[1].0)),
        tokio::spawn(third.at_expected_offsets()),
    ]
}

impl Producer {
    /// False: it has done enough.
    async fn goes_on(&mut self) -> bool {
        let pause = self.rng.random_range(5..40);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        !self.world.enough.load(Ordering::Relaxed)
    }

    fn records(&mut self) -> Vec<Value> {
        let numbers = self.number..self.number + self.rng.random_range(1..=12);
        let record = |number: i64| {
            let value = json!({"producer": self.producer, "number": number});
            json!({"key": format!("k{}", number % 53), "value": value})
        };
        numbers.map(record).collect()
    }

    fn acknowledged(&mut self, places: impl Iterator<Item = (At, i64)>) {
        let mut appended = self.world.appended.lock().unwrap();
        for place in places {
            appended.0.insert((self.producer, self.number), place);
            self.number += 1;
        }
    }

    async fn in_sequence(mut self, topic: &str) {
        let open = json!({"transactional_id": topic, "open_id": Uuid::now_v7()});
        let world = self.world.clone();
        let session = world.post(&mut self.rng, "/v1/sessions", &open).await;
        let (producer_id, mut sequence) = (session.json()["producer_id"].clone(), 0);
        while self.goes_on().await {
            let body = json!({"producer_id": producer_id, "epoch": 0, "sequence": sequence,
                "records": self.records()});
            let path = format!("/v1/topics/{topic}/records");
            let answer = world.post(&mut self.rng, &path, &body).await.ok(200);
            let places = answer["offsets"].as_array().unwrap().iter().map(|place| {
                let partition = place["partition"].as_i64().unwrap() as i32;
                ((topic.to_owned(), partition), place["offset"].as_i64().unwrap())
            });
            self.acknowledged(places);
            sequence += 1;
        }
    }

    /// It alone appends there: what it repeats and is told to be past was stored.
    async fn at_expected_offsets(mut self) {
        let world = self.world.clone();
        let mut next: BTreeMap<At, i64> = BTreeMap::new();
        while self.goes_on().await {
            let is_new = world.grown.load(Ordering::Relaxed) && self.rng.random();
            let (topic, partition_count) = if is_new { NEW } else { TOPICS[2] };
            let at = (topic.to_owned(), self.rng.random_range(0..partition_count));
            let base = next.get(&at).copied().unwrap_or(0);
            let records = self.records();
            let end = base + records.len() as i64;
            let body = json!({"expected_offset": base, "records": records});
            let path = partition_path(topic, at.1);
            let answer = world.post(&mut self.rng, &path, &body).await;
            if answer.status >= 300 {
                let problem = answer.json();
                let is_stored =
                    problem["code"] == "offset_mismatch" && problem["next_offset"] == end;
                assert!(is_stored, "{}", answer.text);
            } else {
                assert_eq!(answer.ok(200)["base_offset"], base);
            }
            self.acknowledged((base..end).map(|offset| (at.clone(), offset)));
            next.insert(at, end);
        }
    }
}

/// All values of one partition.
pub async fn read(world: &World, rng: &mut StdRng, topic: &str, partition: i32) -> Vec<Value> {
    let mut values = Vec::new();
    loop {
        let query = format!("offset={}&limit=10000&max_bytes=16777216", values.len());
        let path = format!("{}?{query}", partition_path(topic, partition));
        let page = world.send(rng, Method::GET, &path, None).await.ok(200);
        for record in page["records"].as_array().unwrap() {
            assert_eq!(record["offset"], json!(values.len()), "offsets are dense");
            values.push(record["value"].clone());
        }
        if page["next_offset"] == page["high_watermark"] {
            return values;
        }
    }
}

/// All that there is to process.
pub async fn read_all(world: &World, rng: &mut StdRng) -> BTreeMap<At, Vec<Value>> {
    let mut inputs = BTreeMap::new();
    for (topic, partition_count) in [TOPICS[0], GROWN, NEW, TOPICS[2]] {
        for partition in 0..partition_count {
            let values = read(world, rng, topic, partition).await;
            inputs.insert((topic.to_owned(), partition), values);
        }
    }
    inputs
}
