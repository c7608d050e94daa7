//! `oncelog topic`: creates, lists, describes and deletes topics.

use std::io::{IsTerminal, stdout};

use clap::Subcommand;
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::{
    delete::{Deletable, delete},
    settings,
};
use crate::{
    cli::{
        block_on,
        client::{Answer, Client, ServerFlags},
        common::{Common, OUTPUT, PATIENCE, name},
        output::{print, table, text},
    },
    model::{Name, settings::Key, topic::MAX_PARTITION_COUNT},
};

pub(in crate::cli) const EXAMPLE: &str = "\
Example:
  oncelog topic create orders --partitions 4";

const KIND: Deletable = Deletable { noun: "topic", path: "topics", with: "all its records" };

#[derive(Subcommand)]
pub(in crate::cli) enum TopicCommand {
    /// Create a topic, or show that it already exists
    #[command(after_help = format!("\
{OUTPUT}

{}
Examples:
  oncelog topic create orders --partitions 4
  oncelog topic create customers cleanup=compact", settings::explained_of_topics()))]
    Create {
        /// The topic
        #[arg(value_parser = name)]
        name: Name,
        /// The topic's own settings; those not given are the tenant's
        #[arg(value_name = "KEY=VALUE", value_parser = settings::topic_change)]
        settings: Vec<(Key, Value)>,
        /// Number of partitions. Default: 1 for a new topic; an existing topic may have any number
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=MAX_PARTITION_COUNT))]
        partitions: Option<i64>,
        #[command(flatten)]
        common: Common,
    },
    /// List all topics that the token gives access to
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog topic list --json | jq -r .topic"))]
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Show a topic and its partitions
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog topic describe orders"))]
    Describe {
        /// The topic
        #[arg(value_parser = name)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
    /// Change settings of a topic, or its number of partitions, all or nothing
    #[command(after_help = format!("\
A value is a number or a word, `default`, which removes the topic's own value, or `null` for no limit.
Partitions can be added, not removed; keys then map to other partitions.
{OUTPUT}

{}
Examples:
  oncelog topic set orders retention_ms=86400000 dedup=content
  oncelog topic set orders --partitions 8", settings::explained_of_topics()))]
    Set {
        /// The topic
        #[arg(value_parser = name)]
        name: Name,
        #[arg(value_name = "KEY=VALUE", value_parser = settings::topic_change,
            required_unless_present = "partitions")]
        settings: Vec<(Key, Value)>,
        /// Number of partitions that the topic grows to
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=MAX_PARTITION_COUNT))]
        partitions: Option<i64>,
        #[command(flatten)]
        common: Common,
    },
    /// Delete a topic and all its records
    #[command(after_help = "\
It asks for confirmation; without a terminal, --yes is required.

Example:
  oncelog topic delete orders --yes")]
    Delete {
        /// The topic
        #[arg(value_parser = name)]
        name: Name,
        /// Skip the confirmation
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        server: ServerFlags,
    },
}

pub(in crate::cli) fn run(command: TopicCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            TopicCommand::Create { name, settings, partitions, common } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let put = client.request(Method::PUT, &["topics", name.as_str()], &[]);
                let body = body(settings, partitions);
                let put = if body.is_empty() { put } else { put.json(&body) };
                let answer = client.send(put).await?;
                let done = if answer.status == StatusCode::OK {
                    format!("topic {name} already exists")
                } else {
                    format!("created topic {name}")
                };
                client.notice(&done);
                describe(&answer, common.json)
            }
            TopicCommand::Describe { name, common } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let get = client.request(Method::GET, &["topics", name.as_str()], &[]);
                describe(&client.send(get).await?, common.json)
            }
            TopicCommand::Set { name, settings, partitions, common } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let patch = client.request(Method::PATCH, &["topics", name.as_str()], &[]);
                let answer = client.send(patch.json(&body(settings, partitions))).await?;
                describe(&answer, common.json)
            }
            TopicCommand::List { common } => list(common).await,
            TopicCommand::Delete { name, yes, server } => delete(&KIND, &name, yes, server).await,
        }
    })
}

/// A request's topic: only what is given.
fn body(changes: Vec<(Key, Value)>, partitions: Option<i64>) -> Map<String, Value> {
    let mut body = Map::new();
    if let Some(count) = partitions {
        body.insert("partition_count".to_owned(), json!(count));
    }
    if !changes.is_empty() {
        body.insert("settings".to_owned(), Value::Object(settings::members(changes)));
    }
    body
}

fn describe(answer: &Answer, as_json: bool) -> anyhow::Result<()> {
    if as_json || !stdout().is_terminal() {
        return print(&[&answer.body, &b"\n"[..]].concat());
    }
    let topic: Value = answer.json()?;
    let mut partitions =
        table(&["partition", "log start", "high watermark", "records", "size in bytes"]);
    for partition in topic["partitions"].as_array().into_iter().flatten() {
        let members =
            ["partition", "log_start_offset", "high_watermark", "record_count", "size_bytes"];
        partitions.add_row(members.map(|member| text(&partition[member])));
    }
    let word = |member: &str| topic[member].as_str().unwrap_or_default().to_owned();
    let head = format!("{}, created {}", word("topic"), word("created_at"));
    let settings = match topic["settings"].as_object() {
        Some(settings) if !settings.is_empty() => format!("settings {}\n", topic["settings"]),
        _ => String::new(),
    };
    print(format!("{head}\n{settings}\n{partitions}\n").as_bytes())
}

async fn list(common: Common) -> anyhow::Result<()> {
    let client = Client::new(common.server, Some(PATIENCE))?;
    let as_json = common.json || !stdout().is_terminal();
    let mut topics = table(&["topic", "partitions", "created"]);
    client
        .list(&["topics"], &[], "topics", |topic| {
            if as_json {
                print(format!("{topic}\n").as_bytes())?;
            } else {
                let topic: Value = serde_json::from_str(topic.get())?;
                topics.add_row(
                    ["topic", "partition_count", "created_at"].map(|member| text(&topic[member])),
                );
            }
            Ok(true)
        })
        .await?;
    if as_json { Ok(()) } else { print(format!("{topics}\n").as_bytes()) }
}
