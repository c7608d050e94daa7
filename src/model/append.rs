//! What goes into an append, and what comes out of it.

use std::sync::Arc;

use super::{Batch, Epoch, Offset, Partition, ProducerId, Sequence, Timestamp, dedup::RequestKey};

/// The scope of an append: the URL it was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The topic: records are spread by key.
    Topic,
    /// One partition takes all.
    Partition(Partition),
}

/// What makes an append idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSeq {
    pub producer_id: ProducerId,
    pub epoch: Epoch,
    pub sequence: Sequence,
}

/// An append as asked for.
#[derive(Debug)]
pub struct Append {
    pub numbered: Option<ProducerSeq>,
    /// Partition scope only: append only if this is the next offset.
    pub expected_offset: Option<Offset>,
    /// Refuse all of it if one of its records is known.
    pub refuses_duplicates: bool,
    /// Its `Idempotency-Key`.
    pub request_key: Option<RequestKey>,
    pub batch: Arc<Batch>,
}

/// The answer to an append. `appended_at` and the offsets are absent where the request is a
/// duplicate older than the remembered window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    pub placed: Placed,
    pub duplicate: bool,
    pub appended_at: Option<Timestamp>,
}

/// Where a record of a request lies some of whose records have keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedRecord {
    pub partition: Partition,
    /// None: it has left the log.
    pub offset: Option<Offset>,
    /// It was stored before.
    pub duplicate: bool,
    pub first_seen_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Every record in request order, and of an append to one partition what it has newly stored
    /// there. (None: too long ago to say.)
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
    /// The same, as it is answered where records have keys: all of them were new.
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
