//! Exactly-once, proved by history: producers that retry, overtake themselves, die and wake as
//! zombies, over three brokers that forget, lose their connections and take snapshots; then the
//! logs are read and held against everything that was acknowledged.
//!
//! `make torture SEED=... ROUNDS=...` runs it for longer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use oncelog::{
    broker::{Broker, Error, ServiceConfig},
    model::{
        Code, Partition, ProducerId, TenantId,
        append::{Appended, Placed, ProducerSeq, Scope},
        read::{Isolation, Read, Start},
    },
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{self, name, proxy::Proxy};

const BROKERS: usize = 3;
const PRODUCERS: usize = 5;
const TOPICS: [&str; 2] = ["orders", "audit"];
const PARTITIONS: Partition = 3;
/// Requests of one scope in flight at once.
const IN_FLIGHT: i64 = 5;

type ScopeKey = (&'static str, Option<Partition>);

/// A request that was sent: what it is known by forever.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct RequestKey {
    producer: usize,
    scope: ScopeKey,
    epoch: i64,
    sequence: i64,
}

/// What clients saw.
#[derive(Default)]
struct History {
    acknowledged: BTreeMap<RequestKey, Appended>,
    /// (producer, epoch) -> next sequence of every scope.
    opened: BTreeMap<(usize, i64), HashMap<ScopeKey, i64>>,
    unnumbered: BTreeMap<String, Appended>,
    duplicates: u64,
    fenced: u64,
}

struct World {
    brokers: Vec<(Arc<Broker>, TenantId)>,
    history: Mutex<History>,
}

impl World {
    fn broker(&self, rng: &mut StdRng) -> &(Arc<Broker>, TenantId) {
        &self.brokers[rng.random_range(0..self.brokers.len())]
    }
}

fn scope_of((_, partition): ScopeKey) -> Scope {
    partition.map_or(Scope::Topic, Scope::Partition)
}

/// The records of a request: always the same for the same key.
fn records(key: &RequestKey) -> String {
    let seed = key.sequence as u64 * 31 + key.epoch as u64 * 7 + key.producer as u64;
    let mut rng = StdRng::seed_from_u64(seed);
    let count = rng.random_range(1..=4);
    let mut lines = String::new();
    for index in 0..count {
        let value = json!({"producer": key.producer, "scope": format!("{:?}", key.scope),
            "epoch": key.epoch, "sequence": key.sequence, "index": index, "count": count});
        let record = match rng.random_range(0..3) {
            0 => json!({"value": value}),
            _ => json!({"key": format!("k{}", rng.random_range(0..9)), "value": value}),
        };
        lines.push_str(&format!("{record}\n"));
    }
    lines
}

/// Sends one numbered request until it is stored or fenced; true: stored.
async fn send(world: Arc<World>, id: ProducerId, key: RequestKey, seed: u64) -> bool {
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        let (broker, tenant) = world.broker(&mut rng).clone();
        let numbered = ProducerSeq { producer_id: id, epoch: key.epoch, sequence: key.sequence };
        let append = support::append(Some(numbered), &records(&key));
        let sent = tokio::spawn(async move {
            broker.append(tenant, &name(key.scope.0), scope_of(key.scope), append, None).await
        });
        if rng.random_bool(0.05) {
            // the client hangs up and sends again
            tokio::time::sleep(Duration::from_micros(rng.random_range(0..2_000))).await;
            sent.abort();
            continue;
        }
        match sent.await.unwrap() {
            Ok(appended) => {
                let mut history = world.history.lock().unwrap();
                history.duplicates += u64::from(appended.duplicate);
                remember(&mut history, key, appended);
                return true;
            }
            Err(error) => match error.code {
                Code::ProducerFenced => {
                    world.history.lock().unwrap().fenced += 1;
                    return false;
                }
                Code::OutOfOrderSequence
                | Code::UnknownProducerState
                | Code::Unavailable
                | Code::OutcomeUnknown => {}
                _ => panic!("{key:?}: {error:?}"),
            },
        }
    }
}

