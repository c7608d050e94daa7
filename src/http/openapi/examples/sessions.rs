//! Examples of sessions in the OpenAPI document.

use serde_json::{Value, json};

/// The example session, either just opened or after its appends.
pub fn session(duplicate: Option<bool>) -> Value {
    let mut example = json!({"producer_id": 1, "epoch": 0, "transactional_id": "payment-service",
        "sequencing": "contiguous", "transaction_timeout_ms": 60000, "closed": false,
        "opened_at": "2026-11-21T08:00:00.000Z", "next_sequences": [],
        "aborted_transaction": null, "prepared_transactions": []});
    match duplicate {
        Some(duplicate) => example["duplicate"] = duplicate.into(),
        None => example["next_sequences"] = sequences(),
    }
    example
}

pub fn sequences() -> Value {
    json!([{"topic": "orders", "next_sequence": 1},
        {"topic": "orders", "partition": 0, "next_sequence": 1}])
}
