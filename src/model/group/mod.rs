//! Groups, their members and their offsets, as clients send and see them.

pub mod view;

use std::collections::{BTreeMap, BTreeSet};

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::{Name, Offset, Partition, Timestamp, scopes::Coverage};

/// Maximum number of offsets of one commit.
pub const MAX_OFFSETS: usize = 10_000;
/// The longest metadata of a committed offset, in bytes.
pub const MAX_METADATA_BYTES: usize = 4_096;
/// Maximum number of members of a group.
pub const MAX_MEMBERS: usize = 1_000;
/// Maximum number of topics that a member names.
pub const MAX_TOPICS: usize = 1_000;
/// Maximum number of patterns that a group ever subscribes with.
pub const MAX_PATTERNS: usize = 100;
/// The longest pattern, in bytes.
pub const MAX_PATTERN_BYTES: usize = 1_000;
/// The largest compiled pattern.
const MAX_PATTERN_PROGRAM_BYTES: usize = 256 * 1024;
/// Longest member id, in bytes.
pub const MAX_MEMBER_ID_BYTES: usize = 255;
/// Longest `instance_id`, in bytes.
pub const MAX_INSTANCE_ID_BYTES: usize = MAX_MEMBER_ID_BYTES;
/// The default lease of a member, within the limits of its tenant.
pub const DEFAULT_SESSION_TIMEOUT_MS: i64 = 45_000;

/// Where a group starts in a partition without a committed offset, or whose committed offset was
/// trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AutoOffsetReset {
    /// At the log start.
    #[default]
    Earliest,
    /// At the high watermark.
    Latest,
    /// Not at all: it is an error.
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

/// A regular expression for topic names, which matches anywhere unless anchored. Its running time
/// is linear in the name's length.
#[derive(Clone, Debug)]
pub struct TopicPattern(Regex);

impl TopicPattern {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            return Err(format!("a pattern must be 1 to {MAX_PATTERN_BYTES} bytes"));
        }
        // PostgreSQL's text has none
        if text.contains('\0') {
            return Err("U+0000 is not allowed".into());
        }
        let built = RegexBuilder::new(text).size_limit(MAX_PATTERN_PROGRAM_BYTES).build();
        let regex = built.map_err(|why| match why {
            regex::Error::CompiledTooBig(_) => "this pattern is too large".to_owned(),
            why => format!("invalid regular expression (RE2 syntax, as in Rust's regex): {why}"),
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

/// The subscription of a member: topics, a pattern, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription {
    pub topics: BTreeSet<Name>,
    pub pattern: Option<TopicPattern>,
    /// The topics that the member's token covered at its join.
    pub readable: Coverage,
}

impl Subscription {
    /// Whether the member wants the topic, whatever its token covers.
    pub fn wants(&self, topic: &Name) -> bool {
        self.topics.contains(topic) || self.pattern.as_ref().is_some_and(|p| p.matches(topic))
    }

    /// Whether partitions of the topic can be assigned to the member.
    pub fn covers(&self, topic: &Name) -> bool {
        self.wants(topic) && self.readable.covers(topic)
    }
}

/// The parameters of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    pub subscription: Subscription,
    /// The stable name of the member: a join with the same name replaces the earlier member.
    pub instance_id: Option<String>,
    /// None: [`DEFAULT_SESSION_TIMEOUT_MS`].
    pub session_timeout_ms: Option<i64>,
    /// None: the group's value.
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

/// The state of a member that every answer has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    pub generation: i64,
    /// The partitions it owns and keeps.
    pub assignment: Partitions,
    /// The partitions to release; a call that acknowledges this answer does so. For a fetch also
    /// those that its cursor names and the member no longer owns.
    pub revoked: Partitions,
}

/// A member, with the newest generation it has seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub member_id: String,
    pub generation: i64,
}

/// The parameters of a commit outside of transactions, which is all or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffsetCommit {
    /// None: the group must have no members.
    Items { member: Option<Member>, items: Vec<OffsetItem> },
    /// All partitions named by the cursor of a member's fetch.
    Cursor { member: Member, cursor: String },
}

/// An offset to commit in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetItem {
    pub topic: Name,
    pub partition: Partition,
    pub offset: Offset,
    pub metadata: Option<String>,
    /// Commit only if this is the committed offset; `Some(None)`: only if there is none yet.
    pub expected_offset: Option<Option<Offset>>,
}

/// The committed offset of a group in one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedOffset {
    pub topic: Name,
    pub partition: Partition,
    pub offset: Offset,
    pub metadata: Option<String>,
}
