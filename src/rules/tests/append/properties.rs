//! Random histories of a topic: replicas with caches, batches of requests, opens, growth,
//! snapshots, trims, lost answers; compared with the oracle after every batch and at the end.

use std::collections::{BTreeMap, HashMap};

use proptest::{collection::vec, option, prelude::*, test_runner::TestCaseError};

use super::{
    ledger::{Ledger, Passed, StoredRow},
    oracle::Oracle,
    table::{TOO_LARGE, part, plain},
};
use crate::{
    model::{LogId, Offset, Partition, ProducerId, session::Sequencing},
    rules::{
        append::{
            Request, RequestPart, Spread, cache::LogCaches, encoding::decode_entries,
            plan::Decision, producer_state::ProducerState, snapshot::snapshot,
        },
        tests::{
            Answer, JOURNAL, answers, digest, log_of, numbered,
            random::{Seen, distance, holds},
        },
    },
};

const PRODUCERS: i64 = 3;
const REPLICAS: usize = 2;

/// A request, relative to the correct one.
#[derive(Clone, Debug)]
struct Shot {
    producer: Option<i64>,
    epoch: i64,
    sequence: i64,
    other: bool,
    /// None: topic scope.
    partition: Option<Partition>,
    records: Vec<i64>,
    size_bytes: i64,
    expected_offset: Option<i64>,
    over_limit: bool,
    stale: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Group { replica: usize, shots: Vec<Shot>, lose: bool },
    Open { producer: i64, monotonic: bool, reset: bool },
    Close { producer: i64 },
    Grow,
    Forget { replica: usize },
    ForgetLog { replica: usize, log: usize },
    Snapshot { log: usize, rows: usize },
    Trim { log: usize },
    Tick,
}

/// The last one rarely exists.
fn producer() -> impl Strategy<Value = i64> {
    prop_oneof![12 => 0..PRODUCERS - 1, 1 => Just(PRODUCERS - 1)]
}

/// One of them gets most of the traffic.
fn replica() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0), 1 => 0..REPLICAS]
}

fn shot() -> impl Strategy<Value = Shot> {
    let sequence = prop_oneof![10 => Just(0), 5 => -7..0_i64, 2 => 1..8_i64];
    let partition = option::weighted(0.5, 0..2_i32);
    let expected = option::weighted(0.1, distance(10));
    let rare = || prop::bool::weighted(0.03);
    let size = prop_oneof![4 => Just(100), 1 => Just(9_000)];
    let who = option::weighted(0.85, producer());
    (who, distance(60), sequence, prop::bool::weighted(0.1), partition)
        .prop_flat_map(move |(producer, epoch, sequence, other, partition)| {
            let rest = (vec(0..3_i64, 4), size.clone(), expected.clone(), rare(), rare());
            rest.prop_map(move |(records, size_bytes, expected_offset, over_limit, stale)| Shot {
                producer,
                epoch,
                sequence,
                other,
                partition,
                records,
                size_bytes,
                expected_offset,
                over_limit,
                stale,
            })
        })
        .boxed()
}

fn op() -> impl Strategy<Value = Op> {
    let lose = prop::bool::weighted(0.05);
    let log = || 0..5_usize;
    let sometimes = || prop::bool::weighted(0.3);
    prop_oneof![
        40 => (replica(), prop_oneof![2 => vec(shot(), 1..3), 1 => vec(shot(), 3..9)], lose)
            .prop_map(|(replica, shots, lose)| Op::Group { replica, shots, lose }),
        3 => (producer(), sometimes(), sometimes())
            .prop_map(|(producer, monotonic, reset)| Op::Open { producer, monotonic, reset }),
        1 => (0..PRODUCERS - 1).prop_map(|producer| Op::Close { producer }),
        1 => Just(Op::Grow),
        1 => (0..REPLICAS).prop_map(|replica| Op::Forget { replica }),
        1 => (0..REPLICAS, log()).prop_map(|(replica, log)| Op::ForgetLog { replica, log }),
        3 => (log(), 1..4_usize).prop_map(|(log, rows)| Op::Snapshot { log, rows }),
        2 => log().prop_map(|log| Op::Trim { log }),
        8 => Just(Op::Tick),
    ]
}

struct Life {
    ledger: Ledger,
    replicas: [LogCaches; REPLICAS],
    oracle: Oracle,
    /// Epochs that began with a reset.
    resets: HashMap<ProducerId, Vec<i64>>,
    next_id: u64,
    seen: Seen,
}

impl Life {
    fn new() -> Self {
        Self {
            ledger: Ledger::new(2),
            replicas: Default::default(),
            oracle: Oracle::default(),
            resets: HashMap::new(),
            next_id: 0,
            seen: Seen::default(),
        }
    }

