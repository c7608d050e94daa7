//! The closed list of error codes: one table, read by the problem writer, the docs and the tests.

/// What a client should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Change the request.
    Never,
    /// Send the same again.
    Same,
    /// Open the session again, then go on.
    Reopen,
    /// Send the same after `Retry-After`.
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
            /// Every code there is; a test produces each.
            pub const ALL: &'static [Code] = &[$(Code::$code),*];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$code => $text),* }
            }
            /// The HTTP status it is answered with.
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
    InvalidRequest          "invalid_request"           400 Never  None    "The request is malformed";
    InvalidTransactionId    "invalid_transaction_id"    400 Never  None    "Not a transaction id of about now";
    InvalidCursor           "invalid_cursor"            400 Never  None    "Not a cursor of this topic or group";
    Unauthenticated         "unauthenticated"           401 Never  None    "No valid token";
    Forbidden               "forbidden"                 403 Never  None    "The token does not permit this";
    RouteNotFound           "route_not_found"           404 Never  None    "No such route";
    TopicNotFound           "topic_not_found"           404 Never  None    "No such topic";
    PartitionNotFound       "partition_not_found"       404 Never  None    "No such partition";
    UnknownProducer         "unknown_producer"          404 Reopen None    "Unknown or expired producer";
    TransactionNotFound     "transaction_not_found"     404 Never  None    "No such transaction";
    GroupNotFound           "group_not_found"           404 Never  None    "No such group";
    UnknownMember           "unknown_member"            404 Reopen None    "Not a member of this group any more";
    TenantNotFound          "tenant_not_found"          404 Never  None    "No such tenant";
    MethodNotAllowed        "method_not_allowed"        405 Never  None    "Method not allowed here";
    NotAcceptable           "not_acceptable"            406 Never  None    "No such representation";
    RequestTimeout          "request_timeout"           408 Same   None    "The body came too slowly";
    TopicExists             "topic_exists"              409 Never  None    "The topic exists with another partition count";
    ProducerFenced          "producer_fenced"           409 Never  None    "A newer session of this producer was opened";
    InvalidProducerEpoch    "invalid_producer_epoch"    409 Never  None    "This epoch was never issued";
    OffsetMismatch          "offset_mismatch"           409 Never  None    "The partition's next offset is another";
    InvalidTransactionState "invalid_transaction_state" 409 Never  None    "The transaction's state does not permit this";
    OffsetCommitConflict    "offset_commit_conflict"    409 Never  None    "The group's committed offset is another";
    AppendsMissing          "appends_missing"           409 Never  None    "The transaction holds another number of appends";
    IllegalGeneration       "illegal_generation"        409 Never  None    "Another member owns the partition";
    GroupNotEmpty           "group_not_empty"           409 Never  None    "The group has members";
    ProducerMismatch        "producer_mismatch"         409 Never  None    "The transaction belongs to another producer";
    TopicInUse              "topic_in_use"              409 Never  None    "A prepared transaction holds the topic";
    UnknownProducerState    "unknown_producer_state"    409 Reopen None    "This producer has not appended here yet";
    OutOfOrderSequence      "out_of_order_sequence"     409 Reopen None    "A sequence before this one is missing";
    DuplicateRecord         "duplicate_record"          409 Never  None    "A record of this id is stored already";
    ConcurrentTransactions  "concurrent_transactions"   409 Later  None    "The session has an ongoing transaction";
    TransactionExpired      "transaction_expired"       410 Never  None    "The outcome is no longer known";
    IdempotencyKeyExpired   "idempotency_key_expired"   410 Never  None    "The key is older than what is remembered";
    PreconditionFailed      "precondition_failed"       412 Never  None    "It is not as If-Match says any more";
    PayloadTooLarge         "payload_too_large"         413 Never  None    "The body is too large";
    BatchTooLarge           "batch_too_large"           413 Never  None    "The batch is too large";
    TransactionTooLarge     "transaction_too_large"     413 Never  None    "The transaction is too large";
    UnsupportedMediaType    "unsupported_media_type"    415 Never  None    "This media type is not taken here";
    OffsetOutOfRange        "offset_out_of_range"       416 Never  None    "The offset lies outside the log";
    SequenceReused          "sequence_reused"           422 Never  None    "This sequence was used with another payload";
    RecordIdReused          "record_id_reused"          422 Never  None    "This record id was used with another key or value";
    IdempotencyKeyReused    "idempotency_key_reused"    422 Never  None    "This key was used for another request";
    TransactionReused       "transaction_reused"        422 Never  None    "This transaction id was used with another payload";
    QuotaExceeded           "quota_exceeded"            429 Never  None    "A limit of the tenant is reached";
    Internal                "internal"                  500 Same   Unknown "Internal error";
    Unavailable             "unavailable"               503 Later  None    "Not available right now";
    Draining                "draining"                  503 Later  None    "This replica is shutting down";
    OutcomeUnknown          "outcome_unknown"           503 Same   Unknown "The outcome is not known";
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
