//! Translates refusals of the rules into errors: a detail for people, facts for programs.

use uuid::Uuid;

use super::errors;
use crate::{
    broker::Error,
    model::{
        Code, Epoch, Fault, Invalid, Offset, Sequence,
        transaction::{Reason, State},
    },
    rules::Refusal,
};

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::UnknownProducer { producer_id } => Self::unknown_producer(producer_id.0),
            Refusal::ProducerFenced { current_epoch } => Self::producer_fenced(current_epoch),
            Refusal::InvalidProducerEpoch { current_epoch } => {
                Self::invalid_producer_epoch(current_epoch)
            }
            Refusal::UnknownProducerState { received } => Self::unknown_producer_state(received),
            Refusal::OutOfOrderSequence { expected, received } => {
                Self::out_of_order_sequence(expected, received)
            }
            Refusal::SequenceReused { sequence } => Self::sequence_reused(sequence),
            Refusal::OffsetMismatch { expected_offset, next_offset } => {
                Self::offset_mismatch(expected_offset, next_offset)
            }
            Refusal::BatchTooLarge { limit_name, limit, received } => {
                let detail = format!("{limit_name} is {limit}; this batch has {received}.");
                Self::new(Code::BatchTooLarge, detail).fact("limit", limit)
            }
            Refusal::RecordIdReused { records } => Self::record_id_reused(records),
            Refusal::DuplicateRecord { records } => Self::duplicate_record(records),
            Refusal::RecordHeld { transaction_id } => Self::record_held(transaction_id),
            Refusal::IdempotencyKeyReused => Self::idempotency_key_reused(),
            Refusal::IdempotencyKeyExpired => Self::idempotency_key_expired(),
            Refusal::IdempotencyKeyAhead => Self::idempotency_key_ahead(),
            Refusal::PreconditionFailed { etag } => Self::precondition_failed(&etag),
            Refusal::AboveMaxima { settings } => Self::above_maxima("", &settings),
            Refusal::TenantSuspended { tenant } => Self::tenant_suspended(&tenant),
            Refusal::TenantDeleted { tenant } => Self::tenant_deleted(&tenant),
            Refusal::OpenIdReused => Self::open_id_reused(),
            Refusal::InvalidOpenId => Self::invalid_open_id(),
            Refusal::InvalidTransactionId => Self::invalid_transaction_id(),
            Refusal::TransactionExpired => Self::transaction_expired(),
            Refusal::TransactionNotFound => Self::transaction_not_found(),
            Refusal::TransactionReused => Self::transaction_reused(),
            Refusal::InvalidTransactionState { state, reason } => {
                Self::invalid_transaction_state(state, reason)
            }
            Refusal::ConcurrentTransactions { transaction_id } => {
                Self::concurrent_transactions(transaction_id)
            }
            Refusal::TransactionTooLarge { limit, received } => {
                Self::transaction_too_large(limit, received)
            }
            Refusal::AppendsMissing { expected, received } => {
                Self::appends_missing(expected, received)
            }
            Refusal::ProducerMismatch => Self::producer_mismatch(),
            Refusal::SessionMissing => Self::session_missing(),
            Refusal::OperatorMayNotCommit => Self::operator_may_not_commit(),
            Refusal::TimeoutTooLong { maximum, received } => {
                Self::timeout_too_long("/timeout_ms", maximum, received)
            }
            Refusal::OffsetCommitConflict { expected_offset, committed_offset, pinned_by } => {
                Self::offset_commit_conflict(expected_offset, committed_offset, pinned_by)
            }
            Refusal::NothingProcessed { offset } => Self::nothing_processed(offset),
            Refusal::OffsetOutOfRange { offset, log_start_offset, high_watermark } => {
                Self::offset_out_of_range(offset, log_start_offset, high_watermark)
            }
            Refusal::UnknownMember => Self::unknown_member(),
            Refusal::IllegalGeneration { generation } => Self::illegal_generation(generation),
            Refusal::GroupNotEmpty => Self::group_not_empty(),
            Refusal::NowhereToBegin { committed_offset, log_start_offset, high_watermark } => {
                Self::nowhere_to_begin(committed_offset, (log_start_offset, high_watermark))
            }
            Refusal::TooMany { what, limit } => Self::too_many(what, limit),
        }
    }
}

/// Errors of appends and producers.
impl Error {
    fn unknown_producer(id: i64) -> Self {
        let detail = format!("Producer {id} does not exist or has expired. Open a session.");
        Self::new(Code::UnknownProducer, detail)
    }

    fn producer_fenced(current_epoch: Epoch) -> Self {
        let detail = format!(
            "A newer session of this producer is open, with epoch {current_epoch}. This session \
             can no longer write."
        );
        Self::new(Code::ProducerFenced, detail).fact("current_epoch", current_epoch)
    }

    fn invalid_producer_epoch(current_epoch: Epoch) -> Self {
        let detail = format!(
            "This epoch was never issued; the producer's current epoch is {current_epoch}. Use the \
             epoch that opening a session returned."
        );
        Self::new(Code::InvalidProducerEpoch, detail).fact("current_epoch", current_epoch)
    }

