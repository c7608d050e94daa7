//! Consume, transform, produce, by several workers of a group: each record is processed once and in
//! order, whichever of them is killed, stopped or thrown out, and whenever the server dies.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    process::Child,
    time::{Duration, sleep, timeout},
};

use super::{languages::Language, read_all};
use crate::{
    history::crash::fixed_port,
    support::{
        self,
        served::{Client, PATIENCE, Process, until},
    },
};

const PARTITIONS: i32 = 4;
const MEMBERS: &str = "/v1/groups/billing/members";

/// What happens to the workers while they work.
#[derive(Clone, Copy)]
enum Blow {
    /// SIGKILL for this one.
    Kill(usize),
    /// SIGTERM for the one without an instance id: it leaves.
    Stop,
    /// All members are thrown out, and find out when they fetch or commit.
    Expel,
    /// SIGKILL for the server.
    Server,
}

/// A worker that is started again after each of its ends.
struct Worker {
    language: Language,
    url: String,
    instance: Option<&'static str>,
    log: PathBuf,
    child: Child,
}

impl Worker {
    async fn start(
        language: Language,
        url: &str,
        instance: Option<&'static str>,
        log: PathBuf,
    ) -> Self {
        let child = spawn(language, url, instance, &log).await;
        Self { language, url: url.to_owned(), instance, log, child }
    }

    async fn again(&mut self) {
        self.child = spawn(self.language, &self.url, self.instance, &self.log).await;
    }

    fn lives(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "{ended:?}: {}", fs::read_to_string(&self.log).unwrap());
    }

    async fn kill(&mut self) {
        self.lives();
        self.child.kill().await.unwrap();
    }

    async fn stop(&mut self) {
        self.lives();
        let pid = self.child.id().unwrap().cast_signed();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let status = timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap();
        // one that was started just now listens to no signal yet, and has not joined
        let is_new = status.signal() == Some(Signal::SIGTERM as i32);
        assert!(status.success() || is_new, "{status}: {}", fs::read_to_string(&self.log).unwrap());
    }
}

async fn spawn(language: Language, url: &str, instance: Option<&'static str>, log: &Path) -> Child {
    let mut command = language.command("worker").await;
    command
        .args(["orders", "invoices", "billing"])
        .args(instance)
        .env("ONCELOG_URL", url)
        .stderr(File::options().create(true).append(true).open(log).unwrap());
    command.spawn().unwrap()
}

/// The log that they work on, and what is to come of it.
struct Shop {
    client: Client,
    rng: StdRng,
    orders: i64,
    /// Those that make an invoice.
    billed: i64,
}

impl Shop {
    fn number(&mut self) -> Value {
        let number = self.orders;
        self.orders += 1;
        let is_billed = self.rng.random_range(0..8) > 0;
        self.billed += i64::from(is_billed);
        // nothing is made of null
        if is_billed { json!({"number": number}) } else { Value::Null }
    }

    async fn order(&mut self, count: usize) {
        let record = |_| {
            let key = format!("customer-{}", self.rng.random_range(0..40));
            json!({"key": key, "value": self.number()})
        };
        let records: Vec<Value> = (0..count).map(record).collect();
        self.client.post("/v1/topics/orders/records", &json!({"records": records})).await.ok(200);
    }

    async fn high_watermarks(&self, topic: &str) -> Option<Vec<i64>> {
        // the server may be dead right now
        let path = format!("/v1/topics/{topic}");
        let answer = self.client.send(Method::GET, &path, &[], None).await.ok()?.json();
        let partitions = answer["partitions"].as_array()?;
        partitions.iter().map(|partition| partition["high_watermark"].as_i64()).collect()
    }

    async fn invoices(&self, wanted: i64) {
        let are_made = async || {
            let made: i64 = self.high_watermarks("invoices").await?.iter().sum();
            (made >= wanted).then_some(())
        };
        until("more invoices", are_made).await;
    }

    /// The members of the group: who they are, and their instance ids.
    async fn members(&self) -> Vec<(String, Option<String>)> {
        let group = self.client.get("/v1/groups/billing").await.json();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let member = |m: &Value| (text(&m["member_id"]).unwrap(), text(&m["instance_id"]));
        // before the first one has joined there is no group
        group["members"].as_array().into_iter().flatten().map(member).collect()
    }

    async fn instances(&self) -> Vec<Option<String>> {
        let members = self.members().await.into_iter();
        let mut instances: Vec<_> = members.map(|(_, instance)| instance).collect();
        instances.sort();
        instances
    }

