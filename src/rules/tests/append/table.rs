//! Text tables, one row per event, over the stand-in for the database:
//!
//! ```text
//! open P1 [reset] [monotonic]    -> e0
//! P1 e0 s0; P1 e0 s1             -> fast: ok 0; ok 1
//! ```
//!
//! A row of requests is one batch (`;` between). Words of a request: `P1 e0 s0` or `anon`, then
//! `other` (other records), `x3` (three records), `9000b`, `large` (exceeds a limit), `at5`
//! (expected offset), `p1` (partition scope) or `topic`, `p0+p1` (where a topic append's records
//! go), `of3` (the partition count it was spread over). Answers name the first offset in each
//! partition, that of partition 0 as a bare number. Further events: `close P1`, `grow`, `snapshot`,
//! `trim`, `forget`; a row that begins with `B` belongs to another replica.

use super::ledger::Ledger;
use crate::{
    model::{LogId, Partition, ProducerId, Timestamp, session::Sequencing},
    rules::{
        Refusal,
        append::{
            Request, RequestPart, Spread,
            cache::LogCaches,
            producer_state::{Placement, Remembered},
        },
        tests::{
            Answer, JOURNAL, answers, digest, log_of, numbered,
            text::{rows, show_refusal},
        },
    },
};

pub const TOO_LARGE: Refusal =
    Refusal::BatchTooLarge { limit_name: "max_batch_records", limit: 1, received: 2 };

pub fn part(partition: Partition, record_count: i64, size_bytes: i64) -> RequestPart {
    RequestPart { log_id: log_of(partition), partition, record_count, size_bytes }
}

/// To partition 0: one record of 100 bytes.
pub fn plain() -> Request {
    Request {
        home: log_of(0),
        numbered: None,
        digest: digest("plain"),
        expected_offset: None,
        parts: vec![part(0, 1, 100)],
        spread: None,
        over_limit: None,
        transaction: None,
        dedups: Vec::new(),
    }
}

/// The default target of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Partition,
    Topic,
}

/// Runs a table in both scopes.
pub fn check(table: &str) {
    check_in(Scope::Partition, table);
    check_in(Scope::Topic, table);
}

pub fn check_in(scope: Scope, table: &str) {
    let mut world =
        World { ledger: Ledger::new(2), replicas: [LogCaches::new(), LogCaches::new()], scope };
    for (number, row) in rows(table).enumerate() {
        let (event, want) = row.split_once("->").unwrap_or((row, ""));
        let (want, at) = (want.trim(), format!("{scope:?} row {number}: {row}"));
        let got = world.event(event.trim(), &at);
        let got = if want.contains(": ") { got } else { got.split(": ").last().unwrap().into() };
        assert_eq!(got, want, "{at}");
    }
}

struct World {
    ledger: Ledger,
    replicas: [LogCaches; 2],
    scope: Scope,
}

fn producer(word: &str) -> ProducerId {
    ProducerId(word[1..].parse().unwrap())
}

impl World {
    fn event(&mut self, event: &str, at: &str) -> String {
        let (replica, event) = event.strip_prefix("B ").map_or((0, event), |rest| (1, rest));
        let words: Vec<&str> = event.split_whitespace().collect();
        let logs: Vec<LogId> = self.ledger.heads.keys().copied().collect();
        match words[..] {
            ["open", id, ..] => {
                let monotonic = words.contains(&"monotonic");
                let sequencing =
                    if monotonic { Sequencing::Monotonic } else { Sequencing::Contiguous };
                let reset = words.contains(&"reset");
                return format!("e{}", self.ledger.open(producer(id), sequencing, reset).epoch);
            }
            ["close", id] => self.ledger.close(producer(id)),
            ["grow"] => self.ledger.grow(),
            ["snapshot"] => logs.iter().for_each(|log_id| self.ledger.snapshot(*log_id, 100)),
            ["trim"] => logs.iter().for_each(|log_id| self.ledger.trim(*log_id)),
            ["forget"] => self.replicas[replica].clear(),
            _ => return self.group(replica, event, at),
        }
        String::new()
    }

