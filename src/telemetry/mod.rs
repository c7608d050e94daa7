//! Log lines and metrics: how they leave the process. Every metric's name, labels and help are
//! written once, in the table. Label values come from closed sets (operations, codes, kinds), never
//! from a client, but for metrics with a bounded number of series (`named`).
//!
//! Looking a metric up costs a hash and an allocation, so what is measured for every request has
//! its handles made once, when its owner starts.

mod line_limit;
mod named;
mod table;

use std::{
    cell::Cell,
    fs::File,
    io::IsTerminal,
    sync::{Mutex, OnceLock},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use metrics::{Counter, Gauge, Histogram, Label as KeyLabel};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use tracing::{Level, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

pub use line_limit::LineLimit;
pub use named::{OTHERS, show_named};
pub use table::*;

use crate::{config::LogFormat, model::Code};

/// One more in a gauge, for as long as it lives.
pub struct Counted(Gauge);

impl Counted {
    pub fn new(gauge: &Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A counter for every problem code.
pub struct ByCode(Vec<Counter>);

impl ByCode {
    pub fn new(counter: impl Fn(Code) -> Counter) -> Self {
        Self(Code::ALL.iter().map(|code| counter(*code)).collect())
    }

    pub fn count(&self, code: Code) {
        // the codes stand in `ALL` in their order
        if let Some(counter) = self.0.get(code as usize) {
            counter.increment(1);
        }
    }
}

/// A histogram of one label, which is shown from its first observation on.
pub struct LabelledHistogram {
    metric: &'static str,
    label: &'static str,
    value: &'static str,
    made: OnceLock<Histogram>,
}

impl LabelledHistogram {
    pub fn new(metric: &'static str, label: &'static str, value: &'static str) -> Self {
        Self { metric, label, value, made: OnceLock::new() }
    }

    pub fn record(&self, value: f64) {
        let make = || metrics::histogram!(self.metric, self.label => self.value);
        self.made.get_or_init(make).record(value);
    }
}

tokio::task_local! {
    static WAITED: Cell<Duration>;
}

/// Runs the work of a request; answers as well how long it said to have `waited`.
pub async fn counting_waits<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let work = async { (work.await, WAITED.get().get()) };
    WAITED.scope(Cell::default(), work).await
}

/// Time that a request waited for its client or for other clients, not for the server: no part of
/// its duration.
pub fn waited(time: Duration) {
    // outside of a request nobody asks
    let _ = WAITED.try_with(|waited| waited.set(waited.get() + time));
}

/// Seconds since 1970, for gauges of instants.
pub fn timestamp_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

const SECONDS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0,
];
const COUNTS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0];
const BYTES: &[f64] =
    &[256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0];

/// The target of the audit log's lines.
pub const AUDIT_TARGET: &str = "audit";

/// Sends log lines to standard error, which leaves standard output to what a command prints, and
/// those of the audit log to its file, if it has one. The level is ours; other crates speak from
/// `warn` up. The audit log has no level. A second call in one process does nothing.
pub fn start_logging(format: LogFormat, level: LevelFilter, audit: Option<File>) {
    let filter = Targets::new()
        .with_default(level.min(LevelFilter::from_level(Level::WARN)))
        .with_target("oncelog", level)
        .with_target(AUDIT_TARGET, LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        // The span of a request carries its id, so each line of it does.
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true);
            lines.with_current_span(true).with_span_list(false).boxed()
        }
    };
    let audit = audit.map(|file| {
        let lines = tracing_subscriber::fmt::layer().with_writer(Mutex::new(file)).json();
        let lines = lines.flatten_event(true).with_current_span(false).with_span_list(false);
        lines.with_filter(Targets::new().with_target(AUDIT_TARGET, LevelFilter::INFO))
    });
    let registry = tracing_subscriber::registry().with(lines.with_filter(filter)).with(audit);
    let _ = registry.try_init();
}

/// What `/metrics` shows.
pub struct Metrics {
    exporter: PrometheusHandle,
    process: Collector,
}

impl Metrics {
    /// In the Prometheus text format.
    pub fn render(&self) -> String {
        self.process.collect();
        self.exporter.render() + &named::shown()
    }

    /// To be called every second or so: until then, or a `render`, histograms keep every
    /// observation.
    pub fn run_upkeep(&self) {
        self.exporter.run_upkeep();
    }
}

/// The metrics of this process; the first call begins to record. Handles made before record
/// nothing.
pub fn metrics() -> anyhow::Result<&'static Metrics> {
    static STARTED: OnceLock<Metrics> = OnceLock::new();
    if let Some(metrics) = STARTED.get() {
        return Ok(metrics);
    }
    let counts = |builder: PrometheusBuilder, name: &str| {
        builder.set_buckets_for_metric(Matcher::Full(name.into()), COUNTS)
    };
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_bytes".into()), BYTES))
        .and_then(|builder| counts(builder, GROUP_REQUESTS))
        .and_then(|builder| counts(builder, GROUP_RECORDS))
        .and_then(|builder| counts(builder, LOOK_READS))
        .context("cannot set up the metrics")?
        .build_recorder();
    let metrics = STARTED.get_or_init(|| {
        let metrics = Metrics { exporter: recorder.handle(), process: Collector::default() };
        // Within `get_or_init` it happens once, so it can only fail if somebody else recorded
        // before.
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::error!("another metrics recorder is installed; /metrics stays empty");
        }
        table::METRICS.iter().for_each(announce);
        metrics::gauge!(table::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        metrics.process.describe();
        metrics
    });
    Ok(metrics)
}

/// Describes a metric, and shows it with 0 where its labels' values are written in the table: a
/// rate begins at the first event, not at the second, and an alert on errors sees the first one. A
/// histogram with labels is not shown before its first observation, as each has 19 series.
fn announce(metric: &Metric) {
    match metric.kind {
        Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
        Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
        Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
    }
    if metric.kind == Kind::Histogram && !metric.labels.is_empty() {
        return;
    }
    let mut series: Vec<Vec<KeyLabel>> = vec![Vec::new()];
    for label in metric.labels {
        let Some(values) = label.values.listed() else { return };
        let with = |before: &Vec<KeyLabel>, value| {
            let mut labels = before.clone();
            labels.push(KeyLabel::new(label.name, value));
            labels
        };
        series = series
            .iter()
            .flat_map(|before| values.iter().map(move |value| with(before, *value)))
            .collect();
    }
    for labels in series {
        match metric.kind {
            Kind::Counter => drop(metrics::counter!(metric.name, labels)),
            Kind::Gauge => drop(metrics::gauge!(metric.name, labels)),
            Kind::Histogram => drop(metrics::histogram!(metric.name, labels)),
        }
    }
}

#[cfg(test)]
mod tests;
