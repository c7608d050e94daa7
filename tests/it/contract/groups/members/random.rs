//! Two workers that transform inputs into outputs, over calls that are lost, late, repeated, cut
//! short and sent once more under other ids; that fetch ahead, gather, forget, restart, leave and
//! come back. In the end there is one output for each input.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use uuid::Uuid;

use super::*;

const PARTITIONS: i32 = 3;
const STEPS: usize = 250;

/// A call that was sent: where to, and what.
type Sent = (String, Value);

/// What a fetch has brought.
#[derive(Clone)]
struct Page {
    cursor: String,
    generation: Value,
    inputs: Vec<Value>,
}

/// How a worker goes about what comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Plan {
    /// Pages, each committed by itself once all are fetched.
    Ahead(usize),
    /// Pages, committed together.
    Gather(usize),
}

/// What became of a transaction, as far as the worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Committed,
    Refused,
    Unknown,
}

struct Worker {
    name: usize,
    member: Member,
    cursor: Option<String>,
}

struct World {
    servers: [Server; 2],
    rng: StdRng,
    inputs: usize,
    /// Calls that arrive later, those of a transaction in their order.
    late: Vec<Vec<Sent>>,
    seen: BTreeMap<String, usize>,
}

impl World {
    fn saw(&mut self, what: impl Into<String>) {
        *self.seen.entry(what.into()).or_default() += 1;
    }

    fn server(&mut self) -> usize {
        self.rng.random_range(0..2)
    }

    async fn send(&mut self, (path, body): &Sent) -> Answer {
        let server = self.server();
        self.servers[server].post(path).json(body).await
    }

    async fn append(&mut self) {
        let records: Vec<Value> = (0..self.rng.random_range(1..6))
            .map(|_| {
                self.inputs += 1;
                json!({"value": self.inputs})
            })
            .collect();
        let partition = self.rng.random_range(0..PARTITIONS);
        let path = format!("/v1/topics/inputs/partitions/{partition}/records");
        self.send(&(path, json!({"records": records}))).await.ok();
    }

    async fn join(&mut self, name: usize) -> Member {
        let join = json!({"topics": ["inputs"], "instance_id": format!("worker-{name}")});
        let server = self.server();
        self.saw("joined");
        Member::join(&self.servers[server], "g", join).await
    }

    /// None: the worker is no member any more.
    async fn fetch(&mut self, worker: &Worker, run: &str) -> Option<Page> {
        let limit = self.rng.random_range(1..8);
        let mut query = format!("limit={limit}{run}");
        if let Some(cursor) = &worker.cursor {
            query.push_str(&format!("&cursor={cursor}"));
        }
        // some answers are lost
        while self.rng.random_bool(0.2) {
            let server = self.server();
            worker.member.fetch(&self.servers[server], &query).await;
            self.saw("fetch repeated");
        }
        let server = self.server();
        let answer = worker.member.fetch(&self.servers[server], &query).await;
        if answer.status != 200 {
            answer.refused(Code::UnknownMember);
            return None;
        }
        let answer = answer.ok();
        if !revoked(&answer).is_empty() {
            self.saw("revoked");
        }
        let inputs = answer["records"].as_array().unwrap().iter();
        Some(Page {
            cursor: answer["cursor"].as_str().unwrap().to_owned(),
            generation: answer["generation"].clone(),
            inputs: inputs.map(|record| record["value"].clone()).collect(),
        })
    }

    /// The calls of one transaction with all of these pages, under a new id.
    fn calls(&mut self, worker: &Worker, pages: &[Page]) -> Vec<Sent> {
        let last = pages.last().unwrap();
        let records =
            pages.iter().flat_map(|page| &page.inputs).map(|input| json!({"value": input}));
        let appends = json!([{"topic": "outputs", "records": records.collect::<Vec<_>>()}]);
        let offsets = json!([{"group": "g", "member_id": worker.member.id,
            "generation": last.generation, "cursor": last.cursor}]);
        let id = Uuid::now_v7();
        let all = "/v1/transactions".to_owned();
        let path = |call: &str| format!("{all}/{id}/{call}");
        let begin = |more: Value| {
            let mut body = json!({"transaction_id": id});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            (all.clone(), body)
        };
        let numbered = (path("records"), json!({"appends": appends, "sequence": 0}));
        let offered = (path("offsets"), json!({"offsets": offsets}));
        let (prepare, commit) = ((path("prepare"), json!({})), (path("commit"), json!({})));
        let work = json!({"appends": appends, "offsets": offsets});
        match self.rng.random_range(0..6) {
            0 | 1 => {
                let mut body = work;
                body["commit"] = json!(true);
                vec![begin(body)]
            }
            2 => vec![begin(json!({})), numbered, offered, commit],
            3 => vec![begin(json!({"offsets": offsets})), numbered, prepare, commit],
            4 => vec![begin(json!({"appends": appends})), offered, commit],
            _ => vec![begin(json!({})), offered, numbered, prepare, commit],
        }
    }

