//! Offsets of groups as a client commits and sees them.

use super::{Name, Offset, Partition};

/// Most offsets that one commit may hold.
pub const MAX_OFFSETS: usize = 10_000;
/// Longest metadata kept with a committed offset, in bytes.
pub const MAX_METADATA_BYTES: usize = 4_096;

/// A member, and the newest generation it knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub member_id: String,
    pub generation: i64,
}

/// A commit outside of transactions, as asked for: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetCommit {
    /// None: the group has no members.
    pub member: Option<Member>,
    pub items: Vec<OffsetItem>,
}

/// An offset for a group to go on from in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetItem {
    pub topic: Name,
    pub partition: Partition,
    pub offset: Offset,
    pub metadata: Option<String>,
    /// Only if this is the committed offset; `Some(None)`: only if there is none yet.
    pub expected_offset: Option<Option<Offset>>,
}

/// Where a group goes on in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    pub topic: Name,
    pub partition: Partition,
    pub offset: Offset,
    pub metadata: Option<String>,
}
