//! `oncelog session`: opens, lists, shows and closes the sessions of producers.

use anyhow::{Context, bail};
use clap::{ArgGroup, Args, Subcommand};
use comfy_table::Cell;
use reqwest::Method;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    resource::{AdminClient, Common, OUTPUT, Resource, help},
    settings,
};
use crate::{
    cli::{
        block_on,
        common::{ago, milliseconds, name},
        output::{Column, cell, cell_or_blank, items, table},
    },
    model::{MAX_INTEGER, Name},
};

pub(in crate::cli) const EXAMPLE: &str = "\
Example:
  oncelog session show --transactional-id payment-service";

const OPEN: &str = "\
Opening raises the epoch of the producer: older runs of it are fenced, and their open transaction is
aborted. The response has the next sequence of every scope. `oncelog produce` opens a session of its
own.";

const CLOSE: &str = "\
Later writes of the session are refused. Its transactional id keeps its producer id, and can be
opened again. A newer epoch than the given one stays open.";

#[derive(Subcommand)]
pub(in crate::cli) enum SessionCommand {
    /// Open a session, which fences the older ones of its producer
    #[command(after_help = help(&format!("{OPEN}\n{OUTPUT}"),
        &["oncelog session open --transactional-id payment-service",
            "oncelog session open --transactional-id import-7 --json | jq .next_sequences"]))]
    Open(OpenArgs),
    /// List all sessions
    #[command(after_help = help(OUTPUT,
        &["oncelog session list --json | jq -r .transactional_id"]))]
    List(Common),
    /// Show a session, and the next sequence of each of its scopes
    #[command(after_help = help(OUTPUT, &["oncelog session show 17",
        "oncelog session show --transactional-id payment-service"]))]
    Show(ProducerArgs),
    /// Close a session, which fences its epoch
    #[command(visible_alias = "end", after_help = help(&format!("{CLOSE}\n{OUTPUT}"),
        &["oncelog session close --transactional-id payment-service",
            "oncelog session close 17 --epoch 4"]))]
    Close {
        #[command(flatten)]
        producer: ProducerArgs,
        /// Epoch to close [default: the current one]
        #[arg(long, value_name = "N",
            value_parser = clap::value_parser!(i64).range(0..=MAX_INTEGER))]
        epoch: Option<i64>,
    },
}

#[derive(Args)]
pub(in crate::cli) struct OpenArgs {
    /// Stable name of the producer. Without it and --producer-id the producer is new
    #[arg(long, value_name = "ID", value_parser = name)]
    transactional_id: Option<Name>,
    /// Open only if this is the producer, and --epoch its current epoch
    #[arg(long, value_name = "N", requires = "epoch",
        value_parser = clap::value_parser!(i64).range(0..=MAX_INTEGER))]
    producer_id: Option<i64>,
    /// The producer's current epoch
    #[arg(long, value_name = "N", requires = "producer_id",
        value_parser = clap::value_parser!(i64).range(0..=MAX_INTEGER))]
    epoch: Option<i64>,
    /// Default timeout of transactions in this session, such as 1m; a number is in milliseconds
    /// [default: the tenant's transaction_timeout_ms]
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    transaction_timeout_ms: Option<u64>,
    /// How sequences follow each other: each is the last one plus 1, or any greater one
    #[arg(long, value_parser = ["contiguous", "monotonic"], default_value = "contiguous")]
    sequencing: String,
    /// Where the next sequences start: after the last ones, or at 0
    #[arg(long, value_parser = ["continue", "reset"], default_value = "continue")]
    sequences: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true).args(["producer", "transactional_id"])))]
pub(in crate::cli) struct ProducerArgs {
    /// The producer's id
    #[arg(value_name = "PRODUCER", value_parser = producer_id)]
    producer: Option<i64>,
    /// Stable name of the producer
    #[arg(long, value_name = "ID", value_parser = name)]
    transactional_id: Option<Name>,
    #[command(flatten)]
    common: Common,
}

fn producer_id(text: &str) -> Result<i64, String> {
    let id = text.parse().ok().filter(|id| (0..=MAX_INTEGER).contains(id));
    id.ok_or_else(|| {
        format!("expected a number; to find a producer by its name, use --transactional-id {text}")
    })
}

const SESSION: Resource = Resource {
    noun: "session",
    collection: "sessions",
    columns: &[
        ("producer", |session| cell(&session["producer_id"])),
        ("epoch", |session| cell(&session["epoch"])),
        ("transactional id", |session| cell_or_blank(&session["transactional_id"])),
        ("state", |session| Cell::new(state(session))),
        ("opened", |session| Cell::new(ago(&session["opened_at"]))),
    ],
    describe,
};

const SEQUENCES: &[Column] = &[
    ("topic", |next| cell(&next["topic"])),
    ("partition", |next| cell_or_blank(&next["partition"])),
    ("next sequence", |next| cell(&next["next_sequence"])),
];