    fn unknown_producer_state(received: Sequence) -> Self {
        let detail = format!(
            "This producer has not appended here yet: expected sequence 0, received {received}."
        );
        Self::new(Code::UnknownProducerState, detail).fact("expected", 0)
    }

    fn out_of_order_sequence(expected: Sequence, received: Sequence) -> Self {
        let detail = format!(
            "Expected sequence {expected}, received {received}: an earlier request is missing."
        );
        Self::new(Code::OutOfOrderSequence, detail)
            .fact("expected", expected)
            .fact("received", received)
    }

    fn sequence_reused(sequence: Sequence) -> Self {
        let detail = format!("Sequence {sequence} was already used here with different records.");
        Self::new(Code::SequenceReused, detail)
    }

    fn records(code: Code, records: Vec<String>, detail: &str, each: &str) -> Self {
        let Invalid { faults, unlisted, .. } =
            Invalid::of(records.into_iter().map(|pointer| Fault::new(pointer, each)));
        let more = if unlisted > 0 {
            format!(" (See errors, and {unlisted} more.)")
        } else {
            String::new()
        };
        Self::new(code, format!("{detail}{more}")).fact("errors", errors(&faults))
    }

    fn record_id_reused(records: Vec<String>) -> Self {
        let detail = "The ids of these records were already used with a different key or value. \
                      Nothing was appended. Give every new record its own id.";
        Self::records(Code::RecordIdReused, records, detail, "another record has this id")
    }

    fn duplicate_record(records: Vec<String>) -> Self {
        let detail = "These records are already stored, and on_duplicate is `refuse`. Nothing was \
                      appended. Send the other records without them.";
        Self::records(Code::DuplicateRecord, records, detail, "already stored")
    }

    fn record_held(transaction_id: Uuid) -> Self {
        let detail = format!(
            "The prepared transaction {transaction_id} holds a record with this id. Send the same \
             request again after that transaction has ended."
        );
        Self::new(Code::ConcurrentTransactions, detail)
            .fact("transaction_id", transaction_id.to_string())
    }

    fn idempotency_key_reused() -> Self {
        let detail = "This Idempotency-Key was already used with a different request. Repeat the \
                      request unchanged, or use a new key.";
        Self::new(Code::IdempotencyKeyReused, detail)
    }

    fn idempotency_key_ahead() -> Self {
        let detail =
            "the instant of a UUIDv7 key must be at most 24 hours ahead of the server's clock";
        Self::invalid("Idempotency-Key", detail)
    }

    fn idempotency_key_expired() -> Self {
        let detail = "This Idempotency-Key is older than the deduplication window: the request may \
                      already have been done, so it is not done again.";
        Self::new(Code::IdempotencyKeyExpired, detail)
    }

    fn invalid_open_id() -> Self {
        let detail =
            "open_id must be a UUIDv7 whose instant is within 24 hours of the server's clock";
        Self::invalid("/open_id", detail)
    }

    fn open_id_reused() -> Self {
        let detail = "This open_id was already used to open another transactional_id or \
                      producer_id. Use a new one for every open.";
        Self::new(Code::IdempotencyKeyReused, detail)
    }

    fn offset_mismatch(expected_offset: Offset, next_offset: Offset) -> Self {
        let detail = format!(
            "The partition's next offset is {next_offset}, not {expected_offset}. Nothing was \
             appended."
        );
        Self::new(Code::OffsetMismatch, detail)
            .fact("expected_offset", expected_offset)
            .fact("next_offset", next_offset)
    }
}

/// Errors of transactions.
impl Error {
    pub fn invalid_transaction_id() -> Self {
        let detail = "A transaction id must be a UUIDv7 whose instant is at most 24 hours ahead of \
                      the server's clock. Use a new one, or omit it.";
        Self::new(Code::InvalidTransactionId, detail)
    }

    fn transaction_not_found() -> Self {
        let detail = "No transaction with this id was begun.";
        Self::new(Code::TransactionNotFound, detail)
    }

    fn transaction_expired() -> Self {
        let detail = "This id is older than the remembered outcomes (transaction_retention_ms): \
                      the transaction may have been committed, aborted or never begun. It is not \
                      run again.";
        Self::new(Code::TransactionExpired, detail)
    }

    fn transaction_reused() -> Self {
        let detail = "A transaction with this id was begun with a different request. Repeat the \
                      begin unchanged, or use a new id.";
        Self::new(Code::TransactionReused, detail)
    }

    fn invalid_transaction_state(state: State, reason: Option<Reason>) -> Self {
        let why = reason.map_or(String::new(), |reason| format!(" ({})", reason.as_str()));
        let what = match state {
            State::Ongoing => "prepare it first",
            State::Prepared => "it can only be committed or aborted",
            State::Committed | State::Aborted => "it has ended",
        };
        let detail = format!("The transaction is {}{why}: {what}.", state.as_str());
        Self::new(Code::InvalidTransactionState, detail)
            .fact("state", state.as_str())
            .fact("reason", reason.map(Reason::as_str))
    }

