//! Groups, checked by recorded histories: twelve members on three brokers share partitions in two
//! groups, one with plain commits and one with commits in transactions. Members crash, stall, leave
//! and come back, brokers are killed, topics are created and grow, and producers append all the
//! time. At the end every record was processed, in order, and with transactions exactly once.
//!
//! `make torture SEED=... ROUNDS=...` runs it for longer.

mod alternate;
mod inputs;
mod member;
mod outputs;
mod watcher;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use tokio::{task::JoinHandle, time::timeout};

use self::{
    inputs::Appended,
    member::{Member, Orders, Seen},
    watcher::Watcher,
};
use crate::support::{
    self,
    proxy::Proxy,
    served::{Answer, Client, PATIENCE, Process, replica, until},
};

const BROKERS: usize = 3;
const MEMBERS_PER_GROUP: usize = 6;
/// The first ones of each group have instance ids.
const STATIC_MEMBERS: usize = 2;
/// In all: 24 partitions. Members subscribe to `^in\.`.
const TOPICS: [(&str, i32); 3] = [("in.a", 10), ("in.b", 10), ("in.d", 4)];
const GROWN: (&str, i32) = ("in.b", 14);
const NEW: (&str, i32) = ("in.c", 4);
const OUTPUTS: &str = "outputs";
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// A partition of a topic.
type At = (String, i32);

/// How a group goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Commits the cursor of what it has processed.
    Plain,
    /// Commits the cursor and an output for each record in one transaction.
    Transactional,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Plain, Self::Transactional];

    fn group(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Transactional => "transactional",
        }
    }
}

/// The brokers, and all that their clients were told.
pub struct World {
    brokers: Mutex<Vec<Client>>,
    enough: AtomicBool,
    /// The new topic is there.
    grown: AtomicBool,
    appended: Mutex<Appended>,
    plain: Mutex<Seen>,
    transactional: Mutex<Seen>,
    /// Members that have asked to leave.
    left: Mutex<BTreeSet<String>>,
    told: Mutex<BTreeMap<String, u64>>,
}

impl World {
    fn new(brokers: Vec<Client>) -> Self {
        Self {
            brokers: Mutex::new(brokers),
            enough: AtomicBool::new(false),
            grown: AtomicBool::new(false),
            appended: Mutex::default(),
            plain: Mutex::default(),
            transactional: Mutex::default(),
            left: Mutex::default(),
            told: Mutex::default(),
        }
    }

    fn seen(&self, kind: Kind) -> &Mutex<Seen> {
        match kind {
            Kind::Plain => &self.plain,
            Kind::Transactional => &self.transactional,
        }
    }

    fn client(&self, rng: &mut StdRng) -> Client {
        self.brokers.lock().unwrap().choose(rng).unwrap().clone()
    }

    fn count(&self, what: impl Into<String>) {
        *self.told.lock().unwrap().entry(what.into()).or_default() += 1;
    }

    /// Sends, to any broker each time, until there is an answer that `retry` does not ask to send
    /// again.
    async fn send(
        &self,
        rng: &mut StdRng,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let given_up = Instant::now() + PATIENCE;
        loop {
            let client = self.client(rng);
            let json: &[_] = &[("content-type", "application/json")];
            let headers = if body.is_some() { json } else { &[] };
            match client.send(method.clone(), path, headers, body.map(Value::to_string)).await {
                Ok(answer) if answer.status < 300 => return answer,
                Ok(answer) => {
                    let problem = answer.json();
                    self.count(problem["code"].as_str().unwrap());
                    if problem["retry"] != "later" && problem["retry"] != "same" {
                        return answer;
                    }
                }
                Err(_) => self.count("no answer"),
            }
            assert!(Instant::now() < given_up, "{path}: {body:?}");
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }

    async fn get(&self, rng: &mut StdRng, path: &str) -> Value {
        self.send(rng, Method::GET, path, None).await.ok(200)
    }

    /// Now and then the client hangs up, or loses the answer, and sends again.
    async fn post(&self, rng: &mut StdRng, path: &str, body: &Value) -> Answer {
        if rng.random_bool(0.08) {
            let (client, patience) = (self.client(rng), rng.random_range(0..60));
            let sent = client.try_post(path, body);
            let lost = timeout(Duration::from_millis(patience), sent).await;
            self.count(if lost.is_ok() { "answer lost" } else { "hung up" });
        }
        self.send(rng, Method::POST, path, Some(body)).await
    }
}

/// Where one member after another lives.
struct Slot {
    kind: Kind,
    instance_id: Option<String>,
    orders: Arc<Orders>,
    life: JoinHandle<()>,
}

impl Slot {
    fn start(world: &Arc<World>, kind: Kind, number: usize, rng: &mut StdRng) -> Self {
        let instance_id = (number < STATIC_MEMBERS).then(|| format!("pod-{number}"));
        let orders = Arc::<Orders>::default();
        let life = Self::live(world, kind, &instance_id, &orders, Duration::ZERO, rng);
        Self { kind, instance_id, orders, life }
    }

