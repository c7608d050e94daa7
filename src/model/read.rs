//! Reads of a partition, of a topic and of a member's partitions: what a client asks for, and what
//! it is answered.

use std::sync::Arc;

use uuid::Uuid;

use super::{
    Name, Offset, Partition, Timestamp, group::Membership, survivors::Kept, transaction::State,
};

/// Where a read starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The longest pattern, in bytes.
pub enum Start {
    Earliest,
    Latest,
    Offset(Offset),
    /// The first record appended at or after this instant.
    Timestamp(Timestamp),
}

/// Where a group starts in a partition without a committed offset, or whose committed offset was
/// trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// At the log start.
    #[default]
    ReadCommitted,
    /// Not at all: it is an error.
    ReadUncommitted,
}

/// The parameters of a partition read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub start: Start,
    /// Maximum number of records.
    pub limit: usize,
    /// Maximum bytes of answered lines; at least one record is always returned.
    pub max_bytes: usize,
    pub wait_ms: u64,
    pub isolation: Isolation,
}

/// The records read, in order.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub slices: Vec<Slice>,
    pub next_offset: Offset,
    pub log_start_offset: Offset,
    pub high_watermark: Offset,
    /// Uncommitted records, by transaction id.
    pub staged: Option<Vec<Staged>>,
}

/// Where a topic read starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicStart {
    Earliest,
    Latest,
    /// In each partition the first record appended at or after this instant.
    Timestamp(Timestamp),
    /// The cursor of an earlier answer.
    Cursor(String),
}

/// The parameters of a topic read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRead {
    pub start: TopicStart,
    /// Maximum number of records, over all partitions.
    pub limit: usize,
    /// Maximum bytes of answered lines, over all partitions; at least one record is always
    /// returned.
    pub max_bytes: usize,
    pub wait_ms: u64,
}

/// Records read from a topic, in order within each partition.
#[derive(Clone, Debug)]
pub struct TopicFetched {
    pub parts: Vec<PartitionRecords>,
    pub partitions: Vec<PartitionEnds>,
    pub cursor: String,
}

/// The positions of a partition: where to continue, log start, and high watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionEnds {
    pub partition: Partition,
    pub next_offset: Offset,
    pub log_start_offset: Offset,
    pub high_watermark: Offset,
}

/// Records of one log among several.
#[derive(Clone, Debug)]
pub struct PartitionRecords {
    /// The origin of the records, as [`origin`] writes it.
    pub origin: String,
    pub slices: Vec<Slice>,
}

/// The first members of a record in an answer with several partitions:
/// `"topic":"t","partition":3,`. (Names are plain ASCII and need no escapes.)
pub fn origin(topic: Option<&Name>, partition: Partition) -> String {
    let topic = topic.map(|topic| format!("\"topic\":\"{topic}\",")).unwrap_or_default();
    format!("{topic}\"partition\":{partition},")
}

/// The number of bytes that [`origin`] writes.
pub fn origin_bytes(topic: Option<&Name>, partition: Partition) -> usize {
    let topic = topic.map_or(0, |topic| r#""topic":"","#.len() + topic.as_str().len());
    let digits = partition.checked_ilog10().unwrap_or(0) as usize + 1;
    topic + r#""partition":,"#.len() + digits
}

/// A regular expression for topic names, which matches anywhere unless anchored. Its running time
/// is linear in the name's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// None: the reader may not know it.
    pub transaction_id: Option<Uuid>,
    pub state: State,
    /// One line of JSON per record, each ending in a newline.
    pub lines: String,
}

/// Consecutive records of one stored row. The bytes are shared with the cache.
#[derive(Clone, Debug)]
pub struct Slice {
    pub row: Arc<BatchRow>,
    /// The offset of the first record of the slice.
    pub first_offset: Offset,
    /// The byte range of the slice in `row.lines`, in whole lines.
    pub start: usize,
    pub end: usize,
    /// The offset after the last record of the slice; after the row if no more of its records
    /// follow.
    pub end_offset: Offset,
}

