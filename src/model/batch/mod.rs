//! The records of one append, converted into stored lines once, when the request is parsed.
//!
//! `read` parses the records in one pass (`visit` knows their shape) and reports errors with
//! pointers; `line` writes each record as one canonical line. A stored line is never parsed again.

mod key;
mod line;
#[cfg(test)]
mod properties;
mod read;
mod reader;
#[cfg(test)]
mod tests;
mod value;
mod visit;

use serde_json::value::RawValue;

use super::{Digest, Epoch, Offset, Sequence, ValidationErrors, dedup::DedupKey};

pub use key::{Keyed, keyed};
pub use reader::MAX_ID_BYTES;

/// The fields beside the records in a JSON append. (Callers check the all-or-nothing rule of the
/// first three.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    pub producer_id: Option<i64>,
    pub epoch: Option<Epoch>,
    pub sequence: Option<Sequence>,
    pub expected_offset: Option<Offset>,
    pub on_duplicate: OnDuplicate,
}

/// What happens to a request with a record that is already stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDuplicate {
    /// Skip the record.
    #[default]
    Skip,
    /// Refuse the whole request.
    Refuse,
}

/// The position of one record in `Batch::lines`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where its line ends in `lines` (after its newline); it starts where the previous one ends.
    pub end: u32,
    /// Where its value and its key end in the line: they come first.
    pub content_bytes: u32,
    /// The murmur2 hash of its key, as Kafka's clients compute it; none without a key.
    pub key_hash: Option<u32>,
}

/// Parsed records: at least one.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// One line of JSON per record, each ending in `
    /// `.
    pub lines: String,
    pub records: Vec<Line>,
    /// The hashes of the record ids; empty if no record has an id.
    pub ids: Vec<Option<DedupKey>>,
    /// The digest of the lines before a `traceparent` was added, so that a repeat under another
    /// trace is equal.
    pub digest: Digest,
}

impl Batch {
    /// Parses `{"producer_id", "epoch", "sequence", "expected_offset", "on_duplicate", "records":
    /// [...]}`. `traceparent` becomes a header of every record that does not have one.
    pub fn from_json(
        body: &[u8],
        traceparent: Option<&str>,
    ) -> Result<(Envelope, Batch), ValidationErrors> {
        read::json(body, traceparent)
    }

    /// Parses one record per line. Lines of a read answer are accepted too: fields that the log
    /// adds are ignored.
    pub fn from_ndjson(body: &[u8], traceparent: Option<&str>) -> Result<Batch, ValidationErrors> {
        read::ndjson(body, traceparent)
    }

    /// Parses the `records` array of one of several appends in a body. `at` is the pointer to the
    /// append.
    pub fn from_array(
        array: &RawValue,
        at: &str,
        traceparent: Option<&str>,
    ) -> Result<Batch, ValidationErrors> {
        read::array(array.get(), at, traceparent)
    }

    pub fn record_count(&self) -> i64 {
        self.records.len() as i64
    }

    /// Stored bytes: all lines with their newlines.
    pub fn size_bytes(&self) -> i64 {
        self.lines.len() as i64
    }

    /// An upper bound of the memory used until the append is stored: the lines, with spare capacity
    /// or copied per partition, and the per-record data: positions, ids, and dedup lookups.
    pub fn held_bytes(&self) -> usize {
        const NOTED_BYTES: usize = 128;
        2 * self.lines.len() + NOTED_BYTES * self.records.len()
    }

    /// Bytes of the largest line, without its newline.
    pub fn largest_record_bytes(&self) -> i64 {
        let ends = self.records.iter().map(|line| i64::from(line.end));
        let starts = std::iter::once(0).chain(ends.clone());
        ends.zip(starts).map(|(end, start)| end - start - 1).max().unwrap_or(0)
    }
}
