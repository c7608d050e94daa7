//! The flags of `oncelog consume` for members of a group.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    cli::common::{milliseconds, name},
    model::Name,
};

#[derive(Args)]
#[command(next_help_heading = "As a member of a group")]
pub struct GroupFlags {
    /// Join this group: share the partitions with its members, resume at its committed offsets, and
    /// commit what was printed
    #[arg(long, value_parser = name,
        conflicts_with_all = ["partition", "offset", "timestamp", "key"])]
    pub group: Option<Name>,
    /// Read the topics that match this regular expression, also those created later
    #[arg(long, value_name = "REGEX", requires = "group")]
    pub topic_pattern: Option<String>,
    /// Stable name of this member: it does not leave the group when it ends, and keeps its
    /// partitions if it starts again before the lease expires
    #[arg(long, value_name = "ID", requires = "group")]
    pub instance_id: Option<String>,
    /// When to commit what was printed: after each record, after each response, or never
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = CommitMode::Batch, requires = "group")]
    pub commit: CommitMode,
    /// Where the group starts in a partition without a committed offset
    #[arg(long, value_name = "WHERE", value_enum, requires = "group")]
    auto_offset_reset: Option<ResetFlag>,
    /// The member's lease: how long it may be silent before others get its partitions; a number is
    /// in milliseconds [default: 45s]
    #[arg(long, value_name = "TIME", requires = "group", value_parser = milliseconds)]
    session_timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CommitMode {
    Each,
    Batch,
    None,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ResetFlag {
    Earliest,
    Latest,
    Error,
}

impl GroupFlags {
    /// The body of a join.
    pub fn join(&self, topics: &[&str]) -> Value {
        // a random name makes the join idempotent for members without a stable one
        let instance_id = self.instance_id.clone();
        let instance_id = instance_id.unwrap_or_else(|| Uuid::now_v7().to_string());
        let reset = self.auto_offset_reset.as_ref().and_then(ResetFlag::to_possible_value);
        let mut join = json!({"topics": topics, "instance_id": instance_id});
        for (field, value) in [
            ("topic_pattern", self.topic_pattern.clone().map(Value::from)),
            ("session_timeout_ms", self.session_timeout_ms.map(Value::from)),
            ("auto_offset_reset", reset.map(|reset| reset.get_name().into())),
        ] {
            if let Some(value) = value {
                join[field] = value;
            }
        }
        join
    }
}
