//! The records of one append, made into stored lines once, when the request is parsed.

use super::{Digest, Epoch, Invalid, Offset, Sequence};

/// What surrounds the records of a JSON append. (The all-or-nothing rule of the first three is
/// judged where they are used.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    pub producer_id: Option<i64>,
    pub epoch: Option<Epoch>,
    pub sequence: Option<Sequence>,
    pub expected_offset: Option<Offset>,
}

/// One record inside `Batch::lines`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where its line ends in `lines` (behind its newline); it starts where the one before ends.
    pub end: u32,
    /// Murmur2 of its key as Kafka's clients compute it; none without a key.
    pub key_hash: Option<u32>,
}

/// Parsed records: never empty.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch {
    /// One line of JSON a record, each ending in `\n`.
    pub lines: String,
    pub records: Vec<Line>,
    pub digest: Digest,
}

impl Batch {
    pub fn size_bytes(&self) -> usize {
        self.lines.len()
    }
    pub fn largest_record_bytes(&self) -> usize {
        0
    }
    /// Parses `{"producer_id", "epoch", "sequence", "expected_offset", "records": [...]}`.
    pub fn from_json(
        _body: &[u8],
        _traceparent: Option<&str>,
    ) -> Result<(Envelope, Batch), Invalid> {
        todo!("helper C")
    }

    /// Parses one record a line.
    pub fn from_ndjson(_body: &[u8], _traceparent: Option<&str>) -> Result<Batch, Invalid> {
        todo!("helper C")
    }
}
