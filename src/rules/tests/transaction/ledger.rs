//! A stand-in for the database, with the broker's steps over it: a request is decided under its
//! locks and then applied; a refused one changes nothing.

use std::{collections::BTreeMap, sync::Arc};

use uuid::Uuid;

use crate::{
    model::{
        Digest, Epoch, Name, Offset, Partition, ProducerId, Scopes, Sequence, Timestamp,
        session::{Open, Sequences, Sequencing},
        settings::OwnSettings,
        transaction::{Answered, Caller, CommitRight, PlacedAppend, Reason, RepeatedBy, State},
    },
    rules::{
        Refusal,
        append::sequence::SessionFacts,
        group::offsets::{
            Claimed, Committer, GroupFacts, OffsetPlace, OffsetRow, judge_in_transaction,
        },
        session::{self, SessionRow},
        tests::{
            digest, open_session,
            transaction::{begun, one_request::a_txn},
        },
        transaction::{
            Numbering, TransactionRow, TransactionVerdict, Verb, absent, check_appends, check_id,
            check_producer, check_size, judge, number,
            one_request::{OutcomeHorizon, SingleRequestTxn, Stopped, TxnContext},
            repeat, retention_ms, timeout_ms,
        },
    },
};

/// The settings of the tenant.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub retention_ms: i64,
    pub timeout_ms: i64,
    pub max_timeout_ms: i64,
    pub max_batches: i64,
}

pub const TOPIC: &str = "t";
pub const SESSION_TIMEOUT_MS: i64 = 300;

/// Items with one or more parts: this many records in a partition.
pub type Appends = Vec<Vec<(Partition, i64)>>;
pub type Offsets = Vec<(OffsetPlace, Offset, CommitRight)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub appends: Appends,
    pub offsets: Offsets,
}

#[derive(Clone, Debug)]
pub struct Begin {
    pub id: Uuid,
    pub session: Option<(ProducerId, Epoch)>,
    pub timeout_ms: Option<i64>,
    pub work: Work,
    pub commit: bool,
}

#[derive(Clone, Debug)]
pub enum Call {
    /// Appends or offsets.
    Add {
        sequence: Option<Sequence>,
        work: Work,
    },
    Prepare,
    Commit {
        expected_appends: Option<i64>,
        work: Work,
    },
    Abort,
}

#[derive(Clone, Debug)]
pub enum Request {
    Open { name: Name, condition: Option<(ProducerId, Epoch)> },
    Close(ProducerId),
    Begin(Begin),
    Call(Uuid, Caller, Call),
    Get(Uuid),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The session, with the transaction that the open aborted.
    Opened(ProducerId, Epoch, Option<Uuid>),
    Closed,
    Transaction(Answered),
}

/// A row of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub base_offset: Offset,
    pub record_count: i64,
    pub transaction_id: Uuid,
}

#[derive(Clone)]
pub struct Stored {
    pub row: TransactionRow,
    staged: Vec<(Partition, i64)>,
    pub offsets: BTreeMap<OffsetPlace, Claimed>,
    /// The digests of the sequenced calls.
    calls: Vec<Digest>,
}

#[derive(Clone)]
pub struct Ledger {
    pub now: Timestamp,
    pub tenant: OwnSettings,
    pub horizon: Timestamp,
    pub sessions: BTreeMap<ProducerId, SessionRow>,
    pub transactions: BTreeMap<Uuid, Stored>,
    pub logs: BTreeMap<Partition, Vec<Batch>>,
    pub offsets: BTreeMap<OffsetPlace, OffsetRow>,
    pub groups: BTreeMap<Name, GroupFacts>,
    producers: i64,
}

impl Ledger {
    pub fn new(now: Timestamp, tenant: OwnSettings) -> Self {
        Self {
            now,
            tenant,
            horizon: Timestamp(0),
            sessions: BTreeMap::new(),
            transactions: BTreeMap::new(),
            logs: BTreeMap::new(),
            offsets: BTreeMap::new(),
            groups: BTreeMap::new(),
            producers: 0,
        }
    }