    /// Sends the calls in order, up to one that is refused. (What is added to one that has ended
    /// says only that it has: its commit is answered as before.)
    async fn deliver(&mut self, calls: &[Sent]) -> Outcome {
        for (n, call) in calls.iter().enumerate() {
            let answer = self.send(call).await;
            if answer.status >= 300 {
                let code = answer.json()["code"].as_str().unwrap().to_owned();
                if code == "invalid_transaction_state" && n + 1 < calls.len() {
                    continue;
                }
                let known = ["offset_commit_conflict", "illegal_generation", "unknown_member"];
                assert!(known.contains(&&*code), "{}", answer.text());
                self.saw(code);
                return Outcome::Refused;
            }
        }
        Outcome::Committed
    }

    async fn deliver_late(&mut self) {
        if !self.late.is_empty() {
            let at = self.rng.random_range(0..self.late.len());
            let calls = self.late.swap_remove(at);
            let outcome = self.deliver(&calls).await;
            self.saw(format!("late {outcome:?}"));
        }
    }

    async fn commit(&mut self, worker: &Worker, pages: &[Page]) -> Outcome {
        let calls = self.calls(worker, pages);
        let outcome = match self.rng.random_range(0..10) {
            0..4 => self.deliver(&calls).await,
            // the answers are lost
            4 | 5 => {
                self.deliver(&calls).await;
                Outcome::Unknown
            }
            // some arrive later, perhaps all of them
            6 | 7 => {
                let cut = self.rng.random_range(0..calls.len());
                if self.deliver(&calls[..cut]).await == Outcome::Committed {
                    self.late.push(calls[cut..].to_vec());
                }
                Outcome::Unknown
            }
            // somebody else does the same at once, under another id
            8 => {
                let other = self.calls(worker, pages);
                let mut twin = Self {
                    servers: [self.again(0).await, self.again(1).await],
                    rng: StdRng::seed_from_u64(self.rng.random()),
                    inputs: 0,
                    late: Vec::new(),
                    seen: BTreeMap::new(),
                };
                let (one, other) = tokio::join!(self.deliver(&calls), twin.deliver(&other));
                assert!(one == Outcome::Refused || other == Outcome::Refused);
                self.saw("at once");
                if one == Outcome::Refused { other } else { one }
            }
            _ => {
                let first = self.deliver(&calls).await;
                self.saw("repeated");
                let again = self.deliver(&calls[calls.len() - 1..]).await;
                assert!(first != Outcome::Committed || again == Outcome::Committed);
                again
            }
        };
        self.saw(format!("{outcome:?}"));
        if outcome != Outcome::Unknown || self.rng.random_bool(0.6) {
            return outcome;
        }
        // once more, under the same id or another one
        let calls = match self.rng.random_bool(0.5) {
            true => calls,
            false => self.calls(worker, pages),
        };
        self.deliver(&calls).await
    }

    async fn again(&self, server: usize) -> Server {
        Server::on(&self.servers[server].options, Setup::default()).await
    }

