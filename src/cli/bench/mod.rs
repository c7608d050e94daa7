//! `oncelog bench`: measures the speed of a server with closed-loop clients.
//!
//! The load generator may share its machine with the server, so it must be cheap: one thread,
//! connections that write prepared bytes and parse as little of the responses as they can
//! (`connection`), and events assembled from prepared text (`events`). A response that is not a 2xx
//! is an error, and any error fails the run: a result that hides refusals means nothing.

mod append;
mod connection;
mod events;
mod heartbeat;
mod measure;
mod read;
mod session;
mod transaction;
mod transform;
mod wake;
mod workers;

use std::{sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use reqwest::Url;
use secrecy::SecretString;
use serde_json::{Value, json};
use uuid::Uuid;

use self::{
    connection::Server,
    measure::{Phases, Report},
};
use super::{
    WrongUsage, block_on,
    common::{counted, milliseconds, name},
    output::print,
    server::{GivenUrl, ServerFlags, Target, url},
};
use crate::{
    config::units::Unit,
    model::{Name, topic::MAX_PARTITION_COUNT},
};

const APPEND_EXAMPLE: &str = "\
Examples:
  oncelog bench append
  oncelog bench append --connections 16 --records-per-request 100 --partitions 16
  oncelog bench append --url http://10.0.0.1:8080 --url http://10.0.0.2:8080 --json

The run fails unless the log holds exactly the events that were acknowledged.";

const READ_EXAMPLE: &str = "\
Example:
  oncelog bench read --events 1000000";

const WAKE_EXAMPLE: &str = "\
Examples:
  oncelog bench wake --rate 200
  oncelog bench wake --rate 20 --readers 1000

Two latencies are measured until the reader has the record: from sending the append, and from its
response. If the reader has the record before that response, the second one counts as 0.";

const SESSION_EXAMPLE: &str = "\
Example:
  oncelog bench session --connections 16";

const TRANSACTION_EXAMPLE: &str = "\
Examples:
  oncelog bench transaction
  oncelog bench transaction --form three
  oncelog bench transaction --form staged --appends 10 --records-per-append 100";

const TRANSFORM_EXAMPLE: &str = "\
Example:
  oncelog bench transform --members 4 --partitions 16

The members read the topic TOPIC-source, which is filled first, and append to the topic.";

const HEARTBEAT_EXAMPLE: &str = "\
Examples:
  oncelog bench heartbeat --partitions 12 --duration-s 30
  oncelog bench heartbeat --groups 1 --members 100 --partitions 1000

All members join first, which takes a while. The latency of a heartbeat starts when it is due. Its
response must equal the previous one: the same assignment in the same generation. At the end the
members leave and the groups are deleted; with --topic they stay until their leases expire.";

#[derive(Subcommand)]
pub(super) enum BenchCommand {
    /// Append as fast as the responses arrive
    #[command(after_help = APPEND_EXAMPLE)]
    Append(append::AppendFlags),
    /// Read stored events from the first to the last, page by page
    #[command(after_help = READ_EXAMPLE)]
    Read(read::ReadFlags),
    /// Append at a fixed rate, and measure how soon waiting readers get each event
    #[command(after_help = WAKE_EXAMPLE)]
    Wake(wake::WakeFlags),
    /// Open a new session and append once with it, repeatedly
    #[command(after_help = SESSION_EXAMPLE)]
    Session(session::SessionFlags),
    /// Commit transactions, in one request or in several
    #[command(after_help = TRANSACTION_EXAMPLE)]
    Transaction(transaction::TransactionFlags),
    /// Consume as members of a group and commit to another topic, offsets included
    #[command(after_help = TRANSFORM_EXAMPLE)]
    Transform(transform::TransformFlags),
    /// Renew the leases of the members of many groups
    #[command(after_help = HEARTBEAT_EXAMPLE)]
    Heartbeat(heartbeat::HeartbeatFlags),
}

/// The flags of all workloads.
#[derive(Args)]
struct Common {
    /// Base URL of a server; may be repeated, to spread the connections over several [default: the
    /// context's, else http://127.0.0.1:8080]
    #[arg(long = "url", value_name = "URL", env = "ONCELOG_URL", value_parser = url)]
    urls: Vec<GivenUrl>,
    /// Bearer token; prefer the environment variable, which other users of this machine cannot read
    #[arg(long, env = "ONCELOG_TOKEN", hide_env_values = true)]
    token: Option<SecretString>,
    /// Call the server of this context, see `oncelog context`; --url and --token override it
    #[arg(long, value_name = "NAME", env = "ONCELOG_CONTEXT", hide_env_values = true)]
    context: Option<String>,
    /// Use this topic, create it if it does not exist, and keep it. Default: create one with a
    /// random name, and delete it at the end
    #[arg(long, value_parser = name)]
    topic: Option<Name>,
    /// Partitions of a topic that is created
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(i64).range(1..=MAX_PARTITION_COUNT))]
    partitions: i64,
    /// Size of an event, which is a JSON value: bytes, or with a unit (1KiB)
    #[arg(long, value_name = "SIZE", default_value = "160B", value_parser = record_bytes)]
    record_bytes: u32,
    /// How long to measure: seconds, or with a unit (2m)
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = seconds)]
    duration_s: Duration,
    /// How long to run before measuring
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = seconds)]
    warmup_s: Duration,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = match text.parse() {
        Ok(number) => Some(number),
        Err(_) => milliseconds(text).ok().map(|time_ms| time_ms as f64 / 1e3),
    };
    let number = number.filter(|seconds| (0.0..=3600.0).contains(seconds));
    let wrong = || "expected 0 to 3600 seconds, or a time such as 500ms, 30s or 2m, at most 1h";
    number.map(Duration::from_secs_f64).ok_or_else(|| wrong().into())
}