    pub fn handle(&mut self, request: &Request) -> Result<Answer, Refusal> {
        let mut then = self.clone();
        let answer = match request {
            Request::Open { name, condition } => then.open(name, *condition),
            Request::Close(producer) => then.close(*producer),
            Request::Begin(begin) => then.begin(begin).map(Answer::Transaction),
            Request::Call(id, caller, call) => {
                then.call(*id, *caller, call).map(Answer::Transaction)
            }
            Request::Get(id) => then.answered(*id, false).map(Answer::Transaction),
        }?;
        *self = then;
        Ok(answer)
    }

    pub fn session_of(&self, name: &Name) -> Option<&SessionRow> {
        self.sessions.values().find(|row| row.transactional_id.as_ref() == Some(name))
    }

    fn open(
        &mut self,
        name: &Name,
        condition: Option<(ProducerId, Epoch)>,
    ) -> Result<Answer, Refusal> {
        let open = Open {
            transactional_id: Some(name.clone()),
            condition,
            open_id: None,
            transaction_timeout_ms: Some(SESSION_TIMEOUT_MS),
            sequencing: Sequencing::Contiguous,
            sequences: Sequences::Continue,
            scopes: Arc::new(Scopes::all()),
        };
        let row = self.session_of(name).cloned();
        let next = session::open(&open, row.as_ref())?;
        let producer_id = row.map_or(ProducerId(self.producers), |row| row.producer_id);
        self.producers = self.producers.max(producer_id.0 + 1);
        let row = SessionRow {
            producer_id,
            transactional_id: open.transactional_id,
            opened_by: None,
            facts: SessionFacts { reset_epoch: next.reset_epoch, ..open_session(next.epoch) },
            transaction_timeout_ms: SESSION_TIMEOUT_MS,
            open_horizon: Timestamp(0),
            opened_at: self.now,
            fencing: false,
        };
        self.sessions.insert(producer_id, row);
        let aborted = self.fence(producer_id);
        Ok(Answer::Opened(producer_id, next.epoch, aborted))
    }

    fn close(&mut self, producer_id: ProducerId) -> Result<Answer, Refusal> {
        let row = self.sessions.get_mut(&producer_id);
        let row = row.ok_or(Refusal::UnknownProducer { producer_id })?;
        if !row.facts.closed {
            row.facts.epoch += 1;
            row.facts.closed = true;
            self.fence(producer_id);
        }
        Ok(Answer::Closed)
    }

    /// Aborts the ongoing transaction of a producer whose epoch is raised.
    fn fence(&mut self, producer_id: ProducerId) -> Option<Uuid> {
        let id = self.ongoing_of(producer_id)?;
        self.abort(id, Reason::Fenced);
        Some(id)
    }

    fn ongoing_of(&self, producer_id: ProducerId) -> Option<Uuid> {
        let mut all = self.transactions.values();
        let is_it = |row: &TransactionRow| {
            row.session.is_some_and(|(id, _)| id == producer_id)
                && row.state == State::Ongoing
                && !row.has_expired(self.now)
        };
        all.find(|stored| is_it(&stored.row)).map(|stored| stored.row.transaction_id)
    }

    fn check_producer(&self, producer: (ProducerId, Epoch)) -> Result<(), Refusal> {
        check_producer(producer, self.sessions.get(&producer.0).map(|row| &row.facts))
    }

