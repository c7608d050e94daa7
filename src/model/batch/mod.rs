//! The records of one append, made into stored lines once, when the request is parsed.
//!
//! `read` goes over the records' bytes once (their shape is in `visit`) and refuses with a pointer;
//! `line` writes what was read as one canonical line a record. A stored line is never parsed again.

mod key;
mod line;
#[cfg(test)]
mod properties;
mod read;
mod reader;
#[cfg(test)]
mod tests;
mod visit;

use serde_json::value::RawValue;

use super::{Digest, Epoch, Invalid, Offset, Sequence, dedup::DedupKey};

pub use key::{Keyed, keyed};
pub use reader::MAX_ID_BYTES;

/// What surrounds the records of a JSON append. (The all-or-nothing rule of the first three is
/// judged where they are used.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    pub producer_id: Option<i64>,
    pub epoch: Option<Epoch>,
    pub sequence: Option<Sequence>,
    pub expected_offset: Option<Offset>,
    pub on_duplicate: OnDuplicate,
}

/// What becomes of a request with a record that is stored already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDuplicate {
    /// The record is not stored again.
    #[default]
    Skip,
    /// The whole request is refused.
    Refuse,
}

/// One record inside `Batch::lines`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where its line ends in `lines` (behind its newline); it starts where the one before ends.
    pub end: u32,
    /// Where its value and key end in its line: they come first.
    pub content_bytes: u32,
    /// Murmur2 of its key as Kafka's clients compute it; none without a key.
    pub key_hash: Option<u32>,
}

/// Parsed records: never empty.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// One line of JSON a record, each ending in `\n`.
    pub lines: String,
    pub records: Vec<Line>,
    /// What the ids of the records are hashed to; empty: none has one.
    pub ids: Vec<Option<DedupKey>>,
    /// Of the lines before a `traceparent` was added, so a repeat under another trace is equal.
    pub digest: Digest,
}

impl Batch {
    /// Parses `{"producer_id", "epoch", "sequence", "expected_offset", "on_duplicate", "records": [...]}`.
    /// `traceparent` becomes a header of every record that has none of that name.
    pub fn from_json(body: &[u8], traceparent: Option<&str>) -> Result<(Envelope, Batch), Invalid> {
        read::json(body, traceparent)
    }

    /// Parses one record a line, also as a read answered it: what the log added there is ignored.
    pub fn from_ndjson(body: &[u8], traceparent: Option<&str>) -> Result<Batch, Invalid> {
        read::ndjson(body, traceparent)
    }

    /// Parses the `records` of one of many appends in a body: the array as it stands there. `at`:
    /// the pointer to the append.
    pub fn from_array(
        array: &RawValue,
        at: &str,
        traceparent: Option<&str>,
    ) -> Result<Batch, Invalid> {
        read::array(array.get(), at, traceparent)
    }

    pub fn record_count(&self) -> i64 {
        self.records.len() as i64
    }

    /// Bytes as stored: all lines with their newlines.
    pub fn size_bytes(&self) -> i64 {
        self.lines.len() as i64
    }

    /// Bytes of memory that it takes until it is stored, at most: its lines, with room to grow or as
    /// they are copied for each partition, and what is noted of each record: its place in the lines,
    /// its id, and what may be known of that.
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
