//! Retention: which rows of a log are removed, the oldest first and as a whole, by age or size.

use super::settings;
use crate::model::{
    Offset, Timestamp,
    settings::{Key, OwnSettings, Value},
};

/// The limits of a partition. None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionLimits {
    pub ms: Option<i64>,
    pub bytes: Option<i64>,
}

impl RetentionLimits {
    /// `levels`: the nearest first. A compacted log loses records by key, not by these limits.
    pub fn of(levels: &[&OwnSettings]) -> Self {
        let limit = |key| settings::in_force(key, levels).number();
        match settings::in_force(Key::Cleanup, levels) {
            Value::Choice("compact") => Self::default(),
            _ => Self { ms: limit(Key::RetentionMs), bytes: limit(Key::RetentionBytes) },
        }
    }

    /// By how much the oldest row exceeds its age limit; none if it does not.
    pub fn overdue_ms(&self, oldest: &LogRow, now: Timestamp) -> Option<i64> {
        let overdue_ms = now.0 - oldest.appended_at.0 - self.ms?;
        (overdue_ms > 0).then_some(overdue_ms)
    }

    /// Whether a log may have rows to remove, according to its head and its oldest row.
    pub fn concern(&self, log: &Log, oldest: &LogRow, now: Timestamp) -> bool {
        let is_large = self.bytes.is_some_and(|bytes| log.size_bytes > bytes);
        self.overdue_ms(oldest, now).is_some() || is_large && oldest.end_offset < log.next_offset
    }
}

/// A partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    pub log_start_offset: Offset,
    pub next_offset: Offset,
    /// The size of all existing rows, including those before its start that are still to be
    /// removed.
    pub size_bytes: i64,
    /// The smallest offset that a prepared transaction will commit here for a group: records from
    /// there on are kept.
    pub held_offset: Option<Offset>,
}

/// A row of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRow {
    pub end_offset: Offset,
    pub appended_at: Timestamp,
    pub size_bytes: i64,
}

/// What one limit removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    pub records: i64,
    pub bytes: i64,
}

/// The new start of a log, and what it loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub log_start_offset: Offset,
    pub by_time: Gone,
    pub by_bytes: Gone,
}

/// `rows`: the oldest existing rows, oldest first, as many as one step can remove; those before the
/// log's start are removed already. A row exactly as old as the limit is kept, and so is the newest
/// row, however large.
pub fn step(log: &Log, rows: &[LogRow], limits: &RetentionLimits, now: Timestamp) -> Step {
    let mut kept_bytes = log.size_bytes;
    let (by_time, by_bytes) = (Gone::default(), Gone::default());
    let mut step = Step { log_start_offset: log.log_start_offset, by_time, by_bytes };
    for row in rows {
        if row.end_offset > log.log_start_offset {
            let is_newest = row.end_offset >= log.next_offset;
            let is_too_much = limits.bytes.is_some_and(|bytes| kept_bytes > bytes);
            let gone = match limits.overdue_ms(row, now) {
                _ if log.held_offset.is_some_and(|held| row.end_offset > held) => break,
                Some(_) => &mut step.by_time,
                None if is_too_much && !is_newest => &mut step.by_bytes,
                None => break,
            };
            gone.records += row.end_offset - step.log_start_offset;
            gone.bytes += row.size_bytes;
            step.log_start_offset = row.end_offset;
        }
        kept_bytes -= row.size_bytes;
    }
    step
}
