//! Topics as a client describes and sees them.

use serde::{Deserialize, Serialize};

use super::{Name, Offset, Partition, Timestamp};

/// Largest number of partitions one tenant may have, and so one topic.
pub const MAX_PARTITIONS: i64 = 10_000;
/// Largest number of topics one tenant may have.
pub const MAX_TOPICS: i64 = 1_000;

/// A topic's own settings; what is absent comes from the tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicSettings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_records: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_record_bytes: Option<i64>,
}

/// What one append may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    pub max_batch_records: i64,
    pub max_batch_bytes: i64,
    pub max_record_bytes: i64,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self { max_batch_records: 1_000, max_batch_bytes: 1 << 20, max_record_bytes: 1 << 20 }
    }
}

impl TopicSettings {
    /// What holds for the topic: its own values over the defaults.
    pub fn limits(&self) -> BatchLimits {
        let default = BatchLimits::default();
        BatchLimits {
            max_batch_records: self.max_batch_records.unwrap_or(default.max_batch_records),
            max_batch_bytes: self.max_batch_bytes.unwrap_or(default.max_batch_bytes),
            max_record_bytes: self.max_record_bytes.unwrap_or(default.max_record_bytes),
        }
    }
}

/// A change of one setting: left alone, back to the tenant's, or a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change {
    #[default]
    Keep,
    Default,
    Set(i64),
}

/// A merge patch of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopicPatch {
    pub partition_count: Option<Partition>,
    pub max_batch_records: Change,
    pub max_batch_bytes: Change,
    pub max_record_bytes: Change,
}

/// A topic as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSummary {
    pub topic: Name,
    pub partition_count: Partition,
    pub settings: TopicSettings,
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

/// One page of a list: at most `limit` items behind `after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub limit: i64,
    pub after: Option<String>,
}

/// A page's items, and where the next page starts (none at the end).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    pub items: Vec<T>,
    pub next_after: Option<String>,
}

impl<T> Listed<T> {
    /// A page out of items of which one more than the limit was fetched.
    pub fn cut(mut items: Vec<T>, limit: i64, name: impl Fn(&T) -> String) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = items.len() > limit;
        items.truncate(limit);
        let next_after = if more { items.last().map(name) } else { None };
        Self { items, next_after }
    }
}
