//! `oncelog txn`: lists and shows transactions; ends one that is stuck.

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use clap::{Subcommand, builder::PossibleValuesParser};
use comfy_table::{Cell, Table};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    cli::{
        block_on,
        client::{Answer, Client, Failure, counted},
        common::{Common, OUTPUT, PATIENCE},
        output::{print, table, text},
        token::{lapse, life},
    },
    model::{MAX_INTEGER, Timestamp, transaction::State, uuid_v7},
};

const OPERATOR: &str = "\
It acts as an operator, independent of the session that began the transaction: the token needs the
scope `operator`. The response to the next request of the transaction's client says so.";

pub(in crate::cli) const EXAMPLE: &str = "\
Example:
  oncelog txn list --state prepared --older-than 5m";

#[derive(Subcommand)]
pub(in crate::cli) enum TxnCommand {
    /// List the transactions that the server remembers
    #[command(after_help = format!("{OUTPUT}\n\nExamples:\n  oncelog txn list --state prepared --older-than 5m\n  oncelog txn list --json | jq -r .transaction_id"))]
    List {
        /// Only those in this state
        #[arg(long, value_name = "STATE", value_parser = states())]
        state: Option<String>,
        /// Only those begun at least this long ago: 90s, 15m, 12h or 30d
        #[arg(long, value_name = "TIME", value_parser = life)]
        older_than: Option<Duration>,
        /// Only those of the producer with this id
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=MAX_INTEGER))]
        producer: Option<i64>,
        /// Print at most this many
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Show the state of a transaction, and the offsets of its records
    #[command(after_help = format!("{OUTPUT}\n\nExample:\n  oncelog txn show 019aa5b6-5c00-7000-8000-000000000004"))]
    Show {
        #[command(flatten)]
        which: Which,
    },
    /// Abort a transaction that is stuck: its records are never read
    #[command(after_help = format!("{OPERATOR}\n\nExample:\n  oncelog txn abort 019aa5b6-5c00-7000-8000-000000000004"))]
    Abort {
        #[command(flatten)]
        which: Which,
    },
    /// Commit a prepared transaction that its client does not commit
    #[command(after_help = format!("{OPERATOR}\nOnly a prepared transaction can be committed; for any other, only its client knows whether it\nis complete.\n\nExample:\n  oncelog txn commit 019aa5b6-5c00-7000-8000-000000000004"))]
    Commit {
        #[command(flatten)]
        which: Which,
    },
    /// Print a new transaction id, for example for --transaction-id of `produce`
    #[command(after_help = "Example:\n  oncelog txn id")]
    Id,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Which {
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

pub(in crate::cli) fn run(command: TxnCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            TxnCommand::List { state, older_than, producer, limit, common } => {
                let older_than = older_than.map(|age| age.as_millis().to_string());
                let filter = [
                    ("state", state),
                    ("older_than_ms", older_than),
                    ("producer_id", producer.map(|id| id.to_string())),
                ];
                list(&filter, limit.unwrap_or(u64::MAX), common).await
            }
            TxnCommand::Show { which: Which { id, common } } => {
                let client = Client::new(common.server, Some(PATIENCE))?;
                let path = ["transactions", &id.to_string()];
                let answer = client.send(client.request(Method::GET, &path, &[])).await?;
                show(&answer, common.json)
            }
            TxnCommand::Abort { which } => end(which, "abort", "aborted").await,
            TxnCommand::Commit { which } => end(which, "commit", "committed").await,
            TxnCommand::Id => print(format!("{}\n", Uuid::now_v7()).as_bytes()),
        }
    })
}

async fn list(
    filter: &[(&str, Option<String>)],
    mut left: u64,
    common: Common,
) -> anyhow::Result<()> {
    let client = Client::new(common.server, Some(PATIENCE))?;
    let as_json = common.json || !stdout().is_terminal();
    let filter: Vec<(&str, &str)> =
        filter.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
    let mut rows = table(&["transaction", "state", "age", "prepared for", "producer", "appends"]);
    if left > 0 {
        let each = |transaction: &serde_json::value::RawValue| {
            if as_json {
                print(format!("{transaction}\n").as_bytes())?;
            } else {
                rows.add_row(row(&serde_json::from_str(transaction.get())?));
            }
            left -= 1;
            Ok(left > 0)
        };
        client.list(&["transactions"], &filter, "transactions", each).await?;
    }
    if as_json { Ok(()) } else { print(format!("{rows}\n").as_bytes()) }
}