/// The same request is always answered with the same place and instant.
fn remember(history: &mut History, key: RequestKey, appended: Appended) {
    let forgotten = appended.appended_at.is_none();
    match history.acknowledged.get(&key) {
        Some(first) if !forgotten => {
            let first = (&first.placed, first.appended_at);
            assert_eq!(first, (&appended.placed, appended.appended_at), "{key:?}");
        }
        Some(_) => {}
        None if forgotten => {}
        None => drop(history.acknowledged.insert(key, appended)),
    }
}

async fn open(
    world: &World,
    producer: usize,
    rng: &mut StdRng,
) -> (ProducerId, i64, HashMap<ScopeKey, i64>) {
    let mut open = support::open(Some(&format!("producer-{producer}")));
    open.open_id = Some(Uuid::now_v7());
    loop {
        let (broker, tenant) = world.broker(rng);
        match broker.open_session(*tenant, open.clone(), None).await {
            Ok(opened) => {
                let next = opened.value.next_sequences.iter().map(|next| {
                    let topic = TOPICS.iter().find(|t| **t == next.topic.as_str()).unwrap();
                    ((*topic, next.partition), next.next_sequence)
                });
                let next: HashMap<ScopeKey, i64> = next.collect();
                let epoch = opened.value.session.epoch;
                let mut history = world.history.lock().unwrap();
                history.opened.insert((producer, epoch), next.clone());
                return (opened.value.session.producer_id, epoch, next);
            }
            Err(Error { code: Code::Unavailable | Code::OutcomeUnknown, .. }) => {}
            Err(error) => panic!("open: {error:?}"),
        }
    }
}

/// One logical producer: run after run, each with a newer epoch; what a run left in flight goes on
/// as a zombie.
async fn produce(world: Arc<World>, producer: usize, seed: u64, runs: usize, bursts: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut zombies = Vec::new();
    for _ in 0..runs {
        let (id, epoch, mut next) = open(&world, producer, &mut rng).await;
        for burst in 0..bursts {
            let topic = TOPICS[rng.random_range(0..TOPICS.len())];
            let partition = rng.random_bool(0.6).then(|| rng.random_range(0..PARTITIONS));
            let scope = (topic, partition);
            let first = *next.entry(scope).or_default();
            let count = rng.random_range(1..=IN_FLIGHT);
            let mut sequences: Vec<i64> = (first..first + count).collect();
            sequences.shuffle(&mut rng);
            let sent: Vec<_> = sequences
                .into_iter()
                .map(|sequence| {
                    let key = RequestKey { producer, scope, epoch, sequence };
                    tokio::spawn(send(world.clone(), id, key, rng.random()))
                })
                .collect();
            next.insert(scope, first + count);
            if burst + 1 == bursts {
                zombies.extend(sent);
            } else {
                for sent in sent {
                    assert!(sent.await.unwrap(), "fenced though nobody opened");
                }
                repeat(&world, id, producer, epoch, &mut rng).await;
            }
        }
        unnumbered(&world, &mut rng).await;
    }
    for zombie in zombies {
        zombie.await.unwrap();
    }
}

/// A late repeat of something acknowledged.
async fn repeat(world: &Arc<World>, id: ProducerId, producer: usize, epoch: i64, rng: &mut StdRng) {
    let key = {
        let history = world.history.lock().unwrap();
        let own = history.acknowledged.keys();
        let own: Vec<_> = own.filter(|k| k.producer == producer && k.epoch == epoch).collect();
        own[rng.random_range(0..own.len())].clone()
    };
    assert!(send(world.clone(), id, key, rng.random()).await);
}

async fn unnumbered(world: &World, rng: &mut StdRng) {
    let mark = Uuid::now_v7().to_string();
    let (broker, tenant) = world.broker(rng);
    let append = support::append(None, &json!({"value": {"unnumbered": mark}}).to_string());
    let scope = if rng.random() { Scope::Topic } else { Scope::Partition(0) };
    if let Ok(appended) = broker.append(*tenant, &name(TOPICS[0]), scope, append, None).await {
        world.history.lock().unwrap().unnumbered.insert(mark, appended);
    }
}

/// A record as it lies in a log.
struct Stored {
    topic: &'static str,
    partition: Partition,
    offset: i64,
    value: Value,
}

