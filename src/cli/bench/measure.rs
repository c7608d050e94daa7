//! Measures a run: clock, counts, latencies, and the report.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};

use super::{connection::Failure, counted};

const MAX_LATENCY: Duration = Duration::from_secs(60);
/// How long to wait, after the end of a run, for outstanding responses.
const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(200);

#[derive(Clone, Copy)]
pub(super) struct Phases {
    pub warmup: Duration,
    pub measured: Duration,
}

impl Phases {
    /// Starts the clock.
    pub fn clock(self) -> Clock {
        let from = Instant::now() + self.warmup;
        Clock { from, until: from + self.measured }
    }
}

/// Requests that end outside `from..until` are not measured; none starts after it.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    pub from: Instant,
    pub until: Instant,
}

impl Clock {
    pub fn measures(&self, instant: Instant) -> bool {
        (self.from..self.until).contains(&instant)
    }
}

/// A histogram of durations in nanoseconds.
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> anyhow::Result<Self> {
        let max_ns = u64::try_from(MAX_LATENCY.as_nanos())?;
        Ok(Self(Histogram::new_with_max(max_ns, 3).context("cannot create a histogram")?))
    }

    pub fn note(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    fn summary(&self) -> Summary {
        let us = |nanos: f64| (nanos / 100.0).round() / 10.0;
        let at = |quantile| us(self.0.value_at_quantile(quantile) as f64);
        Summary {
            count: self.0.len(),
            mean_us: us(self.0.mean()),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: us(self.0.max() as f64),
        }
    }
}

#[derive(Serialize)]
struct Summary {
    count: u64,
    mean_us: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
    max_us: f64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("p50", self.p50_us),
            ("p90", self.p90_us),
            ("p99", self.p99_us),
            ("p99.9", self.p999_us),
            ("max", self.max_us),
        ];
        let parts = parts.map(|(name, us)| format!("{name} {:.2} ms", us / 1e3));
        write!(f, "{}", parts.join(", "))
    }
}

/// The counts of all connections of a run.
pub(super) struct Tally {
    clock: Clock,
    latencies: Latencies,
    requests: u64,
    events: u64,
    /// Events acknowledged, also outside of the measured time.
    pub acknowledged: u64,
    errors: BTreeMap<String, u64>,
    /// The first error, in full.
    first_error: Option<String>,
}

#[derive(Clone)]
pub(super) struct SharedTally(Arc<Mutex<Tally>>);

impl SharedTally {
    pub fn new(clock: Clock) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(Tally {
            clock,
            latencies: Latencies::new()?,
            requests: 0,
            events: 0,
            acknowledged: 0,
            errors: BTreeMap::new(),
            first_error: None,
        }))))
    }

    /// Never contended, as there is one thread.
    pub fn lock(&self) -> MutexGuard<'_, Tally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    /// Resets the counts at the start of the measurement.
    pub fn begin(&mut self, clock: Clock) {
        (self.clock, self.acknowledged) = (clock, 0);
        (self.requests, self.events) = (0, 0);
        self.latencies.0.reset();
    }

    pub fn done(&mut self, begun: Instant, ended: Instant, events: u64) {
        self.acknowledged += events;
        if self.clock.measures(ended) {
            self.requests += 1;
            self.events += events;
            self.latencies.note(ended - begun);
        }
    }

    pub fn failed(&mut self, failure: &Failure) {
        self.error(failure.code(), || failure.to_string());
    }

    pub fn error(&mut self, code: &str, detail: impl FnOnce() -> String) {
        *self.errors.entry(code.to_owned()).or_default() += 1;
        self.first_error.get_or_insert_with(detail);
    }
}

