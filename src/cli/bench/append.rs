//! Appends from many connections, each with its own session.

use std::sync::LazyLock;

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use memchr::memmem::Finder;
use uuid::Uuid;

use super::{
    Common, Stage,
    connection::{Connection, Failure},
    events::{BenchSession, Requests, Shape},
    measure::{Report, SharedTally},
    workers::{Finished, Run, Worker},
};

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
        let path = match flags.scope {
            AppendScope::Topic => stage.topic_path() + "/records",
            AppendScope::Partition => stage.partition_path(stage.partition_of(index)),
        };
        producers.push(Producer {
            session: if flags.unsequenced {
                None
            } else {
                Some(BenchSession::open(&server).await?)
            },
            next_sequence: 0,
            requests: Requests::new(&server, &path, index, shape),
            events: shape.records as u64,
            connection: server.connect().await.context("cannot connect")?,
            is_pending: false,
        });
    }
    let run = Run::measure(producers, stage).await?;
    let unresolved = run.finished.iter().map(Producer::unresolved).sum();
    run.tally.lock().acknowledged += u64::from(flags.live_ids);

    let mut report = stage.report("append", connections);
    report.note("records_per_request", flags.records_per_request);
    report.note("scope", if keyed { "topic" } else { "partition" });
    report.note("sequenced", !flags.unsequenced);
    report.note("ids", flags.ids && !flags.plain);
    report.note("live_ids", flags.live_ids);
    run.report(&mut report, "append", stage, unresolved).await?;
    Ok(report)
}

/// Appends events with ids before the measurement.
async fn fill(live_ids: u32, stage: &Stage) -> anyhow::Result<()> {
    /// The default of `max_batch_records`.
    const MAX_RECORDS: u32 = 1_000;
    let (server, run) = (stage.server(0), Uuid::now_v7().as_u64_pair().1);
    let mut connection = server.connect().await.context("cannot connect")?;
    let mut left = live_ids;
    let mut filled = 0;
    while left > 0 {
        let records = left.min(MAX_RECORDS);
        let shape = Shape {
            records: records as usize,
            record_bytes: stage.record_bytes.min(160),
            keyed: false,
            ids_of: Some(run.wrapping_add(filled)),
        };
        let path = stage.partition_path(0);
        let mut requests = Requests::new(&server, &path, usize::from(u16::MAX), shape);
        let answer = connection.exchange(requests.next(None)).await;
        answer.map_err(|failure| anyhow!("cannot append the initial ids: {failure}"))?;
        (left, filled) = (left - records, filled + 1);
    }
    Ok(())
}

struct Producer {
    connection: Connection,
    session: Option<BenchSession>,
    next_sequence: u64,
    requests: Requests,
    /// Events per request.
    events: u64,
    /// Whether the last request was not acknowledged: it is sent again.
    is_pending: bool,
}

impl Producer {
    /// The number of events that may be stored or not; without sequences every attempt counts.
    fn unresolved(Finished { worker, failures }: &Finished<Self>) -> u64 {
        let requests = match worker.session {
            Some(_) => u64::from(worker.is_pending),
            None => *failures,
        };
        requests * worker.events
    }
}

impl Worker for Producer {
    async fn operate(&mut self, tally: &SharedTally) -> Result<u64, Failure> {
        let is_retry = std::mem::replace(&mut self.is_pending, true);
        let request = if is_retry {
            self.requests.last()
        } else {
            self.requests.next(self.session.map(|session| (session, self.next_sequence)))
        };
        let answer = self.connection.exchange(request).await?;
        if !is_retry && is_duplicate(answer) {
            let what = || "a new append was a duplicate".into();
            tally.lock().error("new_yet_duplicate", what);
        }
        self.is_pending = false;
        self.next_sequence += 1;
        Ok(self.events)
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

fn is_duplicate(answer: &[u8]) -> bool {
    static DUPLICATE: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"\"duplicate\":true"));
    DUPLICATE.find(answer).is_some()
}
