//! Reading all partitions of a topic: where it starts and goes on, who gets how much, what wakes
//! it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use oncelog::{
    broker::ServiceConfig,
    model::{TopicId, cursor::TopicCursor},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{
    self,
    served::{Answer, Client, Served, partition_path, until},
};

type Ends = (i64, i64, i64);

async fn read(client: &Client, topic: &str, query: &str) -> Answer {
    client.get(&format!("/v1/topics/{topic}/records?{query}")).await
}

fn cursor(page: &Value) -> String {
    format!("cursor={}", page["cursor"].as_str().unwrap())
}

/// (partition, offset) of every record.
fn places(page: &Value) -> Vec<(i64, i64)> {
    let number = |record: &Value, name: &str| record[name].as_i64().unwrap();
    let records = page["records"].as_array().unwrap();
    records.iter().map(|r| (number(r, "partition"), number(r, "offset"))).collect()
}

/// Next offset, log start and high watermark of every partition.
fn ends(page: &Value) -> Vec<Ends> {
    let ends = |(index, ends): (usize, &Value)| {
        assert_eq!(ends["partition"], json!(index));
        let number = |name: &str| ends[name].as_i64().unwrap();
        (number("next_offset"), number("log_start_offset"), number("high_watermark"))
    };
    page["partitions"].as_array().unwrap().iter().enumerate().map(ends).collect()
}

/// `t` of three partitions, which hold 3, 0 and 2 records.
async fn filled(served: &Served) -> &Client {
    let client = &served.client;
    client.put_topic("t", 3).await;
    client.append("t", 0, &[json!(0), json!(1), json!(2)]).await;
    client.append("t", 2, &[json!(0), json!(1)]).await;
    client
}

async fn grow(client: &Client, topic: &str, partition_count: i32) {
    let body = json!({"partition_count": partition_count}).to_string();
    let headers = [("content-type", "application/json")];
    let path = format!("/v1/topics/{topic}");
    client.send(Method::PATCH, &path, &headers, Some(body)).await.unwrap().ok(200);
}

/// A read that waits; answers when it was answered.
fn wait(client: &Client, query: &str) -> JoinHandle<(Answer, Instant)> {
    let (client, query) = (client.clone(), format!("{query}&wait_ms=60000"));
    tokio::spawn(async move { (read(&client, "t", &query).await, Instant::now()) })
}

async fn until_waiting(served: &Served, count: usize) {
    let waiting = || served.broker.waiting_reads();
    until("reads to wait", async || (waiting() == count).then_some(())).await;
}

#[tokio::test]
async fn every_way_to_say_where() {
    let served = Served::alone().await;
    let client = filled(&served).await;
    let all = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)];
    let at_end = [(3, 0, 3), (0, 0, 0), (2, 0, 2)];
    for (query, want) in [
        ("", &all[..]),
        ("offset=earliest&limit=10000&max_bytes=16777216", &all),
        ("wait_ms=60000&isolation=read_committed", &all),
        ("offset=latest", &[]),
        ("offset=latest&wait_ms=1", &[]),
        ("timestamp=2000-01-01T00:00:00Z", &all),
        ("timestamp=9999-12-31T23:59:59Z", &[]),
    ] {
        let page = read(client, "t", query).await.ok(200);
        assert_eq!((&page["topic"], places(&page)), (&json!("t"), want.to_vec()), "{query}");
        assert_eq!(ends(&page), at_end, "{query}");
        // and there is nothing more
        let next = read(client, "t", &cursor(&page)).await.ok(200);
        assert_eq!((places(&next), &next["cursor"]), (vec![], &page["cursor"]), "{query}");
    }
    for query in [
        "offset=0",
        "offset=newest",
        "limit=0",
        "limit=10001",
        "max_bytes=0",
        "wait_ms=60001",
        "offset=latest&cursor=x",
        "timestamp=2000-01-01T00:00:00Z&cursor=x",
        "offset=latest&timestamp=2000-01-01T00:00:00Z",
        "isolation=read_uncommitted",
        "of=1",
    ] {
        let refused = read(client, "t", query).await;
        assert_eq!(refused.problem(), (400, "invalid_request".into()), "{query}");
    }
    assert_eq!(read(client, "u", "").await.problem(), (404, "topic_not_found".into()));
}

