//! Random sequences of requests over the whole HTTP API, to one replica and to three, compared with
//! a model in memory that predicts each answer and the final state.
//!
//! `make sequences SEED=... ROUNDS=...` (or `SECONDS=...`) runs it for longer. A failing sequence
//! is shrunk and printed as the requests that reproduce it.

mod appends;
mod bursts;
mod call;
mod draw;
mod fetches;
mod fleet;
mod groups;
mod ids;
mod judge;
mod offsets;
mod ops;
mod reads;
mod resolve;
mod sessions;
mod shrink;
mod transactions;
mod want;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use oncelog::model::Code;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use uuid::Uuid;

use self::{
    call::{Begin, Body, Call, Read, Request, Start},
    fleet::{Client, Fleet},
    ops::{Number, Op},
    resolve::{History, Resolver},
    want::{Reply, Want},
    world::{Phase, World},
};

/// What is not asked for, or not judged, as long as it is known to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each waits for its turn")]
pub enum Off {
    /// A topic that has grown refuses topic appends, or spreads them as before.
    Growth,
    /// The repeat of a transaction is judged by more than its id and its payload.
    RepeatsOfTransactions,
    /// Of an open that is sent twice at once, one is refused.
    RepeatedReopens,
    /// The end of a session may not name its epoch.
    EndsOfEpochs,
    /// Keys and ids are forgotten beside transactions of one request.
    KeysBesideTransactions,
    /// A commit beside a call that adds offsets leaves them out.
    OffsetsBesideCommits,
    /// A read of several partitions may show half a transaction.
    HalfTransactions,
}

pub const OFF: &[Off] = &[];

/// Operations of a sequence.
const LENGTH: usize = 150;
/// Bursts of a round.
const BURSTS: usize = 40;
/// In that many sequences every kind of call is done.
const MANY: u64 = 50;
/// Kinds of calls.
const CALLS: usize = 24;
/// How many ways of failing are enough.
const KINDS: usize = 8;

/// An answer that is not as it has to be.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What went wrong, without the facts of this one run.
    pub kind: String,
    /// The operation; none: what was there in the end.
    pub at: Option<Number>,
    pub story: Vec<String>,
}

fn line(request: &Request, reply: &Reply) -> String {
    let body = match &request.body {
        Body::None => String::new(),
        Body::Json(body) => body.to_string(),
        Body::Lines(lines) => lines.trim_end().replace('\n', " \\n "),
    };
    let key = request.key.as_ref().map(|key| format!(" Idempotency-Key: {key}"));
    let accept = if request.wants_lines { " (NDJSON)" } else { "" };
    let Request { method, path, .. } = request;
    let key = key.unwrap_or_default();
    format!("{method} {path}{accept}{key} {body}\n    {} {}", reply.status, reply.body)
}

/// Of each kind of call, how many were done and how many refused.
pub type Counts = BTreeMap<String, [usize; 2]>;

/// One run: a tenant, what it was answered, and what it has to be.
struct Run<'a> {
    client: Client<'a>,
    world: World,
    history: History,
    story: Vec<String>,
    counts: Counts,
    replicas: usize,
}

