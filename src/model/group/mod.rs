//! Groups, their members and their offsets, as a client asks for and sees them.

pub mod view;

use std::collections::{BTreeMap, BTreeSet};

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::{Name, Offset, Partition, Timestamp};

/// Most offsets that one commit may hold.
pub const MAX_OFFSETS: usize = 10_000;
/// Longest metadata kept with a committed offset, in bytes.
pub const MAX_METADATA_BYTES: usize = 4_096;
/// Most members of one group.
pub const MAX_MEMBERS: usize = 1_000;
/// Most topics that one member names.
pub const MAX_TOPICS: usize = 1_000;
/// Most patterns that a group subscribes with in its life.
pub const MAX_PATTERNS: usize = 100;
/// Longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1_000;
/// Largest program that a pattern may become.
const MAX_PATTERN_PROGRAM_BYTES: usize = 256 * 1024;
/// Longest member id, in bytes.
pub const MAX_MEMBER_ID_BYTES: usize = 255;
/// Longest `instance_id`, in bytes.
pub const MAX_INSTANCE_ID_BYTES: usize = MAX_MEMBER_ID_BYTES;
/// The lease of a member that asks for none, as far as its tenant permits.
pub const DEFAULT_SESSION_TIMEOUT_MS: i64 = 45_000;

/// Where a group begins in a partition in which it has committed nothing, or whose committed offset
/// has been trimmed away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AutoOffsetReset {
    /// At the first record there is.
    #[default]
    Earliest,
    /// At the next record to come.
    Latest,
    /// Nowhere: it is an error.
    Error,
}

impl AutoOffsetReset {
    pub const ALL: &'static [Self] = &[Self::Earliest, Self::Latest, Self::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            AutoOffsetReset::Earliest => "earliest",
            AutoOffsetReset::Latest => "latest",
            AutoOffsetReset::Error => "error",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reset| reset.as_str() == text)
    }
}

/// Topics by a regular expression, found anywhere in a name unless anchored. It takes time in
/// proportion to the name, whatever it says.
#[derive(Clone, Debug)]
pub struct TopicPattern(Regex);

impl TopicPattern {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            return Err(format!("a pattern has 1 to {MAX_PATTERN_BYTES} bytes"));
        }
        // PostgreSQL's text has none
        if text.contains('\0') {
            return Err("U+0000 cannot be kept".into());
        }
        let built = RegexBuilder::new(text).size_limit(MAX_PATTERN_PROGRAM_BYTES).build();
        let regex = built.map_err(|why| match why {
            regex::Error::CompiledTooBig(_) => "this pattern is too large".to_owned(),
            why => format!("not a regular expression (RE2 syntax, as Rust's regex): {why}"),
        })?;
        Ok(Self(regex))
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub fn matches(&self, topic: &Name) -> bool {
        self.0.is_match(topic.as_str())
    }
}

impl PartialEq for TopicPattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for TopicPattern {}

/// What a member subscribes to: both together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    pub topics: BTreeSet<Name>,
    pub pattern: Option<TopicPattern>,
}

impl Subscription {
    pub fn covers(&self, topic: &Name) -> bool {
        self.topics.contains(topic) || self.pattern.as_ref().is_some_and(|p| p.matches(topic))
    }
}

/// A join as asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    pub subscription: Subscription,
    /// The stable name of the member: who joins with it takes the place of the one before.
    pub instance_id: Option<String>,
    /// None: [`DEFAULT_SESSION_TIMEOUT_MS`].
    pub session_timeout_ms: Option<i64>,
    /// None: as the group has it.
    pub auto_offset_reset: Option<AutoOffsetReset>,
}

/// Partitions, by topic.
pub type Partitions = BTreeMap<Name, BTreeSet<Partition>>;

/// A member that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub member_id: String,
    pub generation: i64,
    pub assignment: Partitions,
    /// A third of its lease.
    pub heartbeat_interval_ms: i64,
    pub lease_expires_at: Timestamp,
}

/// What every answer tells a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    pub generation: i64,
    /// What it owns and keeps.
    pub assignment: Partitions,
    /// What it is to let go of: a call that shows this answer does. Of a fetch also what its cursor
    /// names and it does not own any more.
    pub revoked: Partitions,
}

/// A member, and the newest generation it knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub member_id: String,
    pub generation: i64,
}

/// A commit outside of transactions, as asked for: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffsetCommit {
    /// Member none: the group has no members.
    Items { member: Option<Member>, items: Vec<OffsetItem> },
    /// In all partitions that the cursor of a member's fetch names.
    Cursor { member: Member, cursor: String },
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedOffset {
    pub topic: Name,
    pub partition: Partition,
    pub offset: Offset,
    pub metadata: Option<String>,
}
