//! Random appends through three brokers against an oracle that remembers everything in the plainest
//! way: what it says of every record, every request and the logs at the end is what clients are
//! told.

use std::collections::BTreeMap;

use oncelog::model::{
    Code, Partition, ProducerId, Timestamp,
    append::{Append, Appended, Placed, PlacedRecord, ProducerSeq, Scope},
    dedup::RequestKey,
    settings::{Change, Key, Value as Setting},
    topic::TopicPatch,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::json;
use sqlx::{AssertSqlSafe, ConnectOptions, Executor};

use super::trio::{Place, Trio};
use crate::support::{self, name};

/// Windows end between the moves of the clock, five minutes from any of them.
const WINDOWS_MS: [Option<i64>; 6] =
    [Some(0), Some(300_000), Some(900_000), Some(6_900_000), Some(86_100_000), None];
const MOVES_MS: [i64; 4] = [600_000, 1_200_000, 7_200_000, 86_400_000];

/// A record as it is sent; what it is known by where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sent {
    id: Option<u8>,
    key: Option<u8>,
    value: u8,
}

impl Sent {
    fn line(self) -> String {
        let mut record = json!({"value": self.value});
        if let Some(id) = self.id {
            record["id"] = json!(format!("id-{id}"));
        }
        if let Some(key) = self.key {
            record["key"] = json!(format!("k{key}"));
        }
        format!("{record}\n")
    }

