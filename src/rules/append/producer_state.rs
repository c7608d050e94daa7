//! The state of a producer in a log, replayed from the log's rows, as in Kafka. The same `apply`
//! serves appends, loading, snapshots and opens.

use std::collections::VecDeque;

use crate::model::{Digest, Epoch, Offset, Partition, ProducerId, Sequence, Timestamp};

/// The number of requests of a producer that are remembered in a scope, and so the maximum in
/// flight.
pub const REMEMBERED_REQUESTS: usize = 5;

/// The location of a request's records.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In this log, from this offset on.
    Partition { base_offset: Offset },
    /// Spread over the partitions that the topic had then. Per-record offsets follow from the
    /// records themselves, which an equal digest proves to be the same.
    Topic {
        partition_count: Partition,
        /// The partition of records without a key.
        keyless: Option<Partition>,
        /// The first offset in each partition, ordered by each partition's first record.
        bases: Vec<(Partition, Offset)>,
    },
    /// Some records were duplicates by id, and are not stored again: the location of each record,
    /// in request order.
    Records(Vec<RecordPlace>),
}

/// The location of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordPlace {
    pub partition: Partition,
    /// None: it has left the log.
    pub offset: Option<Offset>,
    /// Set if it was a duplicate, with the first instant; none inside: a duplicate within the same
    /// request.
    pub known: Option<Option<Timestamp>>,
}

/// A sequenced request, as recorded in its row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub producer_id: ProducerId,
    pub epoch: Epoch,
    pub sequence: Sequence,
    /// It was decided without a state: earlier requests do not count.
    pub fresh: bool,
    pub digest: Digest,
    pub placement: Placement,
}

/// A request whose retry is recognised and gets the original response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Remembered {
    pub sequence: Sequence,
    pub digest: Digest,
    pub appended_at: Timestamp,
    pub placement: Placement,
}

impl Placement {
    /// The size of this many single locations in a cache, in producers.
    pub fn weight_of(records: usize) -> usize {
        records / 10
    }
}

/// The state of a producer in one log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProducerState {
    /// The epoch of its last request here.
    pub epoch: Epoch,
    /// None: it has never appended here.
    pub last_sequence: Option<Sequence>,
    /// The last requests, oldest first; at most `REMEMBERED_REQUESTS`.
    pub recent: VecDeque<Remembered>,
}

impl ProducerState {
    /// Applies the entry of this producer in the next row.
    pub fn apply(&mut self, entry: &Entry, appended_at: Timestamp) {
        if entry.fresh {
            self.recent.clear();
        }
        if self.recent.len() == REMEMBERED_REQUESTS {
            self.recent.pop_front();
        }
        self.epoch = entry.epoch;
        self.last_sequence = Some(entry.sequence);
        self.recent.push_back(Remembered {
            sequence: entry.sequence,
            digest: entry.digest,
            appended_at,
            placement: entry.placement.clone(),
        });
    }

    /// The next sequence of the producer in a session that ignores states before `reset_epoch`.
    pub fn next_sequence(&self, reset_epoch: Epoch) -> Sequence {
        match self.last_sequence {
            Some(last) if self.epoch >= reset_epoch => last + 1,
            _ => 0,
        }
    }
}
