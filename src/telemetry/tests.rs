use std::time::Duration;

use super::*;

#[test]
fn installs_once_and_renders_help_and_buckets() {
    let metrics = metrics().unwrap();
    super::metrics().unwrap();
    metrics::counter!(SESSIONS_TOTAL, "event" => "opened").increment(2);
    metrics::histogram!(PASS_DURATION_SECONDS, "kind" => "quick").record(0.02);
    metrics::histogram!(GROUP_REQUESTS).record(3.0);
    metrics::histogram!(GROUP_BYTES).record(300.0);
    let text = metrics.render();
    let version = format!("oncelog_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"));
    for line in [
        "# HELP oncelog_reads_total Reads answered.",
        "# TYPE oncelog_reads_total counter",
        "oncelog_sessions_total{event=\"opened\"} 2",
        // shown before they happen
        "oncelog_sessions_total{event=\"ended\"} 0",
        "oncelog_errors_total{code=\"internal\"} 0",
        "oncelog_passes_total{kind=\"full\",outcome=\"contended\"} 0",
        "oncelog_janitor_failures_total{task=\"trim\"} 0",
        "oncelog_group_records_count 0",
        "oncelog_pass_duration_seconds_bucket{kind=\"quick\",le=\"0.025\"} 1",
        "oncelog_group_requests_bucket{le=\"4\"} 1",
        "oncelog_group_bytes_bucket{le=\"1024\"} 1",
        &version,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    // a histogram with labels is not
    for absent in ["janitor_duration_seconds_count{task=\"trim\"}", "parked_duration_seconds"] {
        assert!(!text.contains(absent), "{absent} is in\n{text}");
    }
    assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
}

#[test]
fn logging_twice_does_not_panic() {
    start_logging(LogFormat::Text, LevelFilter::ERROR, None);
    start_logging(LogFormat::Json, LevelFilter::ERROR, None);
}

#[tokio::test]
async fn waits_add_up_in_their_request_only() {
    waited(Duration::from_secs(9));
    let work = async {
        waited(Duration::from_secs(1));
        tokio::task::yield_now().await;
        waited(Duration::from_secs(2));
        "done"
    };
    let idle = counting_waits(async {});
    let (busy, idle) = tokio::join!(counting_waits(work), idle);
    assert_eq!(busy, ("done", Duration::from_secs(3)));
    assert_eq!(idle, ((), Duration::ZERO));
}

#[test]
fn every_code_has_its_counter() {
    for (index, code) in Code::ALL.iter().enumerate() {
        assert_eq!(*code as usize, index);
    }
}

/// Units a name may end in, before `_total`.
const UNITS: &[&str] = &["seconds", "bytes"];

#[test]
fn names_follow_the_rules_of_prometheus() {
    let mut names = std::collections::BTreeSet::new();
    for Metric { name, kind, labels, help } in METRICS {
        assert!(names.insert(name), "{name} twice");
        let words: Vec<&str> = name.split('_').collect();
        let plain = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
        assert!(words[0] == "oncelog" && words.iter().all(plain), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        // the exporter's own suffixes, and units that are not the base
        for word in ["count", "sum", "bucket", "ms", "millis", "milliseconds", "us", "kb", "mb"] {
            assert!(!words.contains(&word), "{name}");
        }
        // a unit stands last
        let unit = words.iter().position(|word| UNITS.contains(word));
        let last = words.len() - 1 - usize::from(*kind == Kind::Counter);
        assert!(unit.is_none_or(|unit| unit == last), "{name}");
        assert!(!name.contains("duration") || name.ends_with("_duration_seconds"), "{name}");
        assert!(help.ends_with('.') && help.is_ascii() && !help.contains('\\'), "{name}");
        for label in *labels {
            assert!(!["le", "quantile", "job", "instance"].contains(&label.name), "{name}");
            assert!(label.name.bytes().all(|b| b.is_ascii_lowercase()), "{name}: {}", label.name);
        }
    }
}
