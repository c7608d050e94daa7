//! Log lines and metrics: how they leave the process. Every metric's name, labels and help are
//! written once, in the table below. Label values come from closed sets (operations, codes, kinds),
//! never from a client.

use std::{io::IsTerminal, sync::OnceLock};

use anyhow::Context;
use metrics::{describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::{Level, level_filters::LevelFilter};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::LogFormat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

macro_rules! metrics_table {
    ($($constant:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help] pub const $constant: &str = $name;)*

        /// Every metric there is.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help,
        }),*];
    };
}

metrics_table! {
    HTTP_REQUESTS_TOTAL           Counter   "oncelog_http_requests_total" ["operation", "status"]
        "Requests answered.";
    HTTP_REQUEST_DURATION_SECONDS Histogram "oncelog_http_request_duration_seconds" ["operation"]
        "Time from a request's head to its answer, the time a read waited for records included.";
    HTTP_CONNECTIONS              Gauge     "oncelog_http_connections" []
        "Open connections.";
    ERRORS_TOTAL                  Counter   "oncelog_errors_total" ["code"]
        "Problems answered.";
    APPENDS_TOTAL                 Counter   "oncelog_appends_total" ["outcome"]
        "Append requests decided.";
    APPENDED_RECORDS_TOTAL        Counter   "oncelog_appended_records_total" []
        "Records appended.";
    APPENDED_BYTES_TOTAL          Counter   "oncelog_appended_bytes_total" []
        "Bytes of the records appended, before compression.";
    PASSES_TOTAL                  Counter   "oncelog_passes_total" ["kind"]
        "Trips of a lane to the database.";
    COMPARE_FAILURES_TOTAL        Counter   "oncelog_compare_failures_total" []
        "Appends that found a log moved by another process and were done again.";
    GROUP_REQUESTS                Histogram "oncelog_group_requests" []
        "Append requests that one pass carried.";
    READS_TOTAL                   Counter   "oncelog_reads_total" []
        "Reads answered.";
    READ_RECORDS_TOTAL            Counter   "oncelog_read_records_total" []
        "Records handed out.";
    WAITING_READS                 Gauge     "oncelog_waiting_reads" []
        "Reads that wait for records.";
    SNAPSHOTS_TOTAL               Counter   "oncelog_snapshots_total" []
        "Snapshots of producer sessions written.";
    JANITOR_RUNS_TOTAL            Counter   "oncelog_janitor_runs_total" ["task"]
        "Logs, producers and open ids that a clean-up round of the janitor worked on.";
    EXPIRED_PRODUCERS_TOTAL       Counter   "oncelog_expired_producers_total" ["kind"]
        "Producers forgotten after they had been idle too long.";
    EMBEDDED_RESTARTS_TOTAL       Counter   "oncelog_embedded_restarts_total" []
        "Times the embedded PostgreSQL died and was started again.";
}

/// One more in a gauge, for as long as it lives.
pub struct Counted(metrics::Gauge);

impl Counted {
    pub fn new(name: &'static str) -> Self {
        let gauge = metrics::gauge!(name);
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

const SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];
const GROUP_SIZES: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];

/// Sends log lines to standard error, which leaves standard output to what a command prints. The
/// level is ours; other crates speak from `warn` up. A second call in one process does nothing.
pub fn start_logging(format: LogFormat, level: LevelFilter) {
    let filter = Targets::new()
        .with_default(level.min(LevelFilter::from_level(Level::WARN)))
        .with_target("oncelog", level);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    let _ = match format {
        LogFormat::Text => {
            registry.with(lines.with_ansi(std::io::stderr().is_terminal())).try_init()
        }
        // The span of a request carries its id, so each line of it does.
        LogFormat::Json => registry
            .with(lines.json().flatten_event(true).with_current_span(true).with_span_list(false))
            .try_init(),
    };
}

/// The metrics of this process; the first call begins to record. Render it for `/metrics`, and call
/// `run_upkeep` every few seconds, or histograms keep every observation.
pub fn metrics() -> anyhow::Result<&'static PrometheusHandle> {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    if let Some(handle) = RECORDER.get() {
        return Ok(handle);
    }
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Full(GROUP_REQUESTS.into()), GROUP_SIZES)
        })
        .context("cannot set up the metrics")?
        .build_recorder();
    let handle = RECORDER.get_or_init(|| {
        let handle = recorder.handle();
        // Within `get_or_init` it happens once, so it can only fail if somebody else recorded before.
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::error!("another metrics recorder is installed; /metrics stays empty");
        }
        describe();
        handle
    });
    Ok(handle)
}

fn describe() {
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
            Kind::Histogram => describe_histogram!(metric.name, metric.help),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installs_once_and_renders_help_and_buckets() {
        let handle = metrics().unwrap();
        metrics().unwrap();
        metrics::counter!(APPENDS_TOTAL, "outcome" => "appended").increment(2);
        metrics::histogram!(HTTP_REQUEST_DURATION_SECONDS, "operation" => "read").record(0.02);
        metrics::histogram!(GROUP_REQUESTS).record(3.0);
        let text = handle.render();
        for line in [
            "# HELP oncelog_appends_total Append requests decided.",
            "# TYPE oncelog_appends_total counter",
            "oncelog_appends_total{outcome=\"appended\"} 2",
            "oncelog_http_request_duration_seconds_bucket{operation=\"read\",le=\"0.025\"} 1",
            "oncelog_group_requests_bucket{le=\"4\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn logging_twice_does_not_panic() {
        start_logging(LogFormat::Text, LevelFilter::ERROR);
        start_logging(LogFormat::Json, LevelFilter::ERROR);
    }

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        for metric in METRICS {
            assert!(metric.name.starts_with("oncelog_"), "{}", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == Kind::Counter,
                "{}",
                metric.name
            );
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }
}
