//! Where a producer stands in a log is a fold over that log's rows. (Kafka's producer state works
//! the same way.) One `apply` serves appends, loading, snapshots and opens.

use std::collections::VecDeque;

use crate::model::{Digest, Epoch, Offset, Partition, ProducerId, Sequence, Timestamp};

/// How many requests of a producer are remembered in a scope, and so how many may be in flight.
pub const REMEMBERED_REQUESTS: usize = 5;

/// Where the records of a request lie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In this log, from this offset on.
    Partition { base_offset: Offset },
    /// Spread over the partitions of the topic as it was then. Per-record offsets follow from the
    /// records themselves, which an equal digest proves to be the same.
    Topic {
        partition_count: Partition,
        /// Where the records without a key went.
        keyless: Option<Partition>,
        /// First offset in each partition, in the order of each partition's first record.
        bases: Vec<(Partition, Offset)>,
    },
    /// Some were known by their ids, and are not stored again: each record, in request order.
    Records(Vec<RecordPlace>),
}

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordPlace {
    pub partition: Partition,
    /// None: it has left the log.
    pub offset: Option<Offset>,
    /// It was known, and since when; none inside: by the same request.
    pub known: Option<Option<Timestamp>>,
}

/// One numbered request, as the row that holds it says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub producer_id: ProducerId,
    pub epoch: Epoch,
    pub sequence: Sequence,
    /// It was decided on "no state": what came before counts no longer.
    pub fresh: bool,
    pub digest: Digest,
    pub placement: Placement,
}

/// A request that can still be recognised and answered again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Remembered {
    pub sequence: Sequence,
    pub digest: Digest,
    pub appended_at: Timestamp,
    pub placement: Placement,
}

impl Placement {
    /// What places of so many records one by one take in a cache, in producers.
    pub fn weight_of(records: usize) -> usize {
        records / 10
    }
}

/// Where a producer stands in one log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProducerState {
    /// Of its last request here.
    pub epoch: Epoch,
    /// None: it has never appended here.
    pub last_sequence: Option<Sequence>,
    /// The last requests, oldest first; at most `REMEMBERED_REQUESTS`.
    pub recent: VecDeque<Remembered>,
}

impl ProducerState {
    /// The next row's entry of this producer.
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

    /// What the producer has to send next under a session whose states before `reset_epoch` count
    /// as none.
    pub fn next_sequence(&self, reset_epoch: Epoch) -> Sequence {
        match self.last_sequence {
            Some(last) if self.epoch >= reset_epoch => last + 1,
            _ => 0,
        }
    }
}