    fn concurrent_transactions(transaction_id: Uuid) -> Self {
        let detail = format!(
            "The session has an ongoing transaction, {transaction_id}. Commit or abort it first."
        );
        Self::new(Code::ConcurrentTransactions, detail)
            .fact("transaction_id", transaction_id.to_string())
    }

    fn transaction_too_large(limit: i64, received: i64) -> Self {
        let detail = format!(
            "max_transaction_batches is {limit}; with this request the transaction would have \
             {received} batches, one per partition of every append."
        );
        Self::new(Code::TransactionTooLarge, detail).fact("limit", limit)
    }

    fn appends_missing(expected: i64, received: i64) -> Self {
        let detail = format!(
            "expected_appends is {expected}, but the transaction holds {received} appends. Send \
             the missing ones, then commit again."
        );
        Self::new(Code::AppendsMissing, detail)
            .fact("expected", expected)
            .fact("received", received)
    }

    fn producer_mismatch() -> Self {
        let detail = "Another producer began this transaction. Give the producer_id and epoch of \
                      the session that began it, or neither if no session did.";
        Self::new(Code::ProducerMismatch, detail)
    }

    fn session_missing() -> Self {
        Self::invalid(
            "/producer_id",
            "missing: a session began the transaction, so every call needs its producer_id and \
             epoch",
        )
    }

    /// `pointer` is the field that asked for the timeout.
    pub fn timeout_too_long(pointer: &str, maximum: i64, received: i64) -> Self {
        let detail = format!("{received} exceeds max_transaction_timeout_ms, which is {maximum}");
        Self::invalid(pointer, &detail)
    }

    fn operator_may_not_commit() -> Self {
        let detail = "an operator can commit only prepared transactions; abort this one instead";
        Self::invalid("?as", detail)
    }
}

/// Errors of group offsets.
impl Error {
    fn offset_commit_conflict(
        expected_offset: Option<Offset>,
        committed_offset: Option<Offset>,
        pinned_by: Option<Uuid>,
    ) -> Self {
        let number = |offset: Option<Offset>| offset.map_or("none".to_owned(), |n| n.to_string());
        let error = match pinned_by {
            Some(id) => {
                let detail = format!(
                    "The prepared transaction {id} will commit an offset here. Wait until it has \
                     ended."
                );
                Self::new(Code::OffsetCommitConflict, detail)
            }
            None => {
                let detail = format!(
                    "The committed offset is {}, not {}: this or another client has committed here \
                     in the meantime. Continue from the committed offset.",
                    number(committed_offset),
                    number(expected_offset)
                );
                Self::new(Code::OffsetCommitConflict, detail)
            }
        };
        let error = error
            .fact("expected_offset", expected_offset)
            .fact("committed_offset", committed_offset);
        match pinned_by {
            Some(id) => error.fact("transaction_id", id.to_string()),
            None => error,
        }
    }

    fn nothing_processed(offset: Offset) -> Self {
        let detail = "None of the member's offsets advances: its records are already committed, or \
                      it read none. Continue from the committed offsets; to append without having \
                      read, omit the offsets.";
        Self::new(Code::OffsetCommitConflict, detail)
            .fact("expected_offset", offset)
            .fact("committed_offset", offset)
    }

    fn offset_out_of_range(
        offset: Offset,
        log_start_offset: Offset,
        high_watermark: Offset,
    ) -> Self {
        let detail =
            format!("/offsets: offset {offset} exceeds the high watermark {high_watermark}.");
        Self::new(Code::OffsetOutOfRange, detail)
            .fact("log_start_offset", log_start_offset)
            .fact("high_watermark", high_watermark)
    }

    fn too_many(what: &str, limit: i64) -> Self {
        let detail = format!("The limit of {limit} {what} is reached.");
        Self::new(Code::QuotaExceeded, detail).fact("limit", limit)
    }

    fn nowhere_to_begin(
        committed_offset: Option<Offset>,
        (log_start_offset, high_watermark): (Offset, Offset),
    ) -> Self {
        let why = match committed_offset {
            Some(offset) => format!("its committed offset {offset} has been trimmed"),
            None => "it has no committed offset".to_owned(),
        };
        let detail = format!(
            "The group's auto_offset_reset is error, and {why}: the log holds [{log_start_offset}, \
             {high_watermark}). Reset the group's offsets, or join with another auto_offset_reset."
        );
        Self::new(Code::OffsetOutOfRange, detail)
            .fact("log_start_offset", log_start_offset)
            .fact("high_watermark", high_watermark)
    }

    fn unknown_member() -> Self {
        let detail =
            "The group has no such member: it has left, or its lease has expired. Join again.";
        Self::new(Code::UnknownMember, detail)
    }

    fn illegal_generation(generation: i64) -> Self {
        let detail = format!(
            "The member has not owned this partition since the generation it sent; the group's \
             generation is {generation}. Fetch or send a heartbeat to get the current assignment."
        );
        Self::new(Code::IllegalGeneration, detail).fact("generation", generation)
    }

    fn group_not_empty() -> Self {
        let detail = "The group has members, so only its members can commit offsets.";
        Self::new(Code::GroupNotEmpty, detail)
    }
}