fn record_bytes(text: &str) -> Result<u32, String> {
    let bytes = u32::try_from(Unit::Bytes.parse(text)?).ok();
    let bytes = bytes.filter(|bytes| (80..=900_000).contains(bytes));
    bytes.ok_or_else(|| "expected 80 to 900000 bytes".into())
}

/// The servers, and the topic of the workload.
struct Stage {
    servers: Vec<Arc<Server>>,
    topic: Name,
    /// Whether we created the topic, and delete it.
    is_created: bool,
    partitions: i64,
    /// Events in the topic before the run.
    events_before: i64,
    record_bytes: usize,
    phases: Phases,
}

pub(super) fn run(command: BenchCommand) -> anyhow::Result<()> {
    block_on(async {
        let (BenchCommand::Append(append::AppendFlags { common, .. })
        | BenchCommand::Read(read::ReadFlags { common, .. })
        | BenchCommand::Wake(wake::WakeFlags { common, .. })
        | BenchCommand::Session(session::SessionFlags { common, .. })
        | BenchCommand::Transaction(transaction::TransactionFlags { common, .. })
        | BenchCommand::Transform(transform::TransformFlags { common, .. })
        | BenchCommand::Heartbeat(heartbeat::HeartbeatFlags { common, .. })) = &command;
        let stage = Stage::prepare(common).await?;
        let work = async {
            match &command {
                BenchCommand::Append(flags) => append::run(flags, &stage).await,
                BenchCommand::Read(flags) => read::run(flags, &stage).await,
                BenchCommand::Wake(flags) => wake::run(flags, &stage).await,
                BenchCommand::Session(flags) => session::run(flags, &stage).await,
                BenchCommand::Transaction(flags) => transaction::run(flags, &stage).await,
                BenchCommand::Transform(flags) => transform::run(flags, &stage).await,
                BenchCommand::Heartbeat(flags) => heartbeat::run(flags, &stage).await,
            }
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        };
        let cleaned_up = stage.clean_up().await;
        let report = outcome?;
        print(report.text(common.json)?.as_bytes())?;
        cleaned_up?;
        report.verdict()
    })
}