    /// All workers are up.
    async fn assembled(&self) {
        let wanted = [None, Some("pod-0".to_owned()), Some("pod-1".to_owned())];
        let are_there = async || (self.instances().await == wanted).then_some(());
        until("all workers to join", are_there).await;
    }

    async fn expel(&self, is_meant: impl Fn(&Option<String>) -> bool) {
        for (member, instance) in self.members().await {
            if is_meant(&instance) {
                // it may have left by itself
                self.client.delete(&format!("{MEMBERS}/{member}")).await;
            }
        }
    }

    /// Each order has been billed once, those of one partition in order, and nothing is left to do.
    async fn judge(&self) {
        let ends = self.high_watermarks("orders").await.unwrap();
        let committed = async || {
            let listed = self.client.get("/v1/groups/billing/offsets").await.ok(200);
            let mut offsets = vec![0; ends.len()];
            for offset in listed["offsets"].as_array().unwrap() {
                let partition = usize::try_from(offset["partition"].as_u64().unwrap()).unwrap();
                offsets[partition] = offset["offset"].as_i64().unwrap();
            }
            (offsets == ends).then_some(())
        };
        until("the last offsets", committed).await;
        for partition in 0..PARTITIONS {
            let orders = read_all(&self.client, "orders", partition).await;
            let billed = orders.iter().filter(|order| !order["value"].is_null());
            let wanted: Vec<Value> = billed
                .map(|order| json!({"key": order["key"], "value": {"order": order["value"]}}))
                .collect();
            assert_eq!(read_all(&self.client, "invoices", partition).await, wanted);
        }
    }
}

async fn workers(language: Language) {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = support::open_dir();
    let data_dir = dir.path().join("data");
    let listen = format!("127.0.0.1:{}", fixed_port(&mut rng));
    let mut server = Process::embedded(&listen, &data_dir).await;
    let client = Client::new(&server.url, None);
    client.put_topic("orders", PARTITIONS).await;
    client.put_topic("invoices", PARTITIONS).await;
    let mut workers = Vec::new();
    for (number, instance) in [Some("pod-0"), Some("pod-1"), None].into_iter().enumerate() {
        let log = dir.path().join(format!("worker-{number}.log"));
        workers.push(Worker::start(language, &server.url, instance, log).await);
    }
    let mut blows = [
        [Blow::Kill(0), Blow::Kill(1), Blow::Kill(2), Blow::Stop],
        [Blow::Kill(0), Blow::Kill(1), Blow::Stop, Blow::Expel],
        [Blow::Server, Blow::Server, Blow::Expel, Blow::Expel],
    ]
    .concat();
    blows.shuffle(&mut rng);
    let mut shop = Shop { client, rng, orders: 0, billed: 0 };
    for blow in blows {
        let before = shop.billed;
        shop.order(150).await;
        let wanted = shop.rng.random_range(before..shop.billed);
        shop.invoices(wanted).await;
        // it comes at any instant, not at a quiet one
        sleep(Duration::from_micros(shop.rng.random_range(0..50_000))).await;
        match blow {
            Blow::Kill(number) => {
                workers[number].kill().await;
                // nobody else would take over from it before its lease ran out
                if workers[number].instance.is_none() {
                    shop.expel(Option::is_none).await;
                }
                workers[number].again().await;
            }
            Blow::Stop => {
                shop.assembled().await;
                workers[2].stop().await;
                workers[2].again().await;
            }
            Blow::Expel => shop.expel(|_| true).await,
            Blow::Server => {
                server.kill_9().await;
                server = Process::embedded(&listen, &data_dir).await;
            }
        }
    }
    shop.invoices(shop.billed).await;
    shop.judge().await;
    shop.assembled().await;
    for worker in &mut workers {
        worker.stop().await;
    }
    // those with an instance id are expected back; a join whose answer was lost stays for its lease
    let wanted = [Some("pod-0".to_owned()), Some("pod-1".to_owned())];
    let are_left = async || (shop.instances().await == wanted).then_some(());
    until("the worker without an instance id to be gone", are_left).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_in_python_are_exactly_once_under_kills() {
    workers(Language::Python).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_in_typescript_are_exactly_once_under_kills() {
    workers(Language::TypeScript).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_in_go_are_exactly_once_under_kills() {
    workers(Language::Go).await;
}
