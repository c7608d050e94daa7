//! Append metrics as handles that are created once: an append has only microseconds to spend.

use metrics::{Counter, Gauge, Histogram};
use tokio::time::Instant;

use super::{
    batch::{Parked, RequestBatch},
    writer::{FastOutcome, SlowOutcome},
};
use crate::{
    broker::Error,
    model::append::{Appended, Placed},
    store,
    telemetry::{self, ByCode, LabelledHistogram},
};

/// Append requests by outcome.
pub struct AppendMetrics {
    appended: Counter,
    duplicate: Counter,
    problems: ByCode,
    records: Counter,
    duplicate_records: Counter,
    bytes: Counter,
}

impl AppendMetrics {
    pub fn new() -> Self {
        let answered = |outcome: &'static str, code: &'static str| metrics::counter!(telemetry::APPENDS_TOTAL, "outcome" => outcome, "code" => code);
        Self {
            appended: answered("appended", "none"),
            duplicate: answered("duplicate", "none"),
            problems: ByCode::new(|code| {
                answered(if code.status() < 500 { "refused" } else { "failed" }, code.as_str())
            }),
            records: metrics::counter!(telemetry::APPENDED_RECORDS_TOTAL),
            duplicate_records: metrics::counter!(telemetry::DUPLICATE_RECORDS_TOTAL),
            bytes: metrics::counter!(telemetry::APPENDED_BYTES_TOTAL),
        }
    }

    /// Counts an answer; returns how many records were appended.
    pub fn answered(&self, records: usize, bytes: usize, answer: &Result<Appended, Error>) -> u64 {
        match answer {
            Ok(Appended { duplicate: true, placed, .. }) => {
                self.duplicate.increment(1);
                if matches!(placed, Placed::Records { record_count: 0, .. }) {
                    self.duplicate_records.increment(records as u64);
                }
                0
            }
            Ok(Appended { placed, .. }) => {
                self.appended.increment(1);
                let stored = match placed {
                    Placed::Records { record_count, .. } => record_count.unsigned_abs(),
                    Placed::Topic(_) | Placed::Partition { .. } => records as u64,
                };
                self.records.increment(stored);
                self.duplicate_records.increment((records as u64).saturating_sub(stored));
                self.bytes.increment(bytes as u64);
                stored
            }
            Err(error) => {
                self.problems.count(error.code);
                0
            }
        }
    }
}

/// A lane: its queue, its batches and its passes.
pub struct LaneMetrics {
    /// Requests that wait for their first pass.
    pub queued: Gauge,
    /// Cached logs and producers.
    pub remembered: Gauge,
    pub redone: Counter,
    parked: Gauge,
    batch_requests: Histogram,
    batch_records: Histogram,
    batch_bytes: Histogram,
    fast: Passes,
    slow: Passes,
}

/// Passes of one kind.
struct Passes {
    kind: &'static str,
    passed: Counter,
    duration: LabelledHistogram,
}

impl Passes {
    fn new(kind: &'static str) -> Self {
        Self {
            kind,
            passed: passes(kind, "passed"),
            duration: LabelledHistogram::new(telemetry::PASS_DURATION_SECONDS, "kind", kind),
        }
    }

    fn ended(&self, begun: Instant, outcome: &'static str) {
        self.duration.record(begun.elapsed().as_secs_f64());
        match outcome {
            "passed" => self.passed.increment(1),
            outcome => passes(self.kind, outcome).increment(1),
        }
    }
}

fn passes(kind: &'static str, outcome: &'static str) -> Counter {
    metrics::counter!(telemetry::PASSES_TOTAL, "kind" => kind, "outcome" => outcome)
}

impl LaneMetrics {
    pub fn new(lane: usize) -> Self {
        let lane = lane.to_string();
        Self {
            queued: metrics::gauge!(telemetry::QUEUED_APPENDS, "lane" => lane.clone()),
            remembered: metrics::gauge!(telemetry::REMEMBERED_PRODUCERS, "lane" => lane),
            redone: metrics::counter!(telemetry::REDONE_APPENDS_TOTAL),
            parked: metrics::gauge!(telemetry::PARKED_APPENDS),
            batch_requests: metrics::histogram!(telemetry::GROUP_REQUESTS),
            batch_records: metrics::histogram!(telemetry::GROUP_RECORDS),
            batch_bytes: metrics::histogram!(telemetry::GROUP_BYTES),
            fast: Passes::new("quick"),
            slow: Passes::new("full"),
        }
    }

    /// Records the size of a batch at its pass.
    pub fn passed(&self, batch: &RequestBatch) {
        let parts = || batch.requests.iter().flat_map(|request| &request.parts);
        self.batch_requests.record(batch.requests.len() as f64);
        self.batch_records.record(parts().map(|part| part.record_count).sum::<i64>() as f64);
        self.batch_bytes.record(parts().map(|part| part.size_bytes).sum::<i64>() as f64);
    }

    pub fn record_fast(&self, begun: Instant, result: &Result<FastOutcome, store::Error>) {
        match result {
            Ok(FastOutcome::Passed(_)) => self.fast.ended(begun, "passed"),
            Ok(FastOutcome::Overtaken(_)) => self.fast.ended(begun, "overtaken"),
            // nothing was sent
            Ok(FastOutcome::Unknown) => {}
            Err(error) => self.fast.ended(begun, error.kind()),
        }
    }

    pub fn record_slow(&self, begun: Instant, result: &Result<SlowOutcome, store::Error>) {
        match result {
            Ok(SlowOutcome::Passed(_)) => self.slow.ended(begun, "passed"),
            Ok(SlowOutcome::Vanished(_)) => self.slow.ended(begun, "vanished"),
            Ok(SlowOutcome::Behind(_)) => self.slow.ended(begun, "behind"),
            Err(error) => self.slow.ended(begun, error.kind()),
        }
    }

    pub fn park(&self) -> Parked {
        Parked::new(&self.parked)
    }
}
