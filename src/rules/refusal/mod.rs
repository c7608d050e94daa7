//! What the rules refuse, and why: the code, the sentence and the facts of the answer.

mod facts;

use thiserror::Error;
use uuid::Uuid;

use crate::model::{
    Code, Epoch, Name, Offset, ProducerId, Sequence, Word,
    settings::{Key, Value},
    transaction::{Reason, State},
    validation::MAX_LISTED,
};

/// Why a request was refused, in a sentence for people: what is wrong and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    #[error("Producer {} does not exist or has expired. Open a session.", .producer_id.0)]
    UnknownProducer { producer_id: ProducerId },
    #[error(
        "A newer session of this producer is open, with epoch {current_epoch}. This session can no \
         longer write."
    )]
    ProducerFenced { current_epoch: Epoch },
    #[error(
        "No session is open in this epoch; the producer's current epoch is {current_epoch}. Use \
         the epoch that opening a session returned."
    )]
    InvalidProducerEpoch { current_epoch: Epoch },
    #[error("This producer has not appended here yet: expected sequence 0, received {received}.")]
    UnknownProducerState { received: Sequence },
    #[error("Expected sequence {expected}, received {received}: an earlier request is missing.")]
    OutOfOrderSequence { expected: Sequence, received: Sequence },
    #[error("Sequence {sequence} was already used here with different records.")]
    SequenceReused { sequence: Sequence },
    #[error(
        "The partition's next offset is {next_offset}, not {expected_offset}. Nothing was appended."
    )]
    OffsetMismatch { expected_offset: Offset, next_offset: Offset },
    /// `limit_name` is the name of the setting.
    #[error("{limit_name} is {limit}; this batch has {received}.")]
    BatchTooLarge { limit_name: &'static str, limit: i64, received: i64 },
    /// `records` are pointers to the records.
    #[error(
        "The ids of these records were already used with a different key or value. Nothing was \
         appended. Give every new record its own id.{}",
        unlisted(.records)
    )]
    RecordIdReused { records: Vec<String> },
    /// `records` are pointers to the records.
    #[error(
        "These records are already stored, and on_duplicate is `refuse`. Nothing was appended. \
         Send the other records without them.{}",
        unlisted(.records)
    )]
    DuplicateRecord { records: Vec<String> },
    #[error(
        "The prepared transaction {transaction_id} holds a record with this id. Send the same \
         request again after that transaction has ended."
    )]
    RecordHeld { transaction_id: Uuid },
    #[error(
        "This Idempotency-Key was already used with a different request. Repeat the request \
         unchanged, or use a new key."
    )]
    IdempotencyKeyReused,
    #[error(
        "This Idempotency-Key is older than the deduplication window: the request may already have \
         been done, so it is not done again."
    )]
    IdempotencyKeyExpired,
    #[error("the instant of a UUIDv7 key must be at most 24 hours ahead of the server's clock")]
    IdempotencyKeyAhead,
    #[error(
        "This open_id was already used to open another transactional_id or producer_id. Use a new \
         one for every open."
    )]
    OpenIdReused,
    #[error("open_id must be a UUIDv7 whose instant is within 24 hours of the server's clock")]
    InvalidOpenId,
    #[error(
        "The ETag in If-Match is not the current one, which is {etag}. Nothing was changed. Read \
         the resource again before you change it."
    )]
    PreconditionFailed { etag: String },
    /// `at` is the pointer to the settings, each of which stands here with the operator's maximum.
    #[error("settings exceed the operator's maxima for this tenant")]
    AboveMaxima { at: &'static str, settings: Vec<(Key, Value, i64)> },
    #[error("Tenant {tenant} is suspended. Its requests are refused until an operator resumes it.")]
    TenantSuspended { tenant: Name },
    #[error(
        "Tenant {tenant} is deleted and its data is being removed. An operator can create \
         another with its name afterwards."
    )]
    TenantDeleted { tenant: Name },
    #[error(
        "A transaction id must be a UUIDv7 whose instant is at most 24 hours ahead of the server's \
         clock. Use a new one, or omit it."
    )]
    InvalidTransactionId,
    #[error(
        "This id is older than the remembered outcomes (transaction_retention_ms): the transaction \
         may have been committed, aborted or never begun. It is not run again."
    )]
    TransactionExpired,
    #[error("No transaction with this id was begun.")]
    TransactionNotFound,
    #[error(
        "A transaction with this id was begun with a different request. Repeat the begin \
         unchanged, or use a new id."
    )]
    TransactionReused,
    /// `reason`: why it was aborted.
    #[error(
        "The transaction is {}{}: {}.",
        .state.as_str(),
        .reason.map_or(String::new(), |reason| format!(" ({})", reason.as_str())),
        next_step(*.state)
    )]
    InvalidTransactionState { state: State, reason: Option<Reason> },
    #[error("The session has an ongoing transaction, {transaction_id}. Commit or abort it first.")]
    ConcurrentTransactions { transaction_id: Uuid },
    #[error(
        "max_transaction_batches is {limit}; with this request the transaction would have \
         {received} batches, one per partition of every append."
    )]
    TransactionTooLarge { limit: i64, received: i64 },
    #[error(
        "expected_appends is {expected}, but the transaction holds {received} appends. Send the \
         missing ones, then commit again."
    )]
    AppendsMissing { expected: i64, received: i64 },
    /// The transaction belongs to another producer, or to no session.
    #[error(
        "Another producer began this transaction. Give the producer_id and epoch of the session \
         that began it, or neither if no session did."
    )]
    ProducerMismatch,
    #[error(
        "missing: a session began the transaction, so every call needs its producer_id and epoch"
    )]
    SessionMissing,
    #[error("an operator can commit only prepared transactions; abort this one instead")]
    OperatorMayNotCommit,
    #[error("{received} exceeds max_transaction_timeout_ms, which is {maximum}")]
    TimeoutTooLong { maximum: i64, received: i64 },
    /// The group's committed offset is not the expected one, or a prepared transaction pins it.
    #[error("{}", commit_conflict(*.expected_offset, *.committed_offset, *.pinned_by))]
    OffsetCommitConflict {
        expected_offset: Option<Offset>,
        committed_offset: Option<Offset>,
        pinned_by: Option<Uuid>,
    },
    /// A transaction appends, but none of the offsets that it commits as a member moves.
    #[error(
        "None of the member's offsets advances: its records are already committed, or it read \
         none. Continue from the committed offsets; to append without having read, omit the \
         offsets."
    )]
    NothingProcessed { offset: Offset },
    #[error("Offset {offset} exceeds the high watermark {high_watermark}.")]
    OffsetOutOfRange { offset: Offset, log_start_offset: Offset, high_watermark: Offset },
    #[error(
        "The group's auto_offset_reset is error, and {}: the log holds [{log_start_offset}, \
         {high_watermark}). Reset the group's offsets, or join with another auto_offset_reset.",
        match .committed_offset {
            Some(offset) => format!("its committed offset {offset} has been trimmed"),
            None => "it has no committed offset".to_owned(),
        }
    )]
    NowhereToBegin {
        committed_offset: Option<Offset>,
        log_start_offset: Offset,
        high_watermark: Offset,
    },
    #[error("The group has no such member: it has left, or its lease has expired. Join again.")]
    UnknownMember,
    /// Another member owns the partition, or has owned it since that generation.
    #[error(
        "The member has not owned this partition since the generation it sent; the group's \
         generation is {generation}. Fetch or send a heartbeat to get the current assignment."
    )]
    IllegalGeneration { generation: i64 },
    #[error("The group has members, so only its members can commit offsets.")]
    GroupNotEmpty,
    #[error("The token's scope lacks {scope}.")]
    ScopeLacks { scope: String },
    /// `scope` is enough.
    #[error(
        "The token does not cover this session. One with a transactional_id needs `produce` for \
         that name; one without belongs to the `sub` that opened it."
    )]
    SessionNotCovered { scope: String },
    #[error(
        "Only a token with a `sub`, or with `produce` for all names, opens a session without a \
         transactional_id. Give the session a name that the token's `produce` matches."
    )]
    NamelessSession,
    /// It lacks this word for some name.
    #[error(
        "The token does not cover this transaction. It needs `produce` for all topics that the \
         transaction appends to and for its session, and `group` for all groups whose offsets it \
         commits."
    )]
    TransactionNotCovered { word: Word },
    #[error("The limit of {limit} {what} is reached.")]
    TooMany { what: &'static str, limit: i64 },
    /// The tenant has as many as its setting allows; what is given back makes room.
    #[error("{} is {limit}. {}", .key.name(), room(*.key))]
    QuotaReached { key: Key, limit: i64 },
    #[error(
        "{} is {limit}; the tenant has sent or read more. Nothing was changed; repeat the request \
         in {retry_after_s} s.",
        .key.name()
    )]
    RateLimited { key: Key, limit: i64, retry_after_s: u64 },
}