    fn group(&mut self, replica: usize, event: &str, at: &str) -> String {
        let group: Vec<Request> = event.split(';').map(|words| self.request(words, at)).collect();
        let ids = vec![0; group.len()];
        self.ledger.now.0 += 1;
        let passed = self.ledger.pass(&mut self.replicas[replica], &group, &ids, false);
        let answers = answers(&group, &passed.plan, passed.written.as_ref());
        let answers: Vec<String> = answers.iter().map(show).collect();
        format!("{}: {}", passed.path, answers.join("; "))
    }

    fn request(&self, words: &str, at: &str) -> Request {
        let (mut id, mut epoch, mut sequence) = (None, 0, 0);
        let (mut records, mut bytes, mut what) = (1, 100, "same");
        let (mut partition, mut scope, mut parts) = (0, self.scope, vec![0]);
        let (mut expected_offset, mut over_limit, mut count) =
            (None, None, self.ledger.partition_count);
        for word in words.split_whitespace() {
            let number = || word[1..].parse::<i64>().unwrap_or_else(|_| panic!("{at}: {word}"));
            match word {
                "anon" => {}
                "other" => what = "other",
                "large" => over_limit = Some(TOO_LARGE),
                "topic" => scope = Scope::Topic,
                _ if word.starts_with("at") => expected_offset = word[2..].parse().ok(),
                _ if word.starts_with("of") => count = word[2..].parse().unwrap(),
                _ if word.ends_with('b') => bytes = word[..word.len() - 1].parse().unwrap(),
                _ if word.contains('+') => {
                    scope = Scope::Topic;
                    parts = word.split('+').map(|p| p[1..].parse().unwrap()).collect();
                }
                _ if word.starts_with('P') => id = Some(number()),
                _ if word.starts_with('e') => epoch = number(),
                _ if word.starts_with('s') => sequence = number(),
                _ if word.starts_with('x') => records = number(),
                _ if word.starts_with('p') => {
                    scope = Scope::Partition;
                    partition = number() as Partition;
                }
                _ => panic!("{at}: {word}?"),
            }
        }
        let is_topic = scope == Scope::Topic;
        let keyless = Some(parts[0]);
        let parts = if is_topic { parts } else { vec![partition] };
        Request {
            home: if is_topic { JOURNAL } else { log_of(partition) },
            numbered: id.and_then(|id| numbered(id, epoch, sequence)),
            digest: digest(&format!("{what} {sequence}")),
            expected_offset,
            parts: parts.into_iter().map(|partition| part(partition, records, bytes)).collect(),
            spread: is_topic.then_some(Spread { partition_count: count, keyless }),
            over_limit,
            ..plain()
        }
    }
}

fn show(answer: &Answer) -> String {
    match answer {
        Answer::Ok(placed) => format!("ok {}", show_place(placed)),
        Answer::Dup(placed) => format!("dup {}", show_place(placed)),
        Answer::Old => "old".into(),
        Answer::Ahead(refusal) => format!("ahead, {}", show_refusal(refusal)),
        Answer::Refused(refusal) => show_refusal(refusal),
        Answer::Respread => "respread".into(),
    }
}

fn show_place(placed: &Remembered) -> String {
    assert!((1..1_000_000).contains(&placed.appended_at.0), "settled: {:?}", placed.appended_at);
    assert_ne!(placed.appended_at, Timestamp(0));
    let bases = match &placed.placement {
        Placement::Partition { base_offset } => return base_offset.to_string(),
        Placement::Topic { bases, .. } => bases,
        Placement::Records(_) => unreachable!("no record has an id"),
    };
    let show = |(partition, base): &(Partition, i64)| match partition {
        0 => base.to_string(),
        _ => format!("p{partition}+{base}"),
    };
    bases.iter().map(show).collect::<Vec<_>>().join(" ")
}