async fn read_all(broker: &Broker, tenant: TenantId) -> Vec<Stored> {
    let mut stored = Vec::new();
    for topic in TOPICS {
        for partition in 0..PARTITIONS {
            let mut next = 0;
            loop {
                let read = Read {
                    start: Start::Offset(next),
                    limit: 777,
                    max_bytes: 1 << 20,
                    wait_ms: 0,
                    isolation: Isolation::default(),
                };
                let page = broker.read(tenant, &name(topic), partition, read).await.unwrap();
                for slice in &page.slices {
                    let lines = slice.row.lines[slice.start..slice.end].lines();
                    for (offset, line) in (slice.first_offset..).zip(lines) {
                        assert_eq!(offset, next, "offsets are dense");
                        let record: Value = serde_json::from_str(line).unwrap();
                        stored.push(Stored {
                            topic,
                            partition,
                            offset,
                            value: record["value"].clone(),
                        });
                        next += 1;
                    }
                }
                assert_eq!(next, page.next_offset);
                if next == page.high_watermark {
                    break;
                }
            }
        }
    }
    stored
}

/// Holds what is stored against what clients saw.
fn judge(history: &History, stored: &[Stored]) {
    let scopes: HashMap<String, ScopeKey> = TOPICS
        .into_iter()
        .flat_map(|t| (0..PARTITIONS).map(Some).chain([None]).map(move |p| (t, p)))
        .map(|scope| (format!("{scope:?}"), scope))
        .collect();
    let mut requests: BTreeMap<RequestKey, Vec<(i64, Partition, i64, i64)>> = BTreeMap::new();
    let mut unnumbered: HashMap<String, usize> = HashMap::new();
    let mut last: HashMap<(usize, ScopeKey, Partition), (i64, i64)> = HashMap::new();
    for record in stored {
        let value = &record.value;
        if let Some(mark) = value["unnumbered"].as_str() {
            *unnumbered.entry(mark.to_owned()).or_default() += 1;
            continue;
        }
        let number = |field: &str| value[field].as_i64().unwrap();
        let key = RequestKey {
            producer: number("producer") as usize,
            scope: scopes[value["scope"].as_str().unwrap()],
            epoch: number("epoch"),
            sequence: number("sequence"),
        };
        assert_eq!(key.scope.0, record.topic);
        let place = (key.producer, key.scope, record.partition);
        let now = (key.sequence, number("index"));
        if let Some(before) = last.insert(place, now) {
            assert!(before < now, "{key:?} out of order at {}", record.offset);
        }
        let parts = requests.entry(key).or_default();
        parts.push((number("index"), record.partition, record.offset, number("count")));
    }
    let mut by_scope: BTreeMap<(usize, ScopeKey), BTreeMap<i64, i64>> = BTreeMap::new();
    for (key, parts) in &mut requests {
        parts.sort_unstable();
        let indexes: Vec<i64> = parts.iter().map(|part| part.0).collect();
        assert_eq!(indexes, (0..parts[0].3).collect::<Vec<_>>(), "{key:?} is whole, and once");
        let sequences = by_scope.entry((key.producer, key.scope)).or_default();
        let twice = sequences.insert(key.sequence, key.epoch);
        assert_eq!(twice, None, "{key:?} stored under two epochs");
    }
    for ((producer, scope), sequences) in &by_scope {
        let contiguous = sequences.keys().copied().eq(0..sequences.len() as i64);
        assert!(contiguous, "{producer} {scope:?}: {:?}", sequences.keys());
        assert!(sequences.values().is_sorted(), "{producer} {scope:?}: epochs go forward");
    }
    for (key, appended) in &history.acknowledged {
        let parts =
            requests.get(key).unwrap_or_else(|| panic!("{key:?} was acknowledged and is lost"));
        let places: Vec<(Partition, i64)> = parts.iter().map(|part| (part.1, part.2)).collect();
        match &appended.placed {
            Placed::Topic(offsets) => assert_eq!(offsets.as_ref().unwrap(), &places, "{key:?}"),
            Placed::Partition { partition, base_offset, record_count } => {
                assert_eq!(places[0], (*partition, base_offset.unwrap()), "{key:?}");
                assert_eq!(places.len() as i64, *record_count, "{key:?}");
            }
            Placed::Records { .. } => unreachable!("no record has an id"),
        }
    }
    for ((producer, epoch), next) in &history.opened {
        for (_, scope) in by_scope.keys().filter(|(p, _)| p == producer) {
            let sequences = &by_scope[&(*producer, *scope)];
            let before = sequences.values().filter(|stored_in| *stored_in < epoch).count() as i64;
            let told = next.get(scope).copied().unwrap_or(0);
            assert_eq!(told, before, "{producer} e{epoch} {scope:?}: next sequence");
        }
    }
    let known: BTreeSet<_> = history.unnumbered.keys().collect();
    assert!(known.iter().all(|mark| unnumbered.get(*mark) == Some(&1)), "unnumbered: once");
    assert!(unnumbered.values().all(|count| *count == 1));
}

