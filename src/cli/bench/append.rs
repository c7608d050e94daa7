//! Appends from many connections, each with a session of its own.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use memchr::memmem::Finder;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    Common, Stage,
    connection::{Connection, Failure, Server},
    events::{Requests, Session, Shape},
    measure::{Clock, Report, SharedTally, watch},
};

/// After an error, so that a broken server is not asked ten thousand times a second.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(in crate::cli) struct Flags {
    /// Connections, each with one request at a time
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// Events of one request
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=1000))]
    records_per_request: u16,
    /// What is appended to
    #[arg(long, value_enum, default_value_t = Scope::Partition)]
    scope: Scope,
    /// Number the requests, each connection with a session of its own; it is what happens anyway
    #[arg(long, overrides_with = "unsequenced")]
    sequenced: bool,
    /// Do not number the requests
    #[arg(long)]
    unsequenced: bool,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scope {
    /// Each connection to one partition
    Partition,
    /// All to the topic, which spreads the events by their keys
    Topic,
}

pub(super) async fn run(flags: &Flags, stage: &Stage) -> anyhow::Result<Report> {
    let (keyed, connections) = (flags.scope == Scope::Topic, usize::from(flags.connections));
    let shape = Shape {
        records: flags.records_per_request.into(),
        record_bytes: stage.record_bytes,
        keyed,
    };
    let mut producers = Vec::with_capacity(connections);
    for index in 0..connections {
        let server = stage.server(index);
        let partition = index / stage.servers.len() % stage.partitions.unsigned_abs() as usize;
        let path = match flags.scope {
            Scope::Topic => stage.topic_path() + "/records",
            Scope::Partition => stage.partition_path(partition as i64),
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
    report.tally("append", &tally.lock(), cpu)?;
    let acknowledged = tally.lock().acknowledged;
    report.note("check", stage.check(acknowledged, unresolved.iter().sum()).await?);
    Ok(report)
}

/// A session without a name.
pub(super) async fn open(server: &Server) -> anyhow::Result<Session> {
    let opened = server.call("POST", "/sessions", Some(&json!({}))).await;
    let opened = opened.context("cannot open a session")?;
    let number = |name: &str| opened[name].as_i64().context("a session without its number");
    Ok(Session { producer_id: number("producer_id")?, epoch: number("epoch")? })
}

struct Producer {
    server: Arc<Server>,
    connection: Connection,
    session: Option<Session>,
    next_sequence: u64,
    requests: Requests,
    /// Of one request.
    events: u64,
    /// Events of which it is not known whether they are stored.
    unresolved: u64,
}

impl Producer {
    /// Appends until the time is over. Returns how many events may be stored or not.
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

    /// Sends the same again until it is acknowledged or the time is over.
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