    fn begin(&mut self, begin: &Begin) -> Result<Answered, Refusal> {
        let (now, id) = (self.now, begin.id);
        let digest =
            digest(&format!("{:?}", (begin.session, begin.timeout_ms, &begin.work, begin.commit)));
        if let Some(stored) = self.transactions.get(&id) {
            repeat(&stored.row, RepeatedBy::Id, &digest)?;
            return self.answered(id, true);
        }
        timeout_ms(begin.timeout_ms, None, &self.tenant)?;
        // what has records shares a pass with appends
        if begin.commit && !begin.work.appends.is_empty() {
            return self.one_request(begin, digest);
        }
        if let Some(producer) = begin.session {
            self.check_producer(producer)?;
        }
        check_id(&id, self.horizon, retention_ms(&self.tenant), now)?;
        let session = begin.session.map(|(id, _)| &self.sessions[&id]);
        let session_timeout_ms = session.map(|session| session.transaction_timeout_ms);
        let timeout_ms = timeout_ms(begin.timeout_ms, session_timeout_ms, &self.tenant)?;
        let ongoing = begin.session.and_then(|(producer_id, _)| self.ongoing_of(producer_id));
        if let Some(transaction_id) = ongoing {
            return Err(Refusal::ConcurrentTransactions { transaction_id });
        }
        self.insert(begin, digest, Timestamp(now.0 + timeout_ms));
        self.add(id, &begin.work)?;
        if begin.commit {
            self.check_offsets(id)?;
            self.commit(id);
        }
        self.answered(id, false)
    }

    fn insert(&mut self, begin: &Begin, digest: Digest, expires_at: Timestamp) {
        let row = begun(begin.id, begin.session, digest, (self.now, expires_at));
        let (staged, offsets, calls) = Default::default();
        self.transactions.insert(begin.id, Stored { row, staged, offsets, calls });
    }

    /// A one-request transaction, as a batch decides it.
    fn one_request(&mut self, begin: &Begin, digest: Digest) -> Result<Answered, Refusal> {
        let Work { appends, offsets } = &begin.work;
        let producer = begin.session.map(|(producer, _)| producer);
        let mut last = BTreeMap::new();
        offsets.iter().for_each(|offset| give(&mut last, offset));
        let txn = SingleRequestTxn {
            transaction_id: begin.id,
            repeated_by: RepeatedBy::Id,
            session: begin.session,
            append_count: appends.len() as i64,
            retention_ms: retention_ms(&self.tenant),
            ..a_txn(last.values().cloned().collect())
        };
        let mut context = TxnContext::default();
        context.caches = Some(OutcomeHorizon { horizon: self.horizon, now: self.now });
        let row = self.transactions.get(&begin.id).map(|stored| stored.row.clone());
        context.rows.extend(row.map(|row| (begin.id, row)));
        let facts = producer.and_then(|id| self.sessions.get(&id)).map(|row| row.facts);
        context.sessions.extend(producer.zip(facts));
        context.ongoing.extend(producer.and_then(|id| Some((id, self.ongoing_of(id)?))));
        for place in last.keys() {
            context.places.insert(place.clone(), self.offset(place));
            context.groups.insert(place.group.clone(), self.group(&place.group));
        }
        match context.judge(&txn, &digest) {
            Ok(()) => {}
            Err(Stopped::AlreadyCommitted(_)) => return self.answered(begin.id, true),
            Err(Stopped::Refused(refusal)) => return Err(refusal),
            Err(Stopped::TopicChanged) => unreachable!(),
        }
        self.insert(begin, digest, self.now);
        self.add(begin.id, &begin.work)?;
        if let Err(Stopped::Refused(refusal)) = context.judge_offsets(&txn) {
            return Err(refusal);
        }
        self.commit(begin.id);
        self.answered(begin.id, false)
    }