/// A timestamp stands for a place in every partition, found when the request arrives.
#[tokio::test]
async fn an_instant_is_found_in_every_partition() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 3).await;
    let append = async |partition: i32| {
        let body = json!({"records": [{"value": partition}]});
        let answer = client.post(&partition_path("t", partition), &body).await.ok(200);
        answer["appended_at"].as_str().unwrap().to_owned()
    };
    for partition in [0, 0, 1] {
        append(partition).await;
    }
    let first = append(0).await;
    // another millisecond
    let instant = until("time to pass", async || {
        let next = append(0).await;
        (next > first).then_some(next)
    })
    .await;
    let found = append(1).await;
    assert!(found >= instant);
    let page = read(client, "t", &format!("timestamp={instant}&limit=1")).await.ok(200);
    let one = client.read("t", 0, &format!("timestamp={instant}&limit=1")).await.ok(200);
    assert_eq!(places(&page), [(0, one["next_offset"].as_i64().unwrap() - 1)]);
    let rest = read(client, "t", &cursor(&page)).await.ok(200);
    assert_eq!(places(&rest), [(1, 1)]);
    assert_eq!(ends(&rest)[2], (0, 0, 0));
}

#[tokio::test]
async fn lines_carry_their_partition_and_the_cursor_comes_beside() {
    let served = Served::alone().await;
    let client = filled(&served).await;
    let page = read(client, "t", "").await.ok(200);
    let answer = client.get_ndjson("/v1/topics/t/records").await;
    assert_eq!(
        (answer.status, &answer.headers["content-type"] == "application/x-ndjson"),
        (200, true)
    );
    assert_eq!(answer.headers["oncelog-cursor"].to_str().unwrap(), page["cursor"]);
    let lines: Vec<Value> =
        answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(page["records"], json!(lines));
    assert!(answer.text.starts_with("{\"partition\":0,\"offset\":0,\"appended_at\":"));
    // what was read can be appended as it is
    client.put_topic("copy", 1).await;
    let ndjson = [("content-type", "application/x-ndjson")];
    let copy = client.send(Method::POST, "/v1/topics/copy/records", &ndjson, Some(answer.text));
    copy.await.unwrap().ok(200);
    let path = format!("/v1/topics/t/records?{}", cursor(&page));
    let empty = client.get_ndjson(&path).await;
    assert_eq!((empty.status, empty.text.as_str()), (200, ""));
    assert_eq!(empty.headers["oncelog-cursor"], answer.headers["oncelog-cursor"]);
    let refused = client.get_ndjson("/v1/topics/t/records?isolation=read_uncommitted").await;
    assert_eq!(refused.status, 400);
}

/// Per partition what the same cursor gives again begins as it did.
#[tokio::test]
async fn the_same_cursor_gives_the_same_records_through_any_replica() {
    let options = support::database().await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let client = filled(&here).await;
    let begun = read(client, "t", "limit=2").await.ok(200);
    assert_eq!(places(&begun), [(0, 0), (2, 0)]);
    let first = read(client, "t", &format!("{}&limit=3", cursor(&begun))).await.ok(200);
    assert_eq!(places(&first), [(2, 1), (0, 1), (0, 2)]);
    client.append("t", 0, &[json!(3)]).await;
    client.append("t", 1, &[json!(0)]).await;
    drop(here);

    let there = Served::start(&options, ServiceConfig::default()).await;
    let again = read(&there.client, "t", &cursor(&begun)).await.ok(200);
    assert_eq!(places(&again), [(1, 0), (2, 1), (0, 1), (0, 2), (0, 3)]);
    for (partition, offset) in places(&first) {
        let same = |page: &Value| {
            let mut records = page["records"].as_array().unwrap().iter();
            let place = (json!(partition), json!(offset));
            records.find(|r| (&r["partition"], &r["offset"]) == (&place.0, &place.1)).cloned()
        };
        assert_eq!(same(&again), same(&first));
    }
    // it goes on after what it came with, not after what was answered last
    let next = read(&there.client, "t", &cursor(&first)).await.ok(200);
    assert_eq!(places(&next), [(0, 3), (1, 0)]);
}

