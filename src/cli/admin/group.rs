//! `oncelog group`: lists and describes groups; resets and deletes those without members.

use std::io::{IsTerminal, stdout};

use clap::{ArgGroup, Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    delete::{Deletable, delete},
    txn::{number, since},
};
use crate::{
    cli::{
        block_on,
        client::{Answer, Client, ServerFlags, counted},
        common::{Common, OUTPUT, PATIENCE, name},
        output::{print, table, text},
    },
    model::{MAX_INTEGER, Name, Timestamp},
};

pub(in crate::cli) const EXAMPLE: &str = "\
Example:
  oncelog group describe billing";

const KIND: Deletable = Deletable { noun: "group", path: "groups", with: "all its offsets" };

#[derive(Subcommand)]
pub(in crate::cli) enum GroupCommand {
    /// List all groups that the token gives access to
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog group list --json | jq -r .group"))]
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Show a group: its members, and its committed offset and lag in every partition
    #[command(after_help = format!("{OUTPUT}\n\nExamples:\n  oncelog group describe billing\n  oncelog group describe billing --json | jq '[.partitions[].lag] | add'"))]
    Describe {
        /// The group
        #[arg(value_parser = name)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
    /// Move the committed offsets of a group without members, all or none
    #[command(after_help = format!("{OUTPUT}\n\nExamples:\n  oncelog group reset billing --to 2026-11-21T08:00:00Z --dry-run\n  oncelog group reset billing --topic orders --by -100\n  oncelog group reset billing --to earliest"))]
    Reset(Reset),
    /// Delete a group without members, and its offsets
    #[command(after_help = "\
It asks for confirmation; without a terminal, --yes is required.

Example:
  oncelog group delete billing --yes")]
    Delete {
        /// The group
        #[arg(value_parser = name)]
        name: Name,
        /// Skip the confirmation
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        server: ServerFlags,
    },
}

#[derive(Args)]
#[command(group(ArgGroup::new("where").required(true).args(["to", "by"])))]
pub(in crate::cli) struct Reset {
    /// The group
    #[arg(value_parser = name)]
    name: Name,
    /// Reset all partitions of this topic; may be repeated. Default: all topics that the group
    /// subscribes to or has committed offsets in
    #[arg(long = "topic", value_name = "TOPIC", value_parser = name)]
    topics: Vec<Name>,
    /// Move to earliest, latest, an offset, or the first record appended at or after an instant
    /// (RFC 3339)
    #[arg(long, value_name = "WHERE", value_parser = place)]
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
fn place(text: &str) -> Result<Value, String> {
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

pub(in crate::cli) fn run(command: GroupCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            GroupCommand::List { common } => list(common).await,
            GroupCommand::Describe { name, common } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let get = client.request(Method::GET, &["groups", name.as_str()], &[]);
                describe(&client.send(get).await?, common.json)
            }
            GroupCommand::Reset(asked) => reset(asked).await,
            GroupCommand::Delete { name, yes, server } => delete(&KIND, &name, yes, server).await,
        }
    })
}

async fn list(common: Common) -> anyhow::Result<()> {
    let client = Client::new(common.server, Some(PATIENCE))?;
    let as_json = common.json || !stdout().is_terminal();
    let mut groups = table(&["group", "members", "generation", "auto offset reset", "created"]);
    let each = |group: &serde_json::value::RawValue| {
        if as_json {
            print(format!("{group}\n").as_bytes())?;
        } else {
            let group: Value = serde_json::from_str(group.get())?;
            let members =
                ["group", "member_count", "generation", "auto_offset_reset", "created_at"];
            groups.add_row(members.map(|member| text(&group[member])));
        }
        Ok(true)
    };
    client.list(&["groups"], &[], "groups", each).await?;
    if as_json { Ok(()) } else { print(format!("{groups}\n").as_bytes()) }
}

