//! What the rules refuse, in words for people and facts for programs.

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
                let detail = format!("{limit_name} is {limit} here; this batch has {received}.");
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

/// Appends and their producers.
impl Error {
    fn unknown_producer(id: i64) -> Self {
        let detail = format!("There is no producer {id}, or it has expired. Open a session.");
        Self::new(Code::UnknownProducer, detail)
    }

    fn producer_fenced(current_epoch: Epoch) -> Self {
        let detail = format!(
            "A newer session of this producer was opened: its epoch is {current_epoch}. This one \
             may do nothing any more."
        );
        Self::new(Code::ProducerFenced, detail).fact("current_epoch", current_epoch)
    }

    fn invalid_producer_epoch(current_epoch: Epoch) -> Self {
        let detail = format!(
            "This epoch was never issued; the producer's is {current_epoch}. Epochs come from \
             opening a session."
        );
        Self::new(Code::InvalidProducerEpoch, detail).fact("current_epoch", current_epoch)
    }

    fn unknown_producer_state(received: Sequence) -> Self {
        let detail = format!(
            "This producer has never appended here, so sequence 0 is expected, not {received}."
        );
        Self::new(Code::UnknownProducerState, detail).fact("expected", 0)
    }

    fn out_of_order_sequence(expected: Sequence, received: Sequence) -> Self {
        let detail = format!(
            "Sequence {expected} is expected here, not {received}: a request before this one is \
             missing."
        );
        Self::new(Code::OutOfOrderSequence, detail)
            .fact("expected", expected)
            .fact("received", received)
    }

    fn sequence_reused(sequence: Sequence) -> Self {
        let detail = format!("Sequence {sequence} was used here with other records.");
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
        let detail = "Ids of these records were used with other keys or values. Nothing was \
                      appended; a new record needs an id of its own.";
        Self::records(Code::RecordIdReused, records, detail, "another record has this id")
    }

    fn duplicate_record(records: Vec<String>) -> Self {
        let detail = "These records are stored already, and on_duplicate is `refuse`. Nothing was \
                      appended; send the others alone.";
        Self::records(Code::DuplicateRecord, records, detail, "stored already")
    }

    fn record_held(transaction_id: Uuid) -> Self {
        let detail = format!(
            "The prepared transaction {transaction_id} holds a record of this id. Whether it is \
             stored shows when that has ended; then send the same again."
        );
        Self::new(Code::ConcurrentTransactions, detail)
            .fact("transaction_id", transaction_id.to_string())
    }

    fn idempotency_key_reused() -> Self {
        let detail = "This Idempotency-Key was used here with another payload. Repeat a request \
                      exactly, or make a new key.";
        Self::new(Code::IdempotencyKeyReused, detail)
    }

    fn idempotency_key_ahead() -> Self {
        let detail = "a key that is a UUIDv7 has an instant at most 24 hours ahead of the server's \
                      clock";
        Self::invalid("Idempotency-Key", detail)
    }

    fn idempotency_key_expired() -> Self {
        let detail = "This Idempotency-Key is older than what is remembered: the request may have \
                      been done. It is not done again.";
        Self::new(Code::IdempotencyKeyExpired, detail)
    }

    fn invalid_open_id() -> Self {
        let detail =
            "an open_id is a UUIDv7 whose instant lies within 24 hours of the server's clock";
        Self::invalid("/open_id", detail)
    }

