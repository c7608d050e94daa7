//! `oncelog topic`: creates, lists, describes, changes and deletes topics.

use clap::Subcommand;
use comfy_table::{Cell, CellAlignment};
use indicatif::BinaryBytes;
use serde_json::{Map, Value, json};

use super::{
    resource::{CONFIRMATION, Common, DeleteArgs, NameArgs, OUTPUT, Resource, help},
    settings,
};
use crate::{
    cli::{
        block_on,
        common::name,
        output::{Column, cell, items, table},
    },
    model::{Name, settings::Key, topic::MAX_PARTITION_COUNT},
};

pub(in crate::cli) const EXAMPLE: &str = "\
Example:
  oncelog topic create orders --partitions 4";

const SET: &str = "\
A value is a number or a word, `default`, which removes the topic's own value, or `null` for no
limit. Times and sizes may have a unit (`7d`, `10MiB`). Partitions can be added, not removed; keys
then map to other partitions.";

#[derive(Subcommand)]
pub(in crate::cli) enum TopicCommand {
    /// Create a topic, or show that it already exists
    #[command(after_help = help(
        &format!("{OUTPUT}\n\n{}", settings::explain_topic_settings()),
        &["oncelog topic create orders --partitions 4",
            "oncelog topic create customers cleanup=compact dedup_window_ms=2h"]))]
    Create {
        /// Topic name
        #[arg(value_parser = name)]
        name: Name,
        /// The topic's own settings; those not given are the tenant's
        #[arg(value_name = "KEY=VALUE", value_parser = settings::topic_change)]
        settings: Vec<(Key, Value)>,
        /// Number of partitions. Default: 1 for a new topic; an existing topic may have any number
        #[arg(long, value_name = "N",
            value_parser = clap::value_parser!(i64).range(1..=MAX_PARTITION_COUNT))]
        partitions: Option<i64>,
        #[command(flatten)]
        common: Common,
    },
    /// List all topics that the token gives access to
    #[command(after_help = help(OUTPUT, &["oncelog topic list --json | jq -r .topic"]))]
    List(Common),
    /// Show a topic and its partitions
    #[command(after_help = help(OUTPUT, &["oncelog topic describe orders"]))]
    Describe(NameArgs),
    /// Change settings of a topic, or its number of partitions, all or none
    #[command(after_help = help(
        &format!("{SET}\n{OUTPUT}\n\n{}", settings::explain_topic_settings()),
        &["oncelog topic set orders retention_ms=7d retention_bytes=10GiB",
            "oncelog topic set orders --partitions 8"]))]
    Set {
        /// Topic name
        #[arg(value_parser = name)]
        name: Name,
        /// Settings to change
        #[arg(value_name = "KEY=VALUE", value_parser = settings::topic_change,
            required_unless_present = "partitions")]
        settings: Vec<(Key, Value)>,
        /// Number of partitions that the topic grows to
        #[arg(long, value_name = "N",
            value_parser = clap::value_parser!(i64).range(1..=MAX_PARTITION_COUNT))]
        partitions: Option<i64>,
        #[command(flatten)]
        common: Common,
    },
    /// Delete a topic and all its records
    #[command(after_help = help(CONFIRMATION, &["oncelog topic delete orders --yes"]))]
    Delete(DeleteArgs),
}

const TOPIC: Resource = Resource {
    noun: "topic",
    collection: "topics",
    columns: &[
        ("topic", |topic| cell(&topic["topic"])),
        ("partitions", |topic| cell(&topic["partition_count"])),
        ("created", |topic| cell(&topic["created_at"])),
    ],
    describe,
};

const PARTITIONS: &[Column] = &[
    ("partition", |partition| cell(&partition["partition"])),
    ("log start", |partition| cell(&partition["log_start_offset"])),
    ("high watermark", |partition| cell(&partition["high_watermark"])),
    ("records", |partition| cell(&partition["record_count"])),
    ("size", |partition| {
        let size = BinaryBytes(partition["size_bytes"].as_u64().unwrap_or_default());
        Cell::new(size).set_alignment(CellAlignment::Right)
    }),
];

pub(in crate::cli) fn run(command: TopicCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            TopicCommand::Create { name, settings, partitions, common } => {
                TOPIC.create(&name, topic_body(settings, partitions), common).await
            }
            TopicCommand::List(common) => TOPIC.list(&[], common).await,
            TopicCommand::Describe(NameArgs { name, common }) => {
                TOPIC.show(name.as_str(), common).await
            }
            TopicCommand::Set { name, settings, partitions, common } => {
                TOPIC.change(&name, topic_body(settings, partitions), None, common).await
            }
            TopicCommand::Delete(args) => TOPIC.delete(args, "all its records").await,
        }
    })
}

/// A request's topic: only what is given.
fn topic_body(changes: Vec<(Key, Value)>, partitions: Option<i64>) -> Map<String, Value> {
    let mut body = settings::body("settings", changes);
    body.extend(partitions.map(|count| ("partition_count".to_owned(), json!(count))));
    body
}

fn describe(topic: &Value) -> String {
    let word = |member: &str| topic[member].as_str().unwrap_or_default();
    let settings = match topic["settings"].as_object() {
        Some(settings) if !settings.is_empty() => {
            let pair = |(name, value): (&String, &Value)| match (value.as_u64(), value.as_str()) {
                (Some(number), _) => format!(" {name}={}", settings::shown(name, number)),
                (None, Some(word)) => format!(" {name}={word}"),
                (None, None) => format!(" {name}={value}"),
            };
            format!("settings{}\n", settings.iter().map(pair).collect::<String>())
        }
        _ => String::new(),
    };
    let partitions = table(PARTITIONS, items(&topic["partitions"]));
    format!("{}, created {}\n{settings}\n{partitions}\n", word("topic"), word("created_at"))
}