fn describe(answer: &Answer, as_json: bool) -> anyhow::Result<()> {
    if as_json || !stdout().is_terminal() {
        return print(&[&answer.body, &b"\n"[..]].concat());
    }
    let group: Value = answer.json()?;
    let word = |member: &str| group[member].as_str().unwrap_or_default();
    let mut shown = format!(
        "{}, created {}\ngeneration {}, auto offset reset {}\n\n",
        word("group"),
        word("created_at"),
        group["generation"],
        word("auto_offset_reset")
    );
    let members = group["members"].as_array().map_or(&[][..], Vec::as_slice);
    if members.is_empty() {
        shown += "no members\n";
    } else {
        let mut rows = table(&["member", "instance", "joined", "lease until", "partitions"]);
        for member in members {
            let owned = member["assignment"].as_array().into_iter().flatten();
            let count: usize =
                owned.filter_map(|of| of["partitions"].as_array()).map(Vec::len).sum();
            let facts = ["member_id", "instance_id", "joined_at", "lease_expires_at"];
            let mut row = facts.map(|fact| number(&member[fact])).to_vec();
            row.push(text(&json!(count)));
            rows.add_row(row);
        }
        shown += &format!("{rows}\n");
    }
    let mut rows = table(&[
        "topic",
        "partition",
        "committed",
        "high watermark",
        "lag",
        "member",
        "owned for",
        "pinned for",
    ]);
    let (mut lag, mut unknown) = (0_u64, 0_u64);
    for partition in group["partitions"].as_array().into_iter().flatten() {
        match partition["lag"].as_u64() {
            Some(records) => lag += records,
            None => unknown += 1,
        }
        let facts =
            ["topic", "partition", "committed_offset", "high_watermark", "lag", "member_id"];
        let mut row = facts.map(|fact| number(&partition[fact])).to_vec();
        let spans = ["owned_at", "pinned_at"].map(|fact| since(&partition[fact]));
        row.extend(spans.map(|span| json!(span.unwrap_or_default())).iter().map(text));
        rows.add_row(row);
    }
    shown += &format!("\n{rows}\n\n{} behind", counted(lag, "record"));
    if unknown > 0 {
        let partitions = counted(unknown, "partition");
        shown += &format!(", and {partitions} without a lag");
    }
    print((shown + "\n").as_bytes())
}

async fn reset(asked: Reset) -> anyhow::Result<()> {
    let client = Client::new(asked.common.server, Some(PATIENCE))?;
    let to = asked.to.unwrap_or_else(|| json!({"by": asked.by}));
    let mut body = json!({"to": to, "dry_run": asked.dry_run});
    if !asked.topics.is_empty() {
        body["topics"] = asked.topics.iter().map(Name::as_str).collect();
    }
    let path = ["groups", asked.name.as_str(), "offsets", "reset"];
    let answer = client.send(client.request(Method::POST, &path, &[]).json(&body)).await?;
    let reset: Value = answer.json()?;
    let offsets = reset["offsets"].as_array().map_or(&[][..], Vec::as_slice);
    let partitions = counted(u64::try_from(offsets.len()).unwrap_or(u64::MAX), "partition");
    let name = &asked.name;
    client.notice(&match (asked.dry_run, client.repeats() > 0 && asked.by.is_some()) {
        (true, _) => format!("would reset group {name} in {partitions}; nothing changed"),
        (false, false) => format!("reset group {name} in {partitions}"),
        // an earlier attempt may have moved them, and its answer was lost
        (false, true) => format!(
            "reset group {name} in {partitions}, perhaps twice; see `oncelog group describe {name}`"
        ),
    });
    if asked.common.json || !stdout().is_terminal() {
        return print(&[&answer.body, &b"\n"[..]].concat());
    }
    let mut rows = table(&["topic", "partition", "offset"]);
    for offset in offsets {
        rows.add_row(["topic", "partition", "offset"].map(|fact| text(&offset[fact])));
    }
    print(format!("{rows}\n").as_bytes())
}
