//! One member: it fetches, processes and commits, through any broker each time, and joins again
//! when it is told that it is none any more.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{At, Kind, OUTPUTS, World};
use crate::support::served::Answer;

/// What is asked of the member in a slot.
#[derive(Default)]
pub struct Orders {
    /// Leave, and come back.
    pub leave: AtomicBool,
    /// Leave, and that is it.
    pub end: AtomicBool,
    /// Between a fetch and its commit.
    pub stall_ms: AtomicU64,
}

/// What the members of a group saw.
#[derive(Default)]
pub struct Seen {
    /// The greatest generation in any answer.
    generation: i64,
    /// Every offset below was answered to some member, and processed.
    processed: BTreeMap<At, i64>,
    /// The greatest committed offset in any answer.
    acknowledged: BTreeMap<At, i64>,
    joins: u64,
    records: u64,
    /// Records that were answered when all up to them had been processed.
    again: u64,
    commits: u64,
    /// Commits that were sent again after they had taken effect.
    repeated: u64,
    /// Commits by those that were members no more, or had lost a partition.
    fenced: u64,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, joins, records, again, commits, repeated, fenced, .. } = self;
        write!(
            f,
            "{generation} generations, {joins} joins, {records} records answered, {again} of them \
             again, {commits} commits, {repeated} told of as duplicates, {fenced} fenced"
        )
    }
}

impl Seen {
    /// Anyone who asked later was not told an older generation.
    fn generation(&mut self, told: &Value, before: i64) -> i64 {
        let generation = told["generation"].as_i64().unwrap();
        assert!(generation >= before, "generation {generation} after {before}: {told}");
        self.generation = self.generation.max(generation);
        generation
    }

    pub fn judge(&self, ends: &BTreeMap<At, i64>) {
        for (at, end) in ends {
            assert_eq!(self.processed.get(at).unwrap_or(&0), end, "{at:?} was processed");
            assert!(self.acknowledged.get(at).unwrap_or(&0) <= end);
        }
    }
}

/// Offsets by partition, as answers list them.
pub fn offsets(listed: &Value) -> BTreeMap<At, i64> {
    let item = |item: &Value| (at(item), item["offset"].as_i64().unwrap());
    listed.as_array().unwrap().iter().map(item).collect()
}

fn at(item: &Value) -> At {
    (item["topic"].as_str().unwrap().to_owned(), item["partition"].as_i64().unwrap() as i32)
}

/// Records of one partition in one answer: its offsets are [from, to).
struct Run {
    at: At,
    from: i64,
    to: i64,
}

pub struct Member {
    world: Arc<World>,
    kind: Kind,
    instance_id: Option<String>,
    orders: Arc<Orders>,
    rng: StdRng,
    id: String,
    generation: i64,
    cursor: Option<String>,
    /// Where the cursor goes on, and the generation in which it was answered.
    next: BTreeMap<At, (i64, i64)>,
}

