//! Reads of a partition over HTTP: every parameter and form, with equivalent results.

pub mod cursors;
pub mod instants;
pub mod long_polls;
pub mod topic;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures_util::future::join_all;
use oncelog::{broker::ServiceConfig, model::Timestamp};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use crate::support::{
    self,
    served::{Client, Served, partition_path},
};

pub fn offsets(page: &Value) -> Vec<i64> {
    let records = page["records"].as_array().unwrap();
    records.iter().map(|record| record["offset"].as_i64().unwrap()).collect()
}

pub fn ends(page: &Value) -> (i64, i64, i64) {
    let number = |field: &str| page[field].as_i64().unwrap();
    (number("next_offset"), number("log_start_offset"), number("high_watermark"))
}

/// The whole log of a partition, a line a record, read in one go.
async fn whole(client: &Client, topic: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut next = "earliest".to_owned();
    loop {
        let query = format!("offset={next}&limit=10000&max_bytes=16777216");
        let path = format!("{}?{query}", partition_path(topic, 0));
        let answer = client.get_ndjson(&path).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        lines.extend(answer.text.split_inclusive('\n').map(str::to_owned));
        let end = answer.header("oncelog-next-offset");
        if end == answer.header("oncelog-high-watermark") {
            return lines;
        }
        next = end.to_string();
    }
}

fn field(line: &str, name: &str) -> Value {
    serde_json::from_str::<Value>(line).unwrap()[name].clone()
}

#[tokio::test]
async fn every_way_to_say_where() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 2).await;
    for base in [0, 2, 4] {
        assert_eq!(client.append("t", 0, &[json!(base), json!(base + 1)]).await, base);
    }
    let table = [
        ("", vec![0, 1, 2, 3, 4, 5], 6),
        ("offset=earliest", vec![0, 1, 2, 3, 4, 5], 6),
        ("offset=0&limit=1", vec![0], 1),
        ("offset=1&limit=2", vec![1, 2], 3),
        ("offset=3", vec![3, 4, 5], 6),
        ("offset=5&limit=10000&max_bytes=16777216", vec![5], 6),
        ("offset=6", vec![], 6),
        ("offset=latest", vec![], 6),
        ("offset=latest&wait_ms=1", vec![], 6),
        ("offset=2&wait_ms=60000&limit=1", vec![2], 3),
        ("timestamp=2000-01-01T00:00:00Z&limit=1", vec![0], 1),
        ("timestamp=9999-12-31T23:59:59Z", vec![], 6),
        ("isolation=read_committed&offset=4", vec![4, 5], 6),
    ];
    for (query, want, next) in table {
        let page = client.read("t", 0, query).await.ok(200);
        assert_eq!(offsets(&page), want, "{query}");
        assert_eq!(ends(&page), (next, 0, 6), "{query}");
        assert_eq!((&page["topic"], &page["partition"]), (&json!("t"), &json!(0)));
        assert_eq!(page.get("staged"), None);
    }
    let beyond = client.read("t", 0, "offset=7").await;
    assert_eq!(beyond.problem(), (416, "offset_out_of_range".into()));
    let facts = beyond.json();
    assert_eq!((&facts["log_start_offset"], &facts["high_watermark"]), (&json!(0), &json!(6)));

    // the other partition has nothing: its high watermark waits, beyond it is refused
    for query in ["", "offset=latest", "offset=0&wait_ms=5", "timestamp=2000-01-01T00:00:00Z"] {
        let page = client.read("t", 1, query).await.ok(200);
        assert_eq!((&page["records"], ends(&page)), (&json!([]), (0, 0, 0)), "{query}");
    }
    assert_eq!(client.read("t", 1, "offset=1&wait_ms=5").await.status, 416);
    assert_eq!(client.read("t", 2, "").await.problem(), (404, "partition_not_found".into()));
    assert_eq!(client.read("u", 0, "").await.problem(), (404, "topic_not_found".into()));
    for query in ["offset=-1", "limit=0", "limit=10001", "max_bytes=0", "wait_ms=60001", "of=1"] {
        let refused = client.read("t", 0, query).await;
        assert_eq!(refused.problem(), (400, "invalid_request".into()), "{query}");
    }
}

