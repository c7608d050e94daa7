//! Requests on their way through a lane, and what becomes of them.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use metrics::Gauge;
use tokio::{sync::oneshot, time::Instant};

use super::fair_queue::QueuePlace;
use crate::{
    broker::{Error, memory_budget::Held},
    model::{Batch, LogId, Offset, TenantId, Timestamp, append::PlacedRecord},
    rules::{
        Refusal,
        append::{Request, plan::Plan, producer_state::Placement, read_set::ExpectedHead},
        transaction,
    },
    telemetry::{self, Counted},
};

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    Placed {
        placement: Placement,
        appended_at: Timestamp,
        duplicate: bool,
    },
    /// Its records, some of which have keys, lie each there.
    Recorded {
        records: Vec<PlacedRecord>,
        /// Of what is stored of each part, the first offset and how many; none of a repeat.
        stored: Vec<(Offset, i64)>,
        duplicate: bool,
        appended_at: Timestamp,
    },
    /// Stored before, too long ago to say where.
    Forgotten,
    Refused(Refusal),
    /// A transaction, now or before.
    Committed {
        row: Box<transaction::TransactionRow>,
        duplicate: bool,
    },
    /// Its topic is not what it was resolved to: resolve the name again.
    TopicChanged,
    Failed(Error),
}

/// The lines of one part of a request.
#[derive(Debug)]
pub enum Lines {
    /// All of the batch's.
    Whole(Arc<Batch>),
    Some(String),
}

impl Lines {
    pub fn as_str(&self) -> &str {
        match self {
            Lines::Whole(batch) => &batch.lines,
            Lines::Some(lines) => lines,
        }
    }
}

/// A request on its way.
pub struct Job {
    pub tenant: TenantId,
    pub request: Request,
    pub ticket: Ticket,
}

pub struct Ticket {
    /// One for each part of the request.
    pub lines: Vec<Lines>,
    pub answer: oneshot::Sender<Outcome>,
    pub arrived_at: Instant,
    /// A statement that held it was sent, and its answer lost.
    pub maybe_written: bool,
    /// Among those that wait for a lane: until its answer.
    pub place: Option<QueuePlace>,
    /// It has overtaken others, and waits for them.
    pub parked: Option<Parked>,
    /// Its bytes count as long as they wait here, also of a client that has hung up.
    pub _held: Held,
}

impl Ticket {
    /// A client that has hung up does not hear it.
    pub fn answer(self, outcome: Outcome) {
        if let Some(parked) = self.parked {
            parked.end(&outcome);
        }
        let _ = self.answer.send(outcome);
    }

    /// It failed, but what was sent before may still take effect.
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
            | Outcome::Recorded { duplicate: false, .. }
            | Outcome::Committed { duplicate: false, .. } => "appended",
            Outcome::Placed { .. }
            | Outcome::Recorded { .. }
            | Outcome::Committed { .. }
            | Outcome::Forgotten => "duplicate",
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
    /// What a fast path of it has just compared in vain.
    pub compared: BTreeMap<LogId, ExpectedHead>,
}

/// Those of these lines that are kept.
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

    /// Takes the requests that match out of the group.
    pub fn take(&mut self, matches: impl Fn(&Request, &Ticket) -> bool) -> Vec<Ticket> {
        let requests = std::mem::take(&mut self.requests).into_iter();
        let all = requests.zip(std::mem::take(&mut self.tickets));
        let (taken, left): (Vec<_>, Vec<_>) = all.partition(|(r, t)| matches(r, t));
        (self.requests, self.tickets) = left.into_iter().unzip();
        taken.into_iter().map(|(_, ticket)| ticket).collect()
    }
}