impl Stage {
    async fn prepare(common: &Common) -> anyhow::Result<Self> {
        let mut servers = Vec::new();
        let given: Vec<&Url> = common.urls.iter().flatten().collect();
        let urls =
            if given.is_empty() { vec![None] } else { given.into_iter().map(Some).collect() };
        for url in urls {
            let (url, token, context) =
                (url.cloned(), common.token.clone(), common.context.clone());
            let Target { url, token, .. } = ServerFlags {
                url,
                token,
                context,
                ca_file: None,
                client_cert_file: None,
                admin: None,
            }
            .target()?;
            if url.scheme() != "http" {
                let what = format!("{url}: bench does not measure TLS; give an http:// URL");
                return Err(WrongUsage(what).into());
            }
            servers.push(Arc::new(Server::new(&url, token.as_ref())?));
        }
        let is_created = common.topic.is_none();
        let topic = match &common.topic {
            Some(topic) => topic.clone(),
            None => Name::parse(&format!("bench-{}", Uuid::now_v7().simple()))
                .map_err(anyhow::Error::msg)?,
        };
        let mut stage = Self {
            servers,
            topic,
            is_created,
            partitions: common.partitions,
            events_before: 0,
            record_bytes: common.record_bytes as usize,
            phases: Phases { warmup: common.warmup_s, measured: common.duration_s },
        };
        stage.find_or_create().await?;
        stage.events_before = stage.events().await?;
        Ok(stage)
    }

    async fn find_or_create(&mut self) -> anyhow::Result<()> {
        let path = self.topic_path();
        match self.first().call("GET", &path, None).await {
            Ok(found) => {
                let count = found["partition_count"].as_i64();
                self.partitions = count.context("a topic without its partition_count")?;
            }
            Err(error) if connection::is_refused(&error, "topic_not_found") => {
                let wanted = json!({"partition_count": self.partitions});
                let put = self.first().call("PUT", &path, Some(&wanted)).await;
                put.context("cannot create the topic")?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sets the dedup window of a topic that we created.
    async fn remember_for(&self, window_ms: i64) -> anyhow::Result<()> {
        if self.is_created {
            let settings = json!({"settings": {"dedup_window_ms": window_ms}});
            let patched = self.first().call("PATCH", &self.topic_path(), Some(&settings)).await;
            patched.context("cannot set the dedup window")?;
        }
        Ok(())
    }

    fn first(&self) -> &Arc<Server> {
        &self.servers[0]
    }

    /// The server of a connection.
    fn server(&self, connection: usize) -> Arc<Server> {
        self.servers[connection % self.servers.len()].clone()
    }

    /// The partition of a connection: those to one server are spread over all partitions.
    fn partition_of(&self, connection: usize) -> i64 {
        (connection / self.servers.len()) as i64 % self.partitions
    }

    fn topic_path(&self) -> String {
        format!("/topics/{}", self.topic)
    }

    fn partition_path(&self, partition: i64) -> String {
        format!("/topics/{}/partitions/{partition}/records", self.topic)
    }

    /// The number of events ever appended to the topic.
    async fn events(&self) -> anyhow::Result<i64> {
        let described = self.first().call("GET", &self.topic_path(), None).await?;
        let partitions =
            described["partitions"].as_array().context("a topic without partitions")?;
        let marks = partitions.iter().map(|partition| partition["high_watermark"].as_i64());
        marks.sum::<Option<i64>>().context("a partition without a high watermark")
    }

    /// Compares the events in the log with those acknowledged; `unresolved` ones may be there or
    /// not.
    async fn check(&self, acknowledged: u64, unresolved: u64) -> anyhow::Result<Value> {
        let stored = self.events().await? - self.events_before;
        let (acknowledged, unresolved) = (acknowledged.cast_signed(), unresolved.cast_signed());
        if stored < acknowledged || stored > acknowledged + unresolved {
            bail!(
                "{stored} events are stored, but {acknowledged} were acknowledged, and \
                 {unresolved} are unresolved"
            );
        }
        Ok(json!({"stored": stored, "acknowledged": acknowledged, "unresolved": unresolved}))
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        if self.is_created {
            let deleted = self.first().call("DELETE", &self.topic_path(), None).await;
            deleted.with_context(|| format!("cannot delete topic {}", self.topic))?;
        }
        Ok(())
    }

    fn report(&self, workload: &'static str, connections: usize) -> Report {
        let mut report = Report::new(workload);
        report.note("servers", self.servers.len());
        report.note("connections", connections);
        report.note("partitions", self.partitions);
        report.note("record_bytes", self.record_bytes);
        report
    }
}
