//! The examples in the documentation work, whatever is killed meanwhile.

mod functions;
mod languages;
mod workers;

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::{Value, json};
use sqlx::{ConnectOptions, PgConnection, postgres::PgConnectOptions};
use tokio::{process::Command, sync::Notify, task::JoinHandle};
use uuid::Uuid;

use crate::{
    history::crash::fixed_port,
    support::{
        self,
        served::{Client, PATIENCE, Process, Served, until},
    },
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

async fn high_watermark(client: &Client, topic: &str) -> Option<i64> {
    // the server may be dead right now
    let path = format!("/v1/topics/{topic}/partitions/0/records?offset=latest");
    let answer = client.send(reqwest::Method::GET, &path, &[], None).await.ok()?;
    answer.json()["high_watermark"].as_i64()
}

/// All records of a partition, each without what the log adds to it.
async fn read_all(client: &Client, topic: &str, partition: i32) -> Vec<Value> {
    let mut records = Vec::new();
    loop {
        let query = format!("offset={}&limit=10000&max_bytes=16777216", records.len());
        let page = client.read(topic, partition, &query).await.ok(200);
        for record in page["records"].as_array().unwrap() {
            assert_eq!(record["offset"], json!(records.len()), "offsets are dense");
            records.push(json!({"key": record["key"], "value": record["value"]}));
        }
        if page["next_offset"] == page["high_watermark"] {
            return records;
        }
    }
}

/// The committed offset of a group that has one.
async fn committed_offset(client: &Client, group: &str) -> Value {
    let listed = client.get(&format!("/v1/groups/{group}/offsets")).await.ok(200);
    listed["offsets"][0]["offset"].clone()
}

fn transformer(url: &str, form: &str) -> Command {
    let mut command = Command::new("python3");
    command
        .arg(root().join("examples/transform.py"))
        .args(["--source", "orders", "--target", "invoices", "--group", "billing"])
        .args(["--url", url, "--form", form, "--batch", "5"])
        .env_remove("ONCELOG_TOKEN")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// An instance of the transform that is started again whenever it ends or is killed.
struct Instance {
    kill: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Instance {
    fn start(url: &str, form: &'static str, fenced: Arc<AtomicU32>) -> Self {
        let (kill, url) = (Arc::new(Notify::new()), url.to_owned());
        let killed = kill.clone();
        let task = tokio::spawn(async move {
            loop {
                let child = transformer(&url, form).spawn();
                let child = child.expect("python3: see scripts/ensure-python3");
                tokio::select! {
                    output = child.wait_with_output() => {
                        let output = output.unwrap();
                        let stderr = String::from_utf8_lossy(&output.stderr);
                        let is_fenced = stderr.starts_with("producer_fenced: ");
                        assert!(form == "session" && is_fenced, "{}: {stderr}", output.status);
                        fenced.fetch_add(1, Ordering::Relaxed);
                    }
                    () = killed.notified() => {} // dropped, and so sent a SIGKILL
                }
            }
        });
        Self { kill, task }
    }

    async fn stop(self) {
        self.task.abort();
        if let Err(error) = self.task.await {
            assert!(error.is_cancelled(), "{error}");
        }
    }
}

/// Two instances at once on one partition; they and the server are killed at random places.
async fn transform(form: &'static str) {
    const ORDERS: i64 = 1_200;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = support::open_dir();
    let data_dir = dir.path().join("data");
    let listen = format!("127.0.0.1:{}", fixed_port(&mut rng));
    let mut server = Process::embedded(&listen, &data_dir).await;
    let client = Client::new(&server.url, None);
    client.put_topic("orders", 1).await;
    client.put_topic("invoices", 1).await;
    let order = |number: i64| json!({"number": number});
    let orders: Vec<Value> = (0..ORDERS).map(order).collect();
    for (index, orders) in orders.chunks(400).enumerate() {
        assert_eq!(client.append("orders", 0, orders).await, index as i64 * 400);
    }
    let fenced = Arc::<AtomicU32>::default();
    let instances = [(); 2].map(|()| Instance::start(&server.url, form, fenced.clone()));
    // 0 and 1: that instance; 2: the server
    let mut victims = [0, 0, 0, 1, 1, 1, 2, 2, 2, 2];
    victims.shuffle(&mut rng);
    let mut wanted = 0;
    for victim in victims {
        wanted += rng.random_range(1..60);
        let is_made = async || (high_watermark(&client, "invoices").await? >= wanted).then_some(());
        until("more invoices", is_made).await;
        // a kill comes at any instant, not at a quiet one
        tokio::time::sleep(Duration::from_micros(rng.random_range(0..50_000))).await;
        match instances.get(victim) {
            Some(instance) => instance.kill.notify_one(),
            None => {
                server.kill_9().await;
                server = Process::embedded(&listen, &data_dir).await;
            }
        }
    }
    let is_done = async || (high_watermark(&client, "invoices").await? >= ORDERS).then_some(());
    until("all invoices", is_done).await;
    for instance in instances {
        instance.stop().await;
    }
    // one more, and another that goes on as far as there is something
    client.append("orders", 0, &[order(ORDERS)]).await;
    let output = transformer(&server.url, form).arg("--drain").output();
    let output = tokio::time::timeout(PATIENCE, output).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let invoices = read_all(&client, "invoices", 0).await;
    for (number, invoice) in invoices.iter().enumerate() {
        let value = json!({"invoice": number, "order": {"number": number}});
        assert_eq!(*invoice, json!({"key": null, "value": value}));
    }
    assert_eq!(invoices.len() as i64, ORDERS + 1);
    assert_eq!(committed_offset(&client, "billing").await, json!(ORDERS + 1));
    let fenced = fenced.load(Ordering::Relaxed);
    println!("{form}: fenced {fenced} times");
    assert_eq!(form == "session", fenced > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transform_in_one_request_transactions_is_exactly_once_under_kills() {
    transform("whole").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transform_in_transactions_of_a_session_is_exactly_once_under_kills() {
    transform("session").await;
}

/// The program of an example, built as this one was; `cargo test` alone has built it already.
async fn built(example: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_oncelog")).parent().unwrap();
    let profile = match programs.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        other => other,
    };
    let status = Command::new(env!("CARGO"))
        .current_dir(root())
        .args(["build", "--locked", "--quiet", "--example", example, "--profile", profile])
        .arg("--target-dir")
        .arg(programs.parent().unwrap())
        // .ci/run sets it for the tests; dependencies would be built otherwise
        .env_remove("RUSTC_BOOTSTRAP")
        .status()
        .await
        .unwrap();
    assert!(status.success(), "{status}");
    programs.join("examples").join(example)
}

/// oncelog, the other database, and the program that keeps them together.
struct TwoPhase {
    program: PathBuf,
    served: Served,
    options: PgConnectOptions,
    database: PgConnection,
    orders: i64,
}

impl TwoPhase {
    async fn start() -> Self {
        let served = Served::alone().await;
        served.client.put_topic("orders", 1).await;
        served.client.put_topic("shipped", 1).await;
        let options = support::database().await;
        let database = options.connect().await.unwrap();
        Self { program: built("two_phase").await, served, options, database, orders: 0 }
    }

    async fn order(&mut self, count: i64) {
        let orders: Vec<Value> = (0..count).map(|n| json!({"order": self.orders + n})).collect();
        self.served.client.append("orders", 0, &orders).await;
        self.orders += count;
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command
            .args(["--url", &self.served.client.url, "--database-url"])
            .arg(self.options.to_url_lossy().as_str())
            .args(arguments)
            .env_remove("ONCELOG_TOKEN")
            .kill_on_drop(true);
        tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap()
    }

    async fn dies_after(&self, step: &str) {
        let output = self.run(&["--die-after", step]).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_none(), "after {step}: {} {stderr}", output.status);
    }

    async fn ends_well(&self) {
        let output = self.run(&[]).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {stderr}", output.status);
    }

    /// The ids of transactions in a state at oncelog, sorted.
    async fn transactions(&self, state: &str) -> Vec<Uuid> {
        let path = format!("/v1/transactions?limit=1000&state={state}");
        let listed = self.served.client.get(&path).await.ok(200);
        let id = |t: &Value| t["transaction_id"].as_str().unwrap().parse().unwrap();
        listed["transactions"].as_array().unwrap().iter().map(id).collect()
    }

    /// Both databases agree, nothing is open, and every order was shipped once.
    async fn judge(&mut self) {
        for state in ["ongoing", "prepared"] {
            assert_eq!(self.transactions(state).await, Vec::<Uuid>::new(), "{state}");
        }
        let shipments = "select order_offset from shipments order by id";
        let shipments: Vec<i64> =
            sqlx::query_scalar(shipments).fetch_all(&mut self.database).await.unwrap();
        assert!(shipments.iter().copied().eq(0..self.orders), "{shipments:?}");
        let shipped = read_all(&self.served.client, "shipped", 0).await;
        let shipped: Vec<&Value> = shipped.iter().map(|record| &record["value"]["order"]).collect();
        assert!(shipped.iter().copied().eq(&shipments), "{shipped:?}");
        assert_eq!(committed_offset(&self.served.client, "shipping").await, json!(self.orders));
        let decided = "select transaction_id from transaction_outcomes where outcome = 'committed' \
                       order by transaction_id";
        let decided: Vec<Uuid> =
            sqlx::query_scalar(decided).fetch_all(&mut self.database).await.unwrap();
        assert_eq!(self.transactions("committed").await, decided);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_phase_recovers_from_a_death_after_every_step() {
    let mut two = TwoPhase::start().await;
    let deaths: [&[&str]; 12] = [
        &["open"],
        &["begin"],
        &["prepare"],
        &["write"],
        &["local"],
        &["commit"],
        &["prepare", "decide"],
        &["prepare", "recover"],
        &["local", "decide"],
        &["local", "recover"],
        &["write", "decide", "decide", "recover"],
        &["commit", "begin", "prepare", "open", "write", "local", "open", "commit"],
    ];
    for steps in deaths {
        two.order(4).await;
        for step in steps {
            two.dies_after(step).await;
        }
        two.ends_well().await;
        two.judge().await;
    }
}

/// The run that prepared is not dead, only slow: it goes on after another has recovered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_phase_has_aborted_cannot_be_written_any_more() {
    let mut two = TwoPhase::start().await;
    two.order(1).await;
    two.dies_after("prepare").await;
    let prepared = two.transactions("prepared").await;
    assert_eq!(prepared.len(), 1);
    two.ends_well().await;
    let write = "insert into transaction_outcomes values ($1, 'committed')";
    let written = sqlx::query(write).bind(prepared[0]).execute(&mut two.database).await;
    let error = written.unwrap_err().into_database_error().unwrap();
    assert!(error.is_unique_violation(), "{error}");
    let answer = two.served.client.get(&format!("/v1/transactions/{}", prepared[0])).await.ok(200);
    assert_eq!(answer["state"], "aborted");
    two.judge().await;
}
