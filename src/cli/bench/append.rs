//! Appends from many connections, each with its own session.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use memchr::memmem::Finder;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::{
    Common, Stage,
    connection::{Connection, Failure, Server},
    events::{BenchSession, Requests, Shape},
    measure::{Clock, Report, SharedTally, watch},
};

/// The pause after an error, so that a broken server is not flooded.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(in crate::cli) struct AppendFlags {
    /// Connections, each with one request in flight
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// Events per request
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    records_per_request: u16,
    /// Scope of the appends
    #[arg(long, value_enum, default_value_t = AppendScope::Partition)]
    scope: AppendScope,
    /// Send sequences, each connection with its own session; this is the default
    #[arg(long, overrides_with = "unsequenced")]
    sequenced: bool,
    /// Send no sequences
    #[arg(long)]
    unsequenced: bool,
    /// Give every event an id, which the topic remembers for --dedup-window-ms
    #[arg(long)]
    ids: bool,
    /// Ids to append before the measurement
    #[arg(long, value_name = "N", default_value = "0", requires = "ids", value_parser = clap::value_parser!(u32).range(..=100_000_000))]
    live_ids: u32,
    /// Give no ids to the measured events
    #[arg(long, requires = "live_ids")]
    plain: bool,
    /// Dedup window of a topic that is created
    #[arg(long, value_name = "MS", default_value = "600000", value_parser = clap::value_parser!(i64).range(0..=315_360_000_000))]
    dedup_window_ms: i64,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AppendScope {
    /// Each connection appends to one partition
    Partition,
    /// All connections append to the topic, which spreads the events by key
    Topic,
}

pub(super) async fn run(flags: &AppendFlags, stage: &Stage) -> anyhow::Result<Report> {
    let (keyed, connections) = (flags.scope == AppendScope::Topic, usize::from(flags.connections));
    let shape = Shape {
        records: flags.records_per_request.into(),
        record_bytes: stage.record_bytes,
        keyed,
        ids_of: (flags.ids && !flags.plain).then(|| Uuid::now_v7().as_u64_pair().1),
    };
    stage.remember_for(flags.dedup_window_ms).await?;
    fill(flags.live_ids, stage).await?;
    let mut producers = Vec::with_capacity(connections);
    for index in 0..connections {
        let server = stage.server(index);
        let partition = index / stage.servers.len() % stage.partitions.unsigned_abs() as usize;
        let path = match flags.scope {
            AppendScope::Topic => stage.topic_path() + "/records",
            AppendScope::Partition => stage.partition_path(partition as i64),
        };
        producers.push(Producer {
            session: if flags.unsequenced { None } else { Some(open(&server).await?) },
            next_sequence: 0,
            requests: Requests::new(&server, &path, index, shape),
            events: shape.records as u64,
            connection: server.connect().await.context("cannot connect")?,
            server,
            unresolved: 0,
        });
    }
    let clock = stage.phases.clock();
    let tally = SharedTally::new(clock)?;
    let mut tasks = JoinSet::new();
    for producer in producers {
        tasks.spawn(producer.run(clock, tally.clone()));
    }
    let (unresolved, cpu) = watch(tasks, clock, &tally).await?;

    let mut report = stage.report("append", connections);
    report.note("records_per_request", flags.records_per_request);
    report.note("scope", if keyed { "topic" } else { "partition" });
    report.note("sequenced", !flags.unsequenced);
    report.note("ids", flags.ids && !flags.plain);
    report.note("live_ids", flags.live_ids);
    report.tally("append", &tally.lock(), cpu)?;
    let acknowledged = tally.lock().acknowledged;
    let acknowledged = acknowledged + u64::from(flags.live_ids);
    report.note("check", stage.check(acknowledged, unresolved.iter().sum()).await?);
    Ok(report)
}

/// Appends events with ids before the measurement.
async fn fill(live_ids: u32, stage: &Stage) -> anyhow::Result<()> {
    /// The default of `max_batch_records`.
    const MOST_RECORDS: u32 = 1_000;
    let (server, run) = (stage.server(0), Uuid::now_v7().as_u64_pair().1);
    let mut connection = server.connect().await.context("cannot connect")?;
    let mut left = live_ids;
    let mut filled = 0;
    while left > 0 {
        let records = left.min(MOST_RECORDS);
        let shape = Shape {
            records: records as usize,
            record_bytes: stage.record_bytes.min(160),
            keyed: false,
            ids_of: Some(run.wrapping_add(filled)),
        };
        let path = stage.partition_path(0);
        let mut requests = Requests::new(&server, &path, usize::from(u16::MAX), shape);
        let answer = connection.exchange(requests.next(None).as_bytes()).await;
        answer.map_err(|failure| anyhow!("cannot append the initial ids: {failure}"))?;
        (left, filled) = (left - records, filled + 1);
    }
    Ok(())
}

/// Opens a session without a transactional id.
pub(super) async fn open(server: &Server) -> anyhow::Result<BenchSession> {
    let opened = server.call("POST", "/sessions", Some(&json!({}))).await;
    let opened = opened.context("cannot open a session")?;
    let number = |name: &str| opened[name].as_i64().context("a session without its number");
    Ok(BenchSession { producer_id: number("producer_id")?, epoch: number("epoch")? })
}

struct Producer {
    server: Arc<Server>,
    connection: Connection,
    session: Option<BenchSession>,
    next_sequence: u64,
    requests: Requests,
    /// Events per request.
    events: u64,
    /// Events that may be stored or not.
    unresolved: u64,
}

impl Producer {
    /// Appends until the end of the run. Returns the number of unresolved events.
    async fn run(mut self, clock: Clock, tally: SharedTally) -> u64 {
        let mut begun = Instant::now();
        while begun < clock.until {
            let numbered = self.session.map(|session| (session, self.next_sequence));
            let request = self.requests.next(numbered).as_bytes();
            let first = self.connection.exchange(request).await.map(is_duplicate);
            let ended = Instant::now();
            match first {
                Ok(duplicate) => {
                    let mut tally = tally.lock();
                    tally.done(begun, ended, self.events);
                    if duplicate {
                        tally.error("new_yet_duplicate", || "a new append was a duplicate".into());
                    }
                }
                Err(failure) => {
                    tally.lock().failed(&failure);
                    if !self.resolve(failure, clock, &tally).await {
                        return self.unresolved;
                    }
                }
            }
            self.next_sequence += 1;
            begun = Instant::now();
        }
        self.unresolved
    }

    /// Retries a request until it is acknowledged or the run ends.
    async fn resolve(&mut self, mut failure: Failure, clock: Clock, tally: &SharedTally) -> bool {
        loop {
            if self.session.is_none() {
                self.unresolved += self.events;
            }
            if Instant::now() >= clock.until {
                if self.session.is_some() {
                    self.unresolved += self.events;
                }
                return false;
            }
            sleep(PAUSE).await;
            let begun = Instant::now();
            let again = self.again(&failure).await;
            match again {
                Ok(()) => {
                    tally.lock().done(begun, Instant::now(), self.events);
                    return true;
                }
                Err(next) => {
                    tally.lock().failed(&next);
                    failure = next;
                }
            }
        }
    }

    async fn again(&mut self, failure: &Failure) -> Result<(), Failure> {
        if !failure.leaves_connection() {
            self.connection = self.server.connect().await?;
        }
        self.connection.exchange(self.requests.last().as_bytes()).await.map(drop)
    }
}

fn is_duplicate(answer: &[u8]) -> bool {
    static DUPLICATE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"duplicate\":true"));
    DUPLICATE.find(answer).is_some()
}
