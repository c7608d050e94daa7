//! Appends: what a client asks for, and what it is answered.

use std::sync::Arc;

use super::{Batch, Epoch, Offset, Partition, ProducerId, Sequence, Timestamp, dedup::RequestKey};

/// The scope of an append: the URL it was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The topic: records are spread by key.
    Topic,
    /// One partition, which takes all records.
    Partition(Partition),
}

/// The sequence that makes an append idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSeq {
    pub producer_id: ProducerId,
    pub epoch: Epoch,
    pub sequence: Sequence,
}

/// The parameters of an append.
#[derive(Debug)]
pub struct Append {
    pub numbered: Option<ProducerSeq>,
    /// Partition scope only: append only if this is the next offset.
    pub expected_offset: Option<Offset>,
    /// Refuse all of it if one of its records is already stored.
    pub refuses_duplicates: bool,
    /// Its `Idempotency-Key`.
    pub request_key: Option<RequestKey>,
    pub batch: Arc<Batch>,
}

/// The answer to an append. `appended_at` and the offsets are absent if the request is a duplicate
/// older than the deduplication window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    pub placed: Placed,
    pub duplicate: bool,
    pub appended_at: Option<Timestamp>,
}

/// The location of a record, in a request some of whose records have keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRecord {
    pub partition: Partition,
    /// None: it is no longer in the log.
    pub offset: Option<Offset>,
    /// Whether it was already stored.
    pub duplicate: bool,
    pub first_seen_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Every record in request order, and the newly stored records of an append to one partition.
    /// (None: forgotten.)
    Records {
        records: Option<Vec<PlacedRecord>>,
        base_offset: Option<Offset>,
        record_count: i64,
    },
    /// (partition, offset) of every record in request order.
    Topic(Option<Vec<(Partition, Offset)>>),
    Partition {
        partition: Partition,
        base_offset: Option<Offset>,
        record_count: i64,
    },
}

impl Placed {
    /// The same in the form for records with keys: all of them were new.
    pub fn records(self, appended_at: Timestamp) -> Self {
        let new = |(partition, offset)| PlacedRecord {
            partition,
            offset: Some(offset),
            duplicate: false,
            first_seen_at: appended_at,
        };
        match self {
            Placed::Topic(offsets) => {
                let record_count = offsets.as_ref().map_or(0, Vec::len) as i64;
                let records = offsets.map(|offsets| offsets.into_iter().map(new).collect());
                Placed::Records { records, base_offset: None, record_count }
            }
            Placed::Partition { partition, base_offset, record_count } => {
                let at = |base| (base..base + record_count).map(|offset| new((partition, offset)));
                let records = base_offset.map(|base| at(base).collect());
                Placed::Records { records, base_offset, record_count }
            }
            records @ Placed::Records { .. } => records,
        }
    }
}
