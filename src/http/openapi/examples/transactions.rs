//! Examples of transactions in the OpenAPI document: three one-request transactions, one of a
//! session, and one that is prepared and then aborted.

use serde_json::{Value, json};

/// A one-request transaction.
pub const WHOLE: &str = "019aa5b6-5c00-7000-8000-000000000002";
/// A one-request transaction that also commits an offset.
const STEP: &str = "019aa5b6-5c00-7000-8000-000000000003";
/// The transaction of the example session.
pub const OF_A_SESSION: &str = "019aa5b6-5c00-7000-8000-000000000004";
/// A transaction without a session.
pub const BY_ID: &str = "019aa5b6-5c00-7000-8000-000000000005";

const INSTANT: &str = "2026-11-21T08:00:00.000Z";

/// The first that people meet: pages list examples by name, and the id is the server's.
pub fn at_once() -> Value {
    json!({"commit": true,
        "appends": [{"topic": "orders", "records": [{"value": {"total": 12.5}}]}]})
}

pub fn one_request() -> Value {
    json!({"transaction_id": WHOLE, "commit": true, "appends": [
        {"topic": "orders", "records": [{"key": "customer-7", "value": {"total": 12.5}}]},
        {"topic": "orders", "partition": 1, "records": [{"value": "audited"}]}]})
}

pub fn compare_and_set() -> Value {
    json!({"transaction_id": STEP, "commit": true,
        "appends": [{"topic": "orders", "records": [{"key": "customer-7", "value": "invoiced"}]}],
        "offsets": [{"group": "invoicing", "topic": "orders", "partition": 0, "offset": 1,
            "expected_offset": null}]})
}

pub fn of_a_session() -> Value {
    json!({"transaction_id": OF_A_SESSION, "producer_id": 1, "epoch": 0, "timeout_ms": 30000})
}

pub fn by_id() -> Value {
    json!({"transaction_id": BY_ID,
        "appends": [{"topic": "orders", "records": [{"value": "perhaps"}]}]})
}

pub fn of_its_session() -> Value {
    json!({"producer_id": 1, "epoch": 0})
}

pub fn append() -> Value {
    json!({"producer_id": 1, "epoch": 0, "sequence": 0, "appends": [
        {"topic": "orders", "records": [{"key": "customer-1", "value": {"total": 7}}]}]})
}

pub fn offsets_of_a_member() -> Value {
    json!({"producer_id": 1, "epoch": 0, "offsets": [{"group": "invoicing", "member_id": "m-1",
        "generation": 3, "topic": "orders", "partition": 0, "offset": 2}]})
}

pub fn offsets() -> Value {
    json!({"producer_id": 1, "epoch": 0, "offsets": [{"group": "invoicing", "topic": "orders",
        "partition": 0, "offset": 2, "expected_offset": 1}]})
}

pub fn commit_with_the_last() -> Value {
    json!({"producer_id": 1, "epoch": 0, "expected_appends": 2, "appends": [
        {"topic": "orders", "partition": 2, "records": [{"value": "audited"}]}]})
}

/// The answer to a call when the transaction holds this many items of `appends`.
fn answered(id: &str, state: &str, append_count: i64) -> Value {
    json!({"transaction_id": id, "state": state, "producer_id": null, "epoch": null,
        "created_at": INSTANT, "expires_at": null, "prepared_at": null, "ended_at": null,
        "reason": null, "append_count": append_count, "duplicate": false})
}

fn with(mut transaction: Value, facts: Value) -> Value {
    if let (Value::Object(transaction), Value::Object(facts)) = (&mut transaction, facts) {
        transaction.extend(facts);
    }
    transaction
}

/// The answer to `one_request` and to its repeat.
pub fn whole(duplicate: bool) -> Value {
    let facts = json!({"ended_at": INSTANT, "duplicate": duplicate, "appends": [
        {"topic": "orders", "partition": 3, "base_offset": 2, "record_count": 1},
        {"topic": "orders", "partition": 1, "base_offset": 1, "record_count": 1}]});
    with(answered(WHOLE, "committed", 2), facts)
}

/// The description of the transaction of `one_request`.
pub fn described() -> Value {
    without(whole(false), &["duplicate"])
}

/// A list page with that transaction.
pub fn list() -> Value {
    json!({"transactions": [without(whole(false), &["duplicate", "appends"])], "next_after": null})
}

fn without(mut transaction: Value, names: &[&str]) -> Value {
    if let Value::Object(transaction) = &mut transaction {
        transaction.retain(|name, _| !names.contains(&name.as_str()));
    }
    transaction
}

/// The answer to `append` and to `offsets`.
pub fn ongoing() -> Value {
    with(
        answered(OF_A_SESSION, "ongoing", 1),
        json!({"producer_id": 1, "epoch": 0, "expires_at": INSTANT}),
    )
}

/// The answer to `commit_with_the_last`.
pub fn committed() -> Value {
    let facts = json!({"producer_id": 1, "epoch": 0, "ended_at": INSTANT, "appends": [
        {"topic": "orders", "partition": 1, "base_offset": 2, "record_count": 1},
        {"topic": "orders", "partition": 2, "base_offset": 0, "record_count": 1}]});
    with(answered(OF_A_SESSION, "committed", 2), facts)
}

pub fn prepared() -> Value {
    with(answered(BY_ID, "prepared", 1), json!({"prepared_at": INSTANT}))
}

/// The same transaction, aborted.
pub fn aborted() -> Value {
    let facts = json!({"prepared_at": INSTANT, "ended_at": INSTANT, "reason": "client"});
    with(answered(BY_ID, "aborted", 1), facts)
}
