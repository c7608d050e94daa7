//! Decides a batch of appends over the caches of their logs: which are appended, duplicates, parked
//! or refused; and what is written where.
//!
//! The decision modifies the caches directly. If its write fails, the caches of these logs are
//! discarded: no undo, no copies. Nothing is answered before the write (or, if nothing is written,
//! a read of the heads) has confirmed every log in the read set.

pub mod cache;
pub mod dedup;
pub mod draft;
pub mod encoding;
pub mod placement;
pub mod plan;
pub mod producer_state;
pub mod read_set;
pub mod reservations;
pub mod sequence;
pub mod snapshot;

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use self::{
    cache::{LogCaches, Producer},
    dedup::Dedup,
    draft::Draft,
    plan::{Decision, LogWrite, Plan},
    producer_state::{Entry, Placement, Remembered},
    read_set::{Dependency, ExpectedHead, compare, read_set},
    reservations::{KeyReservation, Verdicts},
    sequence::SequenceVerdict,
};
use super::{
    Refusal,
    transaction::one_request::{SingleRequestTxn, TxnContext},
};
use crate::model::{Digest, LogId, Offset, Partition, ProducerId, Timestamp, append::ProducerSeq};

/// Longer than a server retries a request whose database responses are lost.
pub const REDO_MS: i64 = 60_000;

/// The `appended_at` of requests decided in this batch, until the statement returns.
pub(super) const THIS_PASS: Timestamp = Timestamp(i64::MAX);

/// The records of a request that go to one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPart {
    pub log_id: LogId,
    pub partition: Partition,
    pub record_count: i64,
    pub size_bytes: i64,
}

/// How a topic append was spread over partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub partition_count: Partition,
    pub keyless: Option<Partition>,
}

/// An append in the form that the rules use.
#[derive(Clone, Debug)]
pub struct Request {
    /// The log of its scope: the partition's log, or the topic's journal. For a transaction, the
    /// first log it appends to.
    pub home: LogId,
    pub numbered: Option<ProducerSeq>,
    pub digest: Digest,
    pub expected_offset: Option<Offset>,
    /// Ordered by each partition's first record; never empty.
    pub parts: Vec<RequestPart>,
    /// Topic scope only.
    pub spread: Option<Spread>,
    /// It exceeds a limit, or there is no room for it: refused unless it is a duplicate.
    pub over_limit: Option<Refusal>,
    /// Set if the request is a transaction: its parts, offsets and outcome are written together.
    pub transaction: Option<SingleRequestTxn>,
    /// Its dedup keys, one entry for each append that has some. (Only a transaction has several.)
    pub dedups: Vec<Dedup>,
}

impl Request {
    /// The size of its records.
    pub fn size_bytes(&self) -> i64 {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }

    /// How much it may add to the caches, in producers (`LogMemory::weight`).
    pub fn weight(&self) -> usize {
        let records = self.dedups.iter().map(|dedup| dedup.records.len()).sum();
        1 + self.numbered.map_or(0, |_| Placement::weight_of(records))
    }

    /// Whether it has an `Idempotency-Key`.
    pub fn is_keyed(&self) -> bool {
        self.dedups.iter().any(|dedup| dedup.request_key.is_some())
    }

    /// Whether it can be retried after an unknown outcome, because the retry detects the duplicate.
    /// If its window is shorter than that takes, the key might be forgotten by then, and the record
    /// stored twice.
    pub fn is_repeatable(&self) -> bool {
        let is_kept = |lifetime_ms: Option<i64>| lifetime_ms.is_none_or(|ms| ms >= REDO_MS);
        let has_keys = |dedup: &Dedup| {
            let all_have = || dedup.records.iter().all(|record| record.key.is_some());
            is_kept(dedup.window_ms) && (dedup.request_key.is_some() || all_have())
        };
        match &self.transaction {
            _ if self.numbered.is_some() => true,
            // what is forgotten is refused by the instant that the client has named
            Some(txn) => txn.instant().is_some() || is_kept(Some(txn.retention_ms)),
            None => !self.dedups.is_empty() && self.dedups.iter().all(has_keys),
        }
    }

    pub fn transaction_id(&self) -> Option<Uuid> {
        self.transaction.as_ref().map(|txn| txn.transaction_id)
    }
}

