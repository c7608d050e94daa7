//! The rows that calls of one transaction meet at, what each call holds and has written, and what
//! must be true after each of its steps.

use std::collections::BTreeSet;

use oncelog::{
    model::{
        Epoch, Offset, ProducerId, Timestamp,
        transaction::{Reason, State},
    },
    rules::{group::offsets, transaction::TransactionRow},
};
use uuid::Uuid;

use crate::protocol::transaction_check::Broken;

pub const ID: Uuid = Uuid::from_u128(7);
/// Who has begun the transaction, and makes the calls; an open makes the next epoch.
pub const SESSION: (ProducerId, Epoch) = (ProducerId(1), 0);
/// What the call that adds an offset has committed.
pub const OFFSET: Offset = 5;
pub const EXPIRES_AT: Timestamp = Timestamp(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    Commit,
    Append,
    Offsets,
    Prepare,
    Abort,
    Open,
    /// The janitor's.
    Expire,
}

/// Where a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum At {
    /// A statement that looks for the transaction's row among others begins,
    Begin,
    /// comes to it,
    Reach,
    /// and writes: the fast commit.
    Write,
    /// A database transaction begins: it locks the session,
    Session,
    /// the transaction's row, and judges the call;
    Row,
    /// reads what was staged,
    Read,
    /// locks the group's offset, and judges the one to be committed;
    Place,
    /// writes,
    Judged,
    /// and ends.
    End,
    /// It has met a deadline that nobody has written down.
    Late,
    /// Whether it was done.
    Done(bool),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transaction {
    pub row: TransactionRow,
    /// Here of offsets alone.
    pub id_count: i64,
    pub is_sweeping: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tables {
    pub epoch: Epoch,
    pub transaction: Transaction,
    /// Batches of it, and whether its offset.
    pub staged: i64,
    pub has_staged_offset: bool,
    /// The group's offset.
    pub place: offsets::OffsetRow,
    /// Batches in the log.
    pub stored: i64,
}

/// What a database transaction has written and not committed: rows that it has locked, and new
/// ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Written {
    pub epoch: Option<Epoch>,
    pub transaction: Option<Transaction>,
    pub staged: i64,
    pub has_staged_offset: Option<bool>,
    pub place: Option<offsets::OffsetRow>,
    pub stored: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lock {
    SharedSession,
    Session,
    Row,
    Place,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Running {
    pub call: Call,
    pub at: At,
    /// As the statement that is under way sees the database; what a read has answered.
    pub seen: Option<Tables>,
    pub locks: BTreeSet<Lock>,
    pub written: Written,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub now: Timestamp,
    pub tables: Tables,
    pub calls: Vec<Running>,
    pub broken: BTreeSet<Broken>,
}

impl Tables {
    pub fn new() -> Self {
        let row = TransactionRow {
            transaction_id: ID,
            state: State::Ongoing,
            session: Some(SESSION),
            digest: [0; 16],
            created_at: Timestamp(0),
            expires_at: EXPIRES_AT,
            prepared_at: None,
            ended_at: None,
            reason: None,
            append_count: 1,
            batch_count: 1,
            next_sequence: 0,
            appends: None,
        };
        Self {
            epoch: SESSION.1,
            transaction: Transaction { row, id_count: 0, is_sweeping: false },
            staged: 1,
            has_staged_offset: false,
            place: offsets::OffsetRow::default(),
            stored: 0,
        }
    }

    pub fn with(&self, written: &Written) -> Self {
        let Written { epoch, transaction, staged, has_staged_offset, place, stored } = written;
        Self {
            epoch: epoch.unwrap_or(self.epoch),
            transaction: transaction.clone().unwrap_or_else(|| self.transaction.clone()),
            staged: self.staged + staged,
            has_staged_offset: has_staged_offset.unwrap_or(self.has_staged_offset),
            place: place.clone().unwrap_or_else(|| self.place.clone()),
            stored: self.stored + stored,
        }
    }
}

impl Transaction {
    pub fn abort(&mut self, reason: Reason, ended_at: Timestamp) {
        self.row.state = State::Aborted;
        self.row.reason = Some(reason);
        self.row.ended_at = Some(ended_at);
        self.is_sweeping = true;
    }

    pub fn commit(&mut self, now: Timestamp) {
        self.row.state = State::Committed;
        self.row.ended_at = Some(now);
    }
}

impl Running {
    pub fn new(call: Call) -> Self {
        let at = match call {
            Call::Commit | Call::Append | Call::Expire => At::Begin,
            _ => At::Session,
        };
        Self { call, at, seen: None, locks: BTreeSet::new(), written: Written::default() }
    }

    /// Lets go of everything; what it has written is gone if it was not committed.
    pub fn leave(&mut self, at: At) {
        *self = Self { at, ..Self::new(self.call) };
    }
}

impl World {
    pub fn is_free(&self, index: usize, lock: Lock) -> bool {
        let others = self.calls.iter().enumerate().filter(|(other, _)| *other != index);
        let mut held = others.flat_map(|(_, call)| &call.locks);
        !held.any(|held| match (held, lock) {
            (Lock::SharedSession, Lock::Session) | (Lock::Session, Lock::SharedSession) => true,
            (Lock::SharedSession, Lock::SharedSession) => false,
            _ => *held == lock,
        })
    }

    /// A statement by itself.
    pub fn write(&mut self, index: usize) {
        self.tables = self.tables.with(&self.calls[index].written);
        self.calls[index].leave(At::Done(true));
    }

    pub fn count(&self, call: Call) -> i64 {
        let done = self.calls.iter().filter(|c| c.call == call && c.at == At::Done(true));
        done.count() as i64
    }

    pub fn check(&mut self, before: &Tables) {
        let Tables { transaction, place, stored, .. } = &self.tables;
        let row = &transaction.row;
        let is_committed = row.state == State::Committed;
        let batches = if is_committed { 1 + self.count(Call::Append) } else { 0 };
        let offset = (is_committed && self.count(Call::Offsets) > 0).then_some(OFFSET);
        let is_left = is_committed && self.tables.has_staged_offset
            || row.state == State::Aborted && !transaction.is_sweeping;
        let is_pinned = row.state == State::Prepared && self.tables.has_staged_offset;
        let last = if is_committed { row.prepared_at.or(row.ended_at) } else { row.prepared_at };
        let was_over = before.transaction.row.state > State::Ongoing;
        let grew = row.batch_count > before.transaction.row.batch_count
            || self.tables.has_staged_offset && !before.has_staged_offset;
        let broken = [
            (Broken::NotAtomic, *stored != batches || place.committed_offset != offset),
            (Broken::LeftBehind, is_left),
            (Broken::PreparedButRefused, place.pinned_by.is_some() != is_pinned),
            (Broken::AcceptedAfterDeadline, last.is_some_and(|at| at >= EXPIRES_AT)),
            (Broken::AcceptedAfterFence, self.tables.epoch > 0 && row.state == State::Ongoing),
            (Broken::AcceptedAfterFence, was_over && grew),
            (Broken::OutcomeChanged, was_over && row.state < before.transaction.row.state),
            (Broken::OutcomeChanged, self.count(Call::Commit) > 0 && !is_committed),
            (Broken::OutcomeChanged, self.count(Call::Abort) > 0 && row.state != State::Aborted),
        ];
        self.broken.extend(broken.into_iter().filter(|(_, is)| *is).map(|(broken, _)| broken));
    }
}