    async fn step(&mut self, worker: &mut Worker, plan: Plan) {
        let (Plan::Ahead(count) | Plan::Gather(count)) = plan;
        let mut pages = Vec::new();
        let begun = worker.cursor.clone();
        for n in 0..count {
            let run = match plan {
                _ if n == 0 => "",
                Plan::Ahead(_) => "&run=new",
                Plan::Gather(_) => "&run=continue",
            };
            let Some(page) = self.fetch(worker, run).await else {
                worker.member = self.join(worker.name).await;
                worker.cursor = None;
                return;
            };
            worker.cursor = Some(page.cursor.clone());
            pages.push(page);
            if self.rng.random_bool(0.2) {
                self.deliver_late().await;
            }
        }
        self.saw(if matches!(plan, Plan::Ahead(_)) { "ahead" } else { "gathered" });
        let lots: Vec<Vec<Page>> = match plan {
            Plan::Ahead(_) => pages.iter().map(|page| vec![page.clone()]).collect(),
            Plan::Gather(_) => vec![pages.clone()],
        };
        for lot in lots {
            if lot.iter().all(|page| page.inputs.is_empty()) {
                continue;
            }
            match self.commit(worker, &lot).await {
                Outcome::Committed => {}
                Outcome::Refused | Outcome::Unknown => {
                    // with what is committed, or once more from where it began
                    worker.cursor = if self.rng.random_bool(0.5) { None } else { begun };
                    return;
                }
            }
        }
    }

    async fn outputs(&self) -> Vec<u64> {
        let mut outputs = Vec::new();
        loop {
            let path = format!(
                "/v1/topics/outputs/partitions/0/records?offset={}&limit=10000",
                outputs.len()
            );
            let page = self.servers[0].get(&path).await.ok();
            let records = page["records"].as_array().unwrap();
            if records.is_empty() {
                return outputs;
            }
            outputs.extend(records.iter().map(|record| record["value"].as_u64().unwrap()));
        }
    }

    /// All that is late arrives, and what is left is processed with care.
    async fn end(&mut self, workers: &mut [Worker]) {
        while !self.late.is_empty() {
            self.deliver_late().await;
        }
        // twice, as what one lets go of is the other's afterwards
        let mut quiet = 0;
        for worker in workers.iter_mut() {
            worker.cursor = None;
        }
        for round in 0.. {
            assert!(round < 10_000, "there is no end of it");
            let worker = &mut workers[round % 2];
            let Some(page) = self.fetch(worker, "").await else {
                worker.member = self.join(worker.name).await;
                worker.cursor = None;
                continue;
            };
            worker.cursor = Some(page.cursor.clone());
            if page.inputs.is_empty() {
                quiet += 1;
                if quiet > 8 {
                    return;
                }
                continue;
            }
            quiet = 0;
            let calls = self.calls(worker, &[page]);
            if self.deliver(&calls).await != Outcome::Committed {
                worker.cursor = None;
            }
        }
    }
}

/// `ONCELOG_TEST_SEED` for a certain one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_output_for_each_input_whatever_happens() {
    let seed = std::env::var("ONCELOG_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let (here, there) = replicas().await;
    here.topic("inputs", PARTITIONS).await;
    here.topic("outputs", 1).await;
    let rng = StdRng::seed_from_u64(seed);
    let (late, seen) = (Vec::new(), BTreeMap::new());
    let mut world = World { servers: [here, there], rng, inputs: 0, late, seen };
    let mut workers = Vec::new();
    for name in 0..2 {
        let member = world.join(name).await;
        workers.push(Worker { name, member, cursor: None });
    }
    for _ in 0..STEPS {
        let at = world.rng.random_range(0..2);
        match world.rng.random_range(0..20) {
            0..5 => world.append().await,
            5 | 6 => world.deliver_late().await,
            // it forgets what it was about, as after a restart under the same name
            7 => {
                workers[at].cursor = None;
                if world.rng.random_bool(0.5) {
                    workers[at].member = world.join(at).await;
                }
            }
            8 if world.rng.random_bool(0.5) => {
                let server = world.server();
                // it may have been replaced meanwhile
                world.servers[server].delete(&workers[at].member.path).await;
                workers[at].member = world.join(at).await;
                workers[at].cursor = None;
            }
            _ => {
                let count = world.rng.random_range(1..4);
                let plans = [Plan::Ahead(count), Plan::Gather(count), Plan::Ahead(1)];
                let plan = *plans.choose(&mut world.rng).unwrap();
                world.step(&mut workers[at], plan).await;
            }
        }
    }
    world.end(&mut workers).await;
    println!("{:?}", world.seen);
    let mut outputs = world.outputs().await;
    outputs.sort_unstable();
    let inputs: Vec<u64> = (1..=world.inputs as u64).collect();
    assert_eq!(outputs, inputs, "seed {seed}");
    for what in ["Committed", "Unknown", "offset_commit_conflict", "repeated", "at once", "revoked"]
    {
        assert!(world.seen.contains_key(what), "{what} never happened, seed {seed}");
    }
}
