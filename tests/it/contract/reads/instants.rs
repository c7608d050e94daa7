//! One answer shows one state: what it has of several partitions, and their watermarks, are of one
//! instant, though transactions are committed all the time. Each of them adds as many records to
//! every partition, so at every instant all partitions are equally long.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use oncelog::{
    broker::ServiceConfig,
    model::read::{TopicRead, TopicStart},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{
    self,
    proxy::Proxy,
    served::{Client, Served, partition_path, until},
};

const PARTITIONS: i32 = 2;
const LONG_ENOUGH: Duration = Duration::from_secs(6);

/// To every partition the same number of records.
fn appends(count: usize) -> Value {
    let records = vec![json!({"value": "x"}); count];
    let append = |partition| json!({"topic": "t", "partition": partition, "records": records});
    (0..PARTITIONS).map(append).collect()
}

/// Transactions in one request, and in several.
async fn write(clients: [Client; 2], ended: Arc<AtomicBool>, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    while !ended.load(Ordering::Relaxed) {
        let client = &clients[rng.random_range(0..2)];
        let body = json!({"appends": appends(rng.random_range(1..4))});
        if rng.random_bool(0.6) {
            let mut whole = body;
            whole["commit"] = json!(true);
            client.post("/v1/transactions", &whole).await.ok(201);
        } else {
            let begun = client.post("/v1/transactions", &body).await.ok(201);
            let id = begun["transaction_id"].as_str().unwrap();
            client.post(&format!("/v1/transactions/{id}/commit"), &json!({})).await.ok(200);
        }
    }
}

/// What readers have counted.
#[derive(Default)]
struct Counts {
    answers: AtomicU64,
    whole: AtomicU64,
    waited: AtomicU64,
}

/// Answers of all partitions, from here and there, as large as they come.
async fn read(clients: [Client; 2], ended: Arc<AtomicBool>, seed: u64, counts: Arc<Counts>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut from = "offset=latest".to_owned();
    while !ended.load(Ordering::Relaxed) {
        let client = &clients[rng.random_range(0..2)];
        let limit = [1, 3, 50, 10_000][rng.random_range(0..4)];
        let wait_ms = [0, 1, 5, 1_000][rng.random_range(0..4)];
        let path = format!("/v1/topics/t/records?{from}&limit={limit}&wait_ms={wait_ms}");
        let page = client.get(&path).await.ok(200);
        let column = |name: &str| -> Vec<i64> {
            let ends = page["partitions"].as_array().unwrap().iter();
            ends.map(|ends| ends[name].as_i64().unwrap()).collect()
        };
        let (next, ends) = (column("next_offset"), column("high_watermark"));
        assert!(ends.iter().all(|end| *end == ends[0]), "{path}: {ends:?}");
        assert!(next.iter().zip(&ends).all(|(next, end)| next <= end), "{path}: {next:?} {ends:?}");
        let records = page["records"].as_array().unwrap().len();
        if records < limit {
            assert_eq!(next, ends, "{path}");
            counts.whole.fetch_add(1, Ordering::Relaxed);
        }
        counts.answers.fetch_add(1, Ordering::Relaxed);
        counts.waited.fetch_add(u64::from(wait_ms > 0), Ordering::Relaxed);
        // now and then from the beginning of the pages that others have
        from = match rng.random_range(0..20) {
            0 => "offset=latest".into(),
            _ => format!("cursor={}", page["cursor"].as_str().unwrap()),
        };
    }
}

