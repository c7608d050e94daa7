//! What goes into a read (of a partition, of a topic, of a member's partitions), and what comes out.

use std::sync::Arc;

use uuid::Uuid;

use super::{
    Name, Offset, Partition, Timestamp, group::Membership, survivors::Kept, transaction::State,
};

/// Where a read starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Earliest,
    Latest,
    Offset(Offset),
    /// The first record appended at or after this instant.
    Timestamp(Timestamp),
}

/// What a read shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// The log.
    #[default]
    ReadCommitted,
    /// Beside it what open transactions have staged.
    ReadUncommitted,
}

/// A read of one partition, as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    pub start: Start,
    /// Most records.
    pub limit: usize,
    /// Most bytes of answered record lines; the first record always comes.
    pub max_bytes: usize,
    pub wait_ms: u64,
    pub isolation: Isolation,
}

/// Records read, in order.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub slices: Vec<Slice>,
    pub next_offset: Offset,
    pub log_start_offset: Offset,
    pub high_watermark: Offset,
    /// Of a read of what is uncommitted, by transaction id.
    pub staged: Option<Vec<Staged>>,
}

/// Where a read of all partitions of a topic starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicStart {
    Earliest,
    Latest,
    /// In each partition the first record appended at or after this instant.
    Timestamp(Timestamp),
    /// As an answer gave it.
    Cursor(String),
}

/// A read of all partitions of a topic, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRead {
    pub start: TopicStart,
    /// Most records, of all partitions together.
    pub limit: usize,
    /// Most bytes of answered record lines, together; the first record always comes.
    pub max_bytes: usize,
    pub wait_ms: u64,
}

/// Records read from a topic, those of a partition together and in order.
#[derive(Clone, Debug)]
pub struct TopicFetched {
    pub parts: Vec<PartitionRecords>,
    pub partitions: Vec<PartitionEnds>,
    pub cursor: String,
}

/// Where a partition is read on, and where it starts and ends.
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
    /// Whose they are: what [`origin`] says.
    pub origin: String,
    pub slices: Vec<Slice>,
}

/// The first members of a record that is answered among those of other partitions, of one topic or
/// of several: `"topic":"t","partition":3,`. (Names are plain ASCII: they need no escapes.)
pub fn origin(topic: Option<&Name>, partition: Partition) -> String {
    let topic = topic.map(|topic| format!("\"topic\":\"{topic}\",")).unwrap_or_default();
    format!("{topic}\"partition\":{partition},")
}

/// Bytes of [`origin`].
pub fn origin_bytes(topic: Option<&Name>, partition: Partition) -> usize {
    let topic = topic.map_or(0, |topic| r#""topic":"","#.len() + topic.as_str().len());
    let digits = partition.checked_ilog10().unwrap_or(0) as usize + 1;
    topic + r#""partition":,"#.len() + digits
}

/// What an open transaction has staged for a log: no part of it yet, so without offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    pub transaction_id: Uuid,
    pub state: State,
    /// A line of JSON a record, each ending in a newline.
    pub lines: String,
}

/// Neighbouring records of one stored row. The bytes are shared with the cache.
#[derive(Clone, Debug)]
pub struct Slice {
    pub row: Arc<BatchRow>,
    /// Of the first record of the slice.
    pub first_offset: Offset,
    /// Byte range of the slice in `row.lines`: whole lines.
    pub start: usize,
    pub end: usize,
    /// Behind the last record of the slice, and behind the row if nothing of it comes after.
    pub end_offset: Offset,
}

impl Slice {
    /// Of each of its records.
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

/// One stored row of a partition's log: lines of JSON, each ending in a newline.
#[derive(Debug)]
pub struct BatchRow {
    pub base_offset: Offset,
    /// How many offsets it spans.
    pub record_count: i64,
    pub appended_at: Timestamp,
    pub transaction_id: Option<Uuid>,
    /// Which records are left. None: all of them.
    pub kept: Option<Kept>,
    pub lines: String,
}

impl BatchRow {
    /// The offset behind it.
    pub fn end(&self) -> Offset {
        self.base_offset + self.record_count
    }

    /// How many lines it has.
    pub fn line_count(&self) -> usize {
        match &self.kept {
            None => usize::try_from(self.record_count).unwrap_or_default(),
            Some(kept) => kept.count(),
        }
    }

    /// Of the record of the nth line.
    pub fn offset(&self, line: usize) -> Offset {
        match &self.kept {
            None => self.base_offset + line as Offset,
            Some(kept) => self.base_offset + kept.place(line),
        }
    }

    /// How many of its lines are of records before an offset.
    pub fn lines_before(&self, offset: Offset) -> usize {
        let place = offset - self.base_offset;
        match &self.kept {
            None => usize::try_from(place).unwrap_or_default(),
            Some(kept) => kept.count_before(place),
        }
    }

    /// Whether it has a record at an offset or behind it.
    pub fn reaches(&self, offset: Offset) -> bool {
        match &self.kept {
            None => self.end() > offset,
            Some(kept) => self.lines_before(offset) < kept.count(),
        }
    }

    /// Bytes of the answered line (with its newline) of a record whose stored line has
    /// `line_bytes` with its newline: `{"offset":N,"appended_at":"...",` takes the place of its `{`.
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

/// Where the run begins that a fetch goes on with: what its member processes between two commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// At the cursor, where exactly that is committed by now; else where the cursor's run began.
    #[default]
    SinceCommit,
    /// Where the cursor's run began.
    Continue,
    /// At the cursor.
    New,
}

/// A fetch of a member, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// None: from the committed offsets.
    pub cursor: Option<String>,
    /// Of what the cursor names.
    pub run: Run,
    /// Most records, of all partitions together.
    pub limit: usize,
    /// Most bytes of answered record lines, of all partitions together; the first always comes.
    pub max_bytes: usize,
    pub wait_ms: u64,
}

/// What a fetch answers: records of the member's partitions, those of each together and in order.
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
