//! Groups as their operators see and change them.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{AutoOffsetReset, Partitions};
use crate::model::{Name, Offset, Partition, Timestamp};

/// A group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    pub group: Name,
    pub generation: i64,
    pub member_count: i32,
    pub auto_offset_reset: AutoOffsetReset,
    pub created_at: Timestamp,
}

/// A group, all of it as of one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDescription {
    pub group: Name,
    pub generation: i64,
    pub auto_offset_reset: AutoOffsetReset,
    pub created_at: Timestamp,
    /// In the order in which they joined.
    pub members: Vec<MemberDescription>,
    /// By topic and partition.
    pub places: Vec<PlaceDescription>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberDescription {
    pub member_id: String,
    pub instance_id: Option<String>,
    pub topics: Vec<String>,
    pub topic_pattern: Option<String>,
    pub session_timeout_ms: i64,
    pub joined_at: Timestamp,
    pub lease_expires_at: Timestamp,
    /// The partitions it owns.
    pub assignment: Partitions,
}

/// A partition that a group has subscribed to or committed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceDescription {
    pub topic: Name,
    pub partition: Partition,
    pub committed_offset: Option<Offset>,
    pub metadata: Option<String>,
    pub committed_at: Option<Timestamp>,
    pub log_start_offset: Offset,
    pub high_watermark: Offset,
    /// The number of records it still has to process; None: it would not start.
    pub lag: Option<i64>,
    pub owner: Option<OwnerDescription>,
    /// The member that gets the partition once its owner releases it.
    pub assigned_to: Option<String>,
    pub pin: Option<Pin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerDescription {
    pub member_id: String,
    /// The generation in which it got the partition.
    pub since: i64,
    /// When it got the partition.
    pub at: Option<Timestamp>,
}

/// A prepared transaction that will commit an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub transaction_id: Uuid,
    pub since: Option<Timestamp>,
}

/// The target of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetTo {
    Earliest,
    Latest,
    Offset(Offset),
    /// The first record appended at or after this instant.
    Timestamp(Timestamp),
    /// This many records from the current position; backward if negative.
    By(i64),
}

/// The parameters of a reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsReset {
    /// None: all that the group has subscribed to or committed in.
    pub topics: Option<BTreeSet<Name>>,
    pub to: ResetTo,
    /// Returns the result without applying it.
    pub dry_run: bool,
}

/// The lag of a group in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    pub tenant: Name,
    pub group: Name,
    pub topic: Name,
    pub records: i64,
    /// When the oldest of them was appended; none without lag.
    pub oldest_at: Option<Timestamp>,
}