/// Decides a batch in order. The caches must have every log and producer of its read set
/// (`is_known`, or loaded under the heads' locks), and `standing` what its transactions depend on.
pub fn decide(caches: &mut LogCaches, group: &[Request], context: &mut TxnContext) -> Plan {
    let read_set = read_set(group);
    let compares: BTreeMap<LogId, Option<ExpectedHead>> = read_set
        .iter()
        .map(|(log_id, dependency)| (*log_id, compare(caches, *log_id, *dependency)))
        .collect();
    let mut draft = Drafts::default();
    let mut decisions = Vec::with_capacity(group.len());
    for (index, request) in group.iter().enumerate() {
        let Approved { fresh, verdicts } = match judge(caches, request, context) {
            Ok(approved) => approved,
            Err(decision) => {
                decisions.push(decision);
                continue;
            }
        };
        let parts = reservations::stored_parts(request, &verdicts);
        let deltas = draft.add_parts(&parts, index, request.transaction_id());
        let placement = locate_records(request, &verdicts, |part| {
            let compare = compares.get(&request.parts[part].log_id).copied().flatten();
            // without a compare the offsets are known only after the write
            let position = compare.and_then(|compare| compare.position);
            position.map_or(0, |(next_offset, _)| next_offset) + deltas[part]
        });
        if let Some(numbered) = request.numbered {
            let entry = entry(request, numbered, fresh, placement.clone());
            draft.number(caches, request, entry, &parts);
        }
        let keyed = Some(&placement).filter(|_| request.is_keyed());
        let known = &context.known;
        draft.claims.extend(reservations::claims(request, &verdicts, &deltas, keyed, known));
        for (dedup, verdicts) in request.dedups.iter().zip(&verdicts) {
            context.known.claim(dedup, verdicts);
        }
        request.transaction.iter().for_each(|txn| context.apply(txn));
        draft.commits |= request.transaction.is_some();
        for part in &parts {
            advance(caches, &read_set, part.log_id, part.record_count);
        }
        if request.numbered.is_some() && request.spread.is_some() {
            advance(caches, &read_set, request.home, 1);
        }
        decisions.push(Decision::Appended { deltas, verdicts });
    }
    forget_unregistered(caches, group);
    let mut writes: Vec<LogWrite> = (compares.into_iter())
        .map(|(log_id, compare)| {
            draft.logs.remove(&log_id).unwrap_or_default().into_write(log_id, compare)
        })
        .collect();
    claim_journals(caches, group, &draft.claims, &mut writes);
    Plan {
        decisions,
        writes,
        registrations: draft.registrations.into_iter().collect(),
        offsets: context.moves(),
        claims: draft.claims,
        silent: draft.silent.into_iter().collect(),
        commits: draft.commits,
        touched: draft.touched.into_iter().collect(),
    }
}

/// The plan of a batch while it is being decided.
#[derive(Default)]
struct Drafts {
    logs: BTreeMap<LogId, Draft>,
    registrations: BTreeSet<(LogId, ProducerId)>,
    touched: BTreeSet<(LogId, ProducerId)>,
    silent: BTreeSet<(LogId, ProducerId)>,
    commits: bool,
    claims: Vec<KeyReservation>,
}

impl Drafts {
    /// Adds the stored records of a request's parts; returns the distance of each part from its
    /// log's base.
    fn add_parts(
        &mut self,
        parts: &[RequestPart],
        request: usize,
        transaction_id: Option<Uuid>,
    ) -> Vec<i64> {
        let mut add = |(part, p): (usize, &RequestPart)| {
            if p.record_count == 0 {
                return 0;
            }
            self.logs.entry(p.log_id).or_default().add_part(p, (request, part), transaction_id)
        };
        parts.iter().enumerate().map(&mut add).collect()
    }

    /// Advances the producer's state by the request; adds its entry to a row, if there is one.
    fn number(
        &mut self,
        caches: &mut LogCaches,
        request: &Request,
        entry: Entry,
        parts: &[RequestPart],
    ) {
        let home = (request.home, entry.producer_id);
        if let Some(producer) = producer_mut(caches, home) {
            self.touched.insert(home);
            producer.state.apply(&entry, THIS_PASS);
            if !std::mem::replace(&mut producer.registered, true) {
                self.registrations.insert(home);
            }
        }
        let in_journal = request.spread.is_some();
        if in_journal || parts.iter().any(|part| part.record_count > 0) {
            self.logs.entry(request.home).or_default().add_entry(entry, in_journal);
        } else {
            self.silent.insert(home);
        }
    }
}

/// A decision by the keys of a topic depends on its journal, which also counts new keys.
fn claim_journals(
    caches: &LogCaches,
    group: &[Request],
    claims: &[KeyReservation],
    writes: &mut [LogWrite],
) {
    let journals: BTreeSet<LogId> =
        group.iter().flat_map(|request| &request.dedups).map(|dedup| dedup.journal).collect();
    for write in writes.iter_mut().filter(|write| journals.contains(&write.log_id)) {
        let keys = caches.get(&write.log_id).and_then(|log| log.keys);
        write.claims = keys.map(|keys| keys.claims);
        let claims = claims.iter().filter(|claim| claim.journal == write.log_id);
        write.claimed_rings = claims.fold(0, |rings, claim| rings | claim.ring.bit());
    }
}

/// A request to append.
struct Approved {
    /// A sequenced request was decided without a producer state.
    fresh: bool,
    verdicts: Verdicts,
}

