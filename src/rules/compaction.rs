//! Compaction by key: the last record of each key stays, at its offset.
//!
//! A round finds the last offset of every key in the dirty part of the log, which was appended
//! since the previous round, as far as memory allows; then it goes over the log from its start to
//! there and drops each record that has a later one of its key. So before the end of the round each
//! key has one record: that part is clean. Repeated or unfinished work does no harm: a record is
//! dropped only if a later one of its key is in the log.
//!
//! A record whose value is null, a tombstone, says that its key is deleted. It stays for a while
//! after all older records of its key are gone: a reader that has seen one of them must also see
//! the tombstone.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_128;

use crate::model::{
    Offset, Timestamp,
    batch::{Keyed, keyed},
    read::BatchRow,
    survivors::Kept,
};

/// A log is due when this percentage of its records is dirty: going over all of it for a few would
/// cost more than it saves.
pub const MIN_DIRTY_PERCENT: i64 = 50;

/// The maximum number of keys of a round: some 20 MB. A log with more dirty keys takes several
/// rounds.
pub const MAX_KEYS: usize = 400_000;

/// How long a replica may serve from its cache what compaction has dropped since.
pub const PAGE_LIFE_MS: i64 = 600_000;

/// The compaction state of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionState {
    pub next_offset: Offset,
    /// Before this offset the log is clean.
    pub cleaned_offset: Offset,
    /// The records in the clean part, and how many of them are tombstones.
    pub left_records: i64,
    pub tombstones: i64,
    /// The records that the tombstones before this offset delete were gone at that instant.
    pub settled_offset: Offset,
    pub settled_at: Timestamp,
}

impl CompactionState {
    /// Whether a round is due. `delay_ms`: of tombstones; none: they stay forever.
    pub fn is_due(&self, delay_ms: Option<i64>, now: Timestamp) -> bool {
        let dirty = self.next_offset - self.cleaned_offset;
        let is_dirty = dirty > 0 && 100 * dirty >= MIN_DIRTY_PERCENT * (dirty + self.left_records);
        is_dirty || (self.tombstones > 0 && self.may_forget(delay_ms, now))
    }

    /// Whether the settled tombstones can be dropped: a reader that has seen the deleted records,
    /// from the log before or from a cache, has had the delay to reach them.
    pub fn may_forget(&self, delay_ms: Option<i64>, now: Timestamp) -> bool {
        let until = delay_ms.map(|delay_ms| self.settled_at.0 + PAGE_LIFE_MS + delay_ms);
        until.is_some_and(|until| now.0 >= until)
    }
}

/// The last offset of each key. Keys are identified by 128 bits of hash.
#[derive(Debug, Default)]
pub struct LastOffsets(HashMap<u128, Offset>);

impl LastOffsets {
    /// Adds a row; rows come in order.
    pub fn learn(&mut self, row: &BatchRow) {
        for (offset, line) in lines(row) {
            if let Some(Keyed { token, .. }) = keyed(line) {
                self.0.insert(xxh3_128(token.as_bytes()), offset);
            }
        }
    }

    /// Whether no more keys fit.
    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX_KEYS
    }

    fn supersedes(&self, token: &str, offset: Offset) -> bool {
        self.0.get(&xxh3_128(token.as_bytes())).is_some_and(|last| *last > offset)
    }
}

/// The result of compacting a row.
#[derive(Debug, PartialEq, Eq)]
pub struct Cleaned {
    pub left: Left,
    /// The remaining records, and how many of them are tombstones.
    pub records: i64,
    pub tombstones: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    All,
    Some(Kept, String),
    Nothing,
}

/// Compacts a row. Tombstones before `forget_before` are dropped.
pub fn clean(row: &BatchRow, last: &LastOffsets, forget_before: Offset) -> Cleaned {
    let (mut places, mut left) = (Vec::new(), String::new());
    let mut tombstones = 0;
    // nothing is copied before something goes
    let mut whole_bytes = 0;
    let mut dropped = false;
    for (offset, line) in lines(row) {
        let key = keyed(line);
        let is_tombstone = key.is_some_and(|key| key.is_tombstone);
        let is_past = is_tombstone && offset < forget_before;
        if is_past || key.is_some_and(|key| last.supersedes(key.token, offset)) {
            if !dropped {
                left.push_str(row.lines.get(..whole_bytes).unwrap_or_default());
            }
            dropped = true;
            continue;
        }
        if dropped {
            left.push_str(line);
        }
        whole_bytes += line.len();
        tombstones += i64::from(is_tombstone);
        places.push(u32::try_from(offset - row.base_offset).unwrap_or(u32::MAX));
    }
    let records = places.len() as i64;
    let left = match Kept::new(places) {
        _ if !dropped => Left::All,
        Some(kept) => Left::Some(kept, left),
        None => Left::Nothing,
    };
    Cleaned { left, records, tombstones }
}

/// The records of a row.
fn lines(row: &BatchRow) -> impl Iterator<Item = (Offset, &str)> {
    let lines = row.lines.split_inclusive('\n').enumerate();
    lines.map(|(n, line)| (row.offset(n), line))
}
