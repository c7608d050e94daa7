//! A stand-in for the database, and what the broker does over it with the real rules: a message is
//! judged under the locks and applied, in one step; a refused one has changed nothing.

use std::{collections::BTreeMap, sync::Arc};

use oncelog::{
    model::{
        Digest, Epoch, LogId, Name, Offset, ProducerId, Scopes, Sequence, Timestamp,
        session::{Open, Sequences, Sequencing},
        settings::{Key, OwnSettings, Value},
        transaction::{Caller, CommitRight, PlacedAppend, Reason, RepeatedBy, State},
    },
    rules::{
        Refusal,
        append::sequence::SessionFacts,
        group::offsets::{self, Claimed, Committer, GroupFacts, OffsetPlace, judge_in_transaction},
        session::{self, SessionRow},
        transaction::{
            Numbering, TransactionRow, TransactionVerdict, Verb, absent, check_appends, check_id,
            check_producer, judge, number,
            one_request::{OutcomeHorizon, SingleRequestTxn, Stopped, TxnContext},
            repeat, retention_ms, timeout_ms,
        },
    },
};
use uuid::Uuid;

use super::{Rule, TIMEOUT_MS};

/// The appends of a call, each to a partition.
pub type Appends = Vec<usize>;

/// Of the group, in which its member got the partition.
pub const GENERATION: i64 = 1;

/// Digests of the two ways to begin.
const BEGIN: Digest = [0; 16];
const WHOLE: Digest = [1; 16];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Begin,
    /// All of a transaction.
    Whole {
        appends: Appends,
        offset: Option<(Offset, CommitRight)>,
    },
    Records {
        sequence: Sequence,
        appends: Appends,
    },
    Offset(Offset, CommitRight),
    Prepare,
    Commit {
        expected_appends: i64,
    },
    Abort,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    pub id: Uuid,
    pub session: Option<(ProducerId, Epoch)>,
    pub call: Call,
}

/// A row of a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Batch {
    pub base_offset: Offset,
    pub transaction_id: Uuid,
    /// In its transaction.
    pub ordinal: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    pub row: TransactionRow,
    pub staged: Appends,
    offset: Option<(Offset, CommitRight)>,
    calls: Vec<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub now: Timestamp,
    pub retention_ms: i64,
    horizon: Timestamp,
    pub sessions: BTreeMap<ProducerId, SessionRow>,
    pub transactions: BTreeMap<Uuid, Stored>,
    pub logs: [Vec<Batch>; 2],
    /// Of the one group in the one partition it reads.
    pub offset: offsets::OffsetRow,
    pub without: Option<Rule>,
}

/// The answer to an open.
pub struct Opened {
    pub epoch: Epoch,
    pub aborted: Option<Uuid>,
    pub prepared: Option<TransactionRow>,
}

fn open_again() -> Open {
    Open {
        transactional_id: None,
        condition: None,
        open_id: None,
        transaction_timeout_ms: Some(TIMEOUT_MS),
        sequencing: Sequencing::Contiguous,
        sequences: Sequences::Continue,
        scopes: Arc::new(Scopes::all()),
    }
}

impl Ledger {
    pub fn new(
        now: Timestamp,
        retention_ms: i64,
        member: Option<&str>,
        without: Option<Rule>,
    ) -> Self {
        let owner = member.map(|member| (member.to_owned(), GENERATION));
        Self {
            now,
            retention_ms,
            horizon: Timestamp(0),
            sessions: BTreeMap::new(),
            transactions: BTreeMap::new(),
            logs: Default::default(),
            offset: offsets::OffsetRow { owner, ..offsets::OffsetRow::default() },
            without,
        }
    }

    /// Of the member that owns the partition, or of none.
    fn group(&self) -> GroupFacts {
        let members = self.offset.owner.iter().map(|(member, _)| member.clone()).collect();
        GroupFacts { generation: GENERATION, members }
    }

    fn tenant(&self) -> OwnSettings {
        let values = BTreeMap::from([
            (Key::TransactionRetentionMs, Value::Number(self.retention_ms)),
            (Key::TransactionTimeoutMs, Value::Number(TIMEOUT_MS)),
        ]);
        OwnSettings { values, ..Default::default() }
    }

    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Raises the epoch, and aborts what is ongoing in the old one. What is prepared is reported.
    pub fn open(&mut self, producer_id: ProducerId) -> Opened {
        let open = open_again();
        let next = session::open(&open, self.sessions.get(&producer_id)).unwrap();
        let row = SessionRow {
            producer_id,
            transactional_id: None,
            opened_by: None,
            facts: SessionFacts {
                epoch: next.epoch,
                closed: false,
                reset_epoch: next.reset_epoch,
                sequencing: open.sequencing,
            },
            transaction_timeout_ms: TIMEOUT_MS,
            open_horizon: Timestamp(0),
            opened_at: self.now,
            fencing: false,
        };
        self.sessions.insert(producer_id, row);
        let aborted = self.of(producer_id, State::Ongoing).map(|row| row.transaction_id);
        if let Some(id) = aborted {
            self.abort(id, Reason::Fenced);
        }
        Opened { epoch: next.epoch, aborted, prepared: self.of(producer_id, State::Prepared) }
    }