    fn call(&mut self, id: Uuid, caller: Caller, call: &Call) -> Result<Answered, Refusal> {
        if let Caller::Session(producer_id, epoch) = caller {
            self.check_producer((producer_id, epoch))?;
        }
        let Some(stored) = self.transactions.get_mut(&id) else { return Err(self.absent(&id)) };
        stored.row = stored.row.clone().as_of(self.now);
        let row = stored.row.clone();
        let verb = match call {
            Call::Add { .. } => Verb::Add,
            Call::Prepare => Verb::Prepare,
            Call::Commit { .. } => Verb::Commit,
            Call::Abort => Verb::Abort,
        };
        if judge(&row, verb, caller)? == TransactionVerdict::Repeat {
            return self.answered(id, true);
        }
        match call {
            Call::Add { sequence, work } => {
                if self.is_known(id, *sequence, &work.appends)? {
                    return self.answered(id, true);
                }
                self.add(id, work)?;
            }
            Call::Prepare => self.prepare(id)?,
            Call::Commit { expected_appends, work } => {
                if *work != Work::default() {
                    judge(&row, Verb::Add, caller)?;
                    self.add(id, work)?;
                }
                check_appends(*expected_appends, self.transactions[&id].row.append_count)?;
                // what is prepared can no longer be refused
                if row.state == State::Ongoing {
                    self.check_offsets(id)?;
                }
                self.commit(id);
            }
            Call::Abort if caller == Caller::Operator => self.abort(id, Reason::Operator),
            Call::Abort => self.abort(id, Reason::Client),
        }
        self.answered(id, false)
    }

    /// Whether a sequenced call was made before. (One that is ahead has waited in vain.)
    fn is_known(
        &mut self,
        id: Uuid,
        sequence: Option<Sequence>,
        appends: &Appends,
    ) -> Result<bool, Refusal> {
        let stored = self.transactions.get_mut(&id).unwrap();
        let Some(sequence) = sequence else { return Ok(false) };
        let digest = digest(&format!("{appends:?}"));
        let expected = stored.row.next_sequence;
        match number(&stored.row, sequence)? {
            Numbering::New => {
                stored.calls.push(digest);
                stored.row.next_sequence += 1;
                Ok(false)
            }
            Numbering::Known if stored.calls[sequence as usize] == digest => Ok(true),
            Numbering::Known => Err(Refusal::SequenceReused { sequence }),
            Numbering::Ahead => Err(Refusal::OutOfOrderSequence { expected, received: sequence }),
        }
    }

    fn add(&mut self, id: Uuid, work: &Work) -> Result<(), Refusal> {
        let stored = self.transactions.get_mut(&id).unwrap();
        let parts = work.appends.iter().flatten().copied();
        let more = parts.clone().count() as i64;
        check_size(stored.row.batch_count, more, &self.tenant)?;
        stored.staged.extend(parts);
        stored.row.batch_count += more;
        stored.row.append_count += work.appends.len() as i64;
        work.offsets.iter().for_each(|offset| give(&mut stored.offsets, offset));
        Ok(())
    }

    pub fn offset(&self, place: &OffsetPlace) -> OffsetRow {
        self.offsets.get(place).cloned().unwrap_or_default()
    }

    pub fn group(&self, name: &Name) -> GroupFacts {
        self.groups.get(name).cloned().unwrap_or_default()
    }

    fn check_offsets(&self, id: Uuid) -> Result<(), Refusal> {
        let Stored { row, offsets, .. } = &self.transactions[&id];
        let found: Vec<_> = offsets
            .iter()
            .map(|(place, claimed)| (self.offset(place), self.group(&place.group), claimed))
            .collect();
        let asked: Vec<_> =
            found.iter().map(|(row, group, claimed)| (row, group, *claimed)).collect();
        let by = Committer { transaction_id: id, appends: row.append_count > 0 };
        judge_in_transaction(&asked, by)
    }

    fn prepare(&mut self, id: Uuid) -> Result<(), Refusal> {
        self.check_offsets(id)?;
        let stored = self.transactions.get_mut(&id).unwrap();
        for place in stored.offsets.keys() {
            self.offsets.entry(place.clone()).or_default().pinned_by = Some(id);
        }
        stored.row.state = State::Prepared;
        stored.row.prepared_at = Some(self.now);
        Ok(())
    }