#[tokio::test]
async fn ndjson_and_uncommitted() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 1).await;
    let path = partition_path("t", 0);
    let empty = client.get_ndjson(&path).await;
    assert_eq!((empty.status, empty.text.as_str()), (200, ""));
    let record = json!({"key": "k", "value": {"a": [1.50, null]}, "headers": {"h": "1"},
        "timestamp": "2026-11-21T09:00:00+01:00"});
    let sent = json!({"records": [record, {"value_base64": "AAEC"}, {"value": null}]});
    client.post(&path, &sent).await.ok(200);
    let answer = client.get_ndjson(&format!("{path}?limit=2")).await;
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let heads = ["next-offset", "high-watermark", "log-start-offset"];
    assert_eq!(heads.map(|name| answer.header(&format!("oncelog-{name}"))), [2, 3, 0]);
    let lines: Vec<Value> =
        answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let appended_at = lines[0]["appended_at"].clone();
    assert!(Timestamp::parse(appended_at.as_str().unwrap()).is_ok());
    assert_eq!(
        lines,
        [
            json!({"offset": 0, "appended_at": appended_at, "key": "k",
                "value": {"a": [1.50, null]}, "headers": {"h": "1"},
                "timestamp": "2026-11-21T08:00:00.000Z"}),
            json!({"offset": 1, "appended_at": appended_at, "value_base64": "AAEC"}),
        ]
    );
    // the same records as JSON
    let page = client.read("t", 0, "isolation=read_uncommitted").await.ok(200);
    assert_eq!(page["records"].as_array().unwrap()[..2], lines);
    assert_eq!(page["records"][2]["value"], Value::Null);
    assert_eq!(page["staged"], json!([]));
    let refused = client.get_ndjson(&format!("{path}?isolation=read_uncommitted")).await;
    assert_eq!(refused.status, 400);
}

/// Rows of all kinds: of one record, of a hundred, joined from many requests; short and long lines.
async fn fill(client: &Client, topic: &str, rounds: usize, rng: &mut StdRng) {
    let text = |rng: &mut StdRng| "x".repeat(1 << rng.random_range(0..9));
    for round in 0..rounds {
        client.append(topic, 0, &[json!(text(rng))]).await;
        let hundred: Vec<Value> = (0..100).map(|_| json!(text(rng))).collect();
        client.append(topic, 0, &hundred).await;
        let joined = (0..20).map(|n| {
            let values: Vec<Value> = (0..1 + n % 3).map(|_| json!(text(rng))).collect();
            async move { client.append(topic, 0, &values).await }
        });
        join_all(joined).await;
        if round % 7 == 0 {
            client.append(topic, 0, &[json!("y".repeat(20_000))]).await;
        }
    }
}

#[tokio::test]
async fn max_bytes_counts_answered_lines_exactly() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 1).await;
    let mut rng = StdRng::seed_from_u64(7);
    fill(client, "t", 2, &mut rng).await;
    let lines = whole(client, "t").await;
    for _ in 0..60 {
        let from = rng.random_range(0..lines.len());
        let count = rng.random_range(1..=lines.len() - from);
        let bytes: usize = lines[from..from + count].iter().map(String::len).sum();
        for (max_bytes, want) in [(bytes, count), (bytes - 1, count - 1)] {
            let query = format!("offset={from}&limit=10000&max_bytes={max_bytes}");
            let page = client.read("t", 0, &query).await.ok(200);
            // the first record always comes
            let want = from as i64..(from + want.max(1)) as i64;
            assert!(offsets(&page).into_iter().eq(want), "{query}");
        }
    }
    let long = lines.iter().position(|line| line.len() > 20_000).unwrap();
    let page = client.read("t", 0, &format!("offset={long}&max_bytes=1")).await.ok(200);
    assert_eq!(offsets(&page), [long as i64]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_sequence_of_limits_gives_the_same_records() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let options = support::database().await;
    let writer = Served::start(&options, ServiceConfig::default()).await;
    writer.client.put_topic("t", 1).await;
    fill(&writer.client, "t", 45, &mut rng).await;
    let lines = Arc::new(whole(&writer.client, "t").await);
    let mut reads = 0;
    // no room at all, room for a page or so, room for everything
    for page_cache_bytes in [0, 40_000, 600_000, 128 << 20] {
        let settings = ServiceConfig { page_cache_bytes, ..ServiceConfig::default() };
        let served = Served::start(&options, settings).await;
        let readers = (0..6).map(|_| {
            let (client, lines, seed) = (served.client.clone(), lines.clone(), rng.random());
            tokio::spawn(walk(client, lines, seed))
        });
        for walked in join_all(readers.collect::<Vec<_>>()).await {
            reads += walked.unwrap();
        }
    }
    println!("{} records, {reads} reads", lines.len());
}