/// The order of the checks is part of the contract.
fn judge(
    caches: &LogCaches,
    request: &Request,
    context: &TxnContext,
) -> Result<Approved, Decision> {
    let home = caches.get(&request.home);
    if let (Some(spread), Some(home)) = (request.spread, home)
        && spread.partition_count != home.partition_count
    {
        return Err(Decision::TopicChanged);
    }
    if let Some(txn) = &request.transaction {
        context.judge(txn, &request.digest)?;
        let is_stale = |(journal, partition_count): &(LogId, Partition)| {
            caches.get(journal).is_some_and(|log| log.partition_count != *partition_count)
        };
        if txn.journals.iter().any(is_stale) {
            return Err(Decision::TopicChanged);
        }
    }
    let mut fresh = false;
    if let Some(numbered) = &request.numbered {
        let unknown = Refusal::UnknownProducer { producer_id: numbered.producer_id };
        let producer = home.and_then(|log| log.producers.get(&numbered.producer_id));
        let producer = producer.ok_or(Decision::Refused(unknown))?;
        match sequence::judge(producer.session.as_ref(), &producer.state, numbered, &request.digest)
        {
            Ok(SequenceVerdict::Append { fresh: is_fresh }) => fresh = is_fresh,
            Ok(SequenceVerdict::Duplicate(remembered)) => {
                return Err(Decision::Repeated(remembered.clone()));
            }
            Ok(SequenceVerdict::Forgotten) => return Err(Decision::Forgotten),
            Ok(SequenceVerdict::OutOfOrder(refusal)) => return Err(Decision::OutOfOrder(refusal)),
            Err(refusal) => return Err(Decision::Refused(refusal)),
        }
    }
    let verdicts = judge_keys(request, &context.known)?;
    let stores = request.dedups.is_empty() || reservations::stores_any(request, &verdicts);
    if !stores && request.numbered.is_none() && request.transaction.is_none() && !request.is_keyed()
    {
        return Err(Decision::AllDuplicates(verdicts.into_iter().flatten().collect()));
    }
    if let Some(refusal) = request.over_limit.as_ref().filter(|_| stores) {
        return Err(Decision::Refused(refusal.clone()));
    }
    if let (Some(expected_offset), Some(log), true) = (request.expected_offset, home, stores)
        && expected_offset != log.next_offset
    {
        let next_offset = log.next_offset;
        return Err(Decision::Refused(Refusal::OffsetMismatch { expected_offset, next_offset }));
    }
    if let Some(txn) = &request.transaction {
        context.judge_offsets(txn)?;
    }
    Ok(Approved { fresh, verdicts })
}

/// The results of a request's key and of its records' keys.
fn judge_keys(request: &Request, known: &dedup::Known) -> Result<Verdicts, Decision> {
    for dedup in &request.dedups {
        if let Some((answer, appended_at)) = known.judge_request(dedup)? {
            let placement = encoding::decode_placement(answer);
            let placement = placement.map_err(|_| Decision::TopicChanged)?;
            let (sequence, digest) = (0, request.digest);
            let before = Remembered { sequence, digest, appended_at, placement };
            return Err(Decision::Repeated(before));
        }
    }
    Ok(request.dedups.iter().map(|dedup| known.judge(dedup)).collect::<Result<_, _>>()?)
}

fn entry(request: &Request, numbered: ProducerSeq, fresh: bool, placement: Placement) -> Entry {
    Entry {
        producer_id: numbered.producer_id,
        epoch: numbered.epoch,
        sequence: numbered.sequence,
        fresh,
        digest: request.digest,
        placement,
    }
}

/// The location of an appended request. `base` is the offset of the first record stored from a
/// part.
pub fn locate_records(
    request: &Request,
    verdicts: &Verdicts,
    base: impl Fn(usize) -> Offset,
) -> Placement {
    if reservations::skips_any(verdicts) {
        return Placement::Records(reservations::places(request, verdicts, base));
    }
    let bases = (request.parts.iter().enumerate()).map(|(at, part)| (part.partition, base(at)));
    match request.spread {
        Some(Spread { partition_count, keyless }) => {
            Placement::Topic { partition_count, keyless, bases: bases.collect() }
        }
        None => Placement::Partition { base_offset: bases.map(|(_, base)| base).sum() },
    }
}

pub(super) fn producer_mut(
    caches: &mut LogCaches,
    (log_id, producer_id): (LogId, ProducerId),
) -> Option<&mut Producer> {
    caches.get_mut(&log_id)?.producers.get_mut(&producer_id)
}

/// A compared log advances with the decision, so that the next request sees it.
fn advance(
    caches: &mut LogCaches,
    read_set: &BTreeMap<LogId, Dependency>,
    log_id: LogId,
    count: i64,
) {
    if read_set.get(&log_id) == Some(&Dependency::Position)
        && let Some(log) = caches.get_mut(&log_id)
    {
        log.next_offset += count;
    }
}

/// A producer that was loaded without a state and did not append stays unknown: an open of it would
/// not fence this log.
fn forget_unregistered(caches: &mut LogCaches, group: &[Request]) {
    for request in group {
        if let (Some(numbered), Some(log)) = (request.numbered, caches.get_mut(&request.home)) {
            let registered = log.producers.get(&numbered.producer_id).is_some_and(|p| p.registered);
            if !registered {
                log.producers.remove(&numbered.producer_id);
            }
        }
    }
}
