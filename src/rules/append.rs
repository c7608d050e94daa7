//! Deciding a group of appends over the memory of their logs: who appends, who repeats, who waits,
//! who is refused; and what is written where.
//!
//! The decision works straight on the memory. If its write does not hold, the memory of these logs
//! is thrown away: no undo, no copies. Nothing is answered before the write (or, where nothing is
//! written, a read of the heads) has confirmed every log an answer stands on.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::{
    Refusal,
    draft::Draft,
    fold::{Entry, Placement, Remembered},
    ground::{Compare, Ground, compare, grounds},
    memory::{Memory, Producer},
    sequence::{self, Verdict},
    transaction,
    whole::{OffsetMove, Standing, Stopped, Whole},
};
use crate::model::{Digest, LogId, Offset, Partition, ProducerId, Timestamp, transfer::Numbered};

/// `appended_at` of what this very pass decides, until the statement answers.
const THIS_PASS: Timestamp = Timestamp(i64::MAX);

/// The records of a request that go to one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub log_id: LogId,
    pub partition: Partition,
    pub record_count: i64,
    pub size_bytes: i64,
}

/// How a topic append was spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub partition_count: Partition,
    pub keyless: Option<Partition>,
}

/// One append, as the rules see it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The log of its scope: the partition's log, or the topic's journal. Of a transaction, the first
    /// one it appends to.
    pub home: LogId,
    pub numbered: Option<Numbered>,
    pub digest: Digest,
    pub expected_offset: Option<Offset>,
    /// In the order of each partition's first record; never empty.
    pub parts: Vec<Part>,
    /// Topic scope only.
    pub spread: Option<Spread>,
    /// It breaks a limit: refused if it would be appended.
    pub too_large: Option<Refusal>,
    /// The request is a transaction: its parts, its offsets and its outcome go together.
    pub whole: Option<Whole>,
}

impl Request {
    /// Bytes of its records.
    pub fn size_bytes(&self) -> i64 {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }

    pub fn transaction_id(&self) -> Option<Uuid> {
        self.whole.as_ref().map(|whole| whole.transaction_id)
    }
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Appended; for every part the distance of its first record from its log's base in this pass.
    Appended {
        deltas: Vec<i64>,
    },
    /// Stored before (or earlier in this pass), here.
    Repeated(Remembered),
    /// Stored before, too long ago to say where.
    Forgotten,
    /// A transaction committed before.
    Before(Box<transaction::Row>),
    /// It may wait for the sequences before it; this is the refusal if they do not come.
    Ahead(Refusal),
    Refused(Refusal),
    /// The topic has another number of partitions than it was spread over.
    Respread,
}

/// One row to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Distance from the log's base in this pass.
    pub delta: i64,
    pub record_count: i64,
    pub size_bytes: i64,
    pub producers: Option<Vec<u8>>,
    /// The transaction whose records it holds.
    pub transaction_id: Option<Uuid>,
    /// (request, part) whose lines it holds, in order; none in a journal.
    pub lines: Vec<(usize, usize)>,
}

/// What happens to one log in this pass; `rows` may be empty: then it is only compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    pub log_id: LogId,
    /// None: the head gives the offset, whatever it is.
    pub compare: Option<Compare>,
    pub record_count: i64,
    pub size_bytes: i64,
    pub rows: Vec<Row>,
}

/// A decided group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One a request, in order.
    pub decisions: Vec<Decision>,
    /// By log id.
    pub writes: Vec<LogWrite>,
    /// (log, producer) appending here for the first time: registered in the same transaction.
    pub registrations: Vec<(LogId, ProducerId)>,
    /// The offsets that its transactions commit.
    pub offsets: Vec<OffsetMove>,
    /// (log, producer) whose newest requests still lack their `appended_at`.
    touched: Vec<(LogId, ProducerId)>,
}