    fn live(
        world: &Arc<World>,
        kind: Kind,
        instance_id: &Option<String>,
        orders: &Arc<Orders>,
        after: Duration,
        rng: &mut StdRng,
    ) -> JoinHandle<()> {
        let member =
            Member::new(world.clone(), kind, instance_id.clone(), orders.clone(), rng.random());
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            member.run().await;
        })
    }

    /// Dies without a word; another comes into its place, perhaps within its lease.
    async fn kill(&mut self, world: &Arc<World>, rng: &mut StdRng) {
        self.life.abort();
        if let Err(error) = (&mut self.life).await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
        let after = Duration::from_millis(rng.random_range(0..2_500));
        self.life = Self::live(world, self.kind, &self.instance_id, &self.orders, after, rng);
    }

    async fn disturb(&mut self, world: &Arc<World>, events: &mut Events, rng: &mut StdRng) {
        match rng.random_range(0..100) {
            0..50 => {
                self.kill(world, rng).await;
                events.members_killed += 1;
            }
            50..70 => {
                self.orders.leave.store(true, Ordering::Relaxed);
                events.left += 1;
            }
            // less than its lease, or more: then it wakes as a zombie
            _ => {
                self.orders.stall_ms.store(rng.random_range(500..3_000), Ordering::Relaxed);
                events.stalled += 1;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Events {
    brokers_killed: u64,
    members_killed: u64,
    left: u64,
    stalled: u64,
}

/// The whole of it while it runs.
struct Run {
    world: Arc<World>,
    processes: Vec<Process>,
    proxy: Proxy,
    options: PgConnectOptions,
    slots: Vec<Slot>,
    events: Events,
}

impl Run {
    async fn start(rng: &mut StdRng) -> Self {
        let options = support::database().await;
        let proxy = Proxy::start(&options, rng.random()).await;
        let started = (0..BROKERS).map(|_| replica(&proxy, &options));
        let started = futures_util::future::join_all(started).await;
        let (processes, clients): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        for (topic, partition_count) in TOPICS.into_iter().chain([(OUTPUTS, 3)]) {
            clients[0].put_topic(topic, partition_count).await;
        }
        let world = Arc::new(World::new(clients));
        let slots = Kind::ALL
            .into_iter()
            .flat_map(|kind| (0..MEMBERS_PER_GROUP).map(move |number| (kind, number)));
        let slots = slots.map(|(kind, n)| Slot::start(&world, kind, n, rng)).collect();
        Self { world, processes, proxy, options, slots, events: Events::default() }
    }

    /// Something happens at any instant, not at a quiet one.
    async fn disturb(&mut self, number: u64, rng: &mut StdRng) {
        let Self { world, processes, proxy, options, slots, events } = self;
        // at least now and then
        let kills_broker = number % 7 == 3 || rng.random_bool(0.15);
        let (victim, pause) = (rng.random_range(0..BROKERS), rng.random_range(0..500));
        let broker = async {
            if kills_broker {
                tokio::time::sleep(Duration::from_millis(pause)).await;
                processes[victim].kill_9().await;
                let (process, client) = replica(proxy, options).await;
                processes[victim] = process;
                world.brokers.lock().unwrap()[victim] = client;
            }
        };
        let members = async {
            for _ in 0..rng.random_range(1..=3) {
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..400))).await;
                let slot = rng.random_range(0..slots.len());
                slots[slot].disturb(world, events, rng).await;
            }
        };
        tokio::join!(broker, members);
        events.brokers_killed += u64::from(kills_broker);
        self.judge_alive();
    }

    fn judge_alive(&self) {
        assert!(!self.slots.iter().any(|slot| slot.life.is_finished()), "a member has failed");
    }

    /// Every partition has one owner, which is a member, and nothing is left to process.
    async fn judge_described(&self, rng: &mut StdRng, partitions: usize) {
        for kind in Kind::ALL {
            let group = self.world.get(rng, &format!("/v1/groups/{}", kind.group())).await;
            let members = group["members"].as_array().unwrap();
            let listed = group["partitions"].as_array().unwrap();
            assert_eq!(listed.len(), partitions, "{group}");
            for partition in listed {
                assert_eq!(partition["lag"], 0, "{group}");
                let owner = members.iter().find(|m| m["member_id"] == partition["member_id"]);
                assert!(owner.is_some(), "{partition}: {group}");
            }
        }
    }

    /// More partitions for the groups.
    async fn grow(&self, rng: &mut StdRng, (topic, partition_count): (&str, i32), method: Method) {
        let body = json!({"partition_count": partition_count});
        let path = format!("/v1/topics/{topic}");
        let answer = self.world.send(rng, method, &path, Some(&body)).await;
        assert!(answer.status < 300, "{}", answer.text);
    }

    /// All leave.
    async fn stop(&mut self) {
        for slot in &self.slots {
            slot.orders.end.store(true, Ordering::Relaxed);
        }
        for slot in &mut self.slots {
            (&mut slot.life).await.unwrap();
        }
    }
}