/// Reads the log from somewhere to its end by pages of every size; answers how many.
async fn walk(client: Client, lines: Arc<Vec<String>>, seed: u64) -> usize {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut next = rng.random_range(0..lines.len());
    let mut reads = 0;
    while next < lines.len() {
        let limit = 10_f64.powf(rng.random_range(0.0..4.0)) as usize;
        let max_bytes = 10_f64.powf(rng.random_range(0.0..6.5)) as usize;
        let query = format!("offset={next}&limit={limit}&max_bytes={max_bytes}");
        let answer = client.get_ndjson(&format!("{}?{query}", partition_path("t", 0))).await;
        let got: Vec<&str> = answer.text.split_inclusive('\n').collect();
        assert!(!got.is_empty() && got.len() <= limit, "{query}: {answer:?}");
        assert_eq!(got, lines[next..next + got.len()], "{query}");
        // as many as fit
        let bytes = answer.text.len();
        let more = lines.get(next + got.len()).map_or(usize::MAX, String::len);
        assert!(got.len() == 1 || bytes <= max_bytes, "{query}");
        assert!(got.len() == limit || more.saturating_add(bytes) > max_bytes, "{query}");
        next += got.len();
        assert_eq!(answer.header("oncelog-next-offset"), next as i64);
        reads += 1;
    }
    reads
}

#[tokio::test]
async fn timestamps_find_the_first_record_of_their_instant() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 1).await;
    let mut rng = StdRng::seed_from_u64(11);
    fill(client, "t", 6, &mut rng).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 20 {
        let body = json!({"records": [{"value": seen.len()}]});
        let answer = client.post(&partition_path("t", 0), &body).await.ok(200);
        seen.insert(answer["appended_at"].as_str().unwrap().to_owned());
    }
    for trimmed_to in [0, 57, 333] {
        let trim = client.delete(&format!("{}?before={trimmed_to}", partition_path("t", 0))).await;
        assert!(trim.status < 300, "{trim:?}");
        served.broker.sweep().await.unwrap();
        let lines = whole(client, "t").await;
        let instants: Vec<Timestamp> = lines
            .iter()
            .map(|line| Timestamp::parse(field(line, "appended_at").as_str().unwrap()).unwrap())
            .collect();
        assert!(instants.is_sorted());
        let mut first_by_instant: BTreeMap<Timestamp, i64> = BTreeMap::new();
        for (instant, offset) in instants.iter().zip(trimmed_to..) {
            first_by_instant.entry(*instant).or_insert(offset);
        }
        let (first, last) = (instants[0].0, instants.last().unwrap().0);
        let end = trimmed_to + lines.len() as i64;
        let mut asked: Vec<i64> = first_by_instant.keys().map(|instant| instant.0).collect();
        asked.extend([first - 1, last + 1, first - 86_400_000, last + 86_400_000]);
        asked.extend((0..40).map(|_| rng.random_range(first - 5..last + 5)));
        for instant in asked.into_iter().map(Timestamp) {
            let query = format!("timestamp={instant}&limit=1");
            let page = client.read("t", 0, &query).await.ok(200);
            let mut later = first_by_instant.range(instant..);
            let want = later.next().map_or(end, |(_, offset)| *offset);
            let found = offsets(&page).first().copied().unwrap_or_else(|| ends(&page).0);
            assert_eq!(found, want, "{query}, log from {trimmed_to} to {end}");
        }
        assert!(first_by_instant.len() > 10);
        // zones, and digits that are cut off
        let shown = Timestamp(last).to_chrono();
        let zone = chrono::FixedOffset::east_opt(3_600).unwrap();
        let text = shown.with_timezone(&zone).format("%Y-%m-%dT%H:%M:%S%.3f999%%2B01:00");
        let page = client.read("t", 0, &format!("timestamp={text}&limit=1")).await.ok(200);
        assert_eq!(offsets(&page), [first_by_instant[&Timestamp(last)]]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_anywhere_is_read_everywhere() {
    let options = support::database().await;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Served::start(&options, ServiceConfig::default()).await);
    }
    replicas[0].client.put_topic("t", 8).await;
    let clients: Vec<Client> = replicas.iter().map(|replica| replica.client.clone()).collect();
    // each partition has its own writer, who checks after each acknowledgement
    let writers = (0..8).map(|partition| {
        let clients = clients.clone();
        tokio::spawn(async move {
            let mut rng = StdRng::seed_from_u64(partition as u64);
            for n in 0..150_i64 {
                let [a, b, c] = [0; 3].map(|_| &clients[rng.random_range(0..clients.len())]);
                let base = a.append("t", partition, &[json!(n)]).await;
                assert_eq!(base, n);
                let at_end = b.read("t", partition, "offset=latest").await.ok(200);
                assert_eq!(ends(&at_end), (n + 1, 0, n + 1), "{partition}");
                let page = c.read("t", partition, &format!("offset={n}")).await.ok(200);
                assert_eq!(page["records"][0]["value"], json!(n));
            }
        })
    });
    for writer in join_all(writers.collect::<Vec<_>>()).await {
        writer.unwrap();
    }
    println!("1,200 appends, each seen by two reads through any of three replicas");
}