/// Lines of all partitions, as a read of each alone gives them, with where they are from.
async fn whole(client: &Client, partitions: i64) -> BTreeMap<i64, Vec<String>> {
    let mut lines = BTreeMap::new();
    for partition in 0..partitions {
        let path =
            format!("{}?limit=10000&max_bytes=16777216", partition_path("t", partition as i32));
        let answer = client.get_ndjson(&path).await;
        assert_eq!(answer.header("oncelog-next-offset"), answer.header("oncelog-high-watermark"));
        let origin = format!("{{\"partition\":{partition},");
        let with_origin = |line: &str| line.replacen('{', &origin, 1);
        lines.insert(partition, answer.text.split_inclusive('\n').map(with_origin).collect());
    }
    lines
}

/// Pages of every size, held against the rule: a part each, then what is left in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everyone_gets_a_fair_part_of_every_answer() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let options = support::database().await;
    let writer = Served::start(&options, ServiceConfig::default()).await;
    const PARTITIONS: i64 = 7;
    writer.client.put_topic("t", PARTITIONS as i32).await;
    for _ in 0..60 {
        // some are long, and one is empty
        let partition = rng.random_range(0..6) * rng.random_range(0..2);
        let values: Vec<Value> = (0..rng.random_range(1..40))
            .map(|_| json!("x".repeat(1 << rng.random_range(0..11))))
            .collect();
        writer.client.append("t", partition, &values).await;
    }
    let lines = whole(&writer.client, PARTITIONS).await;
    // without room every page is read again
    for page_cache_bytes in [0, 128 << 20] {
        let served =
            Served::start(&options, ServiceConfig { page_cache_bytes, ..ServiceConfig::default() })
                .await;
        for _ in 0..4 {
            walk(&served.client, &lines, &mut rng).await;
        }
    }
}

