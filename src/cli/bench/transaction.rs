//! Transactions: in one request, the same in three, or many appends staged by a session.

use std::sync::Arc;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use uuid::Uuid;

use super::{
    Common, Stage,
    append::{PAUSE, open},
    connection::{Connection, Failure, Server},
    events::{BenchSession, Requests, Shape},
    measure::{Clock, Report, SharedTally, watch},
};

#[derive(Args)]
pub(in crate::cli) struct TransactionFlags {
    /// Connections, each with one transaction in flight
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// How transactions are sent
    #[arg(long, value_enum, default_value_t = Form::Whole)]
    form: Form,
    /// Appends per staged transaction
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u16).range(1..=1000))]
    appends: u16,
    /// Events per append of a staged transaction
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    records_per_append: u16,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One request: one event to each of two topics and a compare-and-set offset; a transaction
    /// counts as one event
    Whole,
    /// The same in three requests
    Three,
    /// Begin, sequenced appends to one partition by a session, commit
    Staged,
}

pub(super) async fn run(flags: &TransactionFlags, stage: &Stage) -> anyhow::Result<Report> {
    let connections = usize::from(flags.connections);
    let beside = format!("{}-beside", stage.topic);
    let beside_path = format!("/topics/{beside}");
    let partitions = json!({"partition_count": stage.partitions});
    stage.first().call("PUT", &beside_path, Some(&partitions)).await?;
    let (appends, records) = match flags.form {
        Form::Whole | Form::Three => (1, 1),
        Form::Staged => (u64::from(flags.appends), usize::from(flags.records_per_append)),
    };
    let shape = Shape { records, record_bytes: stage.record_bytes, keyed: false, ids_of: None };
    let mut clients = Vec::with_capacity(connections);
    for index in 0..connections {
        let server = stage.server(index);
        let partition = index / stage.servers.len() % stage.partitions.unsigned_abs() as usize;
        clients.push(Client {
            form: flags.form,
            appends,
            session: open(&server).await?,
            topics: [stage.topic.to_string(), beside.clone()],
            partition,
            group: format!("bench-{}-{index}", Uuid::now_v7().simple()),
            committed: None,
            requests: Requests::new(&server, "", index, shape),
            events: appends * records as u64,
            connection: server.connect().await.context("cannot connect")?,
            server,
            unresolved: 0,
        });
    }
    let clock = stage.phases.clock();
    let tally = SharedTally::new(clock)?;
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn(client.run(clock, tally.clone()));
    }
    let (unresolved, cpu) = watch(tasks, clock, &tally).await?;

    let mut report = stage.report("transaction", connections);
    report.note("form", flags.form.to_possible_value().map(|form| form.get_name().to_owned()));
    report.tally("transaction", &tally.lock(), cpu)?;
    let acknowledged = tally.lock().acknowledged;
    report.note("check", stage.check(acknowledged, unresolved.iter().sum()).await?);
    stage.first().call("DELETE", &beside_path, None).await?;
    Ok(report)
}

struct Client {
    server: Arc<Server>,
    connection: Connection,
    form: Form,
    appends: u64,
    session: BenchSession,
    topics: [String; 2],
    partition: usize,
    group: String,
    /// The committed offset of the group, after the first transaction.
    committed: Option<u64>,
    requests: Requests,
    /// Events per transaction in the topic that is counted.
    events: u64,
    /// Events that may be stored or not.
    unresolved: u64,
}

#[derive(Deserialize)]
struct Begun {
    transaction_id: String,
}

impl Client {
    async fn run(mut self, clock: Clock, tally: SharedTally) -> u64 {
        loop {
            let begun = Instant::now();
            if begun >= clock.until {
                return self.unresolved;
            }
            let ended = match self.form {
                Form::Whole => self.whole().await,
                Form::Three => self.three().await,
                Form::Staged => self.staged().await,
            };
            match ended {
                Ok(()) => tally.lock().done(begun, Instant::now(), self.events),
                Err(failure) => {
                    tally.lock().failed(&failure);
                    self.unresolved += self.events;
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

    async fn whole(&mut self) -> Result<(), Failure> {
        let id = Uuid::now_v7();
        let (appends, offsets) = (self.two_appends(), self.offset());
        let body = format!(
            r#"{{"transaction_id":"{id}","appends":{appends},"offsets":{offsets},"commit":true}}"#
        );
        self.post("/transactions", &body).await?;
        self.committed = Some(self.committed.map_or(0, |committed| committed + 1));
        Ok(())
    }

    async fn three(&mut self) -> Result<(), Failure> {
        let id = Uuid::now_v7();
        self.post("/transactions", &format!(r#"{{"transaction_id":"{id}"}}"#)).await?;
        let body = format!(r#"{{"sequence":0,"appends":{}}}"#, self.two_appends());
        self.post(&format!("/transactions/{id}/records"), &body).await?;
        let body = format!(r#"{{"offsets":{}}}"#, self.offset());
        self.post(&format!("/transactions/{id}/commit"), &body).await?;
        self.committed = Some(self.committed.map_or(0, |committed| committed + 1));
        Ok(())
    }

    async fn staged(&mut self) -> Result<(), Failure> {
        let BenchSession { producer_id, epoch } = self.session;
        let who = format!(r#""producer_id":{producer_id},"epoch":{epoch}"#);
        let begun = self.post("/transactions", &format!("{{{who}}}")).await?;
        let Begun { transaction_id } = serde_json::from_slice(begun)
            .map_err(|error| Failure::Foreign(format!("unexpected transaction: {error}")))?;
        let path = format!("/transactions/{transaction_id}");
        for sequence in 0..self.appends {
            let append = self.append(0);
            let body = format!(r#"{{{who},"sequence":{sequence},"appends":[{append}]}}"#);
            self.post(&format!("{path}/records"), &body).await?;
        }
        let body = format!(r#"{{{who},"expected_appends":{}}}"#, self.appends);
        self.post(&format!("{path}/commit"), &body).await.map(drop)
    }

    fn append(&mut self, topic: usize) -> String {
        let (topic, partition) = (&self.topics[topic], self.partition);
        let records = self.requests.records();
        format!(r#"{{"topic":"{topic}","partition":{partition},"records":[{records}]}}"#)
    }

    fn two_appends(&mut self) -> String {
        format!("[{},{}]", self.append(0), self.append(1))
    }

    /// The committed offset plus one.
    fn offset(&self) -> String {
        let (group, [topic, _], partition) = (&self.group, &self.topics, self.partition);
        let expected = self.committed.map_or("null".to_owned(), |offset| offset.to_string());
        let offset = self.committed.map_or(0, |offset| offset + 1);
        format!(
            r#"[{{"group":"{group}","topic":"{topic}","partition":{partition},"offset":{offset},"expected_offset":{expected}}}]"#
        )
    }

    async fn post(&mut self, path: &str, body: &str) -> Result<&[u8], Failure> {
        let head = self.server.post_head(path);
        let request = format!("{head}{}\r\n\r\n{body}", body.len());
        self.connection.exchange(request.as_bytes()).await
    }
}