    /// Of a topic that dedups by content, or by id.
    fn known_by(self, by_content: bool) -> Option<KnownBy> {
        match (by_content, self.id) {
            (true, _) => Some(KnownBy::Content(self.key, self.value)),
            (false, id) => id.map(KnownBy::Id),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KnownBy {
    Id(u8),
    Content(Option<u8>, u8),
}

/// What is remembered until an instant of the oracle's clock; none: forever.
#[derive(Clone, Debug)]
struct Memory<T> {
    what: T,
    until_ms: Option<i64>,
    /// When the clock stood at so much.
    seen_at_ms: i64,
}

/// What became of a record, as far as it is told again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    place: Place,
    duplicate: bool,
    first_seen_at: Timestamp,
}

/// Of a numbered or keyed request: what it held, and what it was answered.
#[derive(Clone, Debug)]
struct Answer {
    sent: Vec<Sent>,
    told: Vec<Told>,
    appended_at: Timestamp,
}

#[derive(Default)]
struct Oracle {
    /// By how much the clock was moved.
    clock_ms: i64,
    window_ms: Option<i64>,
    by_content: bool,
    /// Where it lies, key and value, and when it was told to be first seen.
    ids: BTreeMap<KnownBy, Memory<(Place, Sent, Timestamp)>>,
    keys: BTreeMap<(usize, u8), Memory<Answer>>,
    numbers: BTreeMap<(usize, i64), Answer>,
    next: BTreeMap<usize, i64>,
    logs: [Vec<Sent>; 2],
    starts: [i64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    New,
    /// As the record before it in the same request.
    Same(usize),
    Known(Place, Timestamp),
}

impl<T> Memory<T> {
    fn is_over(&self, clock_ms: i64) -> bool {
        self.until_ms.is_some_and(|until| clock_ms >= until)
    }
}

impl Oracle {
    fn moved(&self, at: Timestamp, seen_at_ms: i64) -> Timestamp {
        Timestamp(at.0 - (self.clock_ms - seen_at_ms))
    }

    fn until_ms(&self) -> Option<i64> {
        self.window_ms.map(|ms| self.clock_ms + ms)
    }

    /// What becomes of each record, or the code of the refusal.
    fn wants(&self, sent: &[Sent], refuses: bool) -> Result<Vec<Wanted>, Code> {
        let mut wanted: Vec<Wanted> = Vec::new();
        let mut is_reused = false;
        for (index, record) in sent.iter().enumerate() {
            let by = match self.window_ms {
                Some(0) => None,
                _ => record.known_by(self.by_content),
            };
            let before = sent[..index]
                .iter()
                .position(|b| by.is_some() && b.known_by(self.by_content) == by);
            let known = by.and_then(|by| self.ids.get(&by)).filter(|m| !m.is_over(self.clock_ms));
            let payload = |other: &Sent| (other.key, other.value) == (record.key, record.value);
            // what a known one is compared with is what was stored under its id
            is_reused |= before.is_some_and(|at| !payload(&sent[at]));
            is_reused |= before.is_none() && known.is_some_and(|m| !payload(&m.what.1));
            wanted.push(match (before, known) {
                (Some(first), _) => Wanted::Same(first),
                (None, Some(m)) => Wanted::Known(m.what.0, self.moved(m.what.2, m.seen_at_ms)),
                (None, None) => Wanted::New,
            });
        }
        if is_reused {
            return Err(Code::RecordIdReused);
        }
        if refuses && wanted.iter().any(|wanted| *wanted != Wanted::New) {
            return Err(Code::DuplicateRecord);
        }
        Ok(wanted)
    }

    /// What a first answer says is held against what was wanted, and remembered. `maybe_done`: it
    /// was sent before, and its answer lost.
    fn learn(
        &mut self,
        sent: &[Sent],
        wanted: &[Wanted],
        scope: Scope,
        answer: &Appended,
        maybe_done: bool,
        at: &str,
    ) -> Answer {
        let appended_at = answer.appended_at.unwrap();
        let mut told: Vec<Told> = Vec::new();
        let records = placed(answer, sent.len(), appended_at);
        let mut news = Vec::new();
        for ((record, wanted), got) in sent.iter().zip(wanted).zip(&records) {
            let place =
                |place: Place| (place.1 >= self.starts[place.0 as usize]).then_some(place.1);
            let seen = match wanted {
                Wanted::New => {
                    let log = &mut self.logs[got.partition as usize];
                    assert_eq!(got.offset, Some(log.len() as i64), "{at}: the next offset");
                    assert!(!got.duplicate || maybe_done, "{at}: {record:?} is new");
                    assert!(
                        scope == Scope::Topic || scope == Scope::Partition(got.partition),
                        "{at}"
                    );
                    log.push(*record);
                    news.push(got.offset.unwrap());
                    let place = (got.partition, got.offset.unwrap());
                    if let (Some(by), true) =
                        (record.known_by(self.by_content), self.window_ms != Some(0))
                    {
                        let memory = Memory {
                            what: (place, *record, got.first_seen_at),
                            until_ms: self.until_ms(),
                            seen_at_ms: self.clock_ms,
                        };
                        self.ids.insert(by, memory);
                    }
                    Told { place, duplicate: got.duplicate, first_seen_at: got.first_seen_at }
                }
                Wanted::Same(first) => {
                    assert!(got.duplicate, "{at}: {record:?} twice");
                    let first: Told = told[*first];
                    assert_eq!(
                        (got.partition, got.offset),
                        (first.place.0, place(first.place)),
                        "{at}"
                    );
                    Told { duplicate: true, ..first }
                }
                Wanted::Known(at_place, first_seen_at) => {
                    assert!(got.duplicate, "{at}: {record:?} is known");
                    assert_eq!((got.partition, got.offset), (at_place.0, place(*at_place)), "{at}");
                    assert_eq!(got.first_seen_at, *first_seen_at, "{at}");
                    let (place, first_seen_at) = (*at_place, got.first_seen_at);
                    Told { place, duplicate: true, first_seen_at }
                }
            };
            told.push(seen);
        }
        if !maybe_done {
            says_what_is_new(answer, scope, wanted, &news, at);
        }
        Answer { sent: sent.to_vec(), told, appended_at }
    }
}

/// `news`: the offsets of what was stored.
#[track_caller]
fn says_what_is_new(answer: &Appended, scope: Scope, wanted: &[Wanted], news: &[i64], at: &str) {
    assert_eq!(answer.duplicate, !wanted.contains(&Wanted::New), "{at}");
    if let (Scope::Partition(_), Placed::Records { base_offset, record_count, .. }) =
        (scope, &answer.placed)
    {
        let want = (news.first().copied(), news.len() as i64);
        assert_eq!((*base_offset, *record_count), want, "{at}");
    }
}

/// Of each record, whatever the form of the answer.
fn placed(answer: &Appended, count: usize, appended_at: Timestamp) -> Vec<PlacedRecord> {
    let placed = match answer.placed.clone().records(appended_at) {
        Placed::Records { records: Some(records), .. } => records,
        other => panic!("{other:?}"),
    };
    assert_eq!(placed.len(), count);
    placed
}

struct Run {
    trio: std::sync::Arc<Trio>,
    rng: StdRng,
    oracle: Oracle,
    producer: (ProducerId, i64),
    hand: sqlx::PgConnection,
    /// Of requests: stored some, all known, refused, repeated, lost.
    counts: [usize; 5],
}

fn scope_of(scope: usize) -> Scope {
    [Scope::Partition(0), Scope::Partition(1), Scope::Topic][scope]
}

impl Run {
    async fn start(seed: u64) -> Self {
        let trio = Trio::start(2).await;
        let replica = &trio.replicas[0];
        let open = support::open(Some("p"));
        let session =
            replica.broker.open_session(replica.tenant, open, None).await.unwrap().value.session;
        let hand = trio.options.connect().await.unwrap();
        let mut run = Self {
            trio,
            rng: StdRng::seed_from_u64(seed),
            oracle: Oracle::default(),
            producer: (session.producer_id, session.epoch),
            hand,
            counts: [0; 5],
        };
        run.change_settings().await;
        run
    }

    /// Through all brokers: who patches knows at once.
    async fn change_settings(&mut self) {
        let window_ms = WINDOWS_MS[self.rng.random_range(0..WINDOWS_MS.len())];
        let by_content = self.rng.random_bool(0.25);
        let window = window_ms.map_or(Setting::Unlimited, Setting::Number);
        let way = Key::Dedup.choice(if by_content { "content" } else { "id" }).unwrap();
        for replica in &self.trio.replicas {
            let settings = [(Key::DedupWindowMs, window), (Key::Dedup, way)];
            let settings = settings.map(|(key, value)| (key, Change::Set(value))).into();
            let patch = TopicPatch { partition_count: None, settings };
            replica.broker.patch_topic(replica.tenant, &name("orders"), patch).await.unwrap();
        }
        (self.oracle.window_ms, self.oracle.by_content) = (window_ms, by_content);
    }

    async fn move_clock(&mut self) {
        let ms = MOVES_MS[self.rng.random_range(0..MOVES_MS.len())];
        let age = format!(
            "update oncelog.dedup_keys set first_seen_at = first_seen_at - interval '{ms} ms', \
             expires_at = expires_at - interval '{ms} ms'"
        );
        self.hand.execute(AssertSqlSafe(age)).await.unwrap();
        self.oracle.clock_ms += ms;
    }

    async fn trim(&mut self) {
        let partition = self.rng.random_range(0..2_usize);
        let log = &self.oracle.logs[partition];
        let before = self.rng.random_range(self.oracle.starts[partition]..=log.len() as i64);
        let replica = &self.trio.replicas[0];
        let partition_number = partition as Partition;
        let topic = name("orders");
        let trim = replica.broker.trim(replica.tenant, &topic, partition_number, before);
        trim.await.unwrap();
        self.oracle.starts[partition] = before;
    }

    fn some_records(&mut self) -> Vec<Sent> {
        let count = self.rng.random_range(1..5);
        let record = |rng: &mut StdRng| {
            let id = rng.random_bool(0.75).then(|| rng.random_range(0..12));
            // an id comes with its own key and value, nearly always
            let other = rng.random_bool(0.03);
            let of = id.filter(|_| !other).unwrap_or_else(|| rng.random_range(0..9));
            Sent { id, key: (of % 4 > 0).then_some(of % 4), value: of / 3 }
        };
        (0..count).map(|_| record(&mut self.rng)).collect()
    }

    async fn step(&mut self, number: usize) {
        match self.rng.random_range(0..100) {
            0..4 => self.change_settings().await,
            4..10 => self.move_clock().await,
            10..13 => self.trim().await,
            _ => {
                let scope = self.rng.random_range(0..3);
                let sent = self.some_records();
                match self.rng.random_range(0..10) {
                    0..3 => self.numbered(number, scope, sent).await,
                    3..5 => self.keyed(number, scope, sent).await,
                    _ => self.plain(number, scope, sent).await,
                }
            }
        }
    }

    /// Sends it; perhaps its answer is lost, and it is sent again. Whether it was, and what came.
    async fn send(
        &mut self,
        scope: usize,
        is_repeatable: bool,
        append: impl Fn() -> Append,
    ) -> (bool, Result<Appended, Code>) {
        let (trio, replica) = (self.trio.clone(), self.rng.random_range(0..3));
        let is_lost = is_repeatable && self.rng.random_bool(0.15);
        let scope = scope_of(scope);
        if is_lost {
            let yields = self.rng.random_range(0..40);
            let (sent, trio) = (append(), trio.clone());
            let sent = tokio::spawn(async move { trio.append(replica, scope, sent).await });
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            sent.abort();
            self.counts[4] += 1;
        }
        let answer = trio.append(replica + usize::from(is_lost), scope, append()).await;
        if is_lost {
            // it comes behind what was lost, if that has come at all
            let behind = trio.append(replica, scope, append()).await;
            assert_eq!(behind.is_ok(), answer.is_ok(), "{behind:?} after {answer:?}");
        }
        (is_lost, answer.map_err(|error| error.code))
    }

    fn count(&mut self, answer: &Result<Appended, Code>) {
        let kind = match answer {
            Ok(answer) if !answer.duplicate => 0,
            Ok(_) => 1,
            Err(_) => 2,
        };
        self.counts[kind] += 1;
    }

    async fn plain(&mut self, number: usize, scope: usize, sent: Vec<Sent>) {
        let refuses_duplicates = self.rng.random_bool(0.2);
        let wanted = self.oracle.wants(&sent, refuses_duplicates);
        let at = format!("step {number}: {sent:?} to {scope}");
        let lines: String = sent.iter().map(|record| record.line()).collect();
        let append = || Append { refuses_duplicates, ..support::append(None, &lines) };
        let known_by = |record: &Sent| record.known_by(self.oracle.by_content).is_some();
        let is_off = self.oracle.window_ms == Some(0);
        // what refuses duplicates refuses its own repeat
        let is_repeatable = !refuses_duplicates && !is_off && sent.iter().all(known_by);
        let (is_lost, answer) = self.send(scope, is_repeatable, append).await;
        self.count(&answer);
        match (wanted, answer) {
            (Ok(wanted), Ok(answer)) => {
                self.oracle.learn(&sent, &wanted, scope_of(scope), &answer, is_lost, &at);
            }
            (Err(wanted), Err(code)) => assert_eq!(code, wanted, "{at}"),
            (wanted, got) => panic!("{at}: {got:?} instead of {wanted:?}"),
        }
    }

    async fn numbered(&mut self, number: usize, scope: usize, mut sent: Vec<Sent>) {
        let (producer_id, epoch) = self.producer;
        let next = *self.oracle.next.entry(scope).or_default();
        let back = if self.rng.random_bool(0.35) { self.rng.random_range(1..=5) } else { 0 };
        let sequence = (next - back).max(0);
        let before = self.oracle.numbers.get(&(scope, sequence)).cloned();
        sent = before.as_ref().map_or(sent, |before| before.sent.clone());
        let wanted = self.oracle.wants(&sent, false);
        let at = format!("step {number}: {sent:?} to {scope} as {sequence}");
        let lines: String = sent.iter().map(|record| record.line()).collect();
        let numbered = Some(ProducerSeq { producer_id, epoch, sequence });
        let (is_lost, answer) = self.send(scope, true, || support::append(numbered, &lines)).await;
        self.count(&answer);
        match (before, wanted, answer) {
            (Some(before), _, Ok(answer)) => {
                self.counts[3] += 1;
                assert!(answer.duplicate, "{at}");
                same_as_before(&before, &answer, before.appended_at, &at);
            }
            (None, Ok(wanted), Ok(answer)) => {
                let scope_sent = scope_of(scope);
                let learned = self.oracle.learn(&sent, &wanted, scope_sent, &answer, is_lost, &at);
                self.oracle.numbers.insert((scope, sequence), learned);
                *self.oracle.next.get_mut(&scope).unwrap() += 1;
            }
            (None, Err(wanted), Err(code)) => assert_eq!(code, wanted, "{at}"),
            (before, wanted, got) => panic!("{at}: {got:?} instead of {before:?} {wanted:?}"),
        }
    }

    async fn keyed(&mut self, number: usize, scope: usize, mut sent: Vec<Sent>) {
        let key = self.rng.random_range(0..25);
        let clock_ms = self.oracle.clock_ms;
        let before = self.oracle.keys.get(&(scope, key));
        let before = before.filter(|before| !before.is_over(clock_ms)).cloned();
        if let (Some(before), true) = (&before, self.rng.random_bool(0.8)) {
            sent = before.what.sent.clone();
        }
        let wanted = self.oracle.wants(&sent, false);
        let at = format!("step {number}: {sent:?} to {scope} with key {key}");
        let lines: String = sent.iter().map(|record| record.line()).collect();
        let path = scope.to_string();
        let request_key =
            Some(RequestKey::new(&format!("key {key}"), "POST", &path, &[lines.as_bytes()]));
        let append = || Append { request_key, ..support::append(None, &lines) };
        let (is_lost, answer) = self.send(scope, true, append).await;
        self.count(&answer);
        let is_off = self.oracle.window_ms == Some(0);
        match (before, wanted, answer) {
            (_, _, Err(Code::InvalidRequest)) => assert!(is_off, "{at}"),
            (Some(before), _, Err(Code::IdempotencyKeyReused)) => {
                assert_ne!(before.what.sent, sent, "{at}");
            }
            (Some(before), _, Ok(answer)) => {
                assert_eq!(before.what.sent, sent, "{at}");
                self.counts[3] += 1;
                assert!(answer.duplicate, "{at}");
                let appended_at = self.oracle.moved(before.what.appended_at, before.seen_at_ms);
                same_as_before(&before.what, &answer, appended_at, &at);
            }
            (None, Ok(wanted), Ok(answer)) => {
                let learned =
                    self.oracle.learn(&sent, &wanted, scope_of(scope), &answer, is_lost, &at);
                let until_ms = self.oracle.until_ms();
                let memory = Memory { what: learned, until_ms, seen_at_ms: clock_ms };
                self.oracle.keys.insert((scope, key), memory);
            }
            (None, Err(wanted), Err(code)) => assert_eq!(code, wanted, "{at}"),
            (before, wanted, got) => panic!("{at}: {got:?} instead of {before:?} {wanted:?}"),
        }
    }

    /// The logs hold what the oracle says, and nothing else.
    async fn judge(self) {
        let stored = self.trio.stored().await;
        let mut count = 0;
        for (partition, log) in self.oracle.logs.iter().enumerate() {
            let start = self.oracle.starts[partition];
            for (offset, sent) in log.iter().enumerate().skip(start as usize) {
                let record = &stored[&(partition as Partition, offset as i64)];
                let id = sent.id.map(|id| json!(format!("id-{id}")));
                assert_eq!(record.get("id"), id.as_ref(), "{partition} {offset}");
                assert_eq!(record["value"], json!(sent.value), "{partition} {offset}");
                count += 1;
            }
        }
        assert_eq!(stored.len(), count);
        self.trio.nobody_waited_in_a_circle().await;
    }
}

/// A repeat is answered as the first was, but for the instant of those that were new.
#[track_caller]
fn same_as_before(before: &Answer, answer: &Appended, appended_at: Timestamp, at: &str) {
    assert_eq!(answer.appended_at, Some(appended_at), "{at}");
    let got = placed(answer, before.sent.len(), appended_at);
    for (told, got) in before.told.iter().zip(got) {
        assert_eq!((got.partition, got.duplicate), (told.place.0, told.duplicate), "{at}");
        if before.appended_at == appended_at {
            assert_eq!(got.first_seen_at, told.first_seen_at, "{at}");
        }
        assert!(got.offset.is_none_or(|offset| offset == told.place.1), "{at}");
    }
}

async fn run(seed: u64, steps: usize) {
    println!("seed {seed}");
    let mut run = Run::start(seed).await;
    for number in 0..steps {
        run.step(number).await;
    }
    println!("stored, known, refused, repeated, lost: {:?}", run.counts);
    assert!(steps < 300 || run.counts.iter().all(|count| *count > 0), "{:?}", run.counts);
    run.judge().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_appends_are_answered_as_the_oracle_says() {
    for _ in 0..3 {
        run(rand::random(), 300).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn many_random_appends_are_answered_as_the_oracle_says() {
    for _ in 0..50 {
        run(rand::random(), 1_500).await;
    }
}
