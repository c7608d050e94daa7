use super::*;
use crate::http::extract::json;

fn open(text: &str) -> Result<Open, ValidationErrors> {
    json::parse::<OpenSession>(text)?.checked(&Arc::default())
}

#[test]
fn defaults_and_all_fields() {
    let default = open("{}").unwrap();
    assert_eq!((default.transaction_timeout_ms, default.condition), (None, None));
    let full = open(
        r#"{"transactional_id": "p", "producer_id": 17, "epoch": 4, "sequences": "reset",
            "open_id": "019AA5B6-5c00-7000-8000-000000000001", "sequencing": "monotonic",
            "transaction_timeout_ms": 900000}"#,
    )
    .unwrap();
    assert_eq!(full.condition, Some((ProducerId(17), 4)));
    assert_eq!(full.transaction_timeout_ms, Some(900_000));
    assert_eq!(full.open_id.unwrap().to_string(), "019aa5b6-5c00-7000-8000-000000000001");
    assert_eq!(full.sequencing, session::Sequencing::Monotonic);
    assert_eq!(full.sequences, session::Sequences::Reset);
}

#[test]
fn shapes_are_refused_by_pointer() {
    let table = [
        (r#"{"transactional_id": "a b"}"#, "/transactional_id"),
        (r#"{"producer_id": 1}"#, "/epoch"),
        (r#"{"epoch": 1}"#, "/producer_id"),
        (r#"{"producer_id": -1, "epoch": 0}"#, "/producer_id"),
        (r#"{"producer_id": 1, "epoch": 9007199254740992}"#, "/epoch"),
        (r#"{"open_id": "9f1c8d6e-1111-4111-8111-111111111111"}"#, "/open_id"),
        (r#"{"open_id": "019aa5b65c0070008000000000000001"}"#, "/open_id"),
        (r#"{"transaction_timeout_ms": 0}"#, "/transaction_timeout_ms"),
        (r#"{"transaction_timeout_ms": 9007199254740992}"#, "/transaction_timeout_ms"),
        (r#"{"sequencing": "random"}"#, "/sequencing"),
        (r#"{"sequence": "reset"}"#, "/sequence"),
    ];
    for (text, pointer) in table {
        assert_eq!(open(text).unwrap_err().listed[0].pointer, pointer, "{text}");
    }
}