impl Slice {
    /// The offset of each of its records.
    pub fn offsets(&self) -> impl Iterator<Item = Offset> + '_ {
        let first_line = self.row.lines_before(self.first_offset);
        let offset = move |n| match &self.row.kept {
            None => self.first_offset + n as Offset,
            Some(_) => self.row.offset(first_line + n),
        };
        (0..self.record_count()).map(offset)
    }

    pub fn record_count(&self) -> usize {
        match &self.row.kept {
            None => usize::try_from(self.end_offset - self.first_offset).unwrap_or_default(),
            Some(_) => {
                self.row.lines_before(self.end_offset) - self.row.lines_before(self.first_offset)
            }
        }
    }
}

/// The parameters of a join.
#[derive(Debug)]
pub struct BatchRow {
    pub base_offset: Offset,
    /// The stable name of the member: a join with the same name replaces the earlier member.
    pub record_count: i64,
    pub appended_at: Timestamp,
    pub transaction_id: Option<Uuid>,
    /// None: the group's value.
    pub kept: Option<Kept>,
    pub lines: String,
}

impl BatchRow {
    /// The offset after it.
    pub fn end(&self) -> Offset {
        self.base_offset + self.record_count
    }

    /// The number of its lines.
    pub fn line_count(&self) -> usize {
        match &self.kept {
            None => usize::try_from(self.record_count).unwrap_or_default(),
            Some(kept) => kept.count(),
        }
    }

    /// The offset of the record in the nth line.
    pub fn offset(&self, line: usize) -> Offset {
        match &self.kept {
            None => self.base_offset + line as Offset,
            Some(kept) => self.base_offset + kept.place(line),
        }
    }

    /// The partitions it owns and keeps.
    pub fn lines_before(&self, offset: Offset) -> usize {
        let place = offset - self.base_offset;
        match &self.kept {
            None => usize::try_from(place).unwrap_or_default(),
            Some(kept) => kept.count_before(place),
        }
    }

    /// Whether it has a record at or after an offset.
    pub fn reaches(&self, offset: Offset) -> bool {
        match &self.kept {
            None => self.end() > offset,
            Some(kept) => self.lines_before(offset) < kept.count(),
        }
    }

    /// The size of an answered line (with its newline) whose stored line has `line_bytes` with its
    /// newline: `{"offset":N,"appended_at":"...",` replaces its `{`.
    pub fn answered_bytes(&self, offset: Offset, line_bytes: usize) -> usize {
        const OFFSET_AND_INSTANT: usize =
            r#"{"offset":,"appended_at":"2026-11-21T08:00:00.123Z","#.len();
        const TRANSACTION: usize =
            r#""transaction_id":"019a0000-0000-7000-8000-000000000000","#.len();
        let digits = offset.checked_ilog10().unwrap_or(0) as usize + 1;
        let transaction = if self.transaction_id.is_some() { TRANSACTION } else { 0 };
        OFFSET_AND_INSTANT + digits + transaction + line_bytes - 1
    }
}

/// Where the run of a fetch begins: the records that a member processes between two commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// At the cursor if exactly that is committed by now; else where the cursor's run began.
    #[default]
    SinceCommit,
    /// Where the cursor's run began.
    Continue,
    /// At the cursor.
    New,
}

/// The parameters of a member's fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// None: from the committed offsets.
    pub cursor: Option<String>,
    /// The run of the cursor's positions.
    pub run: Run,
    /// Maximum number of records, over all partitions.
    pub limit: usize,
    /// Maximum bytes of answered lines, over all partitions; at least one record is always
    /// returned.
    pub max_bytes: usize,
    pub wait_ms: u64,
}

/// The answer to a fetch: records of the member's partitions, in order within each partition.
#[derive(Clone, Debug)]
pub struct GroupFetched {
    pub membership: Membership,
    pub parts: Vec<PartitionRecords>,
    pub cursor: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_record_is_from() {
        let topic = Name::parse("orders.eu").unwrap();
        assert_eq!(origin(None, 3), r#""partition":3,"#);
        assert_eq!(origin(Some(&topic), 0), r#""topic":"orders.eu","partition":0,"#);
        for partition in [0, 9, 10, 99, 100, 9_999, Partition::MAX] {
            for topic in [None, Some(&topic)] {
                assert_eq!(origin_bytes(topic, partition), origin(topic, partition).len());
            }
        }
    }
}
