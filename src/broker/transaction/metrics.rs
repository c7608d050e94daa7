//! Transaction metrics.

use metrics::Counter;
use tokio::time::Instant;

use crate::telemetry::{self, LabelledHistogram};

/// Successful transaction calls, and the outcomes of transactions.
pub struct TransactionMetrics {
    committed: Counter,
    committed_in_one_request: Counter,
    commit_duration: LabelledHistogram,
    commit_duration_one_request: LabelledHistogram,
}

impl TransactionMetrics {
    pub fn new() -> Self {
        let committed = |form: &'static str| metrics::counter!(telemetry::TRANSACTIONS_COMMITTED_TOTAL, "form" => form);
        let duration = |form| {
            LabelledHistogram::new(telemetry::TRANSACTION_COMMIT_DURATION_SECONDS, "form", form)
        };
        Self {
            committed: committed("staged"),
            committed_in_one_request: committed("whole"),
            commit_duration: duration("staged"),
            commit_duration_one_request: duration("whole"),
        }
    }

    /// Counts the commit of a transaction of several requests.
    pub fn committed(&self, begun: Instant) {
        self.committed.increment(1);
        self.commit_duration.record(begun.elapsed().as_secs_f64());
    }

    /// Counts the commit of a one-request transaction.
    pub fn committed_in_one_request(&self, begun: Instant) {
        self.committed_in_one_request.increment(1);
        self.commit_duration_one_request.record(begun.elapsed().as_secs_f64());
    }

    pub fn called(&self, call: &'static str, duplicate: bool) {
        let outcome = if duplicate { "duplicate" } else { "done" };
        metrics::counter!(telemetry::TRANSACTION_CALLS_TOTAL, "call" => call, "outcome" => outcome)
            .increment(1);
    }
}