    fn of(&self, producer_id: ProducerId, state: State) -> Option<TransactionRow> {
        let is_its = |row: &TransactionRow| row.session.is_some_and(|(id, _)| id == producer_id);
        let mut rows = self.transactions.values().map(|stored| stored.row.clone().as_of(self.now));
        rows.find(|row| is_its(row) && row.state == state)
    }

    /// What a message makes of it, with the transaction as the answer says it and whether it was
    /// done before.
    pub fn handled(&self, message: &Message) -> Result<(Self, TransactionRow, bool), Refusal> {
        // (a pass does that for its transactions); what became of a begin is told anyone who asks
        let is_begun = message.call == Call::Begin && self.transactions.contains_key(&message.id);
        let is_judged = is_begun || matches!(message.call, Call::Whole { .. });
        let checked = message.session.filter(|_| self.has(Rule::CheckProducer) && !is_judged);
        if let Some(producer) = checked {
            let facts = self.sessions.get(&producer.0).map(|row| &row.facts);
            check_producer(producer, facts)?;
        }
        let mut then = self.clone();
        let duplicate = match &message.call {
            Call::Begin => then.begin(message)?,
            Call::Whole { appends, offset } => {
                then.transaction(message, appends, offset.as_ref())?
            }
            _ => then.call(message)?,
        };
        let row = then.transactions[&message.id].row.clone().as_of(self.now);
        Ok((then, row, duplicate))
    }

    fn begin(&mut self, message: &Message) -> Result<bool, Refusal> {
        let (now, id) = (self.now, message.id);
        if let Some(stored) = self.transactions.get(&id) {
            repeat(&stored.row, RepeatedBy::Id, &BEGIN)?;
            return Ok(true);
        }
        check_id(&id, self.horizon(), retention_ms(&self.tenant()), now)?;
        let producer = message.session.map(|(producer, _)| producer);
        if let Some(row) = producer.and_then(|id| self.of(id, State::Ongoing)) {
            return Err(Refusal::ConcurrentTransactions { transaction_id: row.transaction_id });
        }
        let of_session = producer.map(|id| self.sessions[&id].transaction_timeout_ms);
        let timeout_ms = timeout_ms(None, of_session, &self.tenant())?;
        self.insert(message, BEGIN, timeout_ms);
        Ok(false)
    }

    fn insert(&mut self, message: &Message, digest: Digest, timeout_ms: i64) {
        let row = TransactionRow {
            transaction_id: message.id,
            state: State::Ongoing,
            session: message.session,
            digest,
            created_at: self.now,
            expires_at: Timestamp(self.now.0 + timeout_ms),
            prepared_at: None,
            ended_at: None,
            reason: None,
            append_count: 0,
            batch_count: 0,
            next_sequence: 0,
            appends: None,
        };
        let (staged, offset, calls) = Default::default();
        self.transactions.insert(message.id, Stored { row, staged, offset, calls });
    }

    /// A transaction of one request, as a pass decides it.
    fn transaction(
        &mut self,
        message: &Message,
        appends: &Appends,
        offset: Option<&(Offset, CommitRight)>,
    ) -> Result<bool, Refusal> {
        let (id, producer) = (message.id, message.session.map(|(producer, _)| producer));
        let place = OffsetPlace { group: Name::parse("group").unwrap(), log_id: LogId(1) };
        let claimed = offset.map(|(offset, claim)| Claimed {
            place: place.clone(),
            offset: *offset,
            claim: claim.clone(),
        });
        let txn = SingleRequestTxn {
            transaction_id: id,
            repeated_by: RepeatedBy::Id,
            session: message.session,
            append_count: appends.len() as i64,
            retention_ms: retention_ms(&self.tenant()),
            journals: Vec::new(),
            topics: Vec::new(),
            offsets: claimed.into_iter().collect(),
        };
        let row = self.transactions.get(&id).map(|stored| (id, stored.row.clone()));
        let facts = producer.map(|id| (id, self.sessions[&id].facts));
        let ongoing = producer.and_then(|id| Some((id, self.of(id, State::Ongoing)?)));
        let mut context = TxnContext::default();
        context.rows.extend(row);
        context.sessions.extend(facts);
        context.ongoing.extend(ongoing.map(|(id, row)| (id, row.transaction_id)));
        context.groups.insert(place.group.clone(), self.group());
        context.places.insert(place, self.offset.clone());
        context.caches = Some(OutcomeHorizon { horizon: self.horizon(), now: self.now });
        match context.judge(&txn, &WHOLE).and_then(|()| context.judge_offsets(&txn)) {
            Ok(()) => {}
            Err(Stopped::AlreadyCommitted(_)) => return Ok(true),
            Err(Stopped::Refused(refusal)) => return Err(refusal),
            Err(Stopped::TopicChanged) => unreachable!(),
        }
        self.insert(message, WHOLE, 0);
        let stored = self.transactions.get_mut(&id).unwrap();
        stored.row.append_count = txn.append_count;
        stored.staged = appends.clone();
        stored.offset = offset.cloned();
        self.commit(id);
        Ok(false)
    }

