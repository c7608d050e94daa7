//! The decided plan of a batch: the outcome of each request, and the rows to write.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{
    Request, RequestPart, THIS_PASS,
    cache::LogCaches,
    dedup, producer_mut,
    producer_state::{ProducerState, Remembered},
    read_set::ExpectedHead,
    reservations::{self, KeyReservation, Verdicts},
};
use crate::{
    model::{LogId, Offset, ProducerId, Timestamp},
    rules::{
        Refusal,
        transaction::{
            self,
            one_request::{OffsetMove, SingleRequestTxn, Stopped},
        },
    },
};

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Appended; for every part the distance of its first record from its log's base in this batch.
    Appended {
        deltas: Vec<i64>,
        verdicts: Verdicts,
    },
    /// All of its records were stored before.
    AllDuplicates(Vec<dedup::RecordVerdict>),
    /// An earlier request of this batch has reserved one of its keys: decide it again in the next
    /// batch.
    RetryNextBatch,
    /// Stored before (or earlier in this batch), at this location.
    Repeated(Remembered),
    /// Stored before, at a forgotten location.
    Forgotten,
    /// A transaction that was committed before.
    AlreadyCommitted(Box<transaction::TransactionRow>),
    /// It can wait for missing sequences; this is the refusal if they do not arrive.
    OutOfOrder(Refusal),
    Refused(Refusal),
    /// The topic has another partition count than the request was spread over.
    TopicChanged,
}

/// A row to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// The distance from the log's base in this batch.
    pub delta: i64,
    pub record_count: i64,
    pub size_bytes: i64,
    pub producers: Option<Vec<u8>>,
    /// The transaction that its records belong to.
    pub transaction_id: Option<Uuid>,
    /// The (request, part) pairs whose lines it holds, in order; none in a journal.
    pub lines: Vec<(usize, usize)>,
}

/// The changes of one log in this batch; if `rows` is empty it is only compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    pub log_id: LogId,
    /// None: the offset comes from the head.
    pub compare: Option<ExpectedHead>,
    pub record_count: i64,
    pub size_bytes: i64,
    pub rows: Vec<PlannedRow>,
    /// The key counter of a journal in whose topic keys were looked up.
    pub claims: Option<i64>,
    /// The rings in which this batch reserves keys, one bit each.
    pub claimed_rings: i32,
}

/// A decided batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One outcome per request, in order.
    pub decisions: Vec<Decision>,
    /// Ordered by log id.
    pub writes: Vec<LogWrite>,
    /// (log, producer) pairs that append here for the first time: registered in the same
    /// transaction.
    pub registrations: Vec<(LogId, ProducerId)>,
    /// The offsets that its transactions commit.
    pub offsets: Vec<OffsetMove>,
    pub claims: Vec<KeyReservation>,
    /// (log, producer) pairs whose newest request uses its sequence without storing records: no row
    /// records it, only the producer's state.
    pub silent: Vec<(LogId, ProducerId)>,
    /// Whether it commits transactions, which may store nothing.
    pub commits: bool,
    /// (log, producer) pairs whose newest requests still lack their `appended_at`.
    pub(in crate::rules) touched: Vec<(LogId, ProducerId)>,
}

impl From<dedup::Stopped> for Decision {
    fn from(stopped: dedup::Stopped) -> Self {
        match stopped {
            dedup::Stopped::Refused(refusal) => Decision::Refused(refusal),
            dedup::Stopped::RetryNextBatch => Decision::RetryNextBatch,
        }
    }
}

impl From<Stopped> for Decision {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::AlreadyCommitted(row) => Decision::AlreadyCommitted(row),
            Stopped::Refused(refusal) => Decision::Refused(refusal),
            Stopped::TopicChanged => Decision::TopicChanged,
        }
    }
}

/// A transaction that a plan commits, with the locations of its parts.
pub type PlannedCommit<'a> = (&'a Request, &'a SingleRequestTxn, &'a Verdicts, Vec<Offset>);