impl Run<'_> {
    async fn make(
        &mut self,
        at: Option<Number>,
        replica: usize,
        call: Call,
    ) -> Result<(), Failure> {
        let request = call.request();
        let reply = self.client.send(replica, &request).await;
        let name = format!("{call:?}");
        let name = name.split([' ', '(', '{']).next().unwrap_or_default();
        self.counts.entry(name.to_owned()).or_default()[usize::from(reply.status >= 400)] += 1;
        self.story.push(format!("[{replica}] {}", line(&request, &reply)));
        let want = self.world.judge(&call, &reply);
        let differs = want.differs(&reply).filter(|_| !self.may_lag(&want, &reply));
        if let Some(how) = differs {
            let code = |status: u16, body: &serde_json::Value| {
                format!("{status} {}", body["code"].as_str().unwrap_or_default())
            };
            let (got, wanted) = (code(reply.status, &reply.body), code(want.status, &want.body));
            self.story.push(format!("    {how}\n    wanted: {} {}", want.status, want.body));
            let kind = format!("{name}: {got} instead of {wanted}");
            return Err(Failure { kind, at, story: std::mem::take(&mut self.story) });
        }
        if let Call::Begin(Begin { id: Some(id), timeout_ms: Some(1), .. }) = &call
            && reply.status == 201
        {
            self.expire(*id, replica).await;
        }
        if let Some(number) = at {
            self.history.insert(number, (call, reply));
        }
        Ok(())
    }

    /// Waits until the deadline of a transaction has passed.
    async fn expire(&mut self, id: Uuid, replica: usize) {
        let request = Call::GetTransaction { id }.request();
        while self.client.send(replica, &request).await.body["state"] != "aborted" {}
        self.world.transactions.get_mut(&id).unwrap().state = Phase::Aborted("timeout");
    }

    /// Where a topic was deleted through another replica, or a group was, a call may be refused for
    /// another reason before that is noticed.
    fn may_lag(&self, want: &Want, reply: &Reply) -> bool {
        let is = |code: &Code| want.body["code"] == code.as_str();
        let absent = [Code::TopicNotFound, Code::PartitionNotFound];
        let is_absent = absent.iter().any(is) && self.replicas > 1;
        (is_absent || is(&Code::InvalidCursor)) && (400..500).contains(&reply.status)
    }

    /// Settings take a second to reach other replicas, unless they are told.
    async fn tell_all(&self, replica: usize, call: &Call) {
        let is_told = match call {
            Call::PutTopic { .. } | Call::PatchTenant(_) => true,
            Call::PatchTopic { settings, .. } => settings.is_some(),
            _ => false,
        };
        for other in (1..self.replicas).filter(|_| is_told) {
            self.client.send(replica + other, &call.request()).await;
        }
    }

    /// All that is there is asked for.
    async fn look(&mut self, replica: usize) -> Result<(), Failure> {
        let mut calls = Vec::new();
        for (topic, at) in &self.world.topics {
            for partition in 0..at.logs.len() as i32 {
                let (topic, start) = (topic.clone(), Start::Earliest);
                let (limit, uncommitted, as_lines) = (Some(10_000), true, false);
                let read = Read { topic, partition, start, limit, uncommitted, as_lines };
                calls.push(Call::Read(read));
            }
        }
        calls.extend(self.world.owners.keys().map(|id| Call::GetSession { producer: *id }));
        calls.extend(self.world.transactions.keys().map(|id| Call::GetTransaction { id: *id }));
        for group in self.world.groups.keys() {
            calls.push(Call::GetGroup { group: group.clone() });
            calls.push(Call::GetOffsets { group: group.clone() });
        }
        for (other, call) in calls.into_iter().enumerate() {
            self.make(None, replica + other, call).await?;
        }
        Ok(())
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Runs a sequence in a tenant of its own; answers what it took.
pub async fn run(fleet: &Fleet, ops: &[Op]) -> Result<Counts, Failure> {
    let now_ms = now_ms();
    let (world, history, story) = (World::default(), History::new(), Vec::new());
    let (client, replicas) = (fleet.client(), fleet.replicas());
    let mut run = Run { client, world, history, story, counts: Counts::new(), replicas };
    for op in ops {
        let resolver = Resolver { world: &run.world, history: &run.history, now_ms };
        let Some(call) = resolver.call(op) else { continue };
        let told = call.clone();
        run.make(Some(op.number), op.replica, call).await?;
        run.tell_all(op.replica, &told).await;
    }
    run.look(0).await?;
    Ok(run.counts)
}

/// That many sequences, from a seed; panics if one has failed, with what it took to fail so.
async fn sequences(replicas: usize, seed: u64, rounds: u64, time: Option<Duration>) {
    let fleet = Fleet::start(replicas).await;
    let until = time.map(|time| Instant::now() + time);
    let mut kinds = BTreeSet::new();
    let (mut all, mut round) = (Counts::new(), 0);
    while round < rounds && until.is_none_or(|until| Instant::now() < until) {
        let seed = seed.wrapping_add(round);
        round += 1;
        let ops = draw::draw(&mut StdRng::seed_from_u64(seed), LENGTH);
        match run(&fleet, &ops).await {
            Ok(counts) => {
                for (name, [done, refused]) in counts {
                    let sum = all.entry(name).or_default();
                    *sum = [sum[0] + done, sum[1] + refused];
                }
            }
            Err(failure) if kinds.insert(failure.kind.clone()) => {
                let (ops, failure) = shrink::shrink(&fleet, ops, failure).await;
                let (count, story) = (ops.len(), failure.story.join("\n"));
                println!("seed {seed}, {count} operations: {}\n{story}\n", failure.kind);
            }
            Err(_) => {}
        }
        if kinds.len() >= KINDS {
            break;
        }
    }
    let sent: usize = all.values().flatten().sum();
    println!("seed {seed}: {round} sequences, {sent} requests to {replicas} replicas");
    println!("done and refused: {all:?}");
    assert!(kinds.is_empty(), "{kinds:#?}");
    // what is never done is never judged
    let is_done = round < MANY || all.len() == CALLS && all.values().all(|[done, _]| *done > 0);
    assert!(is_done, "{all:?}");
}

/// That many rounds of bursts, from a seed; panics with the first that came to something wrong.
async fn in_bursts(replicas: usize, seed: u64, rounds: u64, time: Option<Duration>) {
    let fleet = Fleet::start(replicas).await;
    let until = time.map(|time| Instant::now() + time);
    let (mut sent, mut round) = (0, 0);
    while round < rounds && until.is_none_or(|until| Instant::now() < until) {
        let seed = seed.wrapping_add(round);
        round += 1;
        let bursts = bursts::draw(&mut StdRng::seed_from_u64(seed), BURSTS);
        match bursts::run(&fleet, &bursts, now_ms()).await {
            Ok(count) => sent += count,
            Err(why) => {
                println!("seed {seed}, {replicas} replicas: {why}");
                let few = bursts::shrink(&fleet, bursts, now_ms()).await;
                panic!("seed {seed}: {why}\nin {} bursts: {few:#?}", few.len());
            }
        }
    }
    println!("seed {seed}: {round} rounds of bursts, {sent} requests to {replicas} replicas");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_answers_as_the_world_says() {
    sequences(1, rand::random(), 8, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_answer_as_the_world_says() {
    sequences(3, rand::random(), 8, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_of_bursts_to_one_replica_is_right() {
    in_bursts(1, rand::random(), 3, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_of_bursts_to_three_replicas_is_right() {
    in_bursts(3, rand::random(), 3, None).await;
}

/// The long run: `make sequences`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long; `make sequences`"]
async fn many_sequences_are_answered_as_the_world_says() {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let mut rng = rand::rng();
    let seed = number("ONCELOG_TEST_SEED").unwrap_or_else(|| rng.random());
    let seconds = number("ONCELOG_TEST_SECONDS");
    let rounds =
        number("ONCELOG_TEST_ROUNDS").unwrap_or(if seconds.is_some() { u64::MAX } else { 100 });
    // for each of the four below
    let time = seconds.map(|seconds| Duration::from_secs(seconds) / 4);
    for replicas in [1, 3] {
        sequences(replicas, seed, rounds, time).await;
        in_bursts(replicas, seed, rounds, time).await;
    }
}
