//! Many random transactions at once, staged and whole, over many partitions and three brokers, with
//! plain appends, session opens and a growing topic between them: no deadlock, nobody starves, and
//! each is there whole or not at all.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use oncelog::model::Code;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{begin, call, read, replica_of};
use crate::support::http::{Answer, Server};

const TOPICS: [&str; 3] = ["a", "b", "c"];
const PARTITIONS: i32 = 6;
const WORKERS: u64 = 10;
const ROUNDS: usize = 25;
/// Nothing is worked on for so long, however many are at the same rows.
const BOUND: Duration = Duration::from_secs(20);

struct World {
    replicas: Vec<Server>,
    /// What was asked for, of those that were committed: how many records.
    committed: Mutex<BTreeMap<Uuid, usize>>,
    /// Records of plain appends that were stored.
    plain: Mutex<usize>,
    told: Mutex<BTreeMap<String, u64>>,
    slowest: Mutex<Duration>,
}

impl World {
    fn replica(&self, rng: &mut StdRng) -> &Server {
        &self.replicas[rng.random_range(0..self.replicas.len())]
    }

    fn count(&self, what: impl Into<String>) {
        *self.told.lock().unwrap().entry(what.into()).or_default() += 1;
    }

    /// Sent until `retry` says otherwise; it must not take long.
    async fn send(&self, request: impl Fn() -> crate::support::http::Call) -> Answer {
        let begun = Instant::now();
        loop {
            let answer = request().await;
            let took = begun.elapsed();
            assert!(took < BOUND, "starved: {}", answer.text());
            if answer.status < 300 {
                let mut slowest = self.slowest.lock().unwrap();
                *slowest = took.max(*slowest);
                return answer;
            }
            let problem = answer.json();
            self.count(problem["code"].as_str().unwrap());
            if problem["retry"] != "later" && problem["retry"] != "same" {
                return answer;
            }
            assert_ne!(answer.status, 500, "{}", answer.text());
        }
    }

    /// Appends to several partitions and topics; of each record its transaction.
    fn appends(id: Uuid, rng: &mut StdRng) -> (Vec<Value>, usize) {
        let mut count = 0;
        let appends = (0..rng.random_range(1..5)).map(|_| {
            let topic = TOPICS[rng.random_range(0..TOPICS.len())];
            let records: Vec<Value> = (0..rng.random_range(1..4))
                .map(|_| json!({"key": rng.random_range(0..30).to_string(), "value": id}))
                .collect();
            count += records.len();
            let mut append = json!({"topic": topic, "records": records});
            if rng.random() {
                append["partition"] = json!(rng.random_range(0..PARTITIONS));
            }
            append
        });
        (appends.collect(), count)
    }

