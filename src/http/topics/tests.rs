use super::*;
use crate::http::json;

fn patch(text: &str) -> Result<TopicPatch, Invalid> {
    let patch: PatchTopic = json::parse(text)?;
    checked(patch.partition_count, patch.settings)
}

#[test]
fn settings_keep_default_or_set() {
    assert_eq!(patch("{}").unwrap(), TopicPatch::default());
    let text = r#"{"partition_count": 8, "settings": {"max_batch_records": 7,
        "max_batch_bytes": "default", "max_record_bytes": null}}"#;
    let want = TopicPatch {
        partition_count: Some(8),
        max_batch_records: Change::Set(7),
        max_batch_bytes: Change::Default,
        max_record_bytes: Change::Default,
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
        (r#"{"settings": [1]}"#, "/settings"),
    ];
    for (text, pointer) in table {
        assert_eq!(patch(text).unwrap_err().faults[0].pointer, pointer, "{text}");
    }
}
