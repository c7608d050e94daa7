//! Examples that operations share: of parameters by name, of problems by code.

pub mod sessions;
pub mod transactions;

use serde_json::{Value, json};
use utoipa::openapi::{
    RefOr,
    example::{Example, ExampleBuilder},
};

use crate::{
    http::groups::{fetch, members},
    model::Code,
};

/// What a parameter may be; a test holds that every parameter has one.
pub fn parameter(operation_id: &str, name: &str) -> Option<Value> {
    Some(match (operation_id, name) {
        ("list_sessions", "after") => json!("17"),
        ("list_session_sequences", "after") => json!("orders/0"),
        ("list_transactions", "after") => json!(transactions::WHOLE),
        ("list_groups", "after") => json!("billing"),
        ("list_tenants", "after") => json!("acme"),
        (_, "after") => json!("orders"),
        (_, "as") => json!("operator"),
        (_, "Idempotency-Key") => json!("order-7"),
        (_, "If-Match" | "If-None-Match") => json!(ETAG),
        (_, "before") => json!(1),
        ("fetch_group", "cursor") => json!(fetch::CURSOR),
        (_, "cursor") => json!("AXQBBAEBAlqhJaQ"),
        (_, "epoch" | "sequence" | "expected_offset") => json!(0),
        (_, "group") => json!("billing"),
        (_, "file") => json!("start.js"),
        (_, "isolation") => json!("read_committed"),
        (_, "run") => json!("continue"),
        (_, "on_duplicate") => json!("skip"),
        (_, "limit") => json!(50),
        (_, "max_bytes") => json!(65_536),
        (_, "member_id") => json!(members::MEMBER),
        (_, "offset") => json!("latest"),
        (_, "older_than_ms") => json!(60_000),
        (_, "partition") => json!(0),
        (_, "producer_id") => json!(1),
        (_, "state") => json!("prepared"),
        (_, "tenant") => json!("acme"),
        (_, "timestamp") => json!("2026-11-21T08:00:00.000Z"),
        (_, "topic") => json!("orders"),
        ("get_transaction", "transaction_id") => json!(transactions::WHOLE),
        ("prepare_transaction" | "abort_transaction", "transaction_id") => {
            json!(transactions::BY_ID)
        }
        (_, "transaction_id") => json!(transactions::OF_A_SESSION),
        (_, "transactional_id") => json!("payment-service"),
        (_, "wait_ms") => json!(20_000),
        _ => return None,
    })
}

/// The problem document of a code, with all its facts.
pub fn problem(code: Code) -> RefOr<Example> {
    let mut value = json!({
        "type": format!("urn:oncelog:problem:{}", code.as_str()),
        "title": code.title(),
        "status": code.status(),
        "detail": detail(code),
        "instance": "urn:oncelog:request:019aa5b6-5c00-7000-8000-000000000001",
        "code": code.as_str(),
        "retry": code.retry().as_str(),
        "side_effects": code.side_effects().as_str(),
    });
    if let (Value::Object(value), Value::Object(facts)) = (&mut value, facts(code)) {
        value.extend(facts);
    }
    ExampleBuilder::new().summary(code.title()).value(Some(value)).build().into()
}

const ETAG: &str = "\"0-5e1c7a90b3d2f468\"";

macro_rules! problems {
    ($($code:ident $detail:literal $({ $($facts:tt)* })?;)*) => {
        /// What the server says of a code.
        fn detail(code: Code) -> &'static str {
            match code { $(Code::$code => $detail,)* }
        }

        /// The facts beside those words.
        fn facts(code: Code) -> Value {
            match code { $(Code::$code => json!({ $($($facts)*)? }),)* }
        }
    };
}

