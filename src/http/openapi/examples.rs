//! Examples that operations share: of parameters by name, of problems by code.

use serde_json::{Value, json};
use utoipa::openapi::{
    RefOr,
    example::{Example, ExampleBuilder},
};

use crate::model::Code;

/// What a parameter may be; a test holds that every parameter has one.
pub fn parameter(operation_id: &str, name: &str) -> Option<Value> {
    Some(match (operation_id, name) {
        ("list_sessions", "after") => json!("17"),
        ("list_session_sequences", "after") => json!("orders/0"),
        (_, "after") => json!("orders"),
        (_, "If-Match" | "If-None-Match") => json!(ETAG),
        (_, "before") => json!(1),
        (_, "epoch" | "sequence" | "expected_offset") => json!(0),
        (_, "group") => json!("billing"),
        (_, "file") => json!("start.js"),
        (_, "isolation") => json!("read_committed"),
        (_, "limit") => json!(50),
        (_, "max_bytes") => json!(65_536),
        (_, "offset") => json!("latest"),
        (_, "partition") => json!(0),
        (_, "producer_id") => json!(1),
        (_, "timestamp") => json!("2026-11-21T08:00:00.000Z"),
        (_, "topic") => json!("orders"),
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

/// What the server says of a code.
fn detail(code: Code) -> &'static str {
    match code {
        Code::InvalidRequest => UNFIT,
        Code::Unauthenticated => "The token has expired.",
        Code::Forbidden => "The token's scope lacks produce:orders.",
        Code::RouteNotFound => "There is nothing at this path; see /openapi.json.",
        Code::TopicNotFound => "There is no topic orders.",
        Code::GroupNotFound => "There is no group billing: none has committed or joined.",
        Code::PartitionNotFound => "Topic orders has no partition 7; it has partitions 0 to 1.",
        Code::UnknownProducer => "There is no producer 17, or it has expired. Open a session.",
        Code::MethodNotAllowed => "This path knows other methods; see Allow.",
        Code::NotAcceptable => "This is answered as application/json.",
        Code::RequestTimeout => "The body was not there after 30000 ms.",
        Code::TopicExists => {
            "Topic orders exists with partition_count 2. PATCH raises it; it never shrinks."
        }
        Code::ProducerFenced => {
            "A newer session of this producer was opened: its epoch is 4. This one may do nothing \
             any more."
        }
        Code::InvalidProducerEpoch => {
            "This epoch was never issued; the producer's is 4. Epochs come from opening a session."
        }
        Code::OffsetMismatch => {
            "The partition's next offset is 140, not 100. Nothing was appended."
        }
        Code::UnknownProducerState => {
            "This producer has never appended here, so sequence 0 is expected, not 12."
        }
        Code::OutOfOrderSequence => {
            "Sequence 12 is expected here, not 14: a request before this one is missing."
        }
        Code::PreconditionFailed => {
            "If-Match names another state; the present one is \"1-9f3b2c1d0e5a4786\". Read it \
             again, then decide anew. Nothing was changed."
        }
        Code::PayloadTooLarge => "The body exceeds 16777216 bytes (decompressed).",
        Code::BatchTooLarge => "max_batch_records is 1000 here; this batch has 1200.",
        Code::UnsupportedMediaType => {
            "The body must be application/json or application/x-ndjson, in UTF-8."
        }
        Code::OffsetOutOfRange => {
            "Offset 200 lies outside the log: its first offset is 40, the next to be given is 140."
        }
        Code::SequenceReused => "Sequence 12 was used here with other records.",
        Code::IdempotencyKeyReused => {
            "This open_id was used by an open of another transactional_id or producer_id. Make a \
             new one for every open."
        }
        Code::InvalidTransactionId
        | Code::InvalidCursor
        | Code::TransactionNotFound
        | Code::UnknownMember
        | Code::InvalidTransactionState
        | Code::OffsetCommitConflict
        | Code::AppendsMissing
        | Code::IllegalGeneration
        | Code::GroupNotEmpty
        | Code::ProducerMismatch
        | Code::TopicInUse
        | Code::ConcurrentTransactions
        | Code::TransactionExpired
        | Code::TransactionTooLarge
        | Code::TransactionReused => detail_of_transaction(code),
        Code::QuotaExceeded => "max_topics is 1000. Delete topics that are not needed any more.",
        Code::Internal => "Something went wrong in the server; its log has the request id.",
        Code::Unavailable => "The database cannot be reached right now. Nothing was changed.",
        Code::Draining => "This replica is shutting down; send the same request again.",
        Code::OutcomeUnknown => {
            "The database went away before it answered. Send the same request again: with a \
             sequence it is stored once, and the repeat tells where."
        }
    }
}

/// What the server says of a code of transactions and offsets.
fn detail_of_transaction(code: Code) -> &'static str {
    match code {
        Code::InvalidTransactionId => {
            "A transaction id is a UUIDv7 whose instant lies at most 24 hours ahead of the \
             server's clock. Make a new one, or leave it out."
        }
        Code::InvalidCursor => "/offsets/0/cursor: this is no cursor of a fetch of this group.",
        Code::TransactionNotFound => "There is no transaction of this id: none was begun with it.",
        Code::UnknownMember => {
            "The group has no such member: it has left, or its lease has run out. Join again."
        }
        Code::InvalidTransactionState => {
            "The transaction is aborted (timeout): it has ended and changes no more."
        }
        Code::OffsetCommitConflict => {
            "The committed offset is 140, not 100: somebody else has committed here. Read on from \
             there."
        }
        Code::AppendsMissing => {
            "expected_appends is 3, but the transaction holds 2. Send what is missing, then \
             commit again."
        }
        Code::IllegalGeneration => {
            "The member does not own this partition since the generation it names; the group's is \
             4. Fetch or heartbeat to learn what it owns."
        }
        Code::GroupNotEmpty => "The group has members: offsets are committed by them, as members.",
        Code::ProducerMismatch => {
            "The transaction was not begun by this producer. Name the producer_id and epoch of \
             the session that began it, or none where there was none."
        }
        Code::TopicInUse => {
            "The prepared transaction 019aa5b6-5c00-7000-8000-000000000002 holds this topic. End \
             it first."
        }
        Code::ConcurrentTransactions => {
            "The session has an ongoing transaction, 019aa5b6-5c00-7000-8000-000000000002. Commit \
             or abort it first."
        }
        Code::TransactionExpired => {
            "This id is older than what is remembered: the transaction may have been committed or \
             aborted, or never begun. It is not run again."
        }
        Code::TransactionTooLarge => {
            "max_transaction_batches is 10000; with this request the transaction would have \
             10001, one for every partition of every append."
        }
        _ => {
            "A transaction of this id was begun with another payload. Repeat a begin exactly, or \
             make a new id."
        }
    }
}

const ETAG: &str = "\"0-5e1c7a90b3d2f468\"";

const UNFIT: &str = "/records/7/value: exactly one of value and value_base64 is expected";

/// The facts beside those words. (A code with facts cannot be forgotten here: the answers of all
/// tests are held against the examples.)
fn facts(code: Code) -> Value {
    match code {
        Code::InvalidRequest => {
            let (pointer, detail) = UNFIT.split_once(": ").unwrap_or_default();
            json!({"errors": [{"pointer": pointer, "detail": detail}]})
        }
        Code::Forbidden => json!({"required_scope": "produce:orders"}),
        Code::ProducerFenced | Code::InvalidProducerEpoch => json!({"current_epoch": 4}),
        Code::OffsetMismatch => json!({"expected_offset": 100, "next_offset": 140}),
        Code::UnknownProducerState => json!({"expected": 0}),
        Code::OutOfOrderSequence => json!({"expected": 12, "received": 14}),
        Code::PayloadTooLarge => json!({"limit": 16_777_216}),
        Code::BatchTooLarge | Code::QuotaExceeded => json!({"limit": 1000}),
        Code::OffsetOutOfRange => json!({"log_start_offset": 40, "high_watermark": 140}),
        Code::InvalidTransactionState => json!({"state": "aborted", "reason": "timeout"}),
        Code::OffsetCommitConflict => json!({"expected_offset": 100, "committed_offset": 140}),
        Code::AppendsMissing => json!({"expected": 3, "received": 2}),
        Code::IllegalGeneration => json!({"generation": 4}),
        Code::TopicInUse | Code::ConcurrentTransactions => {
            json!({"transaction_id": "019aa5b6-5c00-7000-8000-000000000002"})
        }
        Code::TransactionTooLarge => json!({"limit": 10_000}),
        _ => Value::Null,
    }
}
