//! What a replica remembers of a log: a prefix of it, folded. It decides nothing by itself: no
//! answer leaves before its ground is confirmed by the head row.

use std::collections::HashMap;

use super::{
    encoding::{self, Corrupt},
    producer_state::{Placement, ProducerState, Remembered},
    sequence::SessionFacts,
    snapshot::TailRow,
};
use crate::model::{LogId, Offset, Partition, ProducerId, Timestamp};

/// After so many looks under the lock that found nothing of others, fast paths are tried again: one
/// that fails costs more than a full one.
const CONTENDED_PASSES: u8 = 8;

/// How many offsets at most may be read under a head's lock: milliseconds.
const NEAR_OFFSETS: i64 = 5_000;

/// No longer tail is read at once, with a lock or without: it is folded into the snapshot first, step by
/// step.
pub const FAR_OFFSETS: i64 = 200_000;

/// A head row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    pub log_id: LogId,
    pub next_offset: Offset,
    pub fence: i64,
    pub last_appended_at: Timestamp,
    pub snapshot_offset: Offset,
    /// Rows before it are gone, or not whole.
    pub kept_offset: Offset,
}

impl Head {
    /// Whether more lies behind the snapshot than is to be read under the head's lock.
    pub fn is_far_from_snapshot(&self) -> bool {
        self.next_offset - self.snapshot_offset > NEAR_OFFSETS
    }
}

/// A producer in a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Producer {
    /// The fence under which its session row was last read; the fence must have been read first.
    pub verified_fence: i64,
    /// None: there is no such producer.
    pub session: Option<SessionFacts>,
    pub state: ProducerState,
    /// It has a row in `producer_states`: an open of it fences this log.
    pub registered: bool,
}

/// What a journal says of the keys of its topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalKeys {
    /// Grows whenever some are remembered.
    pub claims: i64,
    /// The rings in which they may lie: a bit each.
    pub rings: i32,
}

/// A log as far as it is known.
#[derive(Clone, Debug)]
pub struct LogCache {
    pub next_offset: Offset,
    pub fence: i64,
    pub last_appended_at: Timestamp,
    /// A journal's: how many partitions its topic had under this fence. 0 in a partition's log.
    pub partition_count: Partition,
    /// A journal's: of its topic's keys, if that was looked at.
    pub keys: Option<JournalKeys>,
    pub producers: HashMap<ProducerId, Producer>,
    /// Slow paths still to be made before a quick one is tried again: another replica feeds it.
    pub contended_passes: u8,
    /// Rows known to lie behind the last snapshot.
    pub unfolded_rows: i64,
}

pub type LogCaches = HashMap<LogId, LogCache>;

impl LogCache {
    /// No producer known yet: each is loaded with its own tail, and rows before the head's next offset
    /// matter to nobody else.
    pub fn cold(head: &Head) -> Self {
        Self {
            next_offset: head.next_offset,
            fence: head.fence,
            last_appended_at: head.last_appended_at,
            partition_count: 0,
            keys: None,
            producers: HashMap::new(),
            contended_passes: 0,
            unfolded_rows: 0,
        }
    }

    /// Whether this can be a prefix of the log whose head is `head`: not ahead of it, and of equal
    /// length only with an equal fingerprint. A shorter one is shown to be a prefix by the row that it
    /// ends with (`fold`), which must be kept, and so near that the rows since are worth reading.
    pub fn is_prefix_of(&self, head: &Head) -> bool {
        if self.next_offset == head.next_offset {
            return self.last_appended_at == head.last_appended_at;
        }
        let is_kept = self.next_offset > head.kept_offset || head.kept_offset == 0;
        is_kept && (0..=FAR_OFFSETS).contains(&(head.next_offset - self.next_offset))
    }

    /// How much it takes, in producers.
    pub fn weight(&self) -> usize {
        let of_request = |request: &Remembered| match &request.placement {
            Placement::Records(places) => Placement::weight_of(places.len()),
            Placement::Partition { .. } | Placement::Topic { .. } => 0,
        };
        let of_producer = |producer: &Producer| -> usize {
            1 + producer.state.recent.iter().map(of_request).sum::<usize>()
        };
        1 + self.producers.values().map(of_producer).sum::<usize>()
    }

    /// What was read under another fence counts no longer.
    pub fn see_fence(&mut self, fence: i64) {
        if self.fence != fence {
            self.partition_count = 0;
        }
        self.fence = fence;
    }

    /// Whether what lacks to that head is little enough to be read under its lock.
    pub fn is_near(&self, head: &Head) -> bool {
        self.is_prefix_of(head) && head.next_offset - self.next_offset <= NEAR_OFFSETS
    }

    /// A look under the lock found rows of another replica, or did not.
    pub fn looked(&mut self, found_others: bool) {
        let quieter = self.contended_passes.saturating_sub(1);
        self.contended_passes = if found_others { CONTENDED_PASSES } else { quieter };
    }

    /// Whether the row that this cache ends with lies in the log as it was folded: without it the rows
    /// behind are of another history.
    pub fn ends_in(&self, rows: &[TailRow<'_>]) -> bool {
        let is_last = |row: &TailRow<'_>| row.base_offset + row.record_count == self.next_offset;
        let last = rows.iter().find(|row| is_last(row));
        self.next_offset == 0 || last.is_some_and(|row| row.appended_at == self.last_appended_at)
    }

    /// Folds a tail that was read from `from` on. A row is applied whole or not at all. `starts`
    /// says from where on it counts for a producer loaded now; for all others it counts behind the
    /// cache. A tail that does not reach from `from` to the cache without a hole (it was trimmed
    /// or compacted meanwhile) is refused; the cache is then good for nothing.
    pub fn fold(
        &mut self,
        from: Offset,
        rows: &[TailRow<'_>],
        starts: &HashMap<ProducerId, Offset>,
    ) -> Result<(), Corrupt> {
        let mut position = from;
        for row in rows {
            if row.base_offset != position {
                return Err(Corrupt);
            }
            position += row.record_count;
            self.fold_row(row, starts)?;
        }
        if position < self.next_offset { Err(Corrupt) } else { Ok(()) }
    }

    fn fold_row(
        &mut self,
        row: &TailRow<'_>,
        starts: &HashMap<ProducerId, Offset>,
    ) -> Result<(), Corrupt> {
        let behind_memory = row.base_offset >= self.next_offset;
        let entries = match row.producers {
            Some(bytes) => encoding::decode_entries(row.base_offset, bytes)?,
            None => Vec::new(),
        };
        for entry in &entries {
            let counts = match starts.get(&entry.producer_id) {
                Some(start) => row.base_offset >= *start,
                None => behind_memory,
            };
            if counts && let Some(producer) = self.producers.get_mut(&entry.producer_id) {
                producer.state.apply(entry, row.appended_at);
            }
        }
        if behind_memory {
            self.next_offset += row.record_count;
            self.last_appended_at = row.appended_at;
            self.unfolded_rows += 1;
        }
        Ok(())
    }
}