    fn log(&self, index: usize) -> LogId {
        *self.ledger.heads.keys().nth(index).unwrap()
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Group { replica, shots, lose } => return self.group(*replica, shots, *lose),
            Op::Open { producer, monotonic, reset } => {
                let id = ProducerId(*producer);
                let sequencing =
                    if *monotonic { Sequencing::Monotonic } else { Sequencing::Contiguous };
                let facts = self.ledger.open(id, sequencing, *reset);
                if facts.reset_epoch == facts.epoch {
                    self.resets.entry(id).or_default().push(facts.epoch);
                }
                self.check_next_sequences(id)?;
            }
            Op::Close { producer } => self.ledger.close(ProducerId(*producer)),
            Op::Grow => self.ledger.grow(),
            Op::Forget { replica } => self.replicas[*replica].clear(),
            Op::ForgetLog { replica, log } => {
                let log_id = self.log(*log);
                self.replicas[*replica].remove(&log_id);
            }
            Op::Snapshot { log, rows } => self.ledger.snapshot(self.log(*log), *rows),
            Op::Trim { log } => self.ledger.trim(self.log(*log)),
            Op::Tick => self.ledger.now.0 += 1,
        }
        Ok(())
    }

    /// The response to an open is what the oracle expects next.
    fn check_next_sequences(&self, id: ProducerId) -> Result<(), TestCaseError> {
        let since = self.ledger.sessions[&id].reset_epoch;
        for (log_id, _) in self.ledger.states.keys().filter(|(_, producer)| *producer == id) {
            let next = self.stored(*log_id, id).next_sequence(since);
            prop_assert_eq!(next, self.oracle.expected(*log_id, id, since), "{:?}", log_id);
        }
        Ok(())
    }

    /// A registered state with the rows after it.
    fn stored(&self, log_id: LogId, id: ProducerId) -> ProducerState {
        let stored = &self.ledger.states[&(log_id, id)];
        let from = stored.as_of_offset.max(self.ledger.heads[&log_id].snapshot_offset);
        let tail = self.ledger.tail(log_id, from);
        let states = BTreeMap::from([(id, (stored.state(), stored.as_of_offset))]);
        let folded = snapshot(states, &tail).unwrap().pop();
        folded.map_or(stored.state(), |(_, state, _)| state)
    }

    fn group(&mut self, replica: usize, shots: &[Shot], lose: bool) -> Result<(), TestCaseError> {
        let mut planned = HashMap::new();
        let group: Vec<Request> =
            shots.iter().map(|shot| self.request(shot, &mut planned)).collect();
        let ids: Vec<u64> = (self.next_id..).take(group.len()).collect();
        self.next_id += group.len() as u64;
        let wrote = self.pass(replica, &group, &ids, lose)?;
        if lose && wrote {
            // the lane does the numbered ones again; what was written is found then
            self.seen.saw("lost");
            let again: Vec<_> =
                group.into_iter().zip(ids).filter(|(r, _)| r.numbered.is_some()).collect();
            let (group, ids): (Vec<_>, Vec<_>) = again.into_iter().unzip();
            if !group.is_empty() {
                self.pass(replica, &group, &ids, false)?;
            }
        }
        Ok(())
    }

    /// Whether it wrote.
    fn pass(
        &mut self,
        replica: usize,
        group: &[Request],
        ids: &[u64],
        lose: bool,
    ) -> Result<bool, TestCaseError> {
        let caches = &mut self.replicas[replica];
        let Passed { plan, written, path } = self.ledger.pass(caches, group, ids, lose);
        let got = answers(group, &plan, written.as_ref());
        let facts = (&self.ledger.sessions, self.ledger.partition_count);
        let at = written.as_ref().map(|written| written.appended_at);
        let want = self.oracle.answers(facts, group, ids, at);
        prop_assert_eq!(&got, &want, "{} path of {:?}", path, group);
        let appends = plan.decisions.iter().any(|d| matches!(d, Decision::Appended { .. }));
        prop_assert_eq!(appends, written.is_some(), "written is what was appended");
        for answer in &got {
            match answer {
                Answer::Ok(_) => self.seen.saw("ok"),
                Answer::Dup(_) => self.seen.saw("dup"),
                Answer::Old => self.seen.saw("old"),
                Answer::Ahead(_) => self.seen.saw("ahead"),
                Answer::Refused(refusal) => self.seen.refused(refusal),
                Answer::Respread => self.seen.saw("respread"),
            }
        }
        self.seen.saw(path);
        if lose {
            self.replicas[replica].clear();
        }
        self.check_caches(replica)?;
        Ok(written.is_some())
    }

    /// A cache is always a replayed prefix of the log: it contains what the rows before its end
    /// say.
    fn check_caches(&self, replica: usize) -> Result<(), TestCaseError> {
        for (log_id, log) in &self.replicas[replica] {
            let head = self.ledger.heads[log_id];
            prop_assert!(log.next_offset <= head.next_offset);
            for (id, producer) in log.producers.iter().filter(|(_, p)| p.registered) {
                let rows = self.ledger.rows.get(log_id).into_iter().flatten();
                let before = rows.filter(|row| row.base_offset < log.next_offset);
                prop_assert_eq!(&producer.state, &fold_all(before, *id), "{:?} {:?}", log_id, id);
            }
        }
        Ok(())
    }

    fn request(&self, shot: &Shot, planned: &mut HashMap<(LogId, i64), i64>) -> Request {
        let home = shot.partition.map_or(JOURNAL, log_of);
        let of = shot.producer.and_then(|id| {
            let facts = self.ledger.sessions.get(&ProducerId(id));
            let (epoch, since) = facts.map_or((0, 0), |facts| (facts.epoch, facts.reset_epoch));
            let expected = || self.oracle.expected(home, ProducerId(id), since);
            let next = planned.entry((home, id)).or_insert_with(expected);
            let sequence = (*next + shot.sequence).max(0);
            if shot.sequence >= 0 {
                *next += 1;
            }
            numbered(id, (epoch + shot.epoch).max(0), sequence)
        });
        let count = self.ledger.partition_count - i32::from(shot.stale);
        let of_size = |partition, record_count| part(partition, record_count, shot.size_bytes);
        let mut parts: Vec<RequestPart> = match shot.partition {
            Some(partition) => vec![of_size(partition, shot.records[0] + 1)],
            None => (0..count).zip(&shot.records).map(|(p, n)| of_size(p, *n)).rev().collect(),
        };
        parts.retain(|part| part.record_count > 0);
        if parts.is_empty() {
            parts.push(of_size(0, 1));
        }
        let what = (of.map(|of| of.sequence), shot.other);
        let next_offset = self.oracle.next_offset(home);
        let expected_offset = shot.expected_offset.filter(|_| shot.partition.is_some());
        Request {
            home,
            numbered: of,
            digest: digest(&format!("{what:?}")),
            expected_offset: expected_offset.map(|offset| next_offset + offset),
            spread: (shot.partition.is_none())
                .then(|| Spread { partition_count: count, keyless: Some(parts[0].partition) }),
            parts,
            over_limit: shot.over_limit.then_some(TOO_LARGE),
            ..plain()
        }
    }

    /// At the end the logs hold what was accepted, once and in order, and every way of replaying
    /// them gives the same result.
    fn check_end(&self) -> Result<(), TestCaseError> {
        for (log_id, head) in &self.ledger.heads {
            let rows = self.ledger.rows.get(log_id).map_or(&[][..], Vec::as_slice);
            let mut next: Offset = 0;
            for row in rows {
                prop_assert_eq!(row.base_offset, next, "dense");
                next += row.record_count;
            }
            prop_assert_eq!(next, head.next_offset);
            prop_assert_eq!(next, self.oracle.next_offset(*log_id));
            let accepted = self.oracle.accepted.iter().flat_map(|accepted| {
                let parts = accepted.request.parts.iter().enumerate();
                let here = parts.filter(|(_, part)| part.log_id == *log_id);
                here.map(|(index, _)| (accepted.id, index))
            });
            let lines = rows.iter().flat_map(|row| row.lines.iter().copied());
            prop_assert!(lines.eq(accepted), "the lines of {log_id:?}");
        }
        for (log_id, id) in self.ledger.states.keys() {
            let rows = self.ledger.rows.get(log_id).into_iter().flatten();
            let whole = fold_all(rows, *id);
            let resets = self.resets.get(id).map_or(&[][..], Vec::as_slice);
            prop_assert_eq!(&self.oracle.state(*log_id, *id, resets), &whole);
            prop_assert_eq!(&self.stored(*log_id, *id), &whole, "snapshot and tail");
        }
        Ok(())
    }
}

fn fold_all<'a>(rows: impl Iterator<Item = &'a StoredRow>, id: ProducerId) -> ProducerState {
    let mut state = ProducerState::default();
    for row in rows {
        let bytes = row.producers.as_deref().unwrap_or(&[1]);
        for entry in decode_entries(row.base_offset, bytes).unwrap() {
            if entry.producer_id == id {
                state.apply(&entry, row.appended_at);
            }
        }
    }
    state
}

/// What must have happened.
const EVENTS: &str = "ok, dup, old, ahead, UnknownProducer, ProducerFenced, InvalidProducerEpoch, \
    UnknownProducerState, OutOfOrderSequence, SequenceReused, OffsetMismatch, BatchTooLarge, \
    respread, fast, slow, overtaken, lost";

#[test]
fn any_life_is_as_the_oracle_says() {
    holds(400, vec(op(), 1..80), (20, EVENTS), |ops| {
        let mut life = Life::new();
        for producer in 0..PRODUCERS - 1 {
            life.step(&Op::Open { producer, monotonic: false, reset: false })?;
        }
        for op in &ops {
            life.step(op)?;
        }
        life.check_end()?;
        Ok(life.seen)
    });
}
