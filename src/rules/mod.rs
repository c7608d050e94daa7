//! THE LAW: pure functions over state and input. Nothing here awaits, reads a clock, draws a
//! random number or knows SQL, HTTP or a task.

pub mod append;
pub mod compaction;
pub mod expiry;
pub mod group;
pub mod key_rings;
pub mod retention;
pub mod session;
pub mod settings;
pub mod tenant;
#[cfg(test)]
mod tests;
pub mod transaction;

use uuid::Uuid;

use crate::model::{
    Epoch, Name, Offset, ProducerId, Sequence,
    settings::{Key, Value},
    transaction::{Reason, State},
};

/// Why a request was refused, with the facts a client needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    UnknownProducer {
        producer_id: ProducerId,
    },
    ProducerFenced {
        current_epoch: Epoch,
    },
    InvalidProducerEpoch {
        current_epoch: Epoch,
    },
    /// No state in this scope and a sequence above 0.
    UnknownProducerState {
        received: Sequence,
    },
    OutOfOrderSequence {
        expected: Sequence,
        received: Sequence,
    },
    SequenceReused {
        sequence: Sequence,
    },
    OffsetMismatch {
        expected_offset: Offset,
        next_offset: Offset,
    },
    /// `limit` is the name of the setting.
    BatchTooLarge {
        limit_name: &'static str,
        limit: i64,
        received: i64,
    },
    /// These records' ids were used with other keys or values: pointers to them.
    RecordIdReused {
        records: Vec<String>,
    },
    /// These records are known, and the request is to be refused then: pointers to them.
    DuplicateRecord {
        records: Vec<String>,
    },
    /// A prepared transaction has claimed the id of a record.
    RecordHeld {
        transaction_id: Uuid,
    },
    /// The `Idempotency-Key` was used with another payload.
    IdempotencyKeyReused,
    /// A key (UUIDv7) that is older than what is remembered.
    IdempotencyKeyExpired,
    /// A key (UUIDv7) whose instant lies too far ahead.
    IdempotencyKeyAhead,
    /// The open id was used by an open of another name or producer.
    OpenIdReused,
    /// `If-Match` names another state than the present one.
    PreconditionFailed {
        etag: String,
    },
    /// These settings were to be more than the operator's maximum, which is last.
    AboveMaxima {
        settings: Vec<(Key, Value, i64)>,
    },
    /// An operator has suspended the tenant.
    TenantSuspended {
        tenant: Name,
    },
    /// The tenant is being removed with all that it has.
    TenantDeleted {
        tenant: Name,
    },
    /// The open id is not a UUIDv7, or its instant is too far from the clock.
    InvalidOpenId,
    /// Not a UUIDv7, or its instant lies too far ahead.
    InvalidTransactionId,
    /// What became of it, if it ever was, is no longer known.
    TransactionExpired,
    TransactionNotFound,
    /// The id was used by a begin with another payload.
    TransactionReused,
    /// `reason`: of an aborted one.
    InvalidTransactionState {
        state: State,
        reason: Option<Reason>,
    },
    /// The session has this ongoing one.
    ConcurrentTransactions {
        transaction_id: Uuid,
    },
    TransactionTooLarge {
        limit: i64,
        received: i64,
    },
    AppendsMissing {
        expected: i64,
        received: i64,
    },
    /// The transaction belongs to another producer, or to none.
    ProducerMismatch,
    /// It belongs to a session: the call has to say which.
    SessionMissing,
    /// An operator may end what is stuck, not commit what is not prepared.
    OperatorMayNotCommit,
    TimeoutTooLong {
        maximum: i64,
        received: i64,
    },
    /// The group's committed offset is another, or a prepared transaction is to commit one.
    OffsetCommitConflict {
        expected_offset: Option<Offset>,
        committed_offset: Option<Offset>,
        pinned_by: Option<Uuid>,
    },
    /// A transaction appends, and of the offsets that it commits as a member none moves.
    NothingProcessed {
        offset: Offset,
    },
    /// The group's offset lies above the log.
    OffsetOutOfRange {
        offset: Offset,
        log_start_offset: Offset,
        high_watermark: Offset,
    },
    /// The group has committed nothing there that still is, and is to begin nowhere else.
    NowhereToBegin {
        committed_offset: Option<Offset>,
        log_start_offset: Offset,
        high_watermark: Offset,
    },
    UnknownMember,
    /// Another member owns the partition, or owned it since that generation.
    IllegalGeneration {
        generation: i64,
    },
    GroupNotEmpty,
    /// There may be no more of these.
    TooMany {
        what: &'static str,
        limit: i64,
    },
}
