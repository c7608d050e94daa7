//! The rows that a batch appends to one log, while it is being decided: which requests share a row.

use uuid::Uuid;

use super::{
    RequestPart, encoding,
    plan::{LogWrite, PlannedRow},
    producer_state::Entry,
    read_set::ExpectedHead,
};
use crate::model::LogId;

/// The size up to which a row takes consecutive requests: rows of 2-4 kB compressed pack best.
pub const ROW_TARGET_BYTES: i64 = 16 * 1024;

#[derive(Default)]
pub struct Draft {
    record_count: i64,
    size_bytes: i64,
    rows: Vec<(PlannedRow, Vec<Entry>)>,
}

impl Draft {
    /// Adds the lines of a (request, part) to the last row, or to a new one (a row holds records of
    /// one transaction, or of none); returns the distance of its first record from the log's base
    /// in this batch.
    pub fn add_part(
        &mut self,
        part: &RequestPart,
        lines: (usize, usize),
        transaction_id: Option<Uuid>,
    ) -> i64 {
        let delta = self.record_count;
        let is_over = |(row, _): &(PlannedRow, _)| {
            row.size_bytes >= ROW_TARGET_BYTES || row.transaction_id != transaction_id
        };
        if self.rows.last().is_none_or(is_over) {
            self.rows.push((PlannedRow { transaction_id, ..row_at(delta) }, Vec::new()));
        }
        if let Some((row, _)) = self.rows.last_mut() {
            row.record_count += part.record_count;
            row.size_bytes += part.size_bytes;
            row.lines.push(lines);
        }
        self.record_count += part.record_count;
        self.size_bytes += part.size_bytes;
        delta
    }

    /// Adds the entry of a sequenced request: next to its records, or to a journal, where it takes
    /// one offset (a row always takes some).
    pub fn add_entry(&mut self, entry: Entry, in_journal: bool) {
        let counts = i64::from(in_journal);
        if self.rows.is_empty() {
            self.rows.push((row_at(0), Vec::new()));
        }
        if let Some((row, entries)) = self.rows.last_mut() {
            row.record_count += counts;
            entries.push(entry);
        }
        self.record_count += counts;
    }

    pub fn into_write(self, log_id: LogId, compare: Option<ExpectedHead>) -> LogWrite {
        let base = compare.and_then(|compare| compare.position).map_or(0, |(base, _)| base);
        let rows = self.rows.into_iter().map(|(row, entries)| {
            let origin = base + row.delta;
            let producers =
                (!entries.is_empty()).then(|| encoding::encode_entries(origin, &entries));
            PlannedRow { producers, ..row }
        });
        LogWrite {
            log_id,
            compare,
            record_count: self.record_count,
            size_bytes: self.size_bytes,
            rows: rows.collect(),
            claims: None,
            claimed_rings: 0,
        }
    }
}

fn row_at(delta: i64) -> PlannedRow {
    PlannedRow {
        delta,
        record_count: 0,
        size_bytes: 0,
        producers: None,
        transaction_id: None,
        lines: Vec::new(),
    }
}