pub(in crate::cli) fn run(command: SessionCommand) -> anyhow::Result<()> {
    block_on(async {
        match command {
            SessionCommand::Open(args) => open(args).await,
            SessionCommand::List(common) => SESSION.list(&[], common).await,
            SessionCommand::Show(ProducerArgs { producer, transactional_id, common }) => {
                let admin = AdminClient::new(common)?;
                let producer = find(&admin, producer, transactional_id).await?;
                let path = [SESSION.collection, &producer.to_string()];
                let answer = admin.call(Method::GET, &path, Map::new()).await?;
                admin.print(&answer, describe)
            }
            SessionCommand::Close { producer, epoch } => close(producer, epoch).await,
        }
    })
}

async fn open(args: OpenArgs) -> anyhow::Result<()> {
    let admin = AdminClient::new(args.common)?;
    // the id makes a retry safe
    let mut body = Map::from_iter([
        ("open_id".to_owned(), json!(Uuid::now_v7())),
        ("sequencing".to_owned(), json!(args.sequencing)),
        ("sequences".to_owned(), json!(args.sequences)),
    ]);
    for (field, value) in [
        ("transactional_id", args.transactional_id.map(|name| json!(name))),
        ("producer_id", args.producer_id.map(Value::from)),
        ("epoch", args.epoch.map(Value::from)),
        ("transaction_timeout_ms", args.transaction_timeout_ms.map(Value::from)),
    ] {
        body.extend(value.map(|value| (field.to_owned(), value)));
    }
    let answer = admin.call(Method::POST, &[SESSION.collection], body).await?;
    let session: Value = answer.json()?;
    let (producer, epoch) = (&session["producer_id"], &session["epoch"]);
    let fenced = if epoch == 0 { "" } else { "; older epochs are fenced" };
    admin.client.notice(&format!("opened a session: producer {producer}, epoch {epoch}{fenced}"));
    admin.print(&answer, describe)
}

/// The producer's id.
async fn find(
    admin: &AdminClient,
    producer: Option<i64>,
    transactional_id: Option<Name>,
) -> anyhow::Result<i64> {
    let Some(name) = transactional_id else { return producer.context("no producer is given") };
    let filter = [("transactional_id", name.as_str())];
    let page = admin.client.page(&[SESSION.collection], &filter, None).await?;
    let Some(item) = page.items.first() else {
        bail!("no session has the transactional id {name}; `oncelog session list` lists all");
    };
    let session: Value = serde_json::from_str(item.get())?;
    session["producer_id"].as_i64().context("a session without its producer_id")
}

async fn close(args: ProducerArgs, epoch: Option<i64>) -> anyhow::Result<()> {
    let ProducerArgs { producer, transactional_id, common } = args;
    let admin = AdminClient::new(common)?;
    let producer = find(&admin, producer, transactional_id).await?.to_string();
    let path = [SESSION.collection, producer.as_str()];
    let describe_it = async || admin.call(Method::GET, &path, Map::new()).await;
    let answer = describe_it().await?;
    let session: Value = answer.json()?;
    let current = session["epoch"].as_i64().context("a session without its epoch")?;
    let epoch = epoch.unwrap_or(current);
    let told = if session["closed"] == true {
        format!("the session of producer {producer} is closed already")
    } else if current > epoch {
        format!("epoch {epoch} of producer {producer} was fenced before: epoch {current} is newer")
    } else {
        let delete = admin.client.request(Method::DELETE, &path, &[("epoch", &epoch.to_string())]);
        admin.client.send(delete).await?;
        admin.client.notice(&format!("closed the session of producer {producer}, epoch {epoch}"));
        return admin.print(&describe_it().await?, describe);
    };
    admin.client.notice(&told);
    admin.print(&answer, describe)
}

fn state(session: &Value) -> &'static str {
    if session["closed"] == true { "closed" } else { "open" }
}

fn describe(session: &Value) -> String {
    let word = |member: &str| session[member].as_str().unwrap_or_default();
    let name = match session["transactional_id"].as_str() {
        Some(name) => format!("transactional id {name}"),
        None => "no transactional id".to_owned(),
    };
    let timeout = session["transaction_timeout_ms"].as_u64().unwrap_or_default();
    let mut text = format!(
        "producer {}, epoch {}, {}\n{name}\nopened {}, {}\nsequences {}, transactions time out \
         after {}\n",
        session["producer_id"],
        session["epoch"],
        state(session),
        word("opened_at"),
        ago(&session["opened_at"]),
        word("sequencing"),
        settings::shown("transaction_timeout_ms", timeout)
    );
    if let Some(aborted) = session["aborted_transaction"].as_str() {
        text += &format!("aborted transaction {aborted} of an older epoch\n");
    }
    for prepared in items(&session["prepared_transactions"]) {
        let id = prepared.as_str().unwrap_or_default();
        text += &format!("transaction {id} is prepared: commit or abort it\n");
    }
    match items(&session["next_sequences"]) {
        [] => text + "nothing appended yet\n",
        scopes => format!("{text}\n{}\n", table(SEQUENCES, scopes)),
    }
}
