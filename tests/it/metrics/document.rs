//! `docs/metrics.md` is the code's table, and names no metric that is not.

use std::{fs, path::Path};

use oncelog::telemetry::{Kind, METRICS, Metric, Values};

const WRITE: &str = "ONCELOG_TEST_WRITE_DOCS";
const MARK: &str = "<!-- written by `make docs`; do not edit from here on -->\n";

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn values(values: Values) -> String {
    match values {
        Values::These(values) => values.join(", "),
        Values::Codes => "a problem code".into(),
        Values::CodeOrNone => "a problem code, or none".into(),
        Values::Operations => "an operation of the OpenAPI document, or unmatched".into(),
        Values::Statuses => "a status of HTTP".into(),
        Values::Lanes => "the number of a lane, from 0".into(),
        Values::Version => "the version".into(),
        Values::Names => "a name, or (other)".into(),
    }
}

fn row(metric: &Metric) -> String {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let label =
        |label: &oncelog::telemetry::Label| format!("`{}` ({})", label.name, values(label.values));
    let labels: Vec<String> = metric.labels.iter().map(label).collect();
    format!("| `{}` | {kind} | {} | {} |\n", metric.name, labels.join("; "), metric.help)
}

#[test]
fn the_committed_table_is_the_codes() {
    let document = read("docs/metrics.md");
    let (written, committed) = document.split_once(MARK).unwrap();
    let mut table =
        String::from("\n| metric | kind | labels (values) | meaning |\n|---|---|---|---|\n");
    table.extend(METRICS.iter().map(row));
    table += "
Metrics of the process follow: `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_open_fds`, `process_max_fds`, `process_threads`,
`process_start_time_seconds` and other standard names.
";
    if std::env::var_os(WRITE).is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
        fs::write(path, format!("{written}{MARK}{table}")).unwrap();
        return;
    }
    // not assert_eq: nobody wants to read both
    assert!(committed == table, "docs/metrics.md is not the code's: run `make docs`");
}

#[test]
fn every_metric_spoken_of_exists() {
    for path in ["docs/metrics.md", "docs/alerts.yml", "docs/runbook.md", "README.md"] {
        let text = read(path);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for word in words.filter(|word| word.starts_with("oncelog_")) {
            let is = |metric: &Metric| match word.strip_prefix(metric.name) {
                Some("") => true,
                Some("_bucket" | "_sum" | "_count") => metric.kind == Kind::Histogram,
                _ => false,
            };
            assert!(METRICS.iter().any(is), "{path}: {word}");
        }
    }
}

/// Every alert has a severity, and a section of the runbook; and every section an alert.
#[test]
fn every_alert_has_a_severity_and_a_section_of_the_runbook() {
    let (alerts, runbook) = (read("docs/alerts.yml"), read("docs/runbook.md"));
    let (mut names, mut wrong) = (Vec::new(), Vec::new());
    for alert in alerts.split("\n      - alert: ").skip(1) {
        let value = |key: &str| {
            let lines = alert.lines().map(str::trim_start);
            lines.into_iter().find_map(|line| line.strip_prefix(key)).unwrap_or_default()
        };
        let name = alert.lines().next().unwrap();
        let severity = value("severity: ");
        let is_known = ["critical", "warning", "info"].contains(&severity);
        let anchor = format!("docs/runbook.md#{}", name.to_lowercase());
        if !is_known || value("runbook: ") != anchor {
            wrong.push((name, severity, value("runbook: ")));
        }
        names.push(name);
    }
    assert!(wrong.is_empty() && names.len() > 20, "{wrong:?}");
    let sections: Vec<&str> = runbook.split("\n## ").skip(1).collect();
    let titles: Vec<&str> = sections.iter().map(|text| text.lines().next().unwrap()).collect();
    assert_eq!(titles, names, "docs/runbook.md has a section for each alert, in their order");
    for section in sections {
        let parts = ["**Means:**", "**Look at:**", "**Do:**"];
        let at: Vec<_> = parts.iter().map(|part| section.find(part)).collect();
        assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{section}");
    }
}
