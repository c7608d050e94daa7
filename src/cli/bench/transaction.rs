//! Transactions: in one request, the same in three, or many appends staged by a session.

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{
    Common, Stage,
    connection::{Connection, Failure},
    events::{BenchSession, Requests, Shape},
    measure::{Report, SharedTally},
    workers::{Run, Worker},
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
        clients.push(Client {
            form: flags.form,
            appends,
            session: BenchSession::open(&server).await?,
            topics: [stage.topic.to_string(), beside.clone()],
            partition: stage.partition_of(index),
            group: format!("bench-{}-{index}", Uuid::now_v7().simple()),
            committed: None,
            requests: Requests::new(&server, "", index, shape),
            events: appends * records as u64,
            connection: server.connect().await.context("cannot connect")?,
        });
    }
    let run = Run::measure(clients, stage).await?;

    let mut report = stage.report("transaction", connections);
    report.note("form", flags.form.to_possible_value().map(|form| form.get_name().to_owned()));
    let events = appends * records as u64;
    run.report(&mut report, "transaction", stage, run.failures() * events).await?;
    stage.first().call("DELETE", &beside_path, None).await?;
    Ok(report)
}

struct Client {
    connection: Connection,
    form: Form,
    appends: u64,
    session: BenchSession,
    topics: [String; 2],
    partition: i64,
    group: String,
    /// The committed offset of the group, after the first transaction.
    committed: Option<u64>,
    requests: Requests,
    /// Events per transaction in the topic that is counted.
    events: u64,
}

#[derive(Deserialize)]
struct Begun {
    transaction_id: String,
}

impl Worker for Client {
    async fn operate(&mut self, _: &SharedTally) -> Result<u64, Failure> {
        match self.form {
            Form::Whole => self.one_request().await?,
            Form::Three => self.three_requests().await?,
            Form::Staged => self.staged().await?,
        }
        Ok(self.events)
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Client {
    async fn one_request(&mut self) -> Result<(), Failure> {
        let id = Uuid::now_v7();
        let (appends, offsets) = (self.two_appends(), self.offset());
        let body = format!(
            r#"{{"transaction_id":"{id}","appends":{appends},"offsets":{offsets},"commit":true}}"#
        );
        self.connection.post("/transactions", &body).await?;
        self.committed = Some(self.committed.map_or(0, |committed| committed + 1));
        Ok(())
    }

    async fn three_requests(&mut self) -> Result<(), Failure> {
        let id = Uuid::now_v7();
        self.connection.post("/transactions", &format!(r#"{{"transaction_id":"{id}"}}"#)).await?;
        let body = format!(r#"{{"sequence":0,"appends":{}}}"#, self.two_appends());
        self.connection.post(&format!("/transactions/{id}/records"), &body).await?;
        let body = format!(r#"{{"offsets":{}}}"#, self.offset());
        self.connection.post(&format!("/transactions/{id}/commit"), &body).await?;
        self.committed = Some(self.committed.map_or(0, |committed| committed + 1));
        Ok(())
    }

    async fn staged(&mut self) -> Result<(), Failure> {
        let BenchSession { producer_id, epoch } = self.session;
        let who = format!(r#""producer_id":{producer_id},"epoch":{epoch}"#);
        let begun = self.connection.post("/transactions", &format!("{{{who}}}")).await?;
        let Begun { transaction_id } = serde_json::from_slice(begun)
            .map_err(|error| Failure::Foreign(format!("unexpected transaction: {error}")))?;
        let path = format!("/transactions/{transaction_id}");
        for sequence in 0..self.appends {
            let append = self.append(0);
            let body = format!(r#"{{{who},"sequence":{sequence},"appends":[{append}]}}"#);
            self.connection.post(&format!("{path}/records"), &body).await?;
        }
        let body = format!(r#"{{{who},"expected_appends":{}}}"#, self.appends);
        self.connection.post(&format!("{path}/commit"), &body).await.map(drop)
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
}
