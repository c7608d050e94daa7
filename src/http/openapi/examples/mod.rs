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

/// The example of a parameter; a test checks that every parameter has one.
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
        (_, "revocation_id") => json!("019aa5b6-5c00-7000-8000-00000000000c"),
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
        /// The example detail of a code.
        fn detail(code: Code) -> &'static str {
            match code { $(Code::$code => $detail,)* }
        }

        /// The example facts of a code.
        fn facts(code: Code) -> Value {
            match code { $(Code::$code => json!({ $($($facts)*)? }),)* }
        }
    };
}

// (Facts cannot be forgotten here: the answers of all tests are held against the examples.)
problems! {
    InvalidRequest
        "/records/7/value: give either `value` or `value_base64`, not both"
        {"errors": [{"pointer": "/records/7/value",
            "detail": "give either `value` or `value_base64`, not both"}]};
    InvalidTransactionId
        "A transaction id must be a UUIDv7 whose instant is at most 24 hours ahead of the server's \
         clock. Use a new one, or omit it.";
    InvalidCursor
        "/offsets/0/cursor: this is not a cursor from a fetch of this group.";
    Unauthenticated
        "The token has expired.";
    Forbidden
        "The token's scope lacks produce:orders."
        {"required_scope": "produce:orders"};
    RouteNotFound
        "This path does not exist; see /openapi.json.";
    TopicNotFound
        "Topic orders does not exist.";
    PartitionNotFound
        "Topic orders has no partition 7; its partitions are 0 to 1.";
    UnknownProducer
        "Producer 17 does not exist or has expired. Open a session.";
    TransactionNotFound
        "No transaction with this id was begun.";
    GroupNotFound
        "Group billing does not exist. A join or an offset commit creates it.";
    UnknownMember
        "The group has no such member: it has left, or its lease has expired. Join again.";
    TenantNotFound
        "Tenant acme does not exist.";
    MethodNotAllowed
        "This path does not support the method; see Allow.";
    NotAcceptable
        "This operation answers application/json.";
    RequestTimeout
        "The request body was not received within 30000 ms.";
    TopicExists
        "Topic orders exists with partition_count 2. PATCH can increase it; it cannot be reduced.";
    ProducerFenced
        "A newer session of this producer is open, with epoch 4. This session can no longer write."
        {"current_epoch": 4};
    InvalidProducerEpoch
        "No session is open in this epoch; the producer's current epoch is 4. Use the epoch that \
         opening a session returned."
        {"current_epoch": 4};
    OffsetMismatch
        "The partition's next offset is 140, not 100. Nothing was appended."
        {"expected_offset": 100, "next_offset": 140};
    InvalidTransactionState
        "The transaction is aborted (timeout): it has ended."
        {"state": "aborted", "reason": "timeout"};
    OffsetCommitConflict
        "The committed offset is 140, not 100: this or another client has committed here in the \
         meantime. Continue from the committed offset."
        {"expected_offset": 100, "committed_offset": 140};
    AppendsMissing
        "expected_appends is 3, but the transaction holds 2 appends. Send the missing ones, then \
         commit again."
        {"expected": 3, "received": 2};
    IllegalGeneration
        "The member has not owned this partition since the generation it sent; the group's \
         generation is 4. Fetch or send a heartbeat to get the current assignment."
        {"generation": 4};
    GroupNotEmpty
        "The group has members, so only its members can commit offsets.";
    ProducerMismatch
        "Another producer began this transaction. Give the producer_id and epoch of the session \
         that began it, or neither if no session did.";
    TopicInUse
        "The prepared transaction 019aa5b6-5c00-7000-8000-000000000002 holds topic orders and may \
         still commit to it. Commit or abort it first."
        {"transaction_id": "019aa5b6-5c00-7000-8000-000000000002"};
    UnknownProducerState
        "This producer has not appended here yet: expected sequence 0, received 12."
        {"expected": 0};
    OutOfOrderSequence
        "Expected sequence 12, received 14: an earlier request is missing."
        {"expected": 12, "received": 14};
    DuplicateRecord
        "These records are already stored, and on_duplicate is `refuse`. Nothing was appended. \
         Send the other records without them."
        {"errors": [{"pointer": "/records/0", "detail": "already stored"}]};
    ConcurrentTransactions
        "The session has an ongoing transaction, 019aa5b6-5c00-7000-8000-000000000002. Commit or \
         abort it first."
        {"transaction_id": "019aa5b6-5c00-7000-8000-000000000002"};
    IdempotencyKeyExpired
        "This Idempotency-Key is older than the deduplication window: the request may already have \
         been done, so it is not done again.";
    TransactionExpired
        "This id is older than the remembered outcomes (transaction_retention_ms): the transaction \
         may have been committed, aborted or never begun. It is not run again.";
    PreconditionFailed
        "The ETag in If-Match is not the current one, which is \"1-9f3b2c1d0e5a4786\". Nothing was \
         changed. Read the resource again before you change it.";
    PayloadTooLarge
        "The request body exceeds 16777216 bytes (decompressed)."
        {"limit": 16_777_216};
    BatchTooLarge
        "max_batch_records is 1000; this batch has 1200."
        {"limit": 1000};
    TransactionTooLarge
        "max_transaction_batches is 10000; with this request the transaction would have 10001 \
         batches, one per partition of every append."
        {"limit": 10_000};
    UnsupportedMediaType
        "The request body must be application/json or application/x-ndjson, in UTF-8.";
    OffsetOutOfRange
        "Offset 200 is outside the log: the log start offset is 40, the high watermark is 140."
        {"log_start_offset": 40, "high_watermark": 140};
    RecordIdReused
        "The ids of these records were already used with a different key or value. Nothing was \
         appended. Give every new record its own id."
        {"errors": [{"pointer": "/records/0", "detail": "another record has this id"}]};
    SequenceReused
        "Sequence 12 was already used here with different records.";
    IdempotencyKeyReused
        "This open_id was already used to open another transactional_id or producer_id. Use a new \
         one for every open.";
    TransactionReused
        "A transaction with this id was begun with a different request. Repeat the begin \
         unchanged, or use a new id.";
    QuotaExceeded
        "max_topics is 1000. Delete topics that are no longer needed."
        {"limit": 1000};
    RateLimited
        "max_requests_per_s is 100; the tenant has sent or read more. Nothing was changed; repeat \
         the request in 1 s."
        {"limit": 100};
    Internal
        "Internal error. The server log has details under this request id.";
    Unavailable
        "The database is unavailable. Nothing was changed; retry.";
    Draining
        "This replica is shutting down; send the same request again.";
    OutcomeUnknown
        "The database connection was lost before the outcome was known. Send the same request \
         again: an append with a sequence is stored once, and the repeat returns its offsets.";
}