// (Facts cannot be forgotten here: the answers of all tests are held against the examples.)
problems! {
    InvalidRequest
        "/records/7/value: exactly one of value and value_base64 is expected"
        {"errors": [{"pointer": "/records/7/value",
            "detail": "exactly one of value and value_base64 is expected"}]};
    InvalidTransactionId
        "A transaction id is a UUIDv7 whose instant lies at most 24 hours ahead of the server's clock. \
         Make a new one, or leave it out.";
    InvalidCursor
        "/offsets/0/cursor: this is no cursor of a fetch of this group.";
    Unauthenticated
        "The token has expired.";
    Forbidden
        "The token's scope lacks produce:orders."
        {"required_scope": "produce:orders"};
    RouteNotFound
        "There is nothing at this path; see /openapi.json.";
    TopicNotFound
        "There is no topic orders.";
    PartitionNotFound
        "Topic orders has no partition 7; it has partitions 0 to 1.";
    UnknownProducer
        "There is no producer 17, or it has expired. Open a session.";
    TransactionNotFound
        "There is no transaction of this id: none was begun with it.";
    GroupNotFound
        "There is no group billing: none has committed or joined.";
    UnknownMember
        "The group has no such member: it has left, or its lease has run out. Join again.";
    TenantNotFound
        "There is no tenant acme: nobody made it, or it is gone.";
    MethodNotAllowed
        "This path knows other methods; see Allow.";
    NotAcceptable
        "This is answered as application/json.";
    RequestTimeout
        "The body was not there after 30000 ms.";
    TopicExists
        "Topic orders exists with partition_count 2. PATCH raises it; it never shrinks.";
    ProducerFenced
        "A newer session of this producer was opened: its epoch is 4. This one may do nothing any more."
        {"current_epoch": 4};
    InvalidProducerEpoch
        "This epoch was never issued; the producer's is 4. Epochs come from opening a session."
        {"current_epoch": 4};
    OffsetMismatch
        "The partition's next offset is 140, not 100. Nothing was appended."
        {"expected_offset": 100, "next_offset": 140};
    InvalidTransactionState
        "The transaction is aborted (timeout): it has ended and changes no more."
        {"state": "aborted", "reason": "timeout"};
    OffsetCommitConflict
        "The committed offset is 140, not 100: it was committed here since, by another or by yourself. Read on from there."
        {"expected_offset": 100, "committed_offset": 140};
    AppendsMissing
        "expected_appends is 3, but the transaction holds 2. Send what is missing, then commit again."
        {"expected": 3, "received": 2};
    IllegalGeneration
        "The member does not own this partition since the generation it names; the group's is 4. \
         Fetch or heartbeat to learn what it owns."
        {"generation": 4};
    GroupNotEmpty
        "The group has members: offsets are committed by them, as members.";
    ProducerMismatch
        "The transaction was not begun by this producer. Name the producer_id and epoch of the \
         session that began it, or none where there was none.";
    TopicInUse
        "The prepared transaction 019aa5b6-5c00-7000-8000-000000000002 holds topic orders: it may still \
         commit there. End it first."
        {"transaction_id": "019aa5b6-5c00-7000-8000-000000000002"};
    UnknownProducerState
        "This producer has never appended here, so sequence 0 is expected, not 12."
        {"expected": 0};
    OutOfOrderSequence
        "Sequence 12 is expected here, not 14: a request before this one is missing."
        {"expected": 12, "received": 14};
    DuplicateRecord
        "These records are stored already, and on_duplicate is `refuse`. Nothing was appended; send the \
         others alone."
        {"errors": [{"pointer": "/records/0", "detail": "stored already"}]};
    ConcurrentTransactions
        "The session has an ongoing transaction, 019aa5b6-5c00-7000-8000-000000000002. Commit or \
         abort it first."
        {"transaction_id": "019aa5b6-5c00-7000-8000-000000000002"};
    IdempotencyKeyExpired
        "This Idempotency-Key is older than what is remembered: the request may have been done. It is \
         not done again.";
    TransactionExpired
        "This id is older than what is remembered: the transaction may have been committed or \
         aborted, or never begun. It is not run again.";
    PreconditionFailed
        "If-Match names another state; the present one is \"1-9f3b2c1d0e5a4786\". Read it again, then \
         decide anew. Nothing was changed.";
    PayloadTooLarge
        "The body exceeds 16777216 bytes (decompressed)."
        {"limit": 16_777_216};
    BatchTooLarge
        "max_batch_records is 1000 here; this batch has 1200."
        {"limit": 1000};
    TransactionTooLarge
        "max_transaction_batches is 10000; with this request the transaction would have 10001, one \
         for every partition of every append."
        {"limit": 10_000};
    UnsupportedMediaType
        "The body must be application/json or application/x-ndjson, in UTF-8.";
    OffsetOutOfRange
        "Offset 200 lies outside the log: its first offset is 40, the next to be given is 140."
        {"log_start_offset": 40, "high_watermark": 140};
    RecordIdReused
        "Ids of these records were used with other keys or values. Nothing was appended; a new record \
         needs an id of its own."
        {"errors": [{"pointer": "/records/0", "detail": "another record has this id"}]};
    SequenceReused
        "Sequence 12 was used here with other records.";
    IdempotencyKeyReused
        "This open_id was used by an open of another transactional_id or producer_id. Make a new one \
         for every open.";
    TransactionReused
        "A transaction of this id was begun with another payload. Repeat a begin exactly, or make a \
         new id.";
    QuotaExceeded
        "max_topics is 1000. Delete topics that are not needed any more."
        {"limit": 1000};
    Internal
        "Something went wrong in the server; its log has the request id.";
    Unavailable
        "The database cannot be reached right now. Nothing was changed.";
    Draining
        "This replica is shutting down; send the same request again.";
    OutcomeUnknown
        "The database went away before it answered. Send the same request again: with a sequence it \
         is stored once, and the repeat tells where.";
}
