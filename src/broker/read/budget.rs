//! The budget of an answer: records, and bytes of answered lines.

use std::sync::Arc;

use crate::model::{
    Offset,
    read::{BatchRow, Slice},
};

/// The budget of an answer, or of one log's share of it, with what is used already.
#[derive(Debug, PartialEq, Eq)]
pub struct ReadBudget {
    limit: usize,
    max_bytes: usize,
    /// The first record may exceed `max_bytes`, but not this.
    first_bytes: usize,
    records: usize,
    bytes: usize,
}

impl ReadBudget {
    /// The budget of a whole answer, which always has at least one record.
    pub fn new(limit: usize, max_bytes: usize) -> Self {
        Self { limit, max_bytes, first_bytes: usize::MAX, records: 0, bytes: 0 }
    }

    /// A share of the remaining budget. Its first record may use all of the remaining budget if
    /// necessary.
    pub fn part(&self, limit: usize, max_bytes: usize) -> Self {
        let free_bytes = self.free_bytes();
        Self {
            limit: limit.min(self.free_records()),
            max_bytes: max_bytes.min(free_bytes),
            first_bytes: if self.records == 0 { self.first_bytes } else { free_bytes },
            records: 0,
            bytes: 0,
        }
    }

    /// Charges what a share has used.
    pub fn add(&mut self, part: &ReadBudget) {
        self.records += part.records;
        self.bytes = self.bytes.saturating_add(part.bytes);
    }

    pub fn free_records(&self) -> usize {
        self.limit.saturating_sub(self.records)
    }

    pub fn free_bytes(&self) -> usize {
        self.max_bytes.saturating_sub(self.bytes)
    }

    pub fn is_full(&self) -> bool {
        self.free_records() == 0 || self.free_bytes() == 0
    }

    /// Returns the part of a row from an offset on that fits; none if nothing does. `origin_bytes`
    /// is the size of the origin added to every line.
    pub fn take(
        &mut self,
        row: &Arc<BatchRow>,
        from: Offset,
        origin_bytes: usize,
    ) -> Option<Slice> {
        let skipped = row.lines_before(from);
        let bytes = row.lines.as_bytes();
        let mut lines = memchr::memchr_iter(b'\n', bytes).map(|end| end + 1);
        let start = if skipped == 0 { 0 } else { lines.nth(skipped - 1)? };
        let first_offset = row.offset(skipped);
        let (mut end, mut taken, mut end_offset) = (start, skipped, first_offset);
        for line_end in lines {
            let offset = row.offset(taken);
            if !self.admits(origin_bytes + row.answered_bytes(offset, line_end - end)) {
                break;
            }
            (end, taken, end_offset) = (line_end, taken + 1, offset + 1);
        }
        if end == bytes.len() {
            end_offset = row.end();
        }
        let slice = Slice { row: row.clone(), first_offset, start, end, end_offset };
        (end > start).then_some(slice)
    }

    /// Returns how many bytes of lines without offsets fit, in whole lines.
    pub fn take_lines(&mut self, lines: &str) -> usize {
        let mut end = 0;
        for line_end in memchr::memchr_iter(b'\n', lines.as_bytes()).map(|end| end + 1) {
            if !self.admits(line_end - end) {
                break;
            }
            end = line_end;
        }
        end
    }

    /// Takes one more record, if it fits.
    fn admits(&mut self, size_bytes: usize) -> bool {
        let is_first = self.records == 0 && size_bytes <= self.first_bytes;
        let fits = self.free_records() > 0 && (size_bytes <= self.free_bytes() || is_first);
        if fits {
            self.records += 1;
            self.bytes = self.bytes.saturating_add(size_bytes);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these sizes are taken one after the other.
    fn taken(budget: &mut ReadBudget, sizes: &[usize]) -> usize {
        sizes.iter().take_while(|size| budget.admits(**size)).count()
    }

    #[test]
    fn the_first_record_of_an_answer_always_comes() {
        let table: [(usize, usize, &[usize], usize); 6] = [
            (3, 100, &[40, 40, 40], 2),
            (3, 100, &[50, 50, 1], 2),
            (3, 100, &[900, 1], 1),
            (1, 100, &[1, 1], 1),
            (9, 1, &[1, 1], 1),
            (0, 100, &[1], 0),
        ];
        for (limit, max_bytes, sizes, want) in table {
            let mut budget = ReadBudget::new(limit, max_bytes);
            assert_eq!(taken(&mut budget, sizes), want, "{limit} {max_bytes} {sizes:?}");
        }
    }

    #[test]
    fn a_part_takes_from_the_whole() {
        let mut whole = ReadBudget::new(10, 100);
        let mut part = whole.part(2, 30);
        assert_eq!(taken(&mut part, &[10, 10, 10]), 2);
        whole.add(&part);
        assert_eq!((whole.free_records(), whole.free_bytes()), (8, 80));

        // larger than its share, but there is enough left
        let mut part = whole.part(2, 30);
        assert_eq!(taken(&mut part, &[70, 1]), 1);
        whole.add(&part);
        // there is none
        let mut part = whole.part(2, 30);
        assert_eq!(taken(&mut part, &[11]), 0);
        assert_eq!(taken(&mut part, &[10]), 1);
        whole.add(&part);
        assert!(whole.is_full());
    }

    #[test]
    fn the_first_record_of_the_first_part_is_the_answers() {
        let mut whole = ReadBudget::new(10, 100);
        let mut part = whole.part(5, 50);
        assert_eq!(taken(&mut part, &[1_000]), 1);
        whole.add(&part);
        assert!(whole.is_full());
        assert_eq!(taken(&mut whole.part(5, 50), &[1]), 0);
    }
}