/// Sweeps, and now and then cuts every connection of a broker.
async fn disturb(world: &World, proxies: &[Proxy], cuts: bool, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    loop {
        let _ = world.brokers[1].0.sweep().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        if cuts && rng.random_bool(0.05) {
            proxies[rng.random_range(0..proxies.len())].cut_all();
        }
    }
}

async fn torture(seed: u64, runs: usize, bursts: usize, cuts_per_million: u32) {
    println!("seed {seed}, {runs} runs of {bursts} bursts");
    let mut rng = StdRng::seed_from_u64(seed);
    let options = support::database().await;
    let mut brokers = Vec::new();
    let mut proxies = Vec::new();
    for index in 0..BROKERS {
        let proxy = Proxy::start(&options, rng.random()).await;
        let settings = ServiceConfig {
            // one remembers next to nothing, all take snapshots all the time
            remembered_producers: if index == 0 { 6 } else { 100_000 },
            snapshot_rows: 20,
            gap_wait_ms: 200,
            ..ServiceConfig::default()
        };
        let broker = support::broker(&proxy.options(&options), settings);
        let tenant = support::tenant(&broker).await;
        brokers.push((broker, tenant));
        proxies.push(proxy);
    }
    for topic in TOPICS {
        let (broker, tenant) = &brokers[0];
        broker.put_topic(*tenant, &name(topic), Some(PARTITIONS), None).await.unwrap();
    }
    proxies.iter().for_each(|proxy| proxy.lose_answers(cuts_per_million));
    let world = Arc::new(World { brokers, history: Mutex::default() });
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| tokio::spawn(produce(world.clone(), producer, rng.random(), runs, bursts)))
        .collect();
    let producing = async {
        for producer in producers {
            producer.await.unwrap();
        }
    };
    tokio::select! {
        () = producing => {}
        () = disturb(&world, &proxies, cuts_per_million > 0, rng.random()) => {}
    }
    proxies.iter().for_each(|proxy| proxy.lose_answers(0));
    let (broker, tenant) = &world.brokers[2];
    // each pooled connection that was cut fails one piece of work
    while broker.sweep().await.is_err() {}
    let stored = read_all(broker, *tenant).await;
    let history = std::mem::take(&mut *world.history.lock().unwrap());
    judge(&history, &stored);
    let cuts: u64 = proxies.iter().map(|p| p.cuts.load(std::sync::atomic::Ordering::Relaxed)).sum();
    println!(
        "{} records, {} acknowledged requests, {} duplicates, {} fenced, {} opens, {cuts} connections cut",
        stored.len(),
        history.acknowledged.len(),
        history.duplicates,
        history.fenced,
        history.opened.len()
    );
    assert_eq!(support::deadlocks(&options), 0);
    assert!(history.fenced > 0 && history.duplicates > 0, "nothing interesting happened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_brokers_one_history() {
    torture(rand::random(), 6, 12, 2_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_brokers_one_history_without_faults() {
    torture(rand::random(), 6, 12, 0).await;
}

/// The long run: `make torture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long; `make torture`"]
async fn three_brokers_one_long_history() {
    let number = |name: &str| -> Option<u64> {
        std::env::var(name).ok().and_then(|value| value.parse().ok())
    };
    let seed = number("ONCELOG_TEST_SEED").unwrap_or_else(rand::random);
    let rounds = number("ONCELOG_TEST_ROUNDS").unwrap_or(10);
    for round in 0..rounds {
        torture(seed.wrapping_add(round), 20, 25, 3_000).await;
    }
}
