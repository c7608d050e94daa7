//! Topics as clients describe and see them.

use super::{
    Name, Offset, Partition, Timestamp,
    settings::{Changes, OwnSettings},
};

/// Maximum number of partitions of a topic.
pub const MAX_PARTITION_COUNT: i64 = 10_000;

/// The limits of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    pub max_batch_records: i64,
    pub max_batch_bytes: i64,
    pub max_record_bytes: i64,
}

/// A merge patch of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPatch {
    pub partition_count: Option<Partition>,
    pub settings: Changes,
}

/// A topic in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSummary {
    pub topic: Name,
    pub partition_count: Partition,
    /// Own values; absent ones come from the tenant.
    pub settings: OwnSettings,
    pub created_at: Timestamp,
}

/// A topic with its partitions in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    pub summary: TopicSummary,
    pub partitions: Vec<PartitionDescription>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    pub partition: Partition,
    pub log_start_offset: Offset,
    pub high_watermark: Offset,
    pub record_count: i64,
    pub size_bytes: i64,
}

/// A page request: at most `limit` items after `after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub limit: i64,
    pub after: Option<String>,
}

/// A page of items, and the `after` of the next page (none on the last one).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    pub items: Vec<T>,
    pub next_after: Option<String>,
}

impl<T> Listed<T> {
    /// Builds a page from up to `limit + 1` items.
    pub fn cut(mut items: Vec<T>, limit: i64, name: impl Fn(&T) -> String) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = items.len() > limit;
        items.truncate(limit);
        let next_after = if more { items.last().map(name) } else { None };
        Self { items, next_after }
    }
}