    fn commit(&mut self, id: Uuid) {
        let stored = self.transactions.get_mut(&id).unwrap();
        let mut placed = Vec::new();
        for (partition, record_count) in &stored.staged {
            let log = self.logs.entry(*partition).or_default();
            let base_offset = log.last().map_or(0, |last| last.base_offset + last.record_count);
            let (partition, record_count) = (*partition, *record_count);
            log.push(Batch { base_offset, record_count, transaction_id: id });
            let (topic, base_offset) = (TOPIC.to_owned(), Some(base_offset));
            placed.push(PlacedAppend { topic, partition, base_offset, record_count });
        }
        stored.row.appends = Some(placed);
        stored.row.state = State::Committed;
        stored.row.ended_at = Some(self.now);
        for (place, Claimed { offset, .. }) in stored.offsets.clone() {
            self.offsets.entry(place).or_default().committed_offset = Some(offset);
        }
        self.unpin(id);
    }

    fn abort(&mut self, id: Uuid, reason: Reason) {
        let row = &mut self.transactions.get_mut(&id).unwrap().row;
        row.state = State::Aborted;
        row.reason = Some(reason);
        row.ended_at = Some(self.now);
        self.unpin(id);
    }

    fn unpin(&mut self, id: Uuid) {
        for row in self.offsets.values_mut().filter(|row| row.pinned_by == Some(id)) {
            row.pinned_by = None;
        }
    }

    fn absent(&self, id: &Uuid) -> Refusal {
        absent(id, self.horizon, retention_ms(&self.tenant), self.now)
    }

    /// The current state of a transaction.
    fn answered(&self, id: Uuid, duplicate: bool) -> Result<Answered, Refusal> {
        let stored = self.transactions.get(&id).ok_or_else(|| self.absent(&id))?;
        let transaction = stored.row.clone().as_of(self.now).into_transaction();
        Ok(Answered { transaction, duplicate })
    }

    /// The janitor: marks timeouts, and removes outcomes past their retention.
    pub fn sweep(&mut self) {
        let cutoff = Timestamp(self.now.0 - retention_ms(&self.tenant));
        for stored in self.transactions.values_mut() {
            stored.row = stored.row.clone().as_of(self.now);
        }
        let count = self.transactions.len();
        self.transactions.retain(|id, stored| {
            let made_at = Timestamp::of_uuid(id).unwrap();
            stored.row.ended_at.is_none_or(|ended_at| ended_at.max(made_at) >= cutoff)
        });
        if self.transactions.len() < count {
            self.horizon = self.horizon.max(cutoff);
        }
    }

    /// Removes a producer that was idle too long, unless it has a prepared transaction.
    pub fn expire(&mut self, producer_id: ProducerId) -> bool {
        let mut rows = self.transactions.values().map(|stored| &stored.row);
        let holds = |row: &TransactionRow| {
            row.state == State::Prepared && row.session.is_some_and(|(id, _)| id == producer_id)
        };
        if rows.any(holds) {
            return false;
        }
        self.fence(producer_id);
        self.sessions.remove(&producer_id).is_some()
    }

    /// Reassigns the places of a group; its members are then the owners.
    pub fn rebalance(&mut self, group_name: &Name, owners: &[(OffsetPlace, Option<String>)]) {
        let group = self.groups.entry(group_name.clone()).or_default();
        group.generation += 1;
        group.members = owners.iter().filter_map(|(_, owner)| owner.clone()).collect();
        for (place, owner) in owners {
            let row = self.offsets.entry(place.clone()).or_default();
            if row.owner.as_ref().map(|(owner, _)| owner) != owner.as_ref() {
                row.owner = owner.clone().map(|owner| (owner, group.generation));
            }
        }
    }
}

/// A later offset for a place replaces the earlier one.
fn give(
    offsets: &mut BTreeMap<OffsetPlace, Claimed>,
    (place, offset, claim): &(OffsetPlace, Offset, CommitRight),
) {
    let (place, offset, claim) = (place.clone(), *offset, claim.clone());
    let claimed = Claimed { place: place.clone(), offset, claim };
    let claimed = match offsets.get(&place) {
        Some(former) => claimed.after(former),
        None => claimed,
    };
    offsets.insert(place, claimed);
}
