//! Groups as those who operate them see and ask for them.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::{AutoOffsetReset, Partitions};
use crate::model::{Name, Offset, Partition, Timestamp};

/// A group as lists show it.
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
    /// What it owns.
    pub assignment: Partitions,
}

/// A partition that a group has subscribed to or has committed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceDescription {
    pub topic: Name,
    pub partition: Partition,
    pub committed_offset: Option<Offset>,
    pub metadata: Option<String>,
    pub committed_at: Option<Timestamp>,
    pub log_start_offset: Offset,
    pub high_watermark: Offset,
    /// How many records it has still to process; None: it is to begin nowhere.
    pub lag: Option<i64>,
    pub owner: Option<OwnerDescription>,
    /// Another member, that is to have it once its owner lets go.
    pub assigned_to: Option<String>,
    pub pin: Option<Pin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerDescription {
    pub member_id: String,
    /// The generation in which it got the partition.
    pub since: i64,
    /// When.
    pub at: Option<Timestamp>,
}

/// A prepared transaction is to commit an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub transaction_id: Uuid,
    pub since: Option<Timestamp>,
}

/// Where a group's offsets are to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetTo {
    Earliest,
    Latest,
    Offset(Offset),
    /// The first record appended then or later.
    Timestamp(Timestamp),
    /// So many records on from where the group is; back, if negative.
    By(i64),
}

/// A reset of a group's offsets, as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsReset {
    /// None: all that the group has subscribed to or has committed in.
    pub topics: Option<BTreeSet<Name>>,
    pub to: ResetTo,
    /// Only tells what it would do.
    pub dry_run: bool,
}

/// How far a group is behind in a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lag {
    pub tenant: Name,
    pub group: Name,
    pub topic: Name,
    pub records: i64,
}