/// One member that owns everything, and reads it here and there.
async fn fetch(clients: [Client; 2], ended: Arc<AtomicBool>, seed: u64, counts: Arc<Counts>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let join = json!({"topics": ["t"], "auto_offset_reset": "earliest"});
    let group = format!("/v1/groups/g{seed}/members");
    let joined = clients[0].post(&group, &join).await.ok(201);
    let member = format!("{group}/{}", joined["member_id"].as_str().unwrap());
    let mut from = String::new();
    let mut read: BTreeMap<i64, u64> = (0..i64::from(PARTITIONS)).map(|n| (n, 0)).collect();
    while !ended.load(Ordering::Relaxed) {
        let client = &clients[rng.random_range(0..2)];
        let limit = [1, 3, 50, 10_000][rng.random_range(0..4)];
        let wait_ms = [0, 1, 5, 1_000][rng.random_range(0..4)];
        let path = format!("{member}/records?{from}limit={limit}&wait_ms={wait_ms}");
        let page = client.get(&path).await.ok(200);
        let records = page["records"].as_array().unwrap();
        for record in records {
            *read.get_mut(&record["partition"].as_i64().unwrap()).unwrap() += 1;
        }
        if records.len() < limit {
            assert!(read.values().all(|count| *count == read[&0]), "{path}: {read:?}");
            counts.whole.fetch_add(1, Ordering::Relaxed);
        }
        counts.answers.fetch_add(1, Ordering::Relaxed);
        from = format!("cursor={}&", page["cursor"].as_str().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_several_partitions_is_of_one_instant() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let options = support::database().await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&options, ServiceConfig::default()).await;
    here.client.put_topic("t", PARTITIONS).await;
    let clients = || [here.client.clone(), there.client.clone()];
    let (ended, counts) = (Arc::<AtomicBool>::default(), Arc::<Counts>::default());
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for n in 0..4 {
        tasks.push(tokio::spawn(write(clients(), ended.clone(), seed ^ n)));
    }
    for n in 4..20 {
        tasks.push(tokio::spawn(read(clients(), ended.clone(), seed ^ n, counts.clone())));
    }
    for n in 20..24 {
        tasks.push(tokio::spawn(fetch(clients(), ended.clone(), seed ^ n, counts.clone())));
    }
    let begun = Instant::now();
    until("enough answers", async || {
        let failed = tasks.iter().any(JoinHandle::is_finished);
        let waited = counts.waited.load(Ordering::Relaxed) > 200;
        (failed || waited && begun.elapsed() > LONG_ENOUGH).then_some(())
    })
    .await;
    ended.store(true, Ordering::Relaxed);
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!("{} answers, {} of them whole", count(&counts.answers), count(&counts.whole));
}

/// A look at more logs than are looked at together is one all the same: 1,200 partitions, of which
/// the first and the last grow together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_partitions_there_are() {
    const LAST: i32 = 1_199;
    let served = Served::alone().await;
    let client = served.client.clone();
    client.put_topic("t", LAST + 1).await;
    let ended = Arc::<AtomicBool>::default();
    let writer = tokio::spawn({
        let (client, ended) = (client.clone(), ended.clone());
        async move {
            let records = json!([{"value": 1}]);
            let append =
                |partition| json!({"topic": "t", "partition": partition, "records": records});
            let body = json!({"commit": true, "appends": [append(0), append(LAST)]});
            while !ended.load(Ordering::Relaxed) {
                client.post("/v1/transactions", &body).await.ok(201);
            }
        }
    });
    for _ in 0..150 {
        let page = client.get("/v1/topics/t/records?limit=1").await.ok(200);
        let end = |partition: i32| &page["partitions"][partition as usize]["high_watermark"];
        assert_eq!(end(0), end(LAST));
    }
    ended.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    // and what they hold is there
    let page = client.get(&format!("{}?limit=1", partition_path("t", LAST))).await.ok(200);
    assert!(page["high_watermark"].as_i64().unwrap() > 0);
}

/// Guarantee 13: who asks after a topic was made elsewhere finds it, though another who asked
/// before is still told that there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lookup_is_shared_with_a_later_request() {
    const TOPIC: &str = "newcomer";
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&proxy.options(&options), ServiceConfig::default()).await;
    let tenant = support::tenant(&there.broker).await;
    // it is known by now how topics are looked for
    there.client.get("/v1/topics/other/records").await.problem();
    proxy.hold_answer(TOPIC);
    let path = format!("/v1/topics/{TOPIC}/records");
    let early = tokio::spawn({
        let (client, path) = (there.client.clone(), path.clone());
        async move { client.get(&path).await }
    });
    until("the answer", async || (proxy.held_answers() == 1).then_some(())).await;
    here.client.put_topic(TOPIC, 1).await;
    let topic = support::name(TOPIC);
    let read = TopicRead { start: TopicStart::Earliest, limit: 1, max_bytes: 1, wait_ms: 0 };
    let mut late = std::pin::pin!(there.broker.read_topic(tenant, &topic, read));
    tokio::select! {
        biased;
        found = &mut late => assert!(found.is_ok(), "{found:?}"),
        // it has come, and waits
        () = std::future::ready(()) => {
            proxy.release_answer();
            late.await.unwrap();
        }
    }
    assert_eq!(early.await.unwrap().problem(), (404, "topic_not_found".into()));
}
