//! Read metrics as handles that are created once.

use metrics::{Counter, Gauge};
use tokio::time::Instant;

use crate::{
    broker::wakeup::watch::Source,
    telemetry::{self, Counted, LabelledHistogram},
};

/// The metrics of reads and of their waits.
pub struct ReadMetrics {
    answered: Counter,
    records: Counter,
    bytes: Counter,
    waiting: Gauge,
    wait_records: LabelledHistogram,
    wait_nothing: LabelledHistogram,
    wait_gone: LabelledHistogram,
    woken_by_commit: LabelledHistogram,
    woken_by_notice: LabelledHistogram,
    woken_by_poll: LabelledHistogram,
}

/// The outcome of a wait.
pub enum Waited {
    Records,
    Nothing,
    Gone,
}

impl ReadMetrics {
    pub fn new() -> Self {
        let wait = |outcome| {
            LabelledHistogram::new(telemetry::READ_WAIT_DURATION_SECONDS, "outcome", outcome)
        };
        let woken =
            |source| LabelledHistogram::new(telemetry::WAKEUP_DURATION_SECONDS, "source", source);
        Self {
            answered: metrics::counter!(telemetry::READS_TOTAL),
            records: metrics::counter!(telemetry::READ_RECORDS_TOTAL),
            bytes: metrics::counter!(telemetry::READ_BYTES_TOTAL),
            waiting: metrics::gauge!(telemetry::WAITING_READS),
            wait_records: wait("records"),
            wait_nothing: wait("nothing"),
            wait_gone: wait("gone"),
            woken_by_commit: woken("commit"),
            woken_by_notice: woken("notice"),
            woken_by_poll: woken("poll"),
        }
    }

    pub fn answered(&self, records: u64, bytes: usize) {
        self.answered.increment(1);
        self.records.increment(records);
        self.bytes.increment(bytes as u64);
    }

    pub fn waiting(&self) -> Counted {
        Counted::new(&self.waiting)
    }

    pub fn waited(&self, since: Instant, how: &Waited) {
        let waited = since.elapsed();
        telemetry::waited(waited);
        let histogram = match how {
            Waited::Records => &self.wait_records,
            Waited::Nothing => &self.wait_nothing,
            Waited::Gone => &self.wait_gone,
        };
        histogram.record(waited.as_secs_f64());
    }

    /// Records when the awaited records are available to the read.
    pub fn woken(&self, source: Source, since: Instant) {
        let histogram = match source {
            Source::Commit => &self.woken_by_commit,
            Source::Notice => &self.woken_by_notice,
            Source::Poll => &self.woken_by_poll,
        };
        histogram.record(since.elapsed().as_secs_f64());
    }
}
