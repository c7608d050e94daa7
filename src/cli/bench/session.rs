//! What short-lived functions do: open a session, append once, and end.

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use serde::Deserialize;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    Common, Stage,
    append::PAUSE,
    connection::{Connection, Failure, Server},
    events::{BenchSession, Requests, Shape},
    measure::{Clock, Report, SharedTally, watch},
};

#[derive(Args)]
pub(in crate::cli) struct SessionFlags {
    /// Connections, each with one request in flight
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    #[command(flatten)]
    pub(super) common: Common,
}

pub(super) async fn run(flags: &SessionFlags, stage: &Stage) -> anyhow::Result<Report> {
    let connections = usize::from(flags.connections);
    let shape = Shape { records: 1, record_bytes: stage.record_bytes, keyed: false, ids_of: None };
    let mut functions = Vec::with_capacity(connections);
    for index in 0..connections {
        let server = stage.server(index);
        let partition = index / stage.servers.len() % stage.partitions.unsigned_abs() as usize;
        functions.push(Function {
            requests: Requests::new(&server, &stage.partition_path(partition as i64), index, shape),
            open: server.post_head("/sessions") + "2\r\n\r\n{}",
            connection: server.connect().await.context("cannot connect")?,
            server,
            unresolved: 0,
        });
    }
    let clock = stage.phases.clock();
    let tally = SharedTally::new(clock)?;
    let mut tasks = JoinSet::new();
    for function in functions {
        tasks.spawn(function.run(clock, tally.clone()));
    }
    let (unresolved, cpu) = watch(tasks, clock, &tally).await?;

    let mut report = stage.report("session", connections);
    report.tally("open_and_append", &tally.lock(), cpu)?;
    let acknowledged = tally.lock().acknowledged;
    report.note("check", stage.check(acknowledged, unresolved.iter().sum()).await?);
    Ok(report)
}

#[derive(Deserialize)]
struct OpenAnswer {
    producer_id: i64,
    epoch: i64,
}

struct Function {
    server: Arc<Server>,
    connection: Connection,
    open: String,
    requests: Requests,
    /// Appends that may be stored or not.
    unresolved: u64,
}

impl Function {
    async fn run(mut self, clock: Clock, tally: SharedTally) -> u64 {
        loop {
            let begun = Instant::now();
            if begun >= clock.until {
                return self.unresolved;
            }
            match self.once().await {
                Ok(()) => tally.lock().done(begun, Instant::now(), 1),
                Err(failure) => {
                    tally.lock().failed(&failure);
                    self.unresolved += 1;
                    sleep(PAUSE).await;
                    if let (false, Ok(connection)) =
                        (failure.leaves_connection(), self.server.connect().await)
                    {
                        self.connection = connection;
                    }
                }
            }
        }
    }

    async fn once(&mut self) -> Result<(), Failure> {
        let opened = self.connection.exchange(self.open.as_bytes()).await?;
        let OpenAnswer { producer_id, epoch } = serde_json::from_slice(opened)
            .map_err(|error| Failure::Foreign(format!("unexpected session: {error}")))?;
        let session = BenchSession { producer_id, epoch };
        let request = self.requests.next(Some((session, 0))).as_bytes();
        self.connection.exchange(request).await.map(drop)
    }
}
