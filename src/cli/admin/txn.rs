//! `oncelog txn`: lists and shows transactions; ends one that is stuck.

use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand, builder::PossibleValuesParser};
use comfy_table::Cell;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    newest_first,
    resource::{AdminClient, Common, ListOutput, OUTPUT, Resource, help},
};
use crate::{
    cli::{
        block_on,
        client::Failure,
        common::{counted, duration, time_since},
        output::{Column, cell, cell_or_blank, print, table},
    },
    model::{MAX_INTEGER, transaction::State, uuid_v7},
};

const OPERATOR: &str = "\
It acts as an operator, independent of the session that began the transaction: the token needs the
scope `operator`. The response to the next request of the transaction's client says so.";

const COMMIT: &str = "\
Only a prepared transaction can be committed; for any other, only its client knows whether it
is complete.";

const ORDER: &str = "\
The order is that of the ids, which contain the time at which they were created.";

pub(in crate::cli) const EXAMPLE: &str = "\
Example:
  oncelog txn list --state prepared --older-than 5m";

#[derive(Subcommand)]
pub(in crate::cli) enum TxnCommand {
    /// List the transactions that the server remembers, newest first
    #[command(after_help = help(&format!("{ORDER}\n{OUTPUT}"), &["oncelog txn list --limit 10",
        "oncelog txn list --state prepared --older-than 5m",
        "oncelog txn list --json | jq -r .transaction_id"]))]
    List {
        /// Only those in this state
        #[arg(long, value_name = "STATE", value_parser = states())]
        state: Option<String>,
        /// Only those begun at least this long ago: 90s, 15m, 12h or 30d
        #[arg(long, value_name = "TIME", value_parser = duration)]
        older_than: Option<Duration>,
        /// Only those of the producer with this id
        #[arg(long, value_name = "N",
            value_parser = clap::value_parser!(i64).range(0..=MAX_INTEGER))]
        producer: Option<i64>,
        /// Print at most this many, the newest
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Show the state of a transaction, and the offsets of its records
    #[command(after_help = help(OUTPUT,
        &["oncelog txn show 019aa5b6-5c00-7000-8000-000000000004"]))]
    Show(IdArgs),
    /// Abort a transaction that is stuck: its records are never read
    #[command(after_help = help(OPERATOR,
        &["oncelog txn abort 019aa5b6-5c00-7000-8000-000000000004"]))]
    Abort(IdArgs),
    /// Commit a prepared transaction that its client does not commit
    #[command(after_help = help(&format!("{OPERATOR}\n{COMMIT}"),
        &["oncelog txn commit 019aa5b6-5c00-7000-8000-000000000004"]))]
    Commit(IdArgs),
    /// Print a new transaction id, for example for --transaction-id of `produce`
    #[command(after_help = "Example:\n  oncelog txn id")]
    Id,
}

#[derive(Args)]
pub(in crate::cli) struct IdArgs {
    /// The transaction's id
    #[arg(value_name = "ID", value_parser = id)]
    id: Uuid,
    #[command(flatten)]
    common: Common,
}

fn states() -> PossibleValuesParser {
    State::ALL.iter().map(|state| state.as_str()).collect::<Vec<_>>().into()
}

/// Parses a transaction id; an invalid one is a usage error before any request is sent.
pub(in crate::cli) fn id(text: &str) -> Result<Uuid, String> {
    uuid_v7(text).ok_or_else(|| "a transaction id is a UUIDv7; `oncelog txn id` creates one".into())
}

const TRANSACTION: Resource = Resource {
    noun: "transaction",
    collection: "transactions",
    columns: &[
        ("transaction", |transaction| cell(&transaction["transaction_id"])),
        ("state", |transaction| cell(&transaction["state"])),
        ("age", |transaction| Cell::new(time_since(&transaction["created_at"]))),
        ("prepared for", |transaction| {
            let is_prepared = transaction["state"] == State::Prepared.as_str();
            Cell::new(if is_prepared {
                time_since(&transaction["prepared_at"])
            } else {
                String::new()
            })
        }),
        ("producer", |transaction| cell_or_blank(&transaction["producer_id"])),
        ("appends", |transaction| cell_or_blank(&transaction["append_count"])),
    ],
    describe,
};

