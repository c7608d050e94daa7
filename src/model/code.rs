//! The closed table of error codes, read by the problem writer, the docs and the tests.

/// What a client should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Change the request.
    Never,
    /// Send the same request again.
    Same,
    /// Open the session again, then continue.
    Reopen,
    /// Send the same request again after `Retry-After`.
    Later,
}

/// Whether a refused request may have changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideEffects {
    None,
    Unknown,
}

macro_rules! codes {
    ($($code:ident $text:literal $status:literal $retry:ident $side_effects:ident $title:literal;)*) => {
        /// A stable error code (RFC 9457 problem, member `code`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($code),* }

        impl Code {
            /// Every code; a test produces each of them.
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$code => $text),* }
            }
            /// The HTTP status of answers with this code.
            pub fn status(self) -> u16 {
                match self { $(Code::$code => $status),* }
            }
            pub fn retry(self) -> Retry {
                match self { $(Code::$code => Retry::$retry),* }
            }
            pub fn side_effects(self) -> SideEffects {
                match self { $(Code::$code => SideEffects::$side_effects),* }
            }
            pub fn title(self) -> &'static str {
                match self { $(Code::$code => $title),* }
            }
        }
    };
}

codes! {
    InvalidRequest          "invalid_request"           400 Never  None    "Invalid request";
    InvalidTransactionId    "invalid_transaction_id"    400 Never  None    "Invalid transaction id";
    InvalidCursor           "invalid_cursor"            400 Never  None    "Invalid cursor";
    Unauthenticated         "unauthenticated"           401 Never  None    "Missing or invalid token";
    Forbidden               "forbidden"                 403 Never  None    "Access denied";
    RouteNotFound           "route_not_found"           404 Never  None    "Route not found";
    TopicNotFound           "topic_not_found"           404 Never  None    "Topic not found";
    PartitionNotFound       "partition_not_found"       404 Never  None    "Partition not found";
    UnknownProducer         "unknown_producer"          404 Reopen None    "Unknown or expired producer";
    TransactionNotFound     "transaction_not_found"     404 Never  None    "Transaction not found";
    GroupNotFound           "group_not_found"           404 Never  None    "Group not found";
    UnknownMember           "unknown_member"            404 Reopen None    "Unknown or expired group member";
    TenantNotFound          "tenant_not_found"          404 Never  None    "Tenant not found";
    MethodNotAllowed        "method_not_allowed"        405 Never  None    "Method not allowed";
    NotAcceptable           "not_acceptable"            406 Never  None    "No acceptable representation";
    RequestTimeout          "request_timeout"           408 Same   None    "Request body timed out";
    TopicExists             "topic_exists"              409 Never  None    "Topic exists with different partition count";
    ProducerFenced          "producer_fenced"           409 Never  None    "Producer fenced by a newer session";
    InvalidProducerEpoch    "invalid_producer_epoch"    409 Never  None    "Producer epoch was never issued";
    OffsetMismatch          "offset_mismatch"           409 Never  None    "Next offset does not match";
    InvalidTransactionState "invalid_transaction_state" 409 Never  None    "Transaction state does not allow this";
    OffsetCommitConflict    "offset_commit_conflict"    409 Never  None    "Committed offset does not match";
    AppendsMissing          "appends_missing"           409 Never  None    "Number of appends does not match";
    IllegalGeneration       "illegal_generation"        409 Never  None    "Member does not own the partition";
    GroupNotEmpty           "group_not_empty"           409 Never  None    "Group has active members";
    ProducerMismatch        "producer_mismatch"         409 Never  None    "Transaction belongs to another producer";
    TopicInUse              "topic_in_use"              409 Never  None    "Topic held by a prepared transaction";
    UnknownProducerState    "unknown_producer_state"    409 Reopen None    "Producer has not appended here";
    OutOfOrderSequence      "out_of_order_sequence"     409 Reopen None    "Sequence out of order";
    DuplicateRecord         "duplicate_record"          409 Never  None    "Record already stored";
    ConcurrentTransactions  "concurrent_transactions"   409 Later  None    "Conflict with another open transaction";
    TransactionExpired      "transaction_expired"       410 Never  None    "Transaction outcome no longer remembered";
    IdempotencyKeyExpired   "idempotency_key_expired"   410 Never  None    "Idempotency key expired";
    PreconditionFailed      "precondition_failed"       412 Never  None    "ETag does not match";
    PayloadTooLarge         "payload_too_large"         413 Never  None    "Request body too large";
    BatchTooLarge           "batch_too_large"           413 Never  None    "Batch too large";
    TransactionTooLarge     "transaction_too_large"     413 Never  None    "Transaction too large";
    UnsupportedMediaType    "unsupported_media_type"    415 Never  None    "Unsupported media type";
    OffsetOutOfRange        "offset_out_of_range"       416 Never  None    "Offset out of range";
    SequenceReused          "sequence_reused"           422 Never  None    "Sequence reused with different records";
    RecordIdReused          "record_id_reused"          422 Never  None    "Record id reused with different content";
    IdempotencyKeyReused    "idempotency_key_reused"    422 Never  None    "Idempotency key reused with different request";
    TransactionReused       "transaction_reused"        422 Never  None    "Transaction id reused with different request";
    QuotaExceeded           "quota_exceeded"            429 Never  None    "Quota exceeded";
    RateLimited             "rate_limited"              429 Later  None    "Rate limit exceeded";
    Internal                "internal"                  500 Same   Unknown "Internal error";
    Unavailable             "unavailable"               503 Later  None    "Service unavailable";
    Draining                "draining"                  503 Later  None    "Replica is shutting down";
    OutcomeUnknown          "outcome_unknown"           503 Same   Unknown "Outcome unknown";
}

impl Retry {
    pub fn as_str(self) -> &'static str {
        match self {
            Retry::Never => "never",
            Retry::Same => "same",
            Retry::Reopen => "reopen",
            Retry::Later => "later",
        }
    }
}

impl SideEffects {
    pub fn as_str(self) -> &'static str {
        match self {
            SideEffects::None => "none",
            SideEffects::Unknown => "unknown",
        }
    }
}
