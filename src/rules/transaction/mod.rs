//! Transactions: their states, who may call them, and when an id is too old to run.
//!
//! ```text
//!                  add
//!                 +---+
//!                 v   |
//!    begin --->  ongoing  --- prepare --->  prepared
//!                 |   |                      |    |
//!          commit |   | abort, timeout,      |    | abort
//!                 |   | newer session        |    |
//!                 |   +------------------+   |    |
//!                 |   +------------------|---+    |
//!                 v   v  commit          v        v
//!               committed              aborted <--+
//! ```
//!
//! A call can be repeated without effect. An ongoing transaction past its timeout counts as
//! aborted, even before its row says so. While one is ongoing, its epoch is the current one of its
//! producer: whatever raises the epoch aborts it in the same instant.

pub mod one_request;
pub mod record_ids;

use uuid::Uuid;

use super::{
    Refusal,
    append::{dedup::check_instant, producer_state::REMEMBERED_REQUESTS, sequence::SessionFacts},
    settings,
};
use crate::model::{
    Digest, Epoch, ProducerId, Sequence, Timestamp,
    settings::{Key, OwnSettings},
    transaction::{Caller, ID_AHEAD_MS, PlacedAppend, Reason, RepeatedBy, State, Transaction},
};

/// A transaction's row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransactionRow {
    pub transaction_id: Uuid,
    pub state: State,
    pub session: Option<(ProducerId, Epoch)>,
    /// The digest of the request that began it.
    pub digest: Digest,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
    pub prepared_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub reason: Option<Reason>,
    pub append_count: i64,
    /// The number of staged batches.
    pub batch_count: i64,
    /// The sequence of the next call.
    pub next_sequence: Sequence,
    /// The locations of the appends, if it is committed and they were requested.
    pub appends: Option<Vec<PlacedAppend>>,
}

/// The action of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Records or offsets.
    Add,
    Prepare,
    Commit,
    Abort,
}

/// Every legal transition: from, by, to. A transition to the same state (that adds nothing) is a
/// repeat.
pub const MOVES: &[(State, Verb, State)] = &[
    (State::Ongoing, Verb::Add, State::Ongoing),
    (State::Ongoing, Verb::Prepare, State::Prepared),
    (State::Ongoing, Verb::Commit, State::Committed),
    (State::Ongoing, Verb::Abort, State::Aborted),
    (State::Prepared, Verb::Prepare, State::Prepared),
    (State::Prepared, Verb::Commit, State::Committed),
    (State::Prepared, Verb::Abort, State::Aborted),
    (State::Committed, Verb::Commit, State::Committed),
    (State::Aborted, Verb::Abort, State::Aborted),
];

/// The verdict on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionVerdict {
    /// Do it; the transaction is then in this state.
    Go(State),
    /// It was done before.
    Repeat,
}

/// Whether a producer may act in this epoch: rows 1 to 3 of the sequence table.
pub fn check_producer(
    (producer_id, epoch): (ProducerId, Epoch),
    session: Option<&SessionFacts>,
) -> Result<(), Refusal> {
    let session = session.ok_or(Refusal::UnknownProducer { producer_id })?;
    let current_epoch = session.epoch;
    if epoch < current_epoch {
        return Err(Refusal::ProducerFenced { current_epoch });
    }
    if epoch > current_epoch || session.closed {
        return Err(Refusal::InvalidProducerEpoch { current_epoch });
    }
    Ok(())
}

/// Whether a transaction without a row can begin, by its id or key.
pub fn check_begin(
    id: &Uuid,
    by: RepeatedBy,
    horizon: Timestamp,
    retention_ms: i64,
    now: Timestamp,
) -> Result<(), Refusal> {
    match by {
        RepeatedBy::Nothing => Ok(()),
        RepeatedBy::Id => check_id(id, horizon, retention_ms, now),
        RepeatedBy::Key(key) => check_instant(key.instant, horizon, Some(retention_ms), now),
    }
}

/// Whether an id without a row can begin: its timestamp is neither so old that it may have run and
/// been forgotten, nor too far ahead. `horizon`: outcomes of ids before it may have been removed.
pub fn check_id(
    id: &Uuid,
    horizon: Timestamp,
    retention_ms: i64,
    now: Timestamp,
) -> Result<(), Refusal> {
    let instant = Timestamp::of_uuid(id).ok_or(Refusal::InvalidTransactionId)?;
    if is_forgotten(id, horizon, retention_ms, now) {
        return Err(Refusal::TransactionExpired);
    }
    if instant.0 > now.0 + ID_AHEAD_MS { Err(Refusal::InvalidTransactionId) } else { Ok(()) }
}

/// Why this id has no row: it may have been forgotten, or never existed.
pub fn absent(id: &Uuid, horizon: Timestamp, retention_ms: i64, now: Timestamp) -> Refusal {
    if is_forgotten(id, horizon, retention_ms, now) {
        Refusal::TransactionExpired
    } else {
        Refusal::TransactionNotFound
    }
}

fn is_forgotten(id: &Uuid, horizon: Timestamp, retention_ms: i64, now: Timestamp) -> bool {
    let oldest = horizon.0.max(now.0 - retention_ms);
    Timestamp::of_uuid(id).is_some_and(|instant| instant.0 < oldest)
}

