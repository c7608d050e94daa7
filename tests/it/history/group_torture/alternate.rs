//! Two brokers behind one address that gives one request to the one and the next to the other: a
//! member notices nothing.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use oncelog::broker::ServiceConfig;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{
    self,
    served::{Client, Served},
};

const TOPIC: &str = "orders";
const PARTITIONS: i32 = 8;
const GROUP: &str = "billing";
/// On a busy machine others come and go less often.
const BOUND: Duration = Duration::from_secs(6);

/// A balancer: each request goes to the next of the servers, whatever connection it came by.
struct Balancer {
    url: String,
    /// Requests so far, of each server.
    passed: Arc<[AtomicU64; 2]>,
}

impl Balancer {
    async fn start(servers: [SocketAddr; 2]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let passed = Arc::<[AtomicU64; 2]>::default();
        let (counted, turns) = (passed.clone(), Arc::<AtomicU64>::default());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (passed, turns) = (counted.clone(), turns.clone());
                tokio::spawn(async move { carry(client, servers, &passed, &turns).await });
            }
        });
        Self { url, passed }
    }
}

/// Requests one after another, each over a connection of its own to its server.
async fn carry(
    mut client: TcpStream,
    servers: [SocketAddr; 2],
    passed: &[AtomicU64; 2],
    turns: &AtomicU64,
) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let mut rest = Vec::new();
    loop {
        let request = message(&mut client, &mut rest).await?;
        let server = (turns.fetch_add(1, Ordering::SeqCst) % 2) as usize;
        let mut connection = TcpStream::connect(servers[server]).await.ok()?;
        connection.write_all(&request).await.ok()?;
        let answer = message(&mut connection, &mut Vec::new()).await?;
        passed[server].fetch_add(1, Ordering::SeqCst);
        client.write_all(&answer).await.ok()?;
    }
}

/// One message of HTTP/1.1, with a length or without a body. `rest`: what was read beyond.
async fn message(stream: &mut TcpStream, rest: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(end) = rest.windows(4).position(|end| end == b"\r\n\r\n") {
            let head = std::str::from_utf8(&rest[..end]).unwrap().to_ascii_lowercase();
            assert!(!head.contains("transfer-encoding"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            let whole = end + 4 + length;
            if rest.len() >= whole {
                let beyond = rest.split_off(whole);
                return Some(std::mem::replace(rest, beyond));
            }
        }
        if stream.read_buf(rest).await.ok()? == 0 {
            return None;
        }
    }
}

/// Any answer but a success is the end of the test.
async fn call(client: &Client, method: Method, path: &str, body: Option<Value>) -> Value {
    let json: &[_] = &[("content-type", "application/json")];
    let headers = if body.is_some() { json } else { &[] };
    let line = format!("{method} {path} {body:?}");
    let sent = client.send(method, path, headers, body.map(|body| body.to_string())).await;
    let answer = sent.unwrap_or_else(|error| panic!("{line}: {error}"));
    assert!((200..300).contains(&answer.status), "{line}: {}", answer.text);
    if answer.status == 204 { Value::Null } else { answer.json() }
}

fn members() -> String {
    format!("/v1/groups/{GROUP}/members")
}

async fn join(client: &Client, session_timeout_ms: i64) -> String {
    let body = json!({"topics": [TOPIC], "session_timeout_ms": session_timeout_ms});
    let joined = call(client, Method::POST, &members(), Some(body)).await;
    joined["member_id"].as_str().unwrap().to_owned()
}

/// What the member saw.
#[derive(Default)]
struct Seen {
    records: u64,
    generations: u64,
    revoked: u64,
    partitions: BTreeMap<i64, i64>,
}

impl Seen {
    /// Records of one partition come in order; what others processed meanwhile is passed by.
    fn take(&mut self, told: &Value, generation: &mut i64) {
        let now = told["generation"].as_i64().unwrap();
        assert!(now >= *generation, "{generation}, then {told}");
        self.generations += u64::from(now > *generation);
        *generation = now;
        self.revoked += told["revoked"].as_array().unwrap().len() as u64;
        for record in told["records"].as_array().into_iter().flatten() {
            let [partition, offset] = ["partition", "offset"].map(|f| record[f].as_i64().unwrap());
            let next = self.partitions.entry(partition).or_default();
            assert!(offset >= *next, "{partition}/{offset} came again");
            *next = offset + 1;
            self.records += 1;
        }
    }
}

/// A well-made member: what is fetched is committed before the next call.
async fn work(client: &Client, enough: &AtomicBool, seed: u64) -> Seen {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut seen, mut generation) = (Seen::default(), 0);
    let member = format!("{}/{}", members(), join(client, 45_000).await);
    let id = member.rsplit('/').next().unwrap();
    let mut cursor = String::new();
    while !enough.load(Ordering::Relaxed) {
        let wait_ms = [0, 200, 2_000][rng.random_range(0..3)];
        let path = format!("{member}/records?limit=20&wait_ms={wait_ms}{cursor}");
        let told = call(client, Method::GET, &path, None).await;
        seen.take(&told, &mut generation);
        let commit = json!({"member_id": id, "generation": generation, "cursor": told["cursor"]});
        let path = format!("/v1/groups/{GROUP}/offsets");
        call(client, Method::POST, &path, Some(commit)).await;
        cursor = format!("&cursor={}", told["cursor"].as_str().unwrap());
        if rng.random_bool(0.3) {
            let path = format!("{member}/heartbeat");
            let told = call(client, Method::POST, &path, Some(json!({}))).await;
            seen.take(&told, &mut generation);
        }
    }
    call(client, Method::DELETE, &member, None).await;
    seen
}