/// Decides a group, in its order. Every log and producer an answer stands on must be in the memory
/// (`is_known`, or loaded under the heads' locks), and what its transactions stand on in `standing`.
pub fn decide(memory: &mut Memory, group: &[Request], standing: &mut Standing) -> Plan {
    let grounds = grounds(group);
    let compares: BTreeMap<LogId, Option<Compare>> = grounds
        .iter()
        .map(|(log_id, ground)| (*log_id, compare(memory, *log_id, *ground)))
        .collect();
    let mut drafts: BTreeMap<LogId, Draft> = BTreeMap::new();
    let mut registrations = BTreeSet::new();
    let mut touched = BTreeSet::new();
    let mut decisions = Vec::with_capacity(group.len());
    for (index, request) in group.iter().enumerate() {
        let fresh = match judge(memory, request, standing) {
            Ok(fresh) => fresh,
            Err(decision) => {
                decisions.push(decision);
                continue;
            }
        };
        let deltas: Vec<i64> = (request.parts.iter().enumerate())
            .map(|(part, p)| {
                let draft = drafts.entry(p.log_id).or_default();
                draft.add_part(p, (index, part), request.transaction_id())
            })
            .collect();
        if let Some(numbered) = request.numbered {
            let entry = entry(request, numbered, fresh, &deltas, &compares);
            let home = (request.home, numbered.producer_id);
            if let Some(producer) = producer_mut(memory, home) {
                touched.insert(home);
                producer.state.apply(&entry, THIS_PASS);
                if !std::mem::replace(&mut producer.registered, true) {
                    registrations.insert(home);
                }
            }
            drafts.entry(request.home).or_default().add_entry(entry, request.spread.is_some());
        }
        request.whole.iter().for_each(|whole| standing.apply(whole));
        for part in &request.parts {
            advance(memory, &grounds, part.log_id, part.record_count);
        }
        if request.numbered.is_some() && request.spread.is_some() {
            advance(memory, &grounds, request.home, 1);
        }
        decisions.push(Decision::Appended { deltas });
    }
    forget_unregistered(memory, group);
    Plan {
        decisions,
        writes: compares
            .into_iter()
            .map(|(log_id, compare)| {
                drafts.remove(&log_id).unwrap_or_default().into_write(log_id, compare)
            })
            .collect(),
        registrations: registrations.into_iter().collect(),
        offsets: standing.moves(),
        touched: touched.into_iter().collect(),
    }
}

/// Ok: append (`fresh` for a numbered one). The order is the contract's.
fn judge(memory: &Memory, request: &Request, standing: &Standing) -> Result<bool, Decision> {
    let home = memory.get(&request.home);
    if let (Some(spread), Some(home)) = (request.spread, home)
        && spread.partition_count != home.partition_count
    {
        return Err(Decision::Respread);
    }
    if let Some(whole) = &request.whole {
        let is_stale = |(journal, partition_count): &(LogId, Partition)| {
            memory.get(journal).is_some_and(|log| log.partition_count != *partition_count)
        };
        if whole.journals.iter().any(is_stale) {
            return Err(Decision::Respread);
        }
        standing.judge(whole, &request.digest)?;
    }
    let mut fresh = false;
    if let Some(numbered) = &request.numbered {
        let unknown = Refusal::UnknownProducer { producer_id: numbered.producer_id };
        let producer = home.and_then(|log| log.producers.get(&numbered.producer_id));
        let producer = producer.ok_or(Decision::Refused(unknown))?;
        match sequence::judge(producer.session.as_ref(), &producer.state, numbered, &request.digest)
        {
            Ok(Verdict::Append { fresh: is_fresh }) => fresh = is_fresh,
            Ok(Verdict::Duplicate(remembered)) => {
                return Err(Decision::Repeated(remembered.clone()));
            }
            Ok(Verdict::Forgotten) => return Err(Decision::Forgotten),
            Ok(Verdict::Ahead(refusal)) => return Err(Decision::Ahead(refusal)),
            Err(refusal) => return Err(Decision::Refused(refusal)),
        }
    }
    if let Some(refusal) = &request.too_large {
        return Err(Decision::Refused(refusal.clone()));
    }
    if let (Some(expected_offset), Some(log)) = (request.expected_offset, home)
        && expected_offset != log.next_offset
    {
        let next_offset = log.next_offset;
        return Err(Decision::Refused(Refusal::OffsetMismatch { expected_offset, next_offset }));
    }
    if let Some(whole) = &request.whole {
        standing.judge_offsets(whole)?;
    }
    Ok(fresh)
}

impl From<Stopped> for Decision {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Before(row) => Decision::Before(row),
            Stopped::Refused(refusal) => Decision::Refused(refusal),
            Stopped::Stale => Decision::Respread,
        }
    }
}

