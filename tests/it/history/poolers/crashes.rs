//! Postgres crashes right after its answers, behind PgBouncer in transaction mode, with two
//! replicas that share its connections: nothing acknowledged is lost. The server flushes nothing by
//! itself (`synchronous_commit = off`, and the next time in ten seconds), so that whatever was
//! acknowledged unflushed is gone.
//!
//! `make crashes [ROUNDS=n]` does it for longer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use oncelog::{embedded::Embedded, store::Store};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use tokio::{sync::watch, task::JoinHandle};
use uuid::Uuid;

use crate::support::{
    self,
    pooler::Pooler,
    served::{Client, partition_path, replica_at as replica, until},
};

const SERVER_OPTIONS: &[(&str, &str)] = &[
    // what is written outlives a crash of the server; that of the machine is not tried
    ("fsync", "off"),
    ("synchronous_commit", "off"),
    ("wal_writer_delay", "10s"),
    ("wal_writer_flush_after", "1GB"),
    ("wal_buffers", "64MB"),
    ("autovacuum", "off"),
];
const PARTITIONS: i32 = 2;
/// Acknowledged between two crashes.
const ANSWERS: usize = 40;
/// Writers of each kind.
const WRITERS: usize = 3;
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// What a writer was told.
#[derive(Debug)]
enum Told {
    /// Records by their values, and where they are, if that was said.
    Stored {
        value: String,
        place: Option<(i64, i64)>,
    },
    /// The offset a group has committed.
    Committed {
        group: String,
        offset: i64,
    },
    Opened {
        producer_id: i64,
    },
}

struct History {
    told: Mutex<Vec<Told>>,
    /// Who writes in this round: one flush of another would flush all that was written before it.
    kind: watch::Sender<Option<Kind>>,
}

impl History {
    fn count(&self) -> usize {
        self.told.lock().unwrap().len()
    }
}

/// Writers whose statements commit by themselves, or in transactions of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Numbered,
    Unnumbered,
    Keyed,
    Whole,
    Staged,
    Offsets,
    Sessions,
}

const KINDS: [Kind; 7] = [
    Kind::Numbered,
    Kind::Unnumbered,
    Kind::Keyed,
    Kind::Whole,
    Kind::Staged,
    Kind::Offsets,
    Kind::Sessions,
];

struct Writer {
    kind: Kind,
    name: usize,
    replicas: [Client; 2],
    history: Arc<History>,
}

impl Writer {
    async fn run(self) {
        let mut session = Value::Null;
        let mut sequence = 0;
        let mut turns = self.history.kind.subscribe();
        for number in 0.. {
            let mine = |kind: &Option<Kind>| kind.is_none_or(|kind| kind == self.kind);
            let is_over = turns.wait_for(mine).await.unwrap().is_none();
            if is_over {
                return;
            }
            if self.kind == Kind::Numbered && session.is_null() {
                match self.post(number, "/v1/sessions", &json!({})).await {
                    Some(opened) => session = opened,
                    None => continue,
                }
            }
            let told = self.write(number, (&session, sequence)).await;
            let Some(told) = told else {
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            };
            sequence += 1;
            self.history.told.lock().unwrap().push(told);
        }
    }

    /// The answer, if it is one of success.
    async fn post(&self, number: usize, path: &str, body: &Value) -> Option<Value> {
        let answer = self.replicas[number % 2].try_post(path, body).await.ok()?;
        ((200..300).contains(&answer.status)).then(|| answer.json())
    }

    async fn write(&self, number: usize, session: (&Value, usize)) -> Option<Told> {
        // a numbered one is the same until it is answered
        let value = match self.kind {
            Kind::Numbered => format!("{}-{}", self.name, session.1),
            _ => format!("{}-{number}", self.name),
        };
        let path = partition_path("t", (self.name % PARTITIONS as usize) as i32);
        let records = json!([{"value": value}]);
        let appends = json!([{"topic": "t", "records": records}]);
        let placed = |answer: &Value, value: String| Told::Stored {
            value,
            place: answer["base_offset"].as_i64().zip(answer["partition"].as_i64()),
        };
        match self.kind {
            Kind::Numbered => {
                let (session, sequence) = session;
                let body = json!({"producer_id": session["producer_id"], "epoch": session["epoch"],
                    "sequence": sequence, "records": records});
                let answer = self.post(number, &path, &body).await?;
                Some(placed(&answer, value))
            }
            Kind::Unnumbered => {
                let answer = self.post(number, &path, &json!({"records": records})).await?;
                Some(placed(&answer, value))
            }
            Kind::Keyed => {
                let records = json!([{"id": value, "value": value}]);
                let path = "/v1/topics/t/records";
                self.post(number, path, &json!({"records": records})).await?;
                Some(Told::Stored { value, place: None })
            }
            Kind::Whole => {
                let body =
                    json!({"transaction_id": Uuid::now_v7(), "appends": appends, "commit": true});
                self.post(number, "/v1/transactions", &body).await?;
                Some(Told::Stored { value, place: None })
            }
            Kind::Staged => {
                let begun = self.post(number, "/v1/transactions", &json!({})).await?;
                let path = format!("/v1/transactions/{}", begun["transaction_id"].as_str()?);
                let staged = json!({"appends": appends});
                self.post(number, &format!("{path}/records"), &staged).await?;
                self.post(number, &format!("{path}/commit"), &json!({})).await?;
                Some(Told::Stored { value, place: None })
            }
            Kind::Offsets => {
                let group = format!("g{}", self.name);
                let offset = (number % 2) as i64;
                let commit = json!({"offsets": [{"topic": "t", "partition": 0, "offset": offset}]});
                let path = format!("/v1/groups/{group}/offsets");
                self.post(number, &path, &commit).await?;
                Some(Told::Committed { group, offset })
            }
            Kind::Sessions => {
                let opened = self.post(number, "/v1/sessions", &json!({})).await?;
                Some(Told::Opened { producer_id: opened["producer_id"].as_i64()? })
            }
        }
    }
}