impl Member {
    pub fn new(
        world: Arc<World>,
        kind: Kind,
        instance_id: Option<String>,
        orders: Arc<Orders>,
        seed: u64,
    ) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let (id, next) = (String::new(), BTreeMap::new());
        let (generation, cursor) = (0, None);
        Self { world, kind, instance_id, orders, rng, id, generation, cursor, next }
    }

    pub async fn run(mut self) {
        loop {
            self.join().await;
            while self.round().await {
                let ends = self.orders.end.load(Ordering::Relaxed);
                if ends || self.orders.leave.swap(false, Ordering::Relaxed) {
                    self.leave().await;
                    break;
                }
            }
            if self.orders.end.load(Ordering::Relaxed) {
                return;
            }
            let pause = self.rng.random_range(0..300);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/groups/{}/members{rest}", self.kind.group())
    }

    async fn join(&mut self) {
        let mut join = json!({"auto_offset_reset": "earliest",
            "session_timeout_ms": self.rng.random_range(1_000..1_500)});
        if self.rng.random_bool(0.7) {
            join["topic_pattern"] = json!("^in\\.");
        } else {
            join["topics"] = json!(["in.a", "in.b", "in.d"]);
            join["topic_pattern"] = json!("^in\\.c$");
        }
        if let Some(instance_id) = &self.instance_id {
            join["instance_id"] = json!(instance_id);
        }
        let before = self.newest();
        let path = self.path("");
        // one that is sent twice makes two members
        let sent = self.world.send(&mut self.rng, Method::POST, &path, Some(&join));
        let joined = sent.await.ok(201);
        self.id = joined["member_id"].as_str().unwrap().to_owned();
        (self.cursor, self.next) = (None, BTreeMap::new());
        let mut seen = self.world.seen(self.kind).lock().unwrap();
        seen.joins += 1;
        self.generation = seen.generation(&joined, before);
    }

    /// The greatest generation that anybody was told.
    fn newest(&self) -> i64 {
        self.world.seen(self.kind).lock().unwrap().generation
    }

    async fn leave(&mut self) {
        self.world.left.lock().unwrap().insert(self.id.clone());
        let path = self.path(&format!("/{}", self.id));
        let answer = self.world.send(&mut self.rng, Method::DELETE, &path, None).await;
        // it may have left already, and not have been told
        assert!(answer.status == 204 || answer.problem().1 == "unknown_member", "{}", answer.text);
    }

    /// A call as this member; none: it is one no more.
    async fn call(&mut self, method: Method, rest: &str, body: Option<&Value>) -> Option<Value> {
        let before = self.newest();
        let path = self.path(&format!("/{}/{rest}", self.id));
        let answer = self.world.send(&mut self.rng, method, &path, body).await;
        if answer.status >= 300 {
            assert_eq!(answer.problem().1, "unknown_member", "{}", answer.text);
            return None;
        }
        let told = answer.ok(200);
        let mut seen = self.world.seen(self.kind).lock().unwrap();
        self.generation = seen.generation(&told, before);
        Some(told)
    }

    /// Fetches, processes, commits. False: it is a member no more.
    async fn round(&mut self) -> bool {
        let (limit, wait_ms) = (self.rng.random_range(1..=40), self.rng.random_range(0..1_500));
        let mut rest = format!("records?limit={limit}&wait_ms={wait_ms}");
        if let Some(cursor) = &self.cursor {
            rest.push_str(&format!("&cursor={cursor}"));
        }
        let Some(told) = self.call(Method::GET, &rest, None).await else { return false };
        let runs = self.process(&told);
        let stall_ms = self.orders.stall_ms.swap(0, Ordering::Relaxed);
        if stall_ms > 0 {
            tokio::time::sleep(Duration::from_millis(stall_ms)).await;
        } else if self.rng.random_bool(0.1)
            && self.call(Method::POST, "heartbeat", Some(&json!({}))).await.is_none()
        {
            return false;
        }
        let cursor = told["cursor"].as_str().unwrap();
        let committed = match self.kind {
            Kind::Plain => self.commit(cursor, &runs).await,
            Kind::Transactional => self.transact(cursor, &told["records"]).await,
        };
        match committed {
            Ok(()) => {
                self.cursor = Some(cursor.to_owned());
                let generation = told["generation"].as_i64().unwrap();
                for Run { at, to, .. } in runs {
                    self.next.insert(at, (to, generation));
                }
                true
            }
            // with the cursor of before the same comes again, of what it still owns
            Err(code) => code != "unknown_member",
        }
    }

    /// Takes in what was answered: nothing was skipped, and nothing comes out of order.
    fn process(&mut self, told: &Value) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for record in told["records"].as_array().unwrap() {
            let (at, offset) = (at(record), record["offset"].as_i64().unwrap());
            match runs.last_mut().filter(|run| run.at == at) {
                Some(run) => {
                    assert_eq!(offset, run.to, "{at:?}: {told}");
                    run.to += 1;
                }
                None => runs.push(Run { at, from: offset, to: offset + 1 }),
            }
        }
        let generation = told["generation"].as_i64().unwrap();
        let mut seen = self.world.seen(self.kind).lock().unwrap();
        for Run { at, from, to } in &runs {
            let assigned = told["assignment"].as_array().unwrap().iter().any(|item| {
                item["topic"] == at.0
                    && item["partitions"].as_array().unwrap().contains(&json!(at.1))
            });
            assert!(assigned, "records of {at:?}, which is not assigned: {told}");
            match self.next.get(at) {
                Some((next, since)) if *since == generation => {
                    assert_eq!(from, next, "{at:?} goes on where it ended");
                }
                _ => {}
            }
            let processed = seen.processed.entry(at.clone()).or_default();
            assert!(*from <= *processed, "{at:?}: {processed}..{from} were skipped");
            let again = (*to).min(*processed) - from;
            *processed = (*processed).max(*to);
            seen.records += (to - from) as u64;
            seen.again += again as u64;
        }
        runs
    }

    /// The cursor alone.
    async fn commit(&mut self, cursor: &str, runs: &[Run]) -> Result<(), String> {
        let before = self.world.seen(self.kind).lock().unwrap().acknowledged.clone();
        let path = format!("/v1/groups/{}/offsets", self.kind.group());
        let body = json!({"member_id": self.id, "generation": self.generation, "cursor": cursor});
        let answer = self.world.post(&mut self.rng, &path, &body).await;
        self.is_accepted(&answer)?;
        let committed = offsets(&answer.ok(200)["offsets"]);
        for Run { at, to, .. } in runs {
            assert!(committed[at] >= *to, "{at:?}: {to} was committed: {}", answer.text);
        }
        let mut seen = self.world.seen(self.kind).lock().unwrap();
        for (at, offset) in committed {
            let before = before.get(&at).copied().unwrap_or(0);
            assert!(offset >= before, "{at:?} went back from {before} to {offset}");
            let processed = seen.processed.get(&at).copied().unwrap_or(0);
            assert!(offset <= processed, "{at:?}: {offset} was committed, {processed} processed");
            let greatest = seen.acknowledged.entry(at).or_default();
            *greatest = offset.max(*greatest);
        }
        Ok(())
    }

    /// An output for each record, and the cursor, at once; sent as is until it is answered.
    async fn transact(&mut self, cursor: &str, records: &Value) -> Result<(), String> {
        let output = |record: &Value| {
            let (topic, partition) = at(record);
            let value = json!({"topic": topic, "partition": partition,
                "offset": record["offset"], "value": record["value"]});
            json!({"key": format!("{topic}/{partition}"), "value": value})
        };
        let outputs: Vec<Value> = records.as_array().unwrap().iter().map(output).collect();
        let mut body = json!({"transaction_id": Uuid::now_v7(), "commit": true, "offsets": [{
            "group": self.kind.group(), "member_id": self.id, "generation": self.generation,
            "cursor": cursor}]});
        if !outputs.is_empty() {
            body["appends"] = json!([{"topic": OUTPUTS, "records": outputs}]);
        }
        let answer = self.world.post(&mut self.rng, "/v1/transactions", &body).await;
        self.is_accepted(&answer)?;
        let transaction = answer.json();
        assert_eq!(transaction["state"], "committed", "{transaction}");
        let repeated = u64::from(transaction["duplicate"] == true);
        self.world.seen(self.kind).lock().unwrap().repeated += repeated;
        Ok(())
    }

    /// An error: the code by which one is told that it has lost a partition, or its membership.
    fn is_accepted(&self, answer: &Answer) -> Result<(), String> {
        let mut seen = self.world.seen(self.kind).lock().unwrap();
        if answer.status < 300 {
            seen.commits += 1;
            return Ok(());
        }
        let code = answer.problem().1;
        let known = code == "unknown_member" || code == "illegal_generation";
        assert!(known, "{} {}: {}", self.kind.group(), self.id, answer.text);
        seen.fenced += 1;
        Err(code)
    }
}
