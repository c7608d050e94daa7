//! Writes stored records into an answer: lines go out as they came in. The members that the log
//! adds (`offset`, `appended_at`, `transaction_id`) follow the opening brace of each line, after
//! the origin if there are several; nothing is parsed again.

use std::fmt::Write;

use memchr::memchr_iter;

use crate::model::read::{BatchRow, PartitionRecords, Slice};

/// Upper bound of the text in front of a record, without its origin.
const ADDED_BYTES: usize = "{\"offset\":0123456789012345".len() + ROW_MEMBERS_BYTES;
/// Upper bound of the text of [`row_members`].
pub const ROW_MEMBERS_BYTES: usize = 32 + 24 + 19 + 36;

/// Size estimate of the stored lines with the text in front of each.
pub fn capacity(origin: &str, slices: &[Slice]) -> usize {
    let size = |slice: &Slice| {
        let lines = slice.end - slice.start;
        lines + slice.record_count().min(lines) * (ADDED_BYTES + origin.len())
    };
    slices.iter().map(size).sum()
}

/// The members that all records of a row share, which follow the offset.
pub fn row_members(row: &BatchRow) -> String {
    let mut members = format!(",\"appended_at\":\"{}\",", row.appended_at);
    if let Some(id) = row.transaction_id {
        // Writing to a String cannot fail.
        let _ = write!(members, "\"transaction_id\":\"{id}\",");
    }
    members
}

/// Writes a stored line, `{...}` with a newline, as `{"offset":N,...}` and `end`, with its origin
/// (`read::origin`, or nothing) in front of the offset.
pub fn write_records(body: &mut Vec<u8>, origin: &str, slices: &[Slice], end: u8) {
    let head = format!("{{{origin}\"offset\":");
    for slice in slices {
        let Slice { row, start, end: slice_end, .. } = slice;
        let members = row_members(row);
        let lines = row.lines.as_bytes().get(*start..*slice_end).unwrap_or_default();
        let mut from = 0;
        let mut digits = itoa::Buffer::new();
        for (newline, offset) in memchr_iter(b'\n', lines).zip(slice.offsets()) {
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(digits.format(offset).as_bytes());
            body.extend_from_slice(members.as_bytes());
            body.extend_from_slice(lines.get(from + 1..newline).unwrap_or_default());
            body.push(end);
            from = newline + 1;
        }
    }
}

/// Size estimate for the records of several partitions.
pub fn total_capacity(parts: &[PartitionRecords]) -> usize {
    parts.iter().map(|part| capacity(&part.origin, &part.slices)).sum()
}

/// Writes the elements of a JSON list.
pub fn write_list(body: &mut Vec<u8>, parts: &[PartitionRecords]) {
    parts.iter().for_each(|part| write_records(body, &part.origin, &part.slices, b','));
    drop_last(body, b',');
}

/// Writes one record per line.
pub fn ndjson(parts: &[PartitionRecords]) -> Vec<u8> {
    let mut body = Vec::with_capacity(total_capacity(parts));
    parts.iter().for_each(|part| write_records(&mut body, &part.origin, &part.slices, b'\n'));
    body
}

/// Drops the separator behind the last item.
pub fn drop_last(body: &mut Vec<u8>, separator: u8) {
    if body.last() == Some(&separator) {
        body.pop();
    }
}
