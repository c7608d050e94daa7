use super::*;
use crate::{
    http::extract::json,
    model::settings::{Change, Key, Value},
};

fn patch(text: &str) -> Result<TopicPatch, ValidationErrors> {
    let patch: PatchTopic = json::parse(text)?;
    checked(patch.partition_count, patch.settings)
}

#[test]
fn settings_keep_default_or_set() {
    assert_eq!(patch("{}").unwrap(), TopicPatch::default());
    let text = r#"{"partition_count": 8, "settings": {"max_batch_records": 7,
        "max_batch_bytes": "default"}}"#;
    let want = TopicPatch {
        partition_count: Some(8),
        settings: [
            (Key::MaxBatchRecords, Change::Set(Value::Number(7))),
            (Key::MaxBatchBytes, Change::Default),
        ]
        .into(),
    };
    assert_eq!(patch(text).unwrap(), want);
}

#[test]
fn shapes_are_refused_by_pointer() {
    let table = [
        (r#"{"partition_count": 0}"#, "/partition_count"),
        (r#"{"partition_count": 10001}"#, "/partition_count"),
        (r#"{"partitions": 1}"#, "/partitions"),
        (r#"{"settings": {"retention_ms": 1}}"#, "/settings/retention_ms"),
        (r#"{"settings": {"max_batch_records": 100001}}"#, "/settings/max_batch_records"),
        (r#"{"settings": {"max_batch_bytes": 0}}"#, "/settings/max_batch_bytes"),
        (r#"{"settings": {"max_record_bytes": 16777217}}"#, "/settings/max_record_bytes"),
        (r#"{"settings": {"max_record_bytes": 1.0}}"#, "/settings/max_record_bytes"),
        (r#"{"settings": {"max_record_bytes": "7"}}"#, "/settings/max_record_bytes"),
        // null is forever, which no limit of a batch knows
        (r#"{"settings": {"max_record_bytes": null}}"#, "/settings/max_record_bytes"),
        // settings of the tenant alone
        (r#"{"settings": {"max_topics": 1}}"#, "/settings/max_topics"),
        (r#"{"settings": {"producer_expiry_ms": null}}"#, "/settings/producer_expiry_ms"),
        (
            r#"{"settings": {"max_batch_bytes": 1, "max_batch_bytes": 1}}"#,
            "/settings/max_batch_bytes",
        ),
        (r#"{"settings": [1]}"#, "/settings"),
    ];
    for (text, pointer) in table {
        assert_eq!(patch(text).unwrap_err().listed[0].pointer, pointer, "{text}");
    }
}