/// Others come, fetch a little, and go; some without a word, when their lease has to run out.
async fn come_and_go(brokers: &[Served; 2], rng: &mut StdRng) {
    let client = &brokers[rng.random_range(0..2)].client;
    let member = format!("{}/{}", members(), join(client, 1_000).await);
    for _ in 0..rng.random_range(1..=3) {
        let client = &brokers[rng.random_range(0..2)].client;
        let path = format!("{member}/records?limit=5&wait_ms=100");
        let answer = client.get(&path).await;
        assert!(answer.status == 200 || answer.problem().1 == "unknown_member", "{}", answer.text);
    }
    if rng.random_bool(0.7) {
        let answer = client.delete(&member).await;
        assert!(answer.status == 204 || answer.problem().1 == "unknown_member", "{}", answer.text);
    }
    brokers[rng.random_range(0..2)].broker.sweep().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_brokers_behind_one_address_a_member_notices_nothing() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let options = support::database().await;
    let brokers = [
        Served::start(&options, ServiceConfig::default()).await,
        Served::start(&options, ServiceConfig::default()).await,
    ];
    let address = |served: &Served| served.client.url["http://".len()..].parse().unwrap();
    let balancer = Balancer::start([address(&brokers[0]), address(&brokers[1])]).await;
    brokers[0].client.put_topic(TOPIC, PARTITIONS).await;
    let (enough, seed) = (Arc::new(AtomicBool::new(false)), rng.random());
    let member = {
        let (client, enough) = (Client::new(&balancer.url, None), enough.clone());
        tokio::spawn(async move { work(&client, &enough, seed).await })
    };
    let appending = {
        let (client, enough) = (brokers[1].client.clone(), enough.clone());
        tokio::spawn(async move {
            for number in 0.. {
                if enough.load(Ordering::Relaxed) {
                    return;
                }
                client.append(TOPIC, number % PARTITIONS, &[json!(number)]).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
    };
    let begun = Instant::now();
    for _ in (0..25).take_while(|round| *round < 8 || begun.elapsed() < BOUND) {
        assert!(!member.is_finished(), "the member was told an error");
        come_and_go(&brokers, &mut rng).await;
    }
    enough.store(true, Ordering::Relaxed);
    appending.await.unwrap();
    let Seen { records, generations, revoked, .. } = member.await.unwrap();
    let passed = balancer.passed.each_ref().map(|passed| passed.load(Ordering::SeqCst));
    println!(
        "{passed:?} requests, {records} records, {generations} new generations seen, {revoked} \
         topics with partitions to let go of"
    );
    assert!(passed[0].abs_diff(passed[1]) <= 1, "requests alternate");
    assert!(generations > 0 && revoked > 0 && records > 0, "nothing happened");
}