impl Refusal {
    pub fn code(&self) -> Code {
        match self {
            Self::UnknownProducer { .. } => Code::UnknownProducer,
            Self::ProducerFenced { .. } => Code::ProducerFenced,
            Self::InvalidProducerEpoch { .. } => Code::InvalidProducerEpoch,
            Self::UnknownProducerState { .. } => Code::UnknownProducerState,
            Self::OutOfOrderSequence { .. } => Code::OutOfOrderSequence,
            Self::SequenceReused { .. } => Code::SequenceReused,
            Self::OffsetMismatch { .. } => Code::OffsetMismatch,
            Self::BatchTooLarge { .. } => Code::BatchTooLarge,
            Self::RecordIdReused { .. } => Code::RecordIdReused,
            Self::DuplicateRecord { .. } => Code::DuplicateRecord,
            Self::IdempotencyKeyReused | Self::OpenIdReused => Code::IdempotencyKeyReused,
            Self::IdempotencyKeyExpired => Code::IdempotencyKeyExpired,
            Self::PreconditionFailed { .. } => Code::PreconditionFailed,
            Self::TenantSuspended { .. }
            | Self::ScopeLacks { .. }
            | Self::SessionNotCovered { .. }
            | Self::NamelessSession
            | Self::TransactionNotCovered { .. } => Code::Forbidden,
            Self::TenantDeleted { .. } => Code::TenantNotFound,
            Self::InvalidTransactionId => Code::InvalidTransactionId,
            Self::TransactionExpired => Code::TransactionExpired,
            Self::TransactionNotFound => Code::TransactionNotFound,
            Self::TransactionReused => Code::TransactionReused,
            Self::InvalidTransactionState { .. } => Code::InvalidTransactionState,
            Self::RecordHeld { .. } | Self::ConcurrentTransactions { .. } => {
                Code::ConcurrentTransactions
            }
            Self::TransactionTooLarge { .. } => Code::TransactionTooLarge,
            Self::AppendsMissing { .. } => Code::AppendsMissing,
            Self::ProducerMismatch => Code::ProducerMismatch,
            Self::OffsetCommitConflict { .. } | Self::NothingProcessed { .. } => {
                Code::OffsetCommitConflict
            }
            Self::OffsetOutOfRange { .. } | Self::NowhereToBegin { .. } => Code::OffsetOutOfRange,
            Self::UnknownMember => Code::UnknownMember,
            Self::IllegalGeneration { .. } => Code::IllegalGeneration,
            Self::GroupNotEmpty => Code::GroupNotEmpty,
            Self::TooMany { .. } | Self::QuotaReached { .. } => Code::QuotaExceeded,
            Self::RateLimited { .. } => Code::RateLimited,
            Self::IdempotencyKeyAhead
            | Self::InvalidOpenId
            | Self::AboveMaxima { .. }
            | Self::SessionMissing
            | Self::OperatorMayNotCommit
            | Self::TimeoutTooLong { .. } => Code::InvalidRequest,
        }
    }
}

