//! What `oncelog consume` takes as a member of a group.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{cli::common::name, model::Name};

#[derive(Args)]
#[command(next_help_heading = "As a member of a group")]
pub struct GroupFlags {
    /// Share the partitions with the other members of this group, go on where it has committed, and
    /// commit what was printed
    #[arg(long, value_parser = name,
        conflicts_with_all = ["partition", "offset", "timestamp", "until_end"])]
    pub group: Option<Name>,
    /// Read the topics that match this regular expression, also those that are made later
    #[arg(long, value_name = "REGEX", requires = "group")]
    pub topic_pattern: Option<String>,
    /// The stable name of this member: it does not leave at its end, and who starts again with it
    /// before its lease has run out has its partitions
    #[arg(long, value_name = "ID", requires = "group")]
    pub instance_id: Option<String>,
    /// When to commit what was printed: after each record, after each answer, or never
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = CommitMode::Batch, requires = "group")]
    pub commit: CommitMode,
    /// Where the group begins in a partition in which it has committed nothing
    #[arg(long, value_name = "WHERE", value_enum, requires = "group")]
    auto_offset_reset: Option<ResetFlag>,
    /// How long the member may be silent before others get its partitions [default: 45000]
    #[arg(long, value_name = "MS", requires = "group")]
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
        // a name of its own makes the join of any other member repeatable, too
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
