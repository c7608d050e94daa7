//! The real program, killed again and again under load: whatever dies, what was acknowledged is
//! there once, at the acknowledged offset and in order.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::{
    self,
    served::{Answer, Client, Process, partition_path, until},
};

const PRODUCERS: i64 = 4;
const PARTITIONS: i32 = 3;
/// Requests of one scope in flight at once.
const IN_FLIGHT: i64 = 5;
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// (partition, offset) of every record of a request.
type Places = Vec<(i64, i64)>;

/// What clients saw.
#[derive(Default)]
struct History {
    /// By (producer, sequence).
    acknowledged: Mutex<BTreeMap<(i64, i64), Places>>,
    duplicates: AtomicU64,
    /// Answers and failures that made a client try again, by what they were.
    again: Mutex<BTreeMap<String, u64>>,
    /// Begun, and failed without an answer: (begun, failed).
    unanswered: Mutex<Vec<(Instant, Instant)>>,
}

impl History {
    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }
}

/// A server on a directory and port of its own, and producers that go on whatever happens to it.
struct Load {
    dir: TempDir,
    listen: String,
    client: Client,
    history: Arc<History>,
    enough: Arc<AtomicBool>,
    producers: Vec<JoinHandle<()>>,
}

/// Not of the range that outgoing connections take their ports from: while the server is down, a
/// client could get it, or even reach itself.
pub fn fixed_port(rng: &mut StdRng) -> u16 {
    loop {
        let port = rng.random_range(15_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Load {
    async fn start(rng: &mut StdRng) -> (Self, Process) {
        let dir = support::open_dir();
        let listen = format!("127.0.0.1:{}", fixed_port(rng));
        let process = Process::embedded(&listen, &dir.path().join("data")).await;
        let client = Client::new(&process.url, None);
        client.put_topic("t", PARTITIONS).await;
        let (history, enough) = (Arc::<History>::default(), Arc::<AtomicBool>::default());
        let producers = (0..PRODUCERS)
            .map(|producer| {
                let producer = Producer {
                    number: producer,
                    client: Client::new(&process.url, None),
                    history: history.clone(),
                };
                tokio::spawn(producer.run(enough.clone(), rng.random()))
            })
            .collect();
        (Self { dir, listen, client, history, enough, producers }, process)
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    async fn start_again(&self) -> Process {
        Process::embedded(&self.listen, &self.data_dir()).await
    }

    /// Waits until that many more requests are acknowledged.
    async fn until_more(&self, count: usize) {
        let wanted = self.history.count() + count;
        until("acknowledgements", async || (self.history.count() >= wanted).then_some(())).await;
    }

    /// Lets the producers finish what they began, then judges, stops, and looks for what is left.
    async fn end(&mut self, process: &mut Process) {
        self.enough.store(true, Ordering::Relaxed);
        for producer in self.producers.drain(..) {
            producer.await.unwrap();
        }
        self.judge().await;
        process.signal(Signal::SIGTERM);
        assert!(process.exit().await.success(), "{}", process.log());
        assert!(servers(&self.data_dir()).is_empty());
        let history = &self.history;
        println!(
            "{} requests acknowledged, {} as duplicates; tried again: {:?}",
            history.count(),
            history.duplicates.load(Ordering::Relaxed),
            history.again.lock().unwrap()
        );
    }

    /// Everything stored was acknowledged, everything acknowledged is stored where it was said to
    /// be, once, and in order.
    async fn judge(&self) {
        let mut stored: BTreeMap<(i64, i64), BTreeMap<i64, (i64, i64)>> = BTreeMap::new();
        for partition in 0..PARTITIONS {
            let mut last: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
            for (offset, value) in (0..).zip(read_all(&self.client, partition).await) {
                let [producer, sequence, index] =
                    ["producer", "sequence", "index"].map(|field| value[field].as_i64().unwrap());
                let before = last.insert(producer, (sequence, index));
                assert!(before < Some((sequence, index)), "{value} at {partition}/{offset}: order");
                let parts = stored.entry((producer, sequence)).or_default();
                let twice = parts.insert(index, (i64::from(partition), offset));
                assert_eq!(twice, None, "{value} is stored twice");
            }
        }
        let acknowledged = self.history.acknowledged.lock().unwrap();
        for ((producer, sequence), places) in &*acknowledged {
            let parts = stored.remove(&(*producer, *sequence)).unwrap_or_else(|| {
                panic!("request {sequence} of {producer} was acknowledged and is lost")
            });
            assert!(parts.into_values().eq(places.iter().copied()), "{producer} {sequence}");
        }
        assert!(stored.is_empty(), "stored and never acknowledged: {stored:?}");
        for producer in 0..PRODUCERS {
            let sequences = acknowledged.range((producer, 0)..(producer + 1, 0)).map(|(k, _)| k.1);
            let sequences: Vec<i64> = sequences.collect();
            assert!(sequences.iter().copied().eq(0..sequences.len() as i64), "{producer}");
        }
    }
}

async fn read_all(client: &Client, partition: i32) -> Vec<Value> {
    let mut values = Vec::new();
    loop {
        let query = format!("offset={}&limit=10000&max_bytes=16777216", values.len());
        let page = client.read("t", partition, &query).await.ok(200);
        for record in page["records"].as_array().unwrap() {
            assert_eq!(record["offset"], json!(values.len()), "offsets are dense");
            values.push(record["value"].clone());
        }
        if page["next_offset"] == page["high_watermark"] {
            return values;
        }
    }
}

/// The PostgreSQL processes of a data directory.
fn servers(data_dir: &Path) -> Vec<u32> {
    let cluster = data_dir.join("pg").canonicalize().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|dir| dir == cluster))
        .collect()
}

/// The one that serves: a killed one's last connections acknowledge on for a moment, so that a test
/// may come here before the next one has begun.
pub fn kill_9_postmaster(data_dir: &Path) {
    let begun = Instant::now();
    let lives = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    let pid = loop {
        let file = fs::read_to_string(data_dir.join("pg/postmaster.pid")).unwrap_or_default();
        let pid = file.lines().next().and_then(|line| line.trim().parse().ok());
        match pid.filter(lives) {
            Some(pid) => break pid,
            None => assert!(begun.elapsed() < Duration::from_secs(60), "no PostgreSQL to kill"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

/// Two append to a partition, two to the topic; each request is sent until it is acknowledged.
#[derive(Clone)]
struct Producer {
    number: i64,
    client: Client,
    history: Arc<History>,
}

impl Producer {
    async fn run(self, enough: Arc<AtomicBool>, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let open =
            json!({"transactional_id": format!("p{}", self.number), "open_id": Uuid::now_v7()});
        let (session, _) = self.until_acknowledged("/v1/sessions", &open).await;
        let producer_id = session.json()["producer_id"].as_i64().unwrap();
        let mut next = 0;
        while !enough.load(Ordering::Relaxed) {
            let count = rng.random_range(1..=IN_FLIGHT);
            let sent = (next..next + count).map(|sequence| self.send(producer_id, sequence));
            join_all(sent).await;
            next += count;
        }
    }

    async fn send(&self, producer_id: i64, sequence: i64) {
        let records: Vec<Value> = (0..1 + (sequence + self.number) % 3)
            .map(|index| {
                let value = json!({"producer": self.number, "sequence": sequence, "index": index});
                json!({"key": format!("k{}", (sequence * 7 + index * 3) % 11), "value": value})
            })
            .collect();
        let body = json!({"producer_id": producer_id, "epoch": 0, "sequence": sequence,
            "records": records});
        let partition = (self.number % 2 == 0).then_some((self.number / 2) as i32);
        let path = partition.map_or("/v1/topics/t/records".into(), |p| partition_path("t", p));
        let (answer, repeated) = self.until_acknowledged(&path, &body).await;
        let answer = answer.json();
        let places: Places = match partition {
            None => {
                let offsets = answer["offsets"].as_array().unwrap();
                let place =
                    |o: &Value| (o["partition"].as_i64().unwrap(), o["offset"].as_i64().unwrap());
                offsets.iter().map(place).collect()
            }
            Some(partition) => {
                let base = answer["base_offset"].as_i64().unwrap();
                (base..base + records.len() as i64).map(|o| (i64::from(partition), o)).collect()
            }
        };
        assert_eq!(places.len(), records.len());
        let duplicate = answer["duplicate"] == json!(true);
        assert!(repeated || !duplicate, "a first sending is no duplicate");
        self.history.duplicates.fetch_add(u64::from(duplicate), Ordering::Relaxed);
        let twice =
            self.history.acknowledged.lock().unwrap().insert((self.number, sequence), places);
        assert_eq!(twice, None);
    }

    /// The answer, and whether it took more than one sending.
    async fn until_acknowledged(&self, path: &str, body: &Value) -> (Answer, bool) {
        let given_up = Instant::now() + Duration::from_secs(90);
        for attempt in 0.. {
            let begun = Instant::now();
            let what = match self.client.try_post(path, body).await {
                Ok(answer) if answer.status < 300 => return (answer, attempt > 0),
                Ok(answer) => {
                    let (status, code) = answer.problem();
                    let may_pass = status == 503
                        || code == "out_of_order_sequence"
                        || code == "unknown_producer_state";
                    assert!(may_pass, "{} to {path}: {body}", answer.text);
                    code
                }
                Err(error) => {
                    if !error.is_connect() {
                        self.history.unanswered.lock().unwrap().push((begun, Instant::now()));
                    }
                    if error.is_connect() { "no connection".into() } else { "cut off".to_owned() }
                }
            };
            *self.history.again.lock().unwrap().entry(what).or_default() += 1;
            assert!(Instant::now() < given_up, "{path}: {body}");
            tokio::time::sleep(RETRY_AFTER).await;
        }
        unreachable!()
    }
}

fn seeded() -> StdRng {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// A kill comes at any instant, not at a quiet one.
async fn any_instant(rng: &mut StdRng) {
    tokio::time::sleep(Duration::from_micros(rng.random_range(0..100_000))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_twenty_times() {
    let begun = Instant::now();
    let mut rng = seeded();
    let (mut load, mut process) = Load::start(&mut rng).await;
    for _ in 0..20 {
        load.until_more(100).await;
        any_instant(&mut rng).await;
        process.kill_9().await;
        process = load.start_again().await;
    }
    load.until_more(100).await;
    load.end(&mut process).await;
    println!("20 kills of the server in {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_its_postgres_and_of_both() {
    let begun = Instant::now();
    let mut rng = seeded();
    let (mut load, mut process) = Load::start(&mut rng).await;
    for _ in 0..3 {
        load.until_more(100).await;
        any_instant(&mut rng).await;
        kill_9_postmaster(&load.data_dir());
        load.until_more(100).await;
    }
    assert_eq!(process.log().matches("PostgreSQL died").count(), 3);
    // the server was there all the time: it said that the database was away, or that a sequence
    // before had been told so and was still to come again
    let told =
        ["unavailable", "outcome_unknown", "out_of_order_sequence", "unknown_producer_state"];
    let mut again: Vec<String> = load.history.again.lock().unwrap().keys().cloned().collect();
    again.retain(|what| !told.contains(&what.as_str()));
    assert_eq!(again, Vec::<String>::new());
    for _ in 0..3 {
        load.until_more(100).await;
        any_instant(&mut rng).await;
        kill_9_postmaster(&load.data_dir());
        any_instant(&mut rng).await;
        process.kill_9().await;
        process = load.start_again().await;
    }
    load.until_more(100).await;
    load.end(&mut process).await;
    println!("3 kills of PostgreSQL, 3 of both, in {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_to_stop_it_answers_what_is_in_flight() {
    let mut rng = seeded();
    let (mut load, mut process) = Load::start(&mut rng).await;
    for round in 0..4 {
        load.until_more(100).await;
        load.client.put_topic(&format!("quiet-{round}"), 1).await;
        let read = {
            let client = load.client.clone();
            let topic = format!("quiet-{round}");
            tokio::spawn(async move { client.read(&topic, 0, "wait_ms=60000").await })
        };
        // one ahead of its turn: it waits for the one before, which never comes
        let session = load.client.post("/v1/sessions", &json!({})).await.ok(201);
        let body = json!({"producer_id": session["producer_id"], "epoch": 0, "sequence": 2,
            "records": [{"value": "early"}]});
        let early = {
            let client = load.client.clone();
            let path = partition_path(&format!("quiet-{round}"), 0);
            tokio::spawn(async move { client.post(&path, &body).await })
        };
        let waits = async || load.client.metric("oncelog_waiting_reads").await == Some(1.0);
        until("the read to wait", async || waits().await.then_some(())).await;
        any_instant(&mut rng).await;
        let told = Instant::now();
        process.signal(Signal::SIGTERM);
        let status = process.exit().await;
        let took = told.elapsed();
        assert!(status.success(), "{status}: {}", process.log());
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(read.await.unwrap().ok(200)["records"], json!([]));
        let (status, code) = early.await.unwrap().problem();
        assert_eq!((status, code.as_str()), (409, "unknown_producer_state"));
        // what was sent before the signal was answered; what crossed it may find the door closed
        let unanswered = load.history.unanswered.lock().unwrap().split_off(0);
        let margin = Duration::from_millis(20);
        let cut: Vec<_> = unanswered.iter().filter(|(begun, _)| *begun + margin < told).collect();
        println!("stopped within {took:?}, {} requests crossed the stop", unanswered.len());
        assert!(cut.is_empty(), "{cut:?}");
        assert!(servers(&load.data_dir()).is_empty());
        process = load.start_again().await;
    }
    load.end(&mut process).await;
}
