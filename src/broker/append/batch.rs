//! Requests on their way through a lane, and their outcomes.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use metrics::Gauge;
use tokio::{sync::oneshot, time::Instant};

use super::fair_queue::QueuePlace;
use crate::{
    broker::{Error, memory_budget::Held},
    model::{Batch, LogId, TenantId, Timestamp},
    rules::{
        Refusal,
        append::{Request, plan::Plan, producer_state::Placement, read_set::ExpectedHead},
        transaction,
    },
    telemetry::{self, Counted},
};

/// The outcome of a request.
#[derive(Debug)]
pub enum Outcome {
    Placed {
        placement: Placement,
        appended_at: Timestamp,
        duplicate: bool,
    },
    /// A duplicate whose offsets are forgotten.
    Forgotten,
    Refused(Refusal),
    /// A one-request transaction, committed now or earlier.
    Committed {
        row: Box<transaction::TransactionRow>,
        duplicate: bool,
    },
    /// The topic has changed since the name was resolved: resolve it again.
    TopicChanged,
    Failed(Error),
}

/// The lines of one part of a request.
#[derive(Debug)]
pub enum Lines {
    /// All lines of the batch.
    All(Arc<Batch>),
    Part(String),
}

impl Lines {
    pub fn as_str(&self) -> &str {
        match self {
            Lines::All(batch) => &batch.lines,
            Lines::Part(lines) => lines,
        }
    }
}

/// A request in a lane.
pub struct Job {
    pub tenant: TenantId,
    pub request: Request,
    pub ticket: Ticket,
}

pub struct Ticket {
    /// One entry per part of the request.
    pub lines: Vec<Lines>,
    pub answer: oneshot::Sender<Outcome>,
    pub arrived_at: Instant,
    /// A statement with this request was sent, and its answer was lost.
    pub maybe_written: bool,
    /// A place in the lane's queue, held until the answer.
    pub place: Option<QueuePlace>,
    /// Set if it is out of order and waits for missing sequences.
    pub parked: Option<Parked>,
    /// Holds the memory of the request as long as it waits, even if the client has disconnected.
    pub _held: Held,
}

impl Ticket {
    /// The answer is dropped if the client has disconnected.
    pub fn answer(self, outcome: Outcome) {
        if let Some(parked) = self.parked {
            parked.end(&outcome);
        }
        let _ = self.answer.send(outcome);
    }

    /// Refused, though a statement sent earlier may still take effect.
    pub fn fail(self, error: Error) {
        let error = if self.maybe_written { Error::outcome_unknown() } else { error };
        self.answer(Outcome::Failed(error));
    }
}

/// A request that waits for those it has overtaken, until it is answered.
pub struct Parked {
    since: Instant,
    _counted: Counted,
}

impl Parked {
    pub fn new(gauge: &Gauge) -> Self {
        Self { since: Instant::now(), _counted: Counted::new(gauge) }
    }

    pub fn end(self, outcome: &Outcome) {
        let outcome = match outcome {
            Outcome::Placed { duplicate: false, .. }
            | Outcome::Committed { duplicate: false, .. } => "appended",
            Outcome::Placed { .. } | Outcome::Committed { .. } | Outcome::Forgotten => "duplicate",
            Outcome::Refused(_) => "refused",
            Outcome::TopicChanged => "stale",
            Outcome::Failed(_) => "failed",
        };
        metrics::histogram!(telemetry::PARKED_DURATION_SECONDS, "outcome" => outcome)
            .record(self.since.elapsed().as_secs_f64());
    }
}

/// Requests of one tenant that are decided together.
pub struct RequestBatch {
    pub tenant: TenantId,
    pub requests: Vec<Request>,
    pub tickets: Vec<Ticket>,
    /// A statement with some of these requests was sent and its answer lost: it may still take
    /// effect.
    pub is_redo: bool,
    /// The compares of its fast path that have just failed.
    pub compared: BTreeMap<LogId, ExpectedHead>,
}

/// The lines that are kept.
fn only(lines: &str, kept: &[bool]) -> String {
    let lines = lines.split_inclusive('\n').zip(kept);
    lines.filter(|(_, kept)| **kept).map(|(line, _)| line).collect()
}

impl RequestBatch {
    /// The lines of every row of a plan, in the order of its writes.
    pub fn records(&self, plan: &Plan) -> Vec<Option<Cow<'_, str>>> {
        let rows = plan.writes.iter().flat_map(|write| &write.rows);
        let lines = rows.map(|row| {
            let lines = |&(request, part): &(usize, usize)| {
                let lines = self.tickets[request].lines[part].as_str();
                match plan.kept(&self.requests, (request, part)) {
                    None => Cow::Borrowed(lines),
                    Some(kept) => Cow::Owned(only(lines, &kept)),
                }
            };
            let mut parts: Vec<Cow<'_, str>> = row.lines.iter().map(lines).collect();
            match parts.len() {
                0 | 1 => parts.pop(),
                _ => Some(Cow::Owned(parts.concat())),
            }
        });
        lines.collect()
    }
}

impl RequestBatch {
    /// Bytes of all records.
    pub fn size_bytes(&self) -> i64 {
        self.requests.iter().map(Request::size_bytes).sum()
    }

    /// Removes the matching requests from the batch.
    pub fn take(&mut self, matches: impl Fn(&Request, &Ticket) -> bool) -> Vec<Ticket> {
        let requests = std::mem::take(&mut self.requests).into_iter();
        let all = requests.zip(std::mem::take(&mut self.tickets));
        let (taken, left): (Vec<_>, Vec<_>) = all.partition(|(r, t)| matches(r, t));
        (self.requests, self.tickets) = left.into_iter().unzip();
        taken.into_iter().map(|(_, ticket)| ticket).collect()
    }
}