fn row(transaction: &Value) -> [Cell; 6] {
    let is_prepared = transaction["state"] == State::Prepared.as_str();
    let prepared_for = since(&transaction["prepared_at"]).filter(|_| is_prepared);
    [
        text(&transaction["transaction_id"]),
        text(&transaction["state"]),
        Cell::new(since(&transaction["created_at"]).unwrap_or_default()),
        Cell::new(prepared_for.unwrap_or_default()),
        number(&transaction["producer_id"]),
        number(&transaction["append_count"]),
    ]
}

/// The cell of a value; empty for null.
pub(in crate::cli) fn number(value: &Value) -> Cell {
    if value.is_null() { Cell::new("") } else { text(value) }
}

/// The time since an instant, in words; none for null.
pub(in crate::cli) fn since(instant: &Value) -> Option<String> {
    let then = Timestamp::parse(instant.as_str()?).ok()?;
    let now = Timestamp::from(chrono::Utc::now());
    // the server's clock may be ahead of ours
    Some(lapse((now.0 - then.0).max(0).unsigned_abs() / 1000))
}

async fn end(Which { id, common }: Which, verb: &str, done: &str) -> anyhow::Result<()> {
    let client = Client::new(common.server, Some(PATIENCE))?;
    let path = ["transactions", &id.to_string(), verb];
    let post = client.request(Method::POST, &path, &[("as", "operator")]).json(&json!({}));
    let answer = match client.send(post).await {
        Err(Failure::Refused(problem)) if problem.code == "invalid_transaction_state" => {
            anyhow::bail!("{problem}; see `oncelog txn show {id}`")
        }
        // an operator's request is invalid only if the transaction is still ongoing
        Err(Failure::Refused(problem)) if problem.code == "invalid_request" => anyhow::bail!(
            "{problem}; wait until its client prepares or ends it, or `oncelog txn abort {id}`"
        ),
        answer => answer?,
    };
    let transaction: Value = answer.json()?;
    // after a retry the duplicate may be our own first attempt, whose answer was lost
    let was_before = transaction["duplicate"] == true && client.repeats() == 0;
    let done = match (was_before, transaction["reason"].as_str()) {
        (false, _) => format!("{done} transaction {id}"),
        (true, None) => format!("transaction {id} was already {done}"),
        (true, Some(reason)) => format!("transaction {id} was already {done} ({reason})"),
    };
    client.notice(&done);
    show(&answer, common.json)
}

fn show(answer: &Answer, as_json: bool) -> anyhow::Result<()> {
    if as_json || !stdout().is_terminal() {
        return print(&[&answer.body, &b"\n"[..]].concat());
    }
    let transaction: Value = answer.json()?;
    let word = |member: &str| transaction[member].as_str().unwrap_or_default();
    let reason = transaction["reason"].as_str().map(|reason| format!(" ({reason})"));
    let mut shown =
        format!("{}, {}{}\n", word("transaction_id"), word("state"), reason.unwrap_or_default());
    let instants = [
        ("created_at", "begun"),
        ("prepared_at", "prepared"),
        ("expires_at", "times out"),
        ("ended_at", "ended"),
    ];
    for (member, what) in instants {
        if let Some(instant) = transaction[member].as_str() {
            let ago = since(&transaction[member]).filter(|_| member != "expires_at");
            let ago = ago.map(|ago| format!(", {ago} ago")).unwrap_or_default();
            shown += &format!("{what} {instant}{ago}\n");
        }
    }
    shown += &match (transaction["producer_id"].as_i64(), transaction["epoch"].as_i64()) {
        (Some(producer), Some(epoch)) => format!("producer {producer}, epoch {epoch}\n"),
        _ => "no session\n".to_owned(),
    };
    let count = transaction["append_count"].as_u64().unwrap_or_default();
    shown += &format!("{}\n", counted(count, "append"));
    if let Some(appends) = transaction["appends"].as_array() {
        shown += &format!("\n{}\n", places(appends));
    }
    print(shown.as_bytes())
}

/// A table of the locations of the records.
fn places(appends: &[Value]) -> Table {
    let mut places = table(&["topic", "partition", "base offset", "records"]);
    for append in appends {
        let members = ["topic", "partition", "base_offset", "record_count"];
        places.add_row(members.map(|member| number(&append[member])));
    }
    places
}