/// Runs the tasks, which stop by the clock, and shows progress. Returns their results, and the CPU
/// time used during the measurement.
pub(super) async fn watch<T: 'static>(
    mut tasks: JoinSet<T>,
    clock: Clock,
    tally: &SharedTally,
) -> anyhow::Result<(Vec<T>, Duration)> {
    let bar = progress(clock);
    let mut cpu_before = cpu_time()?;
    let mut tick = Instant::now();
    while tick < clock.until {
        let next = (tick + TICK).min(clock.until);
        // stop exactly at the start of the measurement
        let next = if tick < clock.from { next.min(clock.from) } else { next };
        sleep_until(next).await;
        tick = next;
        if tick == clock.from {
            cpu_before = cpu_time()?;
        }
        bar.set_position(bar.elapsed().as_millis() as u64);
        let events = tally.lock().acknowledged;
        let rate = events as f64 / bar.elapsed().as_secs_f64();
        bar.set_message(format!("{}, {rate:.0}/s", counted(events, "event")));
    }
    let cpu = cpu_time()?.saturating_sub(cpu_before);
    bar.finish_and_clear();
    let mut results = Vec::with_capacity(tasks.len());
    while let Some(ended) = timeout_at(clock.until + PATIENCE, tasks.join_next())
        .await
        .with_context(|| format!("{} got no response", counted(tasks.len() as u64, "request")))?
    {
        results.push(ended.context("a connection panicked")?);
    }
    Ok((results, cpu))
}

fn progress(clock: Clock) -> ProgressBar {
    let total = clock.until - Instant::now();
    let bar = ProgressBar::new(total.as_millis() as u64);
    match ProgressStyle::with_template("{bar:30} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The CPU time of this process so far.
fn cpu_time() -> io::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = [usage.user_time(), usage.system_time()]
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec());
    Ok(Duration::from_micros(micros.iter().sum::<i64>().unsigned_abs()))
}

/// The result of a run.
pub(super) struct Report {
    members: Vec<(&'static str, Value)>,
    latencies: Vec<(&'static str, Summary)>,
    errors: u64,
    first_error: Option<String>,
}

impl Report {
    pub fn new(workload: &'static str) -> Self {
        let members = vec![("workload", workload.into())];
        Self { members, latencies: Vec::new(), errors: 0, first_error: None }
    }

    pub fn note(&mut self, name: &'static str, value: impl Into<Value>) {
        self.members.push((name, value.into()));
    }

    pub fn latencies(&mut self, of: &'static str, latencies: &Latencies) {
        self.latencies.push((of, latencies.summary()));
    }

    /// Adds a tally; `of` names the measured operation.
    pub fn tally(
        &mut self,
        of: &'static str,
        tally: &Tally,
        cpu: Duration,
    ) -> serde_json::Result<()> {
        let seconds = (tally.clock.until - tally.clock.from).as_secs_f64();
        let rate = |count: u64| (count as f64 / seconds).round();
        self.note("measured_s", seconds);
        self.note("requests", tally.requests);
        self.note("events", tally.events);
        self.note("requests_per_s", rate(tally.requests));
        self.note("events_per_s", rate(tally.events));
        self.latencies(of, &tally.latencies);
        self.note("client_cpu_s", cpu.as_secs_f64());
        let each = cpu.as_secs_f64() * 1e6 / tally.requests.max(1) as f64;
        self.note("client_cpu_us_per_request", (each * 100.0).round() / 100.0);
        self.note("errors", serde_json::to_value(&tally.errors)?);
        self.errors += tally.errors.values().sum::<u64>();
        self.first_error.clone_from(&tally.first_error);
        Ok(())
    }

    pub fn text(&self, json: bool) -> anyhow::Result<String> {
        if json {
            let mut all: BTreeMap<&str, Value> = self.members.iter().cloned().collect();
            let latencies: BTreeMap<_, _> =
                self.latencies.iter().map(|(of, it)| (of, it)).collect();
            all.insert("latencies", serde_json::to_value(latencies)?);
            return Ok(serde_json::to_string(&all)? + "\n");
        }
        let mut text = String::new();
        for (name, value) in &self.members {
            writeln!(text, "{name:<26} {}", plain(value))?;
        }
        for (of, summary) in &self.latencies {
            writeln!(text, "{of:<26} {summary}")?;
        }
        Ok(text)
    }

    /// Fails if there was any error.
    pub fn verdict(&self) -> anyhow::Result<()> {
        if self.errors > 0 {
            let first = self.first_error.as_deref().unwrap_or_default();
            bail!("{}; first: {first}", counted(self.errors, "error"));
        }
        Ok(())
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(members) if members.is_empty() => "none".into(),
        Value::Object(members) => {
            let parts = members.iter().map(|(name, value)| format!("{value} {name}"));
            parts.collect::<Vec<_>>().join(", ")
        }
        value => value.to_string(),
    }
}
