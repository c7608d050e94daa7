//! Compaction by key: of the records that have the same key the last one stays, at its offset.
//!
//! A round learns the last offset of every key of the log's dirty part, what has come since the round
//! before, as far as memory allows; then it goes over the log from its start to there and drops each
//! record that has a later one of its key. So before where it ended no record has the key of another:
//! that part is clean. Whatever is done twice, or given up halfway, does no harm: a record is dropped
//! only where a later one of its key is in the log.
//!
//! A record whose value is null, a tombstone, says that its key is gone. It stays for a while after
//! all it speaks of has gone: who has read some of that must come to read this.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_128;

use crate::model::{
    Offset, Timestamp,
    batch::{Keyed, keyed},
    read::BatchRow,
    survivors::Kept,
};

/// A log is due when so many of its records in a hundred are dirty: going over all of it for a few
/// would cost more than it saves.
pub const MIN_DIRTY_PERCENT: i64 = 50;

/// Keys that a round learns: some 20 MB. A log with more dirty ones takes several rounds.
pub const MAX_KEYS: usize = 400_000;

/// How long a replica answers from memory what compaction may have dropped since.
pub const PAGE_LIFE_MS: i64 = 600_000;

/// What is known of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionState {
    pub next_offset: Offset,
    /// Before it the log is clean.
    pub cleaned_offset: Offset,
    /// Records that were left in the clean part, and how many of them are tombstones.
    pub left_records: i64,
    pub tombstones: i64,
    /// What the tombstones before this offset say is gone had gone at that instant.
    pub settled_offset: Offset,
    pub settled_at: Timestamp,
}

impl CompactionState {
    /// Whether there is enough to do. `delay_ms`: of tombstones; none: they stay for ever.
    pub fn is_due(&self, delay_ms: Option<i64>, now: Timestamp) -> bool {
        let dirty = self.next_offset - self.cleaned_offset;
        let is_dirty = dirty > 0 && 100 * dirty >= MIN_DIRTY_PERCENT * (dirty + self.left_records);
        is_dirty || (self.tombstones > 0 && self.may_forget(delay_ms, now))
    }

    /// Whether the settled tombstones may go: whoever has read what is gone, from the log before that
    /// or from memory, has had the delay to come to read them.
    pub fn may_forget(&self, delay_ms: Option<i64>, now: Timestamp) -> bool {
        let until = delay_ms.map(|delay_ms| self.settled_at.0 + PAGE_LIFE_MS + delay_ms);
        until.is_some_and(|until| now.0 >= until)
    }
}

/// Where each key was found last. Keys are known by 128 bits of hash.
#[derive(Debug, Default)]
pub struct LastOffsets(HashMap<u128, Offset>);

impl LastOffsets {
    /// Learns a row; rows come in their order.
    pub fn learn(&mut self, row: &BatchRow) {
        for (offset, line) in lines(row) {
            if let Some(Keyed { token, .. }) = keyed(line) {
                self.0.insert(xxh3_128(token.as_bytes()), offset);
            }
        }
    }

    /// No more rows are to be learned.
    pub fn is_full(&self) -> bool {
        self.0.len() >= MAX_KEYS
    }

    fn supersedes(&self, token: &str, offset: Offset) -> bool {
        self.0.get(&xxh3_128(token.as_bytes())).is_some_and(|last| *last > offset)
    }
}

/// What compaction makes of a row.
#[derive(Debug, PartialEq, Eq)]
pub struct Cleaned {
    pub left: Left,
    /// Records that stay, and how many of them are tombstones.
    pub records: i64,
    pub tombstones: i64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    All,
    Some(Kept, String),
    Nothing,
}

/// What stays of a row. Tombstones before `forget_before` go.
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