async fn walk(client: &Client, lines: &BTreeMap<i64, Vec<String>>, rng: &mut StdRng) {
    let count = lines.len() as i64;
    let mut next: BTreeMap<i64, usize> = lines.keys().map(|partition| (*partition, 0)).collect();
    let (mut query, mut first) = ("offset=earliest".to_owned(), 0);
    let scale = rng.random_range(0.5..6.0);
    loop {
        let limit = 10_f64.powf(rng.random_range(0.0..3.5)) as usize;
        let max_bytes = 10_f64.powf(rng.random_range(0.0..scale)) as usize;
        let path = format!("/v1/topics/t/records?{query}&limit={limit}&max_bytes={max_bytes}");
        let answer = client.get_ndjson(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let got: Vec<&str> = answer.text.split_inclusive('\n').collect();
        let in_turn: Vec<i64> = (0..count).map(|n| (first + n) % count).collect();
        let rest = |partition: &i64| &lines[partition][next[partition]..];
        let active: Vec<i64> =
            in_turn.into_iter().filter(|partition| !rest(partition).is_empty()).collect();
        let Some(leader) = active.first() else {
            assert!(got.is_empty());
            return;
        };
        // the rule, said once more
        let (mut records, mut bytes) = (0, 0);
        let mut taken: BTreeMap<i64, usize> = BTreeMap::new();
        let share = ((limit / active.len()).max(1), max_bytes / active.len());
        for (most, most_bytes) in [share, (usize::MAX, usize::MAX)] {
            for partition in &active {
                let has = taken.entry(*partition).or_default();
                let (mut part, mut part_bytes) = (0, 0);
                for line in &rest(partition)[*has..] {
                    let fits = bytes + line.len() <= max_bytes || records == 0;
                    let is_in_part =
                        part == 0 || part < most && part_bytes + line.len() <= most_bytes;
                    if records == limit || !fits || !is_in_part {
                        break;
                    }
                    (records, bytes) = (records + 1, bytes + line.len());
                    (part, part_bytes) = (part + 1, part_bytes + line.len());
                    *has += 1;
                }
            }
        }
        let want: Vec<&str> = active
            .iter()
            .flat_map(|partition| rest(partition)[..taken[partition]].iter().map(String::as_str))
            .collect();
        assert_eq!(got, want, "{path}");
        let without = active.iter().find(|partition| taken[*partition] == 0);
        first = *without.unwrap_or(&((leader + 1) % count));
        for (partition, taken) in taken {
            *next.get_mut(&partition).unwrap() += taken;
        }
        query = format!("cursor={}", answer.headers["oncelog-cursor"].to_str().unwrap());
    }
}

#[tokio::test]
async fn nobody_starves() {
    let served = Served::alone().await;
    let client = &served.client;
    client.put_topic("t", 150).await;
    for partition in 0..150 {
        client.append("t", partition, &[json!(0), json!(1), json!("x".repeat(5_000))]).await;
    }
    // one record at a time: everyone in turn
    let mut query = "offset=earliest".to_owned();
    for turn in 0..300 {
        let page = read(client, "t", &format!("{query}&limit=1")).await.ok(200);
        assert_eq!(places(&page), [(turn % 150, turn / 150)]);
        query = cursor(&page);
    }
    // larger than an answer: also in turn
    for turn in 0..2 {
        let page = read(client, "t", &format!("{query}&max_bytes=1000")).await.ok(200);
        assert_eq!(places(&page), [(turn, 2)]);
        query = cursor(&page);
    }
    // one answer reads a hundred logs at most, the next one the others
    let page = read(client, "t", &format!("{query}&max_bytes=16777216")).await.ok(200);
    let read_of = |page: &Value| places(page).into_iter().map(|(p, _)| p).collect::<Vec<_>>();
    assert!(read_of(&page).into_iter().eq(2..102));
    let page = read(client, "t", &cursor(&page)).await.ok(200);
    assert!(read_of(&page).into_iter().eq(102..150));
    assert_eq!(read(client, "t", &cursor(&page)).await.ok(200)["records"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_in_any_partition_wakes_through_any_replica() {
    let options = support::database().await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&options, ServiceConfig::default()).await;
    filled(&here).await;
    for partition in [1, 0, 2] {
        let reads = [wait(&here.client, "offset=latest"), wait(&there.client, "offset=latest")];
        until_waiting(&here, 1).await;
        until_waiting(&there, 1).await;
        let offset = here.client.append("t", partition, &[json!("new")]).await;
        let acknowledged = Instant::now();
        for read in reads {
            let (answer, answered) = read.await.unwrap();
            let page = answer.ok(200);
            assert_eq!(places(&page), [(partition.into(), offset)]);
            assert_eq!(ends(&page)[partition as usize], (offset + 1, 0, offset + 1));
            assert!(answered.saturating_duration_since(acknowledged) < Duration::from_secs(1));
        }
    }
    // spread by key, and of a transaction
    let page = read(&there.client, "t", "offset=latest").await.ok(200);
    let waiting = wait(&there.client, &cursor(&page));
    until_waiting(&there, 1).await;
    let appends = json!([{"topic": "t", "partition": 0, "records": [{"value": 1}]},
        {"topic": "t", "partition": 2, "records": [{"value": 2}]}]);
    let body = json!({"appends": appends, "commit": true});
    here.client.post("/v1/transactions", &body).await.ok(201);
    let page = waiting.await.unwrap().0.ok(200);
    assert!(!places(&page).is_empty() && page["records"][0]["transaction_id"].is_string());
    assert_eq!(there.broker.waiting_reads(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_appear_later_are_read_from_their_beginning() {
    let options = support::database().await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&options, ServiceConfig::default()).await;
    let client = filled(&here).await;
    let latest = read(&there.client, "t", "offset=latest").await.ok(200);
    let all = read(&there.client, "t", "").await.ok(200);
    // fresh, whatever the other replica remembers
    for count in 4..8 {
        grow(client, "t", count).await;
        client.append("t", count - 1, &[json!("new"), json!("newer")]).await;
        for page in [&latest, &all] {
            let page = read(&there.client, "t", &cursor(page)).await.ok(200);
            let want = (3..i64::from(count)).flat_map(|partition| [(partition, 0), (partition, 1)]);
            assert_eq!(places(&page), want.collect::<Vec<_>>());
        }
    }
    // also by who waits meanwhile; one that is empty ends no wait
    let reads = [wait(client, "offset=latest"), wait(&there.client, "offset=latest")];
    until_waiting(&here, 1).await;
    until_waiting(&there, 1).await;
    grow(client, "t", 8).await;
    grow(client, "t", 9).await;
    client.append("t", 8, &[json!("newest")]).await;
    let acknowledged = Instant::now();
    for read in reads {
        let (answer, answered) = read.await.unwrap();
        let page = answer.ok(200);
        assert_eq!((places(&page), ends(&page).len()), (vec![(8, 0)], 9));
        assert!(answered.saturating_duration_since(acknowledged) < Duration::from_millis(1_500));
    }
    // of what has been trimmed of them meanwhile nobody knew
    client.append("t", 8, &[json!(1), json!(2)]).await;
    client.delete(&format!("{}?before=2", partition_path("t", 8))).await;
    let page = read(client, "t", &format!("{}&limit=10000", cursor(&latest))).await.ok(200);
    assert_eq!(places(&page).last(), Some(&(8, 2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_topic_ends_its_waits_and_its_cursors() {
    let options = support::database().await;
    let here = Served::start(&options, ServiceConfig::default()).await;
    let there = Served::start(&options, ServiceConfig::default()).await;
    let client = filled(&here).await;
    let page = read(client, "t", "").await.ok(200);
    let reads = [wait(client, &cursor(&page)), wait(&there.client, "offset=latest")];
    until_waiting(&here, 1).await;
    until_waiting(&there, 1).await;
    client.delete("/v1/topics/t").await;
    let deleted = Instant::now();
    for read in reads {
        let (answer, answered) = read.await.unwrap();
        assert_eq!(answer.problem(), (404, "topic_not_found".into()));
        assert!(answered.saturating_duration_since(deleted) < Duration::from_millis(1_500));
    }
    client.put_topic("t", 3).await;
    for client in [client, &there.client] {
        let refused = read(client, "t", &cursor(&page)).await;
        assert_eq!(refused.problem(), (400, "invalid_cursor".into()));
        assert_eq!(read(client, "t", "").await.ok(200)["records"], json!([]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_every_wait_at_once() {
    let mut served = Served::alone().await;
    let client = filled(&served).await.clone();
    let page = read(&client, "t", "").await.ok(200);
    let reads: Vec<_> = (0..20).map(|_| wait(&client, &cursor(&page))).collect();
    until_waiting(&served, 20).await;
    let begun = Instant::now();
    served.shut_down().await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    for read in reads {
        let answer = read.await.unwrap().0.ok(200);
        assert_eq!((&answer["records"], &answer["cursor"]), (&json!([]), &page["cursor"]));
    }
}

#[tokio::test]
async fn what_a_cursor_names_must_be_there() {
    let served = Served::alone().await;
    let client = filled(&served).await;
    let one = read(client, "t", "limit=1").await.ok(200);
    client.delete(&format!("{}?before=2", partition_path("t", 0))).await;
    let refused = read(client, "t", &format!("{}&wait_ms=60000", cursor(&one))).await;
    assert_eq!(refused.problem(), (416, "offset_out_of_range".into()));
    let facts = |refused: &Answer| {
        let problem = refused.json();
        ["partition", "log_start_offset", "high_watermark"].map(|name| problem[name].clone())
    };
    assert_eq!(facts(&refused), [json!(0), json!(2), json!(3)]);
    // nothing else is lost
    let page = read(client, "t", "").await.ok(200);
    assert_eq!(places(&page), [(0, 2), (2, 0), (2, 1)]);
    assert_eq!(ends(&page)[0], (3, 2, 3));
    // at the log start it goes on
    client.delete(&format!("{}?before=3", partition_path("t", 0))).await;
    assert_eq!(read(client, "t", &cursor(&page)).await.ok(200)["records"], json!([]));

    // beyond the end: of a database that was set back
    let tenant = support::tenant(&served.broker).await;
    let beyond = TopicCursor { positions: vec![3, 0, 3], first: 0 }.encode(tenant, TopicId(1));
    let refused = read(client, "t", &format!("cursor={beyond}")).await;
    assert_eq!(refused.problem(), (416, "offset_out_of_range".into()));
    assert_eq!(facts(&refused), [json!(2), json!(0), json!(2)]);
}

#[tokio::test]
async fn a_cursor_is_good_where_it_came_from() {
    let served = Served::alone().await;
    let client = filled(&served).await;
    client.put_topic("other", 3).await;
    let page = read(client, "t", "limit=2").await.ok(200);
    let cursor = page["cursor"].as_str().unwrap();
    let tenant = support::tenant(&served.broker).await;
    let same = TopicCursor::parse(cursor, tenant, TopicId(1)).unwrap();
    assert_eq!(same.positions, [1, 0, 1]);
    let others = oncelog::model::TenantId(tenant.0 + 1);
    let mut mangled = cursor.to_owned();
    mangled.replace_range(4..5, if &cursor[4..5] == "A" { "B" } else { "A" });
    let long = "A".repeat(8_192);
    let table = [
        ("other", cursor),
        ("t", &*mangled),
        ("t", &cursor[1..]),
        ("t", ""),
        ("t", "none%20of%20ours"),
        ("t", &long),
        ("t", &same.encode(tenant, TopicId(2))),
        ("t", &same.encode(others, TopicId(1))),
    ];
    for (topic, cursor) in table {
        let refused = read(client, topic, &format!("cursor={cursor}")).await;
        assert_eq!(refused.problem(), (400, "invalid_cursor".into()), "{topic} {cursor}");
    }
    read(client, "t", &format!("cursor={cursor}")).await.ok(200);
}

/// Who waits for many logs takes the places of several readers, but never more than there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_many_logs_is_bounded() {
    let options = support::database().await;
    let settings = ServiceConfig { max_waiting_reads: 5, ..ServiceConfig::default() };
    let served = Served::start(&options, settings).await;
    let client = &served.client;
    client.put_topic("t", 50).await;
    client.put_topic("large", 1_000).await;
    // 50 logs and the journal
    let waiting = wait(client, "offset=latest");
    until_waiting(&served, 4).await;
    let refused = read(client, "t", "offset=latest&wait_ms=60000").await;
    assert_eq!(refused.problem(), (503, "unavailable".into()));
    client.append("t", 49, &[json!("new")]).await;
    assert_eq!(places(&waiting.await.unwrap().0.ok(200)), [(49, 0)]);
    let page = read(client, "large", "offset=latest&wait_ms=1").await.ok(200);
    assert_eq!(ends(&page).len(), 1_000);
}