/// How many of the records are not in the list of errors.
fn unlisted(records: &[String]) -> String {
    match records.len().saturating_sub(MAX_LISTED) {
        0 => String::new(),
        more => format!(" (See errors, and {more} more.)"),
    }
}

/// What makes room below a quota.
fn room(key: Key) -> &'static str {
    match key {
        Key::MaxWaitingReads => "Wait until other reads have ended, or read without wait_ms.",
        Key::MaxSessions => "End sessions that are no longer needed, or reuse one.",
        Key::MaxGroups => "Delete groups that are no longer needed.",
        Key::MaxOpenTransactions => "Commit or abort ongoing transactions first.",
        Key::MaxPreparedTransactions => "Commit or abort prepared transactions first.",
        Key::MaxStagedBytes => "Commit or abort open transactions first.",
        _ => "Trim partitions, shorten retention, or delete topics.",
    }
}

fn next_step(state: State) -> &'static str {
    match state {
        State::Ongoing => "prepare it first",
        State::Prepared => "it can only be committed or aborted",
        State::Committed | State::Aborted => "it has ended",
    }
}

fn commit_conflict(
    expected: Option<Offset>,
    committed: Option<Offset>,
    pinned_by: Option<Uuid>,
) -> String {
    let number = |offset: Option<Offset>| offset.map_or("none".to_owned(), |n| n.to_string());
    match pinned_by {
        Some(id) => format!(
            "The prepared transaction {id} will commit an offset here. Wait until it has ended."
        ),
        None => format!(
            "The committed offset is {}, not {}: this or another client has committed here in the \
             meantime. Continue from the committed offset.",
            number(committed),
            number(expected)
        ),
    }
}