async fn torture(seed: u64, disturbances: u64) {
    println!("seed {seed}, {disturbances} disturbances");
    let begun = Instant::now();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut run = Run::start(&mut rng).await;
    let world = run.world.clone();
    let watcher = Watcher::start(&run.options, world.clone());
    let producers = inputs::producers(&world, &mut rng);
    for number in 0..disturbances {
        if number == disturbances / 3 {
            run.grow(&mut rng, GROWN, Method::PATCH).await;
        }
        if number == disturbances / 2 {
            run.grow(&mut rng, NEW, Method::PUT).await;
            world.grown.store(true, Ordering::Relaxed);
        }
        run.disturb(number, &mut rng).await;
    }
    world.enough.store(true, Ordering::Relaxed);
    for producer in producers {
        producer.await.unwrap();
    }
    let inputs = inputs::read_all(&world, &mut rng).await;
    let ends: BTreeMap<At, i64> =
        inputs.iter().map(|(at, values)| (at.clone(), values.len() as i64)).collect();
    let look = until("all to be processed, and every partition to have one owner", async || {
        run.judge_alive();
        let look = watcher.latest();
        look.is_quiet(&ends, MEMBERS_PER_GROUP).then_some(look)
    })
    .await;
    let quiet = begun.elapsed();
    look.judge_balance();
    run.judge_described(&mut rng, ends.len()).await;
    run.stop().await;
    let (look, handovers) = watcher.stop().await;
    assert!(look.is_empty(), "all have left: {look:?}");
    judge(&world, &mut rng, &inputs, &ends).await;
    assert_eq!(support::deadlocks(&run.options), 0);
    let told = world.told.lock().unwrap();
    assert!(!told.contains_key("internal"), "{told:?}");
    println!("{:?} {told:?}", run.events);
    println!("{handovers}");
    for kind in Kind::ALL {
        println!("{}: {}", kind.group(), world.seen(kind).lock().unwrap());
    }
    let records: i64 = ends.values().sum();
    println!("{records} records in {} partitions, quiet in {quiet:?}", ends.len());
    println!("all in {:?}", begun.elapsed());
    assert!(run.events.brokers_killed > 0 && handovers.expired > 0, "nothing was killed");
}

/// Holds the logs, the committed offsets and what members saw against each other.
async fn judge(
    world: &World,
    rng: &mut StdRng,
    inputs: &BTreeMap<At, Vec<Value>>,
    ends: &BTreeMap<At, i64>,
) {
    world.appended.lock().unwrap().judge(inputs);
    outputs::judge(world, rng, inputs).await;
    for kind in Kind::ALL {
        let path = format!("/v1/groups/{}/offsets", kind.group());
        let listed = world.get(rng, &path).await;
        let committed = member::offsets(&listed["offsets"]);
        let begun = ends.iter().filter(|(_, end)| **end > 0);
        for (at, end) in begun {
            assert_eq!(committed.get(at), Some(end), "{}: {at:?} was committed", kind.group());
        }
        world.seen(kind).lock().unwrap().judge(ends);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_brokers_die_and_everything_is_processed_in_order() {
    torture(rand::random(), 20).await;
}

/// The long run: `make torture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long; `make torture`"]
async fn members_and_brokers_die_through_one_long_history() {
    let number = |name: &str| -> Option<u64> {
        std::env::var(name).ok().and_then(|value| value.parse().ok())
    };
    let seed = number("ONCELOG_TEST_SEED").unwrap_or_else(rand::random);
    for round in 0..number("ONCELOG_TEST_ROUNDS").unwrap_or(10) {
        torture(seed.wrapping_add(round), 60).await;
    }
}