    /// Steps of groups from wherever they are.
    async fn offsets(&self, rng: &mut StdRng) -> Vec<Value> {
        let mut offsets = Vec::new();
        for _ in 0..rng.random_range(0..3) {
            let (group, partition) =
                (format!("g{}", rng.random_range(0..2)), rng.random_range(0..3));
            let answer = self.replica(rng).get(&format!("/v1/groups/{group}/offsets")).await;
            let at = match answer.status {
                404 => None,
                _ => answer.ok()["offsets"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .find(|offset| offset["topic"] == "source" && offset["partition"] == partition)
                    .map(|offset| offset["offset"].as_i64().unwrap()),
            };
            let to = (at.unwrap_or(0) + 1) % 50;
            offsets.push(json!({"group": group, "topic": "source", "partition": partition,
                "expected_offset": at, "offset": to}));
        }
        offsets
    }

    fn is_committed(&self, id: Uuid, records: usize, answer: &Answer) -> bool {
        if answer.status < 300 {
            assert_eq!(answer.json()["state"], "committed");
            self.committed.lock().unwrap().insert(id, records);
        }
        answer.status < 300
    }

    async fn whole(&self, rng: &mut StdRng, signature: &Value) {
        let id = Uuid::now_v7();
        let (appends, records) = Self::appends(id, rng);
        let mut body = json!({"transaction_id": id, "commit": true, "appends": appends,
            "offsets": self.offsets(rng).await});
        signed(&mut body, signature);
        let replica = self.replica(rng);
        let answer = self.send(|| begin(replica, &body)).await;
        if !self.is_committed(id, records, &answer) {
            self.is_lost(&answer);
        }
    }

    /// Somebody else was quicker, or took the session over.
    fn is_lost(&self, answer: &Answer) {
        let code = answer.json()["code"].as_str().unwrap().to_owned();
        let may = [Code::OffsetCommitConflict, Code::ProducerFenced, Code::InvalidTransactionState];
        assert!(may.iter().any(|may| may.as_str() == code), "{}", answer.text());
    }

    async fn staged(&self, rng: &mut StdRng, signature: &Value) {
        let id = Uuid::now_v7();
        let mut body = json!({"transaction_id": id});
        signed(&mut body, signature);
        let replica = self.replica(rng);
        let answer = self.send(|| begin(replica, &body)).await;
        if answer.status >= 300 {
            return self.is_lost(&answer);
        }
        let mut total = 0;
        let mut calls: Vec<(&str, Value)> = Vec::new();
        for sequence in 0..rng.random_range(1..4) {
            let (appends, records) = Self::appends(id, rng);
            total += records;
            calls.push(("records", json!({"sequence": sequence, "appends": appends})));
        }
        let offsets = self.offsets(rng).await;
        if !offsets.is_empty() {
            calls.push(("offsets", json!({"offsets": offsets})));
        }
        if rng.random_bool(0.2) {
            calls.push(("prepare", json!({})));
        }
        let commits = rng.random_bool(0.8);
        calls.push((if commits { "commit" } else { "abort" }, json!({})));
        for (verb, mut body) in calls {
            signed(&mut body, signature);
            let replica = self.replica(rng);
            let answer = self.send(|| call(replica, id, verb, &body)).await;
            if verb == "commit" && self.is_committed(id, total, &answer) {
                return;
            }
            if answer.status >= 300 {
                self.is_lost(&answer);
                let mut body = json!({});
                signed(&mut body, signature);
                let aborted = self.send(|| call(replica, id, "abort", &body)).await;
                assert!(aborted.status == 200 || aborted.json()["code"] == "producer_fenced");
                return;
            }
        }
    }

    async fn plain(&self, rng: &mut StdRng, signature: &Value, sequence: &mut i64) {
        let mut body = json!({"records": [{"key": "k", "value": "plain"}, {"value": "plain"}]});
        if signature.is_object() {
            signed(&mut body, signature);
            body["sequence"] = json!(*sequence);
        }
        let replica = self.replica(rng);
        let answer = self.send(|| replica.post("/v1/topics/a/records").json(&body)).await;
        if answer.status == 200 {
            *sequence += 1;
            *self.plain.lock().unwrap() += 2;
        } else {
            self.is_lost(&answer);
        }
    }

    /// One worker: without a session, or with one whose name it shares with another worker.
    async fn work(&self, worker: u64, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let (mut signature, mut sequence) = (Value::Null, 0);
        for round in 0..ROUNDS {
            if worker < 4 && round % 8 == 0 {
                let open = json!({"transactional_id": format!("p{}", worker / 2),
                    "open_id": Uuid::now_v7()});
                let replica = self.replica(&mut rng);
                let opened = self.send(|| replica.post("/v1/sessions").json(&open)).await.json();
                signature = json!({"producer_id": opened["producer_id"], "epoch": opened["epoch"]});
                let next = opened["next_sequences"].as_array().unwrap().iter();
                let next = next.map(|next| next["next_sequence"].as_i64().unwrap()).next();
                sequence = next.unwrap_or(0);
            }
            match rng.random_range(0..5) {
                0 | 1 => self.whole(&mut rng, &signature).await,
                2 | 3 => self.staged(&mut rng, &signature).await,
                _ => self.plain(&mut rng, &signature, &mut sequence).await,
            }
            if worker == 0 && round % 8 == 7 {
                let more = json!({"partition_count": PARTITIONS + round as i32});
                self.replica(&mut rng).patch("/v1/topics/b").json(more).await.ok();
            }
            if worker == 1 {
                self.replica(&mut rng).broker.sweep().await.unwrap();
            }
        }
    }
}

fn signed(body: &mut Value, signature: &Value) {
    for (name, value) in signature.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_overlapping_transactions_meet_neither_deadlock_nor_starvation() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let first = Server::start().await;
    for topic in TOPICS {
        first.topic(topic, PARTITIONS).await;
    }
    first.topic("source", 3).await;
    for partition in 0..3 {
        let path = format!("/v1/topics/source/partitions/{partition}/records");
        let records = json!({"records": vec![json!({"value": 0}); 50]});
        first.post(&path).json(records).await.ok();
    }
    let replicas = vec![replica_of(&first).await, replica_of(&first).await, first];
    let world = Arc::new(World {
        replicas,
        committed: Mutex::default(),
        plain: Mutex::default(),
        told: Mutex::default(),
        slowest: Mutex::default(),
    });
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (world, seed) = (world.clone(), rng.random());
            tokio::spawn(async move { world.work(worker, seed).await })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let mut found: BTreeMap<Uuid, usize> = BTreeMap::new();
    let mut plain = 0;
    for topic in TOPICS {
        let described = world.replicas[0].get(&format!("/v1/topics/{topic}")).await.ok();
        for partition in 0..described["partition_count"].as_i64().unwrap() as i32 {
            for (value, id) in read(&world.replicas[0], topic, partition).await {
                if value == "plain" {
                    plain += 1;
                    continue;
                }
                assert_eq!(value, id, "a record of another transaction");
                *found.entry(id.as_str().unwrap().parse().unwrap()).or_default() += 1;
            }
        }
    }
    assert_eq!(found, *world.committed.lock().unwrap(), "all or nothing");
    assert_eq!(plain, *world.plain.lock().unwrap());
    assert_eq!(crate::support::deadlocks(&world.replicas[0].options), 0);
    println!(
        "{} committed, slowest call {:?}; {:?}",
        found.len(),
        world.slowest.lock().unwrap(),
        world.told.lock().unwrap()
    );
}