impl Plan {
    /// The transactions it commits, with the locations of their parts: their logs are compared.
    pub fn committed<'a>(
        &'a self,
        group: &'a [Request],
    ) -> impl Iterator<Item = PlannedCommit<'a>> {
        group.iter().zip(&self.decisions).filter_map(|(request, decision)| {
            let (Some(txn), Decision::Appended { deltas, verdicts }) =
                (&request.transaction, decision)
            else {
                return None;
            };
            let base = |part: &RequestPart| {
                let write = self.writes.iter().find(|write| write.log_id == part.log_id);
                let compare = write.and_then(|write| write.compare?.position);
                compare.map_or(0, |(next_offset, _)| next_offset)
            };
            let placed = request.parts.iter().zip(deltas).map(|(part, delta)| base(part) + delta);
            Some((request, txn, verdicts, placed.collect()))
        })
    }

    /// The compared values, by log.
    pub fn compares(&self) -> impl Iterator<Item = (LogId, ExpectedHead)> {
        self.writes.iter().filter_map(|write| Some((write.log_id, write.compare?)))
    }

    pub fn writes_anything(&self) -> bool {
        self.writes_rows_or_keys() || !self.silent.is_empty() || self.commits
    }

    pub fn writes_rows_or_keys(&self) -> bool {
        let has_rows = self.writes.iter().any(|write| !write.rows.is_empty());
        has_rows || !self.claims.is_empty()
    }

    /// Which records of a (request, part) are stored. None: all.
    pub fn kept(&self, group: &[Request], (request, part): (usize, usize)) -> Option<Vec<bool>> {
        match self.decisions.get(request)? {
            Decision::Appended { verdicts, .. } => {
                reservations::kept(group.get(request)?, verdicts, part)
            }
            _ => None,
        }
    }

    /// The states, after this batch, of the producers that no row records.
    pub fn silent_states<'a>(
        &'a self,
        caches: &'a LogCaches,
        appended_at: Timestamp,
    ) -> impl Iterator<Item = (LogId, ProducerId, Offset, ProducerState)> + 'a {
        self.silent.iter().filter_map(move |(log_id, id)| {
            let log = caches.get(log_id)?;
            let mut state = log.producers.get(id)?.state.clone();
            state.recent.iter_mut().for_each(|request| request.settle(appended_at));
            Some((*log_id, *id, log.next_offset, state))
        })
    }

    /// Completes the plan after a successful write: `appended_at` and every written log's base are
    /// known.
    pub fn confirm(
        &mut self,
        caches: &mut LogCaches,
        appended_at: Timestamp,
        bases: &BTreeMap<LogId, Offset>,
    ) {
        for write in self.writes.iter().filter(|write| !write.rows.is_empty()) {
            let Some(log) = caches.get_mut(&write.log_id) else { continue };
            let compared = write.compare.is_some_and(|compare| compare.position.is_some());
            if compared || bases.get(&write.log_id) == Some(&log.next_offset) {
                log.last_appended_at = appended_at;
                log.unfolded_rows += write.rows.len() as i64;
                log.next_offset += if compared { 0 } else { write.record_count };
            }
        }
        for write in self.writes.iter().filter(|write| write.claimed_rings != 0) {
            let keys = caches.get_mut(&write.log_id).and_then(|log| log.keys.as_mut());
            keys.into_iter().for_each(|keys| {
                keys.claims += 1;
                keys.rings |= write.claimed_rings;
            });
        }
        // their fences were raised
        self.silent.iter().for_each(|(log_id, _)| drop(caches.remove(log_id)));
        for home in &self.touched {
            let producer = producer_mut(caches, *home);
            let recent = producer.into_iter().flat_map(|producer| &mut producer.state.recent);
            recent.for_each(|request| request.settle(appended_at));
        }
        for decision in &mut self.decisions {
            if let Decision::Repeated(request) = decision {
                request.settle(appended_at);
            }
        }
    }
}

impl Remembered {
    fn settle(&mut self, appended_at: Timestamp) {
        if self.appended_at == THIS_PASS {
            self.appended_at = appended_at;
        }
    }
}