/// The locations of the records.
const APPENDS: &[Column] = &[
    ("topic", |append| cell_or_blank(&append["topic"])),
    ("partition", |append| cell_or_blank(&append["partition"])),
    ("base offset", |append| cell_or_blank(&append["base_offset"])),
    ("records", |append| cell_or_blank(&append["record_count"])),
];

pub(in crate::cli) fn run(command: TxnCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            TxnCommand::List { state, older_than, producer, limit, common } => {
                let older_than = older_than.map(|age| age.as_millis().to_string());
                let producer = producer.map(|id| id.to_string());
                let filter = [
                    ("state", state.as_deref()),
                    ("older_than_ms", older_than.as_deref()),
                    ("producer_id", producer.as_deref()),
                ];
                let filter = filter.into_iter().filter_map(|(name, value)| Some((name, value?)));
                list(&filter.collect::<Vec<_>>(), limit.unwrap_or(u64::MAX), common).await
            }
            TxnCommand::Show(IdArgs { id, common }) => {
                TRANSACTION.show(&id.to_string(), common).await
            }
            TxnCommand::Abort(args) => end(args, "abort", "aborted").await,
            TxnCommand::Commit(args) => end(args, "commit", "committed").await,
            TxnCommand::Id => print(format!("{}\n", Uuid::now_v7()).as_bytes()),
        }
    })
}

async fn list(filter: &[(&str, &str)], limit: u64, common: Common) -> anyhow::Result<()> {
    let admin = AdminClient::new(common)?;
    let mut output = ListOutput::new(&TRANSACTION, &admin);
    let page = async |after: Option<Uuid>| {
        let after = after.map(|id| id.to_string());
        admin.client.page(&[TRANSACTION.collection], filter, after.as_deref()).await
    };
    newest_first::list(limit, page, |item| output.add(item)).await?;
    output.finish()
}

async fn end(args: IdArgs, verb: &str, done: &str) -> anyhow::Result<()> {
    let IdArgs { id, common } = args;
    let admin = AdminClient::new(common)?;
    let path = ["transactions", &id.to_string(), verb];
    let post = admin.client.request(Method::POST, &path, &[("as", "operator")]).json(&json!({}));
    let answer = match admin.client.send(post).await {
        Err(Failure::Refused(problem)) if problem.code == "invalid_transaction_state" => {
            bail!("{problem}; see `oncelog txn show {id}`")
        }
        // an operator's request is invalid only if the transaction is still ongoing
        Err(Failure::Refused(problem)) if problem.code == "invalid_request" => bail!(
            "{problem}; wait until its client prepares or ends it, or `oncelog txn abort {id}`"
        ),
        answer => answer?,
    };
    let transaction: Value = answer.json()?;
    // after a retry the duplicate may be our own first attempt, whose response was lost
    let was_before = transaction["duplicate"] == true && admin.client.repeats() == 0;
    admin.client.notice(&match (was_before, transaction["reason"].as_str()) {
        (false, _) => format!("{done} transaction {id}"),
        (true, None) => format!("transaction {id} was already {done}"),
        (true, Some(reason)) => format!("transaction {id} was already {done} ({reason})"),
    });
    admin.print(&answer, describe)
}

fn describe(transaction: &Value) -> String {
    let word = |member: &str| transaction[member].as_str().unwrap_or_default();
    let reason = transaction["reason"].as_str().map(|reason| format!(" ({reason})"));
    let mut text =
        format!("{}, {}{}\n", word("transaction_id"), word("state"), reason.unwrap_or_default());
    let instants = [
        ("created_at", "begun"),
        ("prepared_at", "prepared"),
        ("expires_at", "times out"),
        ("ended_at", "ended"),
    ];
    for (member, what) in instants {
        if let Some(instant) = transaction[member].as_str() {
            let ago = match member {
                "expires_at" => String::new(),
                _ => format!(", {} ago", time_since(&transaction[member])),
            };
            text += &format!("{what} {instant}{ago}\n");
        }
    }
    text += &match (transaction["producer_id"].as_i64(), transaction["epoch"].as_i64()) {
        (Some(producer), Some(epoch)) => format!("producer {producer}, epoch {epoch}\n"),
        _ => "no session\n".to_owned(),
    };
    let count = transaction["append_count"].as_u64().unwrap_or_default();
    text += &format!("{}\n", counted(count, "append"));
    if let Some(appends) = transaction["appends"].as_array() {
        text += &format!("\n{}\n", table(APPENDS, appends));
    }
    text
}
