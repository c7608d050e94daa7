//! `oncelog group`: lists and describes groups; resets and deletes those without members.

use clap::{ArgGroup, Args, Subcommand};
use comfy_table::Cell;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::resource::{
    AdminClient, CONFIRMATION, Common, DeleteArgs, NameArgs, OUTPUT, Resource, help,
};
use crate::{
    cli::{
        block_on,
        common::{ago, counted, name, time_since, time_until},
        output::{Column, cell, cell_or_blank, items, table},
    },
    model::{MAX_INTEGER, Name, Timestamp},
};

pub(in crate::cli) const EXAMPLE: &str = "\
Example:
  oncelog group describe billing";

#[derive(Subcommand)]
pub(in crate::cli) enum GroupCommand {
    /// List all groups that the token gives access to
    #[command(after_help = help(OUTPUT, &["oncelog group list --json | jq -r .group"]))]
    List(Common),
    /// Show a group: its members, and its committed offset and lag in every partition
    #[command(after_help = help(OUTPUT, &["oncelog group describe billing",
        "oncelog group describe billing --json | jq '[.partitions[].lag] | add'"]))]
    Describe(NameArgs),
    /// Move the committed offsets of a group without members, all or none
    #[command(after_help = help(OUTPUT, &[
        "oncelog group reset billing --to 2026-11-21T08:00:00Z --dry-run",
        "oncelog group reset billing --topic orders --by -100",
        "oncelog group reset billing --to earliest"]))]
    Reset(ResetArgs),
    /// Delete a group without members, and its offsets
    #[command(after_help = help(CONFIRMATION, &["oncelog group delete billing --yes"]))]
    Delete(DeleteArgs),
}

#[derive(Args)]
#[command(group(ArgGroup::new("where").required(true).args(["to", "by"])))]
pub(in crate::cli) struct ResetArgs {
    /// Group name
    #[arg(value_parser = name)]
    name: Name,
    /// Reset all partitions of this topic; may be repeated. Default: all topics that the group
    /// subscribes to or has committed offsets in
    #[arg(long = "topic", value_name = "TOPIC", value_parser = name)]
    topics: Vec<Name>,
    /// Move to earliest, latest, an offset, or the first record appended at or after an instant
    /// (RFC 3339)
    #[arg(long, value_name = "WHERE", value_parser = target)]
    to: Option<Value>,
    /// Move forward by this many records; backward if negative
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-MAX_INTEGER..=MAX_INTEGER))]
    by: Option<i64>,
    /// Only print what it would do
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

/// Parses the target of a reset into its form in the request.
fn target(text: &str) -> Result<Value, String> {
    if matches!(text, "earliest" | "latest") {
        return Ok(json!(text));
    }
    if let Some(offset) = text.parse::<i64>().ok().filter(|n| (0..=MAX_INTEGER).contains(n)) {
        return Ok(json!({"offset": offset}));
    }
    match Timestamp::parse(text) {
        Ok(_) => Ok(json!({"timestamp": text})),
        Err(why) => Err(format!("give earliest, latest, an offset, or an instant; {why}")),
    }
}

const GROUP: Resource = Resource {
    noun: "group",
    collection: "groups",
    columns: &[
        ("group", |group| cell(&group["group"])),
        ("members", |group| cell(&group["member_count"])),
        ("generation", |group| cell(&group["generation"])),
        ("auto offset reset", |group| cell(&group["auto_offset_reset"])),
        ("created", |group| cell(&group["created_at"])),
    ],
    describe,
};

const MEMBERS: &[Column] = &[
    ("member", |member| cell_or_blank(&member["member_id"])),
    ("instance", |member| cell_or_blank(&member["instance_id"])),
    ("joined", |member| Cell::new(ago(&member["joined_at"]))),
    ("lease ends", |member| Cell::new(time_until(&member["lease_expires_at"]))),
    ("partitions", |member| {
        let topics = items(&member["assignment"]).iter();
        cell(&json!(topics.map(|topic| items(&topic["partitions"]).len()).sum::<usize>()))
    }),
];

const PARTITIONS: &[Column] = &[
    ("topic", |partition| cell_or_blank(&partition["topic"])),
    ("partition", |partition| cell_or_blank(&partition["partition"])),
    ("committed", |partition| cell_or_blank(&partition["committed_offset"])),
    ("high watermark", |partition| cell_or_blank(&partition["high_watermark"])),
    ("lag", |partition| cell_or_blank(&partition["lag"])),
    ("member", |partition| cell_or_blank(&partition["member_id"])),
    ("owned for", |partition| Cell::new(time_since(&partition["owned_at"]))),
    ("pinned for", |partition| Cell::new(time_since(&partition["pinned_at"]))),
];

const OFFSETS: &[Column] = &[
    ("topic", |offset| cell(&offset["topic"])),
    ("partition", |offset| cell(&offset["partition"])),
    ("offset", |offset| cell(&offset["offset"])),
];

pub(in crate::cli) fn run(command: GroupCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            GroupCommand::List(common) => GROUP.list(&[], common).await,
            GroupCommand::Describe(NameArgs { name, common }) => {
                GROUP.show(name.as_str(), common).await
            }
            GroupCommand::Reset(args) => reset(args).await,
            GroupCommand::Delete(args) => GROUP.delete(args, "all its offsets").await,
        }
    })
}

fn describe(group: &Value) -> String {
    let word = |member: &str| group[member].as_str().unwrap_or_default();
    let members = match items(&group["members"]) {
        [] => "no members".to_owned(),
        members => table(MEMBERS, members).to_string(),
    };
    let partitions = items(&group["partitions"]);
    let lags = partitions.iter().map(|partition| partition["lag"].as_u64());
    let unknown = lags.clone().filter(Option::is_none).count() as u64;
    let mut text = format!(
        "{}, created {}\ngeneration {}, auto offset reset {}\n\n{members}\n\n{}\n\n{} behind",
        word("group"),
        word("created_at"),
        group["generation"],
        word("auto_offset_reset"),
        table(PARTITIONS, partitions),
        counted(lags.flatten().sum(), "record")
    );
    if unknown > 0 {
        text += &format!(", and {} without a lag", counted(unknown, "partition"));
    }
    text + "\n"
}

async fn reset(args: ResetArgs) -> anyhow::Result<()> {
    let ResetArgs { name, topics, to, by, dry_run, common } = args;
    let admin = AdminClient::new(common)?;
    let to = to.unwrap_or_else(|| json!({"by": by}));
    let mut body = Map::from_iter([("to".to_owned(), to), ("dry_run".to_owned(), dry_run.into())]);
    if !topics.is_empty() {
        body.insert("topics".to_owned(), topics.iter().map(Name::as_str).collect());
    }
    let path = ["groups", name.as_str(), "offsets", "reset"];
    let answer = admin.call(Method::POST, &path, body).await?;
    let moved = items(&answer.json::<Value>()?["offsets"]).len() as u64;
    let partitions = counted(moved, "partition");
    admin.client.notice(&match (dry_run, admin.client.repeats() > 0 && by.is_some()) {
        (true, _) => format!("would reset group {name} in {partitions}; nothing changed"),
        (false, false) => format!("reset group {name} in {partitions}"),
        // an earlier attempt may have moved them, and its response was lost
        (false, true) => format!(
            "reset group {name} in {partitions}, perhaps twice; see `oncelog group describe {name}`"
        ),
    });
    admin.print(&answer, |reset| format!("{}\n", table(OFFSETS, items(&reset["offsets"]))))
}
