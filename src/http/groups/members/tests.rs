use super::*;
use crate::{
    http::extract::json,
    model::{
        Name,
        group::{DEFAULT_SESSION_TIMEOUT_MS, MAX_PATTERN_BYTES},
    },
};

fn join(text: &str) -> Result<Join, ValidationErrors> {
    json::parse::<JoinGroup>(text)?.checked(Coverage::All)
}

#[test]
fn defaults_and_all_fields() {
    let names = |names: &[&str]| names.iter().map(|name| Name::parse(name).unwrap()).collect();
    let least = join(r#"{"topics": ["b", "a", "b"]}"#).unwrap();
    let subscription = Subscription { topics: names(&["a", "b"]), ..Subscription::default() };
    let want =
        Join { subscription, instance_id: None, session_timeout_ms: None, auto_offset_reset: None };
    assert_eq!(least, want);
    let full = join(
        r#"{"topics": ["a"], "topic_pattern": "^b\\.", "instance_id": "pod-1",
            "session_timeout_ms": 1000, "auto_offset_reset": "error"}"#,
    );
    let pattern = Some(TopicPattern::parse("^b\\.").unwrap());
    let want = Join {
        subscription: Subscription { topics: names(&["a"]), pattern, readable: Coverage::All },
        instance_id: Some("pod-1".into()),
        session_timeout_ms: Some(1_000),
        auto_offset_reset: Some(group::AutoOffsetReset::Error),
    };
    assert_eq!(full.unwrap(), want);
    assert!(
        join(r#"{"topics": [], "topic_pattern": "."}"#).unwrap().subscription.topics.is_empty()
    );
}

#[test]
fn what_the_document_says_of_defaults_is_what_holds() {
    assert_eq!(DEFAULT_SESSION_TIMEOUT_MS, 45_000);
    assert_eq!((MAX_TOPICS, MAX_PATTERN_BYTES, MAX_INSTANCE_ID_BYTES), (1_000, 1_000, 255));
}

#[test]
fn limits_from_both_sides() {
    let of = |name: &str, value: Value| join(&json!({"topics": ["t"], name: value}).to_string());
    let table = [
        ("topics", json!(vec!["t"; MAX_TOPICS]), json!(vec!["t"; MAX_TOPICS + 1])),
        (
            "topic_pattern",
            json!("t".repeat(MAX_PATTERN_BYTES)),
            json!("t".repeat(MAX_PATTERN_BYTES + 1)),
        ),
        ("topic_pattern", json!("t"), json!("")),
        (
            "instance_id",
            json!("ä".repeat(MAX_INSTANCE_ID_BYTES / 2)),
            json!("ä".repeat(MAX_INSTANCE_ID_BYTES / 2 + 1)),
        ),
        ("instance_id", json!("i"), json!("")),
        ("session_timeout_ms", json!(1), json!(0)),
        ("session_timeout_ms", json!(MAX_INTEGER), json!(MAX_INTEGER + 1)),
    ];
    for (name, good, bad) in table {
        assert!(of(name, good).is_ok(), "{name}");
        let errors = of(name, bad).unwrap_err().listed;
        assert_eq!((errors.len(), &*errors[0].pointer), (1, &*format!("/{name}")));
    }
}

#[test]
fn shapes_are_refused_by_pointer() {
    let table = [
        ("{}", "/topics"),
        (r#"{"topics": []}"#, "/topics"),
        (r#"{"topics": null, "instance_id": "i"}"#, "/topics"),
        (r#"{"topics": "t"}"#, "/topics"),
        (r#"{"topics": ["t", "a b"]}"#, "/topics/1"),
        (r#"{"topics": ["t", 1]}"#, "/topics/1"),
        (r#"{"topic_pattern": "("}"#, "/topic_pattern"),
        (r#"{"topic_pattern": "\\p{Greek}{1000}{1000}"}"#, "/topic_pattern"),
        (r#"{"topic_pattern": "a\u0000"}"#, "/topic_pattern"),
        (r#"{"topics": ["t"], "instance_id": "a\u0000"}"#, "/instance_id"),
        (r#"{"topics": ["t"], "instance_id": "\ud800"}"#, "/instance_id"),
        (r#"{"topics": ["t"], "session_timeout_ms": 1.5}"#, "/session_timeout_ms"),
        (r#"{"topics": ["t"], "auto_offset_reset": "newest"}"#, "/auto_offset_reset"),
        (r#"{"topic": "t"}"#, "/topic"),
    ];
    for (text, pointer) in table {
        assert_eq!(join(text).unwrap_err().listed[0].pointer, pointer, "{text}");
    }
}

/// All that is wrong with a request is told at once.
#[test]
fn every_mistake_is_told() {
    let text = r#"{"topics": ["..", "t", "/"], "topic_pattern": "[", "instance_id": "",
        "session_timeout_ms": -1}"#;
    let errors = join(text).unwrap_err().listed;
    let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
    let want = ["/topics/0", "/topics/2", "/topic_pattern", "/instance_id", "/session_timeout_ms"];
    assert_eq!(pointers, want);
    assert!(errors[2].detail.contains("regular expression"), "{}", errors[2].detail);
}