    fn open_id_reused() -> Self {
        let detail = "This open_id was used by an open of another transactional_id or producer_id. \
                      Make a new one for every open.";
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

/// Transactions.
impl Error {
    pub fn invalid_transaction_id() -> Self {
        let detail = "A transaction id is a UUIDv7 whose instant lies at most 24 hours ahead of \
                      the server's clock. Make a new one, or leave it out.";
        Self::new(Code::InvalidTransactionId, detail)
    }

    fn transaction_not_found() -> Self {
        let detail = "There is no transaction of this id: none was begun with it.";
        Self::new(Code::TransactionNotFound, detail)
    }

    fn transaction_expired() -> Self {
        let detail = "This id is older than what is remembered: the transaction may have been \
                      committed or aborted, or never begun. It is not run again.";
        Self::new(Code::TransactionExpired, detail)
    }

    fn transaction_reused() -> Self {
        let detail = "A transaction of this id was begun with another payload. Repeat a begin \
                      exactly, or make a new id.";
        Self::new(Code::TransactionReused, detail)
    }

    fn invalid_transaction_state(state: State, reason: Option<Reason>) -> Self {
        let why = reason.map_or(String::new(), |reason| format!(" ({})", reason.as_str()));
        let what = match state {
            State::Ongoing => "can do that only after it was prepared",
            State::Prepared => "takes nothing more; commit or abort it",
            State::Committed | State::Aborted => "has ended and changes no more",
        };
        let detail = format!("The transaction is {}{why}: it {what}.", state.as_str());
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
             {received}, one for every partition of every append."
        );
        Self::new(Code::TransactionTooLarge, detail).fact("limit", limit)
    }

    fn appends_missing(expected: i64, received: i64) -> Self {
        let detail = format!(
            "expected_appends is {expected}, but the transaction holds {received}. Send what is \
             missing, then commit again."
        );
        Self::new(Code::AppendsMissing, detail)
            .fact("expected", expected)
            .fact("received", received)
    }

    fn producer_mismatch() -> Self {
        let detail = "The transaction was not begun by this producer. Name the producer_id and \
                      epoch of the session that began it, or none where there was none.";
        Self::new(Code::ProducerMismatch, detail)
    }

    fn session_missing() -> Self {
        Self::invalid(
            "/producer_id",
            "the transaction was begun by a session: every call names its producer_id and epoch",
        )
    }

    /// `pointer`: where it was asked for.
    pub fn timeout_too_long(pointer: &str, maximum: i64, received: i64) -> Self {
        let detail = format!("{received} is above max_transaction_timeout_ms, which is {maximum}");
        Self::invalid(pointer, &detail)
    }

    fn operator_may_not_commit() -> Self {
        Self::invalid("?as", "an operator commits what is prepared, and aborts anything else")
    }
}

/// Offsets of groups.
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
                    "The prepared transaction {id} is to commit an offset here. Wait for its end."
                );
                Self::new(Code::OffsetCommitConflict, detail)
            }
            None => {
                let detail = format!(
                    "The committed offset is {}, not {}: it was committed here since, by another or \
                     by yourself. Read on from there.",
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
        let detail = "None of the offsets that a member gives here moves: its records were \
                      processed and committed before, or there were none. Read on from what is \
                      committed; who appends without having read leaves the offsets out.";
        Self::new(Code::OffsetCommitConflict, detail)
            .fact("expected_offset", offset)
            .fact("committed_offset", offset)
    }

    fn offset_out_of_range(
        offset: Offset,
        log_start_offset: Offset,
        high_watermark: Offset,
    ) -> Self {
        let detail = format!(
            "/offsets: {offset} lies above the high watermark {high_watermark}; a group goes on at \
             most there."
        );
        Self::new(Code::OffsetOutOfRange, detail)
            .fact("log_start_offset", log_start_offset)
            .fact("high_watermark", high_watermark)
    }

    fn too_many(what: &str, limit: i64) -> Self {
        let detail = format!("There may be {limit} {what}, and there are as many.");
        Self::new(Code::QuotaExceeded, detail).fact("limit", limit)
    }

    fn nowhere_to_begin(
        committed_offset: Option<Offset>,
        (log_start_offset, high_watermark): (Offset, Offset),
    ) -> Self {
        let why = match committed_offset {
            Some(offset) => format!("its committed offset {offset} has been trimmed away"),
            None => "it has committed none".to_owned(),
        };
        let detail = format!(
            "The group's auto_offset_reset is error, and {why}: the log holds [{log_start_offset}, \
             {high_watermark}). Reset its offsets, or join with another auto_offset_reset."
        );
        Self::new(Code::OffsetOutOfRange, detail)
            .fact("log_start_offset", log_start_offset)
            .fact("high_watermark", high_watermark)
    }

    fn unknown_member() -> Self {
        let detail = "The group has no such member: it has left, or its lease has run out. Join \
                      again.";
        Self::new(Code::UnknownMember, detail)
    }

    fn illegal_generation(generation: i64) -> Self {
        let detail = format!(
            "The member does not own this partition since the generation it names; the group's \
             is {generation}. Fetch or heartbeat to learn what it owns."
        );
        Self::new(Code::IllegalGeneration, detail).fact("generation", generation)
    }

    fn group_not_empty() -> Self {
        let detail = "The group has members: offsets are committed by them, as members.";
        Self::new(Code::GroupNotEmpty, detail)
    }
}