/// The process that would flush, of the server that has started since that one was killed.
async fn walwriter(options: &PgConnectOptions, killed: Option<Pid>) -> Pid {
    until("the server", async || {
        let mut connection = options.connect().await.ok()?;
        let walwriter = "select pid from pg_stat_activity where backend_type = 'walwriter'";
        let pid = sqlx::query_scalar(walwriter).fetch_one(&mut connection).await.ok();
        pid.map(Pid::from_raw).filter(|pid| Some(*pid) != killed)
    })
    .await
}

async fn crashes(rounds: usize) {
    let dir = support::open_dir();
    let data_dir = dir.path().join("data");
    let server = tokio::task::spawn_blocking(move || Embedded::start(&data_dir, SERVER_OPTIONS));
    let server = server.await.unwrap().unwrap();
    let options = server.connect_options("oncelog");
    let pooler = Pooler::start(&options, &[]).await;
    Store::new(pooler.options(&options), 1).migrate().await.unwrap();
    let (first_process, first) = replica(&pooler.url(&options)).await;
    let (_second_process, second) = replica(&pooler.url(&options)).await;
    first.put_topic("t", PARTITIONS).await;
    first.append("t", 0, &[json!("first")]).await;

    let history =
        Arc::new(History { told: Mutex::default(), kind: watch::Sender::new(Some(KINDS[0])) });
    let start = |name: usize| -> JoinHandle<()> {
        let kind = KINDS[name % KINDS.len()];
        let replicas = [first.clone(), second.clone()];
        tokio::spawn(Writer { kind, name, replicas, history: history.clone() }.run())
    };
    let writers: Vec<_> = (0..WRITERS * KINDS.len()).map(start).collect();
    let mut killed = None;
    for round in 0..rounds {
        history.kind.send_replace(Some(KINDS[round % KINDS.len()]));
        let walwriter = walwriter(&options, killed).await;
        let wanted = history.count() + ANSWERS;
        until("answers", async || (history.count() >= wanted).then_some(())).await;
        // the server throws away what it has in memory, flushes nothing and starts again
        kill(walwriter, Signal::SIGKILL).unwrap();
        killed = Some(walwriter);
    }
    history.kind.send_replace(None);
    for writer in writers {
        writer.await.unwrap();
    }
    judge(&first, &history).await;
    let sent = first.admin().get("/metrics").await.text;
    let sent =
        sent.lines().find_map(|l| l.strip_prefix("oncelog_notices_total{direction=\"sent\"} "));
    assert!(sent.unwrap().parse::<f64>().unwrap() > rounds as f64, "{}", first_process.log());
    println!("{rounds} crashes, {} acknowledged", history.told.lock().unwrap().len());
}

/// Everything that was told is so, and is so once.
async fn judge(client: &Client, history: &History) {
    let mut stored: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let mut offset = 0;
        loop {
            let query = format!("offset={offset}&limit=1000");
            let page = until("a page", async || {
                let page = client.read("t", partition, &query).await;
                (page.status == 200).then(|| page.json())
            })
            .await;
            let records = page["records"].as_array().unwrap();
            for record in records {
                let value = record["value"].as_str().unwrap().to_owned();
                let place = (record["offset"].as_i64().unwrap(), i64::from(partition));
                let twice = stored.insert(value, place);
                assert_eq!(twice, None, "{record} is stored twice");
            }
            offset = page["next_offset"].as_i64().unwrap();
            if records.is_empty() {
                break;
            }
        }
    }
    let mut committed = BTreeMap::new();
    for told in history.told.lock().unwrap().iter() {
        match told {
            Told::Stored { value, place } => {
                let found = stored.get(value);
                assert!(found.is_some(), "{value} was acknowledged and is lost");
                assert!(place.is_none_or(|place| found == Some(&place)), "{told:?}: {found:?}");
            }
            Told::Committed { group, offset } => drop(committed.insert(group.clone(), *offset)),
            Told::Opened { .. } => {}
        }
    }
    for (group, offset) in committed {
        let offsets = shown(client, &format!("/v1/groups/{group}/offsets")).await;
        let stored = offsets["offsets"][0]["offset"].as_i64();
        // a commit whose answer was lost may have come after it
        assert!(stored.is_some(), "{group}: {offset} was acknowledged and is lost: {offsets}");
    }
    let opened: Vec<i64> = history.told.lock().unwrap().iter().filter_map(opened).collect();
    for producer_id in opened {
        shown(client, &format!("/v1/sessions/{producer_id}")).await;
    }
}

/// What is there, as soon as the database is again.
async fn shown(client: &Client, path: &str) -> Value {
    let answer = until("the database", async || {
        let answer = client.get(path).await;
        (answer.status != 503).then_some(answer)
    });
    answer.await.ok(200)
}

fn opened(told: &Told) -> Option<i64> {
    match told {
        Told::Opened { producer_id } => Some(*producer_id),
        Told::Stored { .. } | Told::Committed { .. } => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_outlives_crashes() {
    crashes(KINDS.len()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: make crashes"]
async fn what_was_acknowledged_outlives_many_crashes() {
    let rounds = std::env::var("ONCELOG_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    crashes(rounds.unwrap_or(50)).await;
}