/// How long a tenant remembers outcomes.
pub fn retention_ms(tenant: &OwnSettings) -> i64 {
    settings::limit(Key::TransactionRetentionMs, &[tenant])
}

/// The maximum timeout that a transaction can request.
pub fn max_timeout_ms(tenant: &OwnSettings) -> i64 {
    settings::limit(Key::MaxTransactionTimeoutMs, &[tenant])
}

/// The maximum number of batches in a transaction.
pub fn max_batches(tenant: &OwnSettings) -> i64 {
    settings::limit(Key::MaxTransactionBatches, &[tenant])
}

/// How long a new transaction may stay open.
pub fn timeout_ms(
    requested: Option<i64>,
    session: Option<i64>,
    tenant: &OwnSettings,
) -> Result<i64, Refusal> {
    let maximum = max_timeout_ms(tenant);
    if let Some(received) = requested.filter(|requested| *requested > maximum) {
        return Err(Refusal::TimeoutTooLong { maximum, received });
    }
    let default = settings::limit(Key::TransactionTimeoutMs, &[tenant]);
    Ok(requested.or(session).unwrap_or(default).min(maximum))
}

/// Decides a begin whose id or key has a row.
pub fn repeat(row: &TransactionRow, by: RepeatedBy, digest: &Digest) -> Result<(), Refusal> {
    match by {
        _ if row.digest == *digest => Ok(()),
        RepeatedBy::Key(_) => Err(Refusal::IdempotencyKeyReused),
        RepeatedBy::Nothing | RepeatedBy::Id => Err(Refusal::TransactionReused),
    }
}

/// Decides a call; the row is as of now (`as_of`), and the caller's session, if named, has been
/// checked.
pub fn judge(
    row: &TransactionRow,
    verb: Verb,
    caller: Caller,
) -> Result<TransactionVerdict, Refusal> {
    match (caller, row.session) {
        (Caller::Session(id, _), Some((owner, _))) if id == owner => {}
        (Caller::Session(..), _) => return Err(Refusal::ProducerMismatch),
        (Caller::Bearer, Some(_)) => return Err(Refusal::SessionMissing),
        (Caller::Operator, _) if !may_operate(verb, row.state) => {
            return Err(Refusal::OperatorMayNotCommit);
        }
        (Caller::Bearer, None) | (Caller::Operator, _) => {}
    }
    let to = MOVES.iter().find(|(from, by, _)| (*from, *by) == (row.state, verb));
    match to {
        Some((from, by, to)) if from == to && *by != Verb::Add => Ok(TransactionVerdict::Repeat),
        Some((.., to)) => Ok(TransactionVerdict::Go(*to)),
        None => Err(Refusal::InvalidTransactionState { state: row.state, reason: row.reason }),
    }
}

/// Decides the end by an operator: fenced or not, and without the session.
fn may_operate(verb: Verb, state: State) -> bool {
    verb == Verb::Abort || (verb == Verb::Commit && state != State::Ongoing)
}

/// The verdict on a sequenced call to /records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    New,
    /// The call was received before: compare its digest with the stored one.
    Known,
    /// It can wait for the missing calls.
    Ahead,
}

/// Checks the sequence of a call to /records; all are remembered while the transaction is open.
pub fn number(row: &TransactionRow, sequence: Sequence) -> Result<Numbering, Refusal> {
    let expected = row.next_sequence;
    match sequence - expected {
        0 => Ok(Numbering::New),
        ..0 => Ok(Numbering::Known),
        1.. if sequence - expected < REMEMBERED_REQUESTS as i64 => Ok(Numbering::Ahead),
        _ => Err(Refusal::OutOfOrderSequence { expected, received: sequence }),
    }
}

/// Whether this many more batches fit.
pub fn check_size(batches: i64, more: i64, tenant: &OwnSettings) -> Result<(), Refusal> {
    let limit = max_batches(tenant);
    let received = batches + more;
    // a limit lowered meanwhile leaves alone what is there
    if more > 0 && received > limit {
        return Err(Refusal::TransactionTooLarge { limit, received });
    }
    Ok(())
}

/// Whether all appends that the client has sent are there.
pub fn check_appends(expected: Option<i64>, received: i64) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != received => {
            Err(Refusal::AppendsMissing { expected, received })
        }
        _ => Ok(()),
    }
}

impl TransactionRow {
    /// Whether its timeout has passed and its row does not say so yet.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.state == State::Ongoing && self.expires_at <= now
    }

    /// The row as of an instant.
    pub fn as_of(mut self, now: Timestamp) -> Self {
        if self.has_expired(now) {
            self.state = State::Aborted;
            self.reason = Some(Reason::Timeout);
            self.ended_at = Some(self.expires_at);
        }
        self
    }

    pub fn into_transaction(self) -> Transaction {
        Transaction {
            transaction_id: self.transaction_id,
            state: self.state,
            session: self.session,
            created_at: self.created_at,
            expires_at: (self.state == State::Ongoing).then_some(self.expires_at),
            prepared_at: self.prepared_at,
            ended_at: self.ended_at,
            reason: self.reason,
            append_count: self.append_count,
            appends: self.appends,
        }
    }
}