fn entry(
    request: &Request,
    numbered: Numbered,
    fresh: bool,
    deltas: &[i64],
    compares: &BTreeMap<LogId, Option<Compare>>,
) -> Entry {
    let position = |log_id| {
        let compare = compares.get(log_id).copied().flatten();
        compare.and_then(|compare| compare.position).map_or(0, |(next_offset, _)| next_offset)
    };
    let bases = request
        .parts
        .iter()
        .zip(deltas)
        .map(|(part, delta)| (part.partition, position(&part.log_id) + delta));
    let placement = match request.spread {
        Some(Spread { partition_count, keyless }) => {
            Placement::Topic { partition_count, keyless, bases: bases.collect() }
        }
        None => Placement::Partition { base_offset: bases.map(|(_, base)| base).sum() },
    };
    Entry {
        producer_id: numbered.producer_id,
        epoch: numbered.epoch,
        sequence: numbered.sequence,
        fresh,
        digest: request.digest,
        placement,
    }
}

fn producer_mut(
    memory: &mut Memory,
    (log_id, producer_id): (LogId, ProducerId),
) -> Option<&mut Producer> {
    memory.get_mut(&log_id)?.producers.get_mut(&producer_id)
}

/// A log that is compared advances with the decision, so that the next request sees it.
fn advance(memory: &mut Memory, grounds: &BTreeMap<LogId, Ground>, log_id: LogId, count: i64) {
    if grounds.get(&log_id) == Some(&Ground::Position)
        && let Some(log) = memory.get_mut(&log_id)
    {
        log.next_offset += count;
    }
}

/// A producer that was loaded without a state and did not append stays unknown: an open of it would
/// not fence this log.
fn forget_unregistered(memory: &mut Memory, group: &[Request]) {
    for request in group {
        if let (Some(numbered), Some(log)) = (request.numbered, memory.get_mut(&request.home)) {
            let registered = log.producers.get(&numbered.producer_id).is_some_and(|p| p.registered);
            if !registered {
                log.producers.remove(&numbered.producer_id);
            }
        }
    }
}

impl Plan {
    /// The transactions it commits, and where each of their parts lies: their logs are compared.
    pub fn committed<'a>(
        &'a self,
        group: &'a [Request],
    ) -> impl Iterator<Item = (&'a Request, &'a Whole, Vec<Offset>)> {
        group.iter().zip(&self.decisions).filter_map(|(request, decision)| {
            let (Some(whole), Decision::Appended { deltas }) = (&request.whole, decision) else {
                return None;
            };
            let base = |part: &Part| {
                let write = self.writes.iter().find(|write| write.log_id == part.log_id);
                let compare = write.and_then(|write| write.compare?.position);
                compare.map_or(0, |(next_offset, _)| next_offset)
            };
            let placed = request.parts.iter().zip(deltas).map(|(part, delta)| base(part) + delta);
            Some((request, whole, placed.collect()))
        })
    }

    /// What is compared, by log.
    pub fn compares(&self) -> impl Iterator<Item = (LogId, Compare)> {
        self.writes.iter().filter_map(|write| Some((write.log_id, write.compare?)))
    }

    pub fn writes_anything(&self) -> bool {
        self.writes.iter().any(|write| !write.rows.is_empty())
    }

    /// The write held: `appended_at` and every written log's base are known.
    pub fn confirm(
        &mut self,
        memory: &mut Memory,
        appended_at: Timestamp,
        bases: &BTreeMap<LogId, Offset>,
    ) {
        for write in self.writes.iter().filter(|write| !write.rows.is_empty()) {
            let Some(log) = memory.get_mut(&write.log_id) else { continue };
            let compared = write.compare.is_some_and(|compare| compare.position.is_some());
            if compared || bases.get(&write.log_id) == Some(&log.next_offset) {
                log.last_appended_at = appended_at;
                log.unfolded_rows += write.rows.len() as i64;
                log.next_offset += if compared { 0 } else { write.record_count };
            }
        }
        for home in &self.touched {
            let producer = producer_mut(memory, *home);
            let recent = producer.into_iter().flat_map(|producer| &mut producer.state.recent);
            recent.for_each(|request| request.settle(appended_at));
        }
        for decision in &mut self.decisions {
            if let Decision::Repeated(request) = decision {
                request.settle(appended_at);
            }
        }
    }
}

impl Remembered {
    fn settle(&mut self, appended_at: Timestamp) {
        if self.appended_at == THIS_PASS {
            self.appended_at = appended_at;
        }
    }
}