    fn horizon(&self) -> Timestamp {
        if self.has(Rule::Horizon) { self.horizon } else { Timestamp(0) }
    }

    fn call(&mut self, message: &Message) -> Result<bool, Refusal> {
        let id = message.id;
        let Some(stored) = self.transactions.get_mut(&id) else {
            return Err(absent(&id, self.horizon, self.retention_ms, self.now));
        };
        if self.without != Some(Rule::Deadline) {
            stored.row = stored.row.clone().as_of(self.now);
        }
        let verb = match &message.call {
            Call::Prepare => Verb::Prepare,
            Call::Commit { .. } => Verb::Commit,
            Call::Abort => Verb::Abort,
            _ => Verb::Add,
        };
        let caller =
            message.session.map_or(Caller::Bearer, |(id, epoch)| Caller::Session(id, epoch));
        let was = stored.row.state;
        if judge(&stored.row, verb, caller)? == TransactionVerdict::Repeat
            && self.without != Some(Rule::RepeatedEnds)
        {
            return Ok(true);
        }
        match &message.call {
            Call::Begin | Call::Whole { .. } => unreachable!(),
            Call::Records { sequence, appends } => return self.add(id, *sequence, appends),
            Call::Offset(offset, claim) => {
                stored.offset = Some((*offset, claim.clone()));
                if !self.has(Rule::OffsetsAtTheEnd) {
                    self.check_offset(id)?;
                }
            }
            Call::Prepare => {
                self.check_offset(id)?;
                let stored = self.transactions.get_mut(&id).unwrap();
                stored.row.state = State::Prepared;
                stored.row.prepared_at = Some(self.now);
                if stored.offset.is_some() && self.without != Some(Rule::Pins) {
                    self.offset.pinned_by = Some(id);
                }
            }
            Call::Commit { expected_appends } => {
                let is_told = self.has(Rule::ExpectedAppends) && self.has(Rule::Numbering);
                let expected = Some(*expected_appends).filter(|_| is_told);
                check_appends(expected, self.transactions[&id].row.append_count)?;
                if was == State::Ongoing && self.has(Rule::OffsetsAtTheEnd) {
                    self.check_offset(id)?;
                }
                self.commit(id);
            }
            Call::Abort => self.abort(id, Reason::Client),
        }
        Ok(false)
    }

    fn add(&mut self, id: Uuid, sequence: Sequence, appends: &Appends) -> Result<bool, Refusal> {
        let numbered = self.has(Rule::Numbering);
        let stored = self.transactions.get_mut(&id).unwrap();
        let mut digest = [1; 16];
        digest[0] = appends[0] as u8;
        match number(&stored.row, sequence)? {
            Numbering::Known if numbered && stored.calls[sequence as usize] == digest => {
                return Ok(true);
            }
            Numbering::Known if numbered => return Err(Refusal::SequenceReused { sequence }),
            Numbering::Ahead => {
                let expected = stored.row.next_sequence;
                return Err(Refusal::OutOfOrderSequence { expected, received: sequence });
            }
            _ => {}
        }
        stored.calls.push(digest);
        stored.row.next_sequence += 1;
        stored.row.append_count += appends.len() as i64;
        stored.row.batch_count += appends.len() as i64;
        stored.staged.extend(appends);
        Ok(false)
    }

    fn check_offset(&self, id: Uuid) -> Result<(), Refusal> {
        match &self.transactions[&id].offset {
            Some((offset, claim)) => {
                let place = OffsetPlace { group: Name::parse("group").unwrap(), log_id: LogId(1) };
                let claimed = Claimed { place, offset: *offset, claim: claim.clone() };
                let appends = self.transactions[&id].row.append_count > 0;
                let by = Committer { transaction_id: id, appends };
                judge_in_transaction(&[(&self.offset, &self.group(), &claimed)], by)
            }
            None => Ok(()),
        }
    }

    fn commit(&mut self, id: Uuid) {
        let stored = self.transactions.get_mut(&id).unwrap();
        let mut placed = Vec::new();
        for (ordinal, partition) in stored.staged.iter().copied().enumerate() {
            let log = &mut self.logs[partition];
            let base_offset = log.last().map_or(0, |last| last.base_offset + 1);
            log.push(Batch { base_offset, transaction_id: id, ordinal });
            placed.push(PlacedAppend {
                topic: "t".into(),
                partition: partition as i32,
                base_offset: Some(base_offset),
                record_count: 1,
            });
        }
        stored.row.appends = Some(placed);
        stored.row.state = State::Committed;
        stored.row.ended_at = Some(self.now);
        if let Some((offset, _)) = &stored.offset {
            self.offset.committed_offset = Some(*offset);
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
        self.offset.pinned_by = self.offset.pinned_by.filter(|pin| *pin != id);
    }

    /// The janitor: what has expired is written down, what is remembered no longer is dropped.
    pub fn sweep(&mut self) {
        let cutoff = Timestamp(self.now.0 - self.retention_ms);
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
}
