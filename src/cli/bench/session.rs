//! What short-lived functions do: open a session, append once, and end.

use anyhow::Context;
use clap::Args;

use super::{
    Common, Stage,
    connection::{Connection, Failure},
    events::{BenchSession, Requests, Shape},
    measure::{Report, SharedTally},
    workers::{Run, Worker},
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
        let path = stage.partition_path(stage.partition_of(index));
        functions.push(Function {
            requests: Requests::new(&server, &path, index, shape),
            open: server.request_with("POST", "/sessions", "{}"),
            connection: server.connect().await.context("cannot connect")?,
        });
    }
    let run = Run::measure(functions, stage).await?;
    let mut report = stage.report("session", connections);
    run.report(&mut report, "open_and_append", stage, run.failures()).await?;
    Ok(report)
}

struct Function {
    connection: Connection,
    /// The request that opens a session.
    open: String,
    requests: Requests,
}

impl Worker for Function {
    async fn operate(&mut self, _: &SharedTally) -> Result<u64, Failure> {
        let opened = self.connection.exchange(&self.open).await?;
        let session: BenchSession = serde_json::from_slice(opened)
            .map_err(|error| Failure::Foreign(format!("unexpected session: {error}")))?;
        self.connection.exchange(self.requests.next(Some((session, 0)))).await?;
        Ok(1)
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}
