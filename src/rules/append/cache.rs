//! The log cache: a replayed prefix of a log. It decides nothing by itself: no answer leaves before
//! its read set is confirmed by the head row.

use std::collections::HashMap;

use super::{
    encoding::{self, Corrupt},
    producer_state::{Placement, ProducerState, Remembered},
    sequence::SessionFacts,
    snapshot::TailRow,
};
use crate::model::{LogId, Offset, Partition, ProducerId, Timestamp};

/// After this many batches on the slow path without rows of another replica, the fast path is tried
/// again: a failed attempt costs more than the slow path.
const CONTENDED_PASSES: u8 = 8;

/// The maximum number of offsets read under a head's lock: milliseconds.
pub const NEAR_OFFSETS: i64 = 5_000;

/// The maximum length of a tail that is read at once, with or without a lock: a longer one is first
/// folded into snapshots, step by step.
pub const FAR_OFFSETS: i64 = 200_000;

/// The head row of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head {
    pub log_id: LogId,
    pub next_offset: Offset,
    pub fence: i64,
    pub last_appended_at: Timestamp,
    pub snapshot_offset: Offset,
    /// Rows before this offset are deleted or compacted.
    pub kept_offset: Offset,
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

/// The state of a topic's keys in its journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalKeys {
    /// Grows with every reservation.
    pub claims: i64,
    /// The rings that may hold keys, one bit each.
    pub rings: i32,
}

/// The cache of a log.
#[derive(Clone, Debug)]
pub struct LogCache {
    pub next_offset: Offset,
    pub fence: i64,
    pub last_appended_at: Timestamp,
    /// For a journal: the partition count of its topic under this fence. 0 in a partition's log.
    pub partition_count: Partition,
    /// For a journal: the state of its topic's keys, if it was loaded.
    pub keys: Option<JournalKeys>,
    pub producers: HashMap<ProducerId, Producer>,
    /// How many batches still take the slow path before the fast path is tried again, because
    /// another replica appends to the log.
    pub contended_passes: u8,
    /// The number of rows known to follow the last snapshot.
    pub unfolded_rows: i64,
}

pub type LogCaches = HashMap<LogId, LogCache>;

impl LogCache {
    /// A cache without producers: each is loaded with its own tail, so rows before the head's next
    /// offset do not matter.
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

    /// Whether this can be a prefix of the log with this head: not longer, and of equal length only
    /// with an equal fingerprint. A shorter one is verified by its last row (`fold`), which must
    /// still exist, and be so near that reading the rows since is worthwhile.
    pub fn is_prefix_of(&self, head: &Head) -> bool {
        if self.next_offset == head.next_offset {
            return self.last_appended_at == head.last_appended_at;
        }
        let is_kept = self.next_offset > head.kept_offset || head.kept_offset == 0;
        is_kept && (0..=FAR_OFFSETS).contains(&(head.next_offset - self.next_offset))
    }

    /// Its size, in producers.
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

    /// Discards what was read under another fence.
    pub fn see_fence(&mut self, fence: i64) {
        if self.fence != fence {
            self.partition_count = 0;
        }
        self.fence = fence;
    }

    /// Whether the missing tail is short enough to be read under the head's lock.
    pub fn is_near(&self, head: &Head) -> bool {
        self.is_prefix_of(head) && head.next_offset - self.next_offset <= NEAR_OFFSETS
    }

    /// Notes whether the slow path found rows of another replica.
    pub fn looked(&mut self, found_others: bool) {
        let quieter = self.contended_passes.saturating_sub(1);
        self.contended_passes = if found_others { CONTENDED_PASSES } else { quieter };
    }

    /// Whether the log still has the last row of this cache; otherwise the rows after it belong to
    /// another history.
    pub fn ends_in(&self, rows: &[TailRow<'_>]) -> bool {
        let is_last = |row: &TailRow<'_>| row.base_offset + row.record_count == self.next_offset;
        let last = rows.iter().find(|row| is_last(row));
        self.next_offset == 0 || last.is_some_and(|row| row.appended_at == self.last_appended_at)
    }

    /// Replays a tail that was read from `from` on. A row is applied as a whole or not at all.
    /// `starts` says where it begins for a newly loaded producer; for all others it begins after
    /// the cache. A tail with a hole between `from` and the cache (trimmed or compacted meanwhile)
    /// is refused; then the cache is invalid.
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
