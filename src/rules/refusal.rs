//! What the rules refuse, and why.

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
    /// There is no state in this scope, and the sequence is above 0.
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
    /// The ids of these records were used with another key or value: pointers to them.
    RecordIdReused {
        records: Vec<String>,
    },
    /// These records are duplicates, and the request refuses duplicates: pointers to them.
    DuplicateRecord {
        records: Vec<String>,
    },
    /// A prepared transaction holds the id of a record.
    RecordHeld {
        transaction_id: Uuid,
    },
    /// The `Idempotency-Key` was used with another payload.
    IdempotencyKeyReused,
    /// A key (UUIDv7) that is older than the remembered window.
    IdempotencyKeyExpired,
    /// A key (UUIDv7) with a timestamp too far in the future.
    IdempotencyKeyAhead,
    /// The open id was used for another name or producer.
    OpenIdReused,
    /// `If-Match` names another version than the current one.
    PreconditionFailed {
        etag: String,
    },
    /// These settings would exceed the operator's maximum, which is the last field.
    AboveMaxima {
        settings: Vec<(Key, Value, i64)>,
    },
    /// An operator has suspended the tenant.
    TenantSuspended {
        tenant: Name,
    },
    /// The tenant is being deleted with all its data.
    TenantDeleted {
        tenant: Name,
    },
    /// The open id is not a UUIDv7, or its timestamp is too far from the clock.
    InvalidOpenId,
    /// The id is not a UUIDv7, or its timestamp is too far in the future.
    InvalidTransactionId,
    /// The outcome, if the transaction ever existed, is no longer known.
    TransactionExpired,
    TransactionNotFound,
    /// The id was used by a begin with another payload.
    TransactionReused,
    /// `reason`: why it was aborted.
    InvalidTransactionState {
        state: State,
        reason: Option<Reason>,
    },
    /// The session has this ongoing transaction.
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
    /// The transaction belongs to another producer, or to no session.
    ProducerMismatch,
    /// The transaction belongs to a session, which the call must name.
    SessionMissing,
    /// An operator can commit only prepared transactions.
    OperatorMayNotCommit,
    TimeoutTooLong {
        maximum: i64,
        received: i64,
    },
    /// The group's committed offset is not the expected one, or a prepared transaction pins it.
    OffsetCommitConflict {
        expected_offset: Option<Offset>,
        committed_offset: Option<Offset>,
        pinned_by: Option<Uuid>,
    },
    /// A transaction appends, but none of the offsets that it commits as a member moves.
    NothingProcessed {
        offset: Offset,
    },
    /// The offset exceeds the high watermark.
    OffsetOutOfRange {
        offset: Offset,
        log_start_offset: Offset,
        high_watermark: Offset,
    },
    /// The group has no committed offset there, or it was trimmed, and `auto_offset_reset` is
    /// `error`.
    NowhereToBegin {
        committed_offset: Option<Offset>,
        log_start_offset: Offset,
        high_watermark: Offset,
    },
    UnknownMember,
    /// Another member owns the partition, or has owned it since that generation.
    IllegalGeneration {
        generation: i64,
    },
    GroupNotEmpty,
    /// The limit of these is reached.
    TooMany {
        what: &'static str,
        limit: i64,
    },
}
