//! `produce`: each line once and in order, whatever is killed.

use std::{
    fs,
    io::{BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use futures_util::future::join_all;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Output, client, ended, run, run_with};
use crate::{
    history::crash::{fixed_port, kill_9_postmaster},
    support::{
        self,
        served::{Client, Process, Served, partition_path, until},
    },
};

const LINES: u64 = 1_000_000;

/// A file of records, of which each has a number.
fn numbered(dir: &Path, lines: u64) -> PathBuf {
    let path = dir.join("lines.ndjson");
    let mut file = BufWriter::new(fs::File::create(&path).unwrap());
    for number in 0..lines {
        writeln!(file, "{{\"key\":\"k{}\",\"value\":{{\"n\":{number}}}}}", number % 7).unwrap();
    }
    file.into_inner().unwrap();
    path
}

fn produce(url: &str, file: &Path, more: &[&str]) -> Command {
    let file = file.to_str().unwrap();
    let id = ["--transactional-id", "importer"];
    client(url, &[&["produce", file, "--topic", "t"], &id[..], more].concat())
}

/// How many records the topic holds.
async fn stored(client: &Client) -> Option<u64> {
    let topic = client.send(reqwest::Method::GET, "/v1/topics/t", &[], None).await.ok()?;
    let topic: Value = serde_json::from_str(&topic.text).ok()?;
    let partitions = topic["partitions"].as_array()?;
    partitions.iter().map(|partition| partition["record_count"].as_u64()).sum()
}

/// How many there are, once there are that many.
async fn until_stored(client: &Client, count: u64) -> u64 {
    until(&format!("{count} records"), async || {
        stored(client).await.filter(|stored| *stored >= count)
    })
    .await
}

/// Every number once, in order and at its offset, in what this command prints while it runs.
fn judge(mut consume: Command, lines: u64) -> JoinHandle<()> {
    #[derive(Deserialize)]
    struct Record<'a> {
        offset: u64,
        key: &'a str,
        value: Value,
    }
    #[derive(Deserialize)]
    struct Value {
        n: u64,
    }
    tokio::task::spawn_blocking(move || {
        let mut child = consume.spawn().unwrap();
        let mut next = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let record: Record = serde_json::from_str(&line).unwrap();
            assert_eq!((record.offset, record.value.n), (next, next), "{line}");
            assert_eq!(record.key, format!("k{}", next % 7));
            next += 1;
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(next, lines);
    })
}

fn consume(url: &str, more: &[&str]) -> Command {
    client(url, &[&["consume", "--topic", "t", "--partition", "0"], more].concat())
}

fn kill_9(child: &mut Child) {
    assert!(child.try_wait().unwrap().is_none(), "it had ended before it could be killed");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// One file, one name. The producer, oncelog and its PostgreSQL (which flushes) are killed in the
/// middle of it, each alone and together: where, the log's own progress decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_lines_are_there_once_whatever_is_killed() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (dir, input) = (support::open_dir(), tempfile::tempdir().unwrap());
    let (data_dir, listen) =
        (dir.path().join("data"), format!("127.0.0.1:{}", fixed_port(&mut rng)));
    let mut server = Process::embedded(&listen, &data_dir).await;
    let (url, client) = (server.url.clone(), Client::new(&server.url, None));
    client.put_topic("t", 1).await;
    let file = numbered(input.path(), LINES);
    let follower = judge(consume(&url, &["--follow", "--limit", &LINES.to_string()]), LINES);
    let mut producer = produce(&url, &file, &[]).spawn().unwrap();
    let rounds = ["PRODUCER", "oncelog", "Postgres", "PRODUCER oncelog", "Postgres oncelog"];
    let rounds = rounds.into_iter().chain(["PRODUCER Postgres", "PRODUCER Postgres oncelog"]);
    for (round, killed) in (1..).zip(rounds) {
        let count = round * LINES / 8 + rng.random_range(0..LINES / 16);
        let count = until_stored(&client, count).await;
        assert!(count < LINES, "{killed}: it was no longer in the middle");
        println!("{killed} killed at {count}");
        let is_killed = |what| killed.contains(what);
        if is_killed("PRODUCER") {
            kill_9(&mut producer);
        }
        if is_killed("Postgres") {
            kill_9_postmaster(&data_dir);
        }
        if is_killed("oncelog") {
            server.kill_9().await;
            server = Process::embedded(&listen, &data_dir).await;
        }
        if is_killed("PRODUCER") {
            producer = produce(&url, &file, &[]).spawn().unwrap();
        }
        assert!(producer.try_wait().unwrap().is_none(), "it ended too early");
    }
    let output = ended(producer).await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    println!("{}", output.stderr);
    assert!(output.stderr.contains("requests of earlier runs"), "{}", output.stderr);
    judge(consume(&url, &[]), LINES).await.unwrap();
    // who followed all the time saw the same
    follower.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_again_it_wants_the_same_input() {
    let served = Served::alone().await;
    let (url, dir) = (served.client.url.as_str(), tempfile::tempdir().unwrap());
    served.client.put_topic("t", 1).await;
    let file = numbered(dir.path(), 1_999);
    let first = run(produce(url, &file, &[])).await;
    assert!(first.stderr.contains("stored 1999 records in 20 requests"), "{}", first.stderr);
    let again = run(produce(url, &file, &[])).await;
    assert_eq!(again.code, Some(0));
    assert!(again.stderr.contains("stored 0 records"), "{}", again.stderr);
    assert!(again.stderr.contains("skipped 20 requests of earlier runs"), "{}", again.stderr);
    let smaller = run(produce(url, &file, &["--batch-size", "50"])).await;
    assert!(smaller.failed(1).contains("are not what was sent before"), "{}", smaller.stderr);
    let larger = run(produce(url, &file, &["--batch-size", "300"])).await;
    assert!(larger.failed(1).contains("the input has only 7"), "{}", larger.stderr);
    assert_eq!(stored(&served.client).await, Some(1_999));
    judge(consume(url, &[]), 1_999).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_run_ends_the_older_one() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("t", 1).await;
    let arguments = ["produce", "--topic", "t", "--plain", "--batch-size", "1"];
    let arguments = [&arguments[..], &["--transactional-id", "importer"]].concat();
    let mut older = client(url, &arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = older.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    until_stored(&served.client, 1).await;
    let newer = run_with(client(url, &arguments), "one\ntwo\n").await;
    assert_eq!(newer.code, Some(0), "{}", newer.stderr);
    stdin.write_all(b"two\n").unwrap();
    // its input is still open: it must not wait for more of it
    let older = tokio::time::timeout(Duration::from_secs(20), ended(older)).await.unwrap();
    let stderr = older.failed(1);
    assert!(stderr.contains("(producer_fenced, HTTP 409)"), "{stderr}");
    assert!(stderr.contains("another run with the same --transactional-id"), "{stderr}");
    assert!(stderr.contains("before that it stored 1 record "), "{stderr}");
    assert_eq!(stored(&served.client).await, Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipes_carry_records_from_topic_to_topic() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("t", 1).await;
    served.client.put_topic("copy", 1).await;
    let input = r#"{"value":{"id":1,"a":1.50},"headers":{"h":"x"}}
        {"value_base64":"AAEC","key":"own"}

        {"value":null,"key":"k","timestamp":"2026-11-21T08:00:00.000Z"}"#;
    let first = run_with(client(url, &["produce", "--topic", "t"]), input).await;
    assert!(first.stderr.contains("stored 3 records in 1 request "), "{}", first.stderr);
    assert_eq!((first.code, &*first.stdout), (Some(0), ""));
    let read = run(client(url, &["consume", "--topic", "t"])).await;
    let copied = run_with(client(url, &["produce", "-", "--topic", "copy"]), read.stdout.clone());
    assert_eq!(copied.await.code, Some(0));
    let copy = run(client(url, &["consume", "--topic", "copy"])).await;
    let records = |output: &Output| {
        let strip = |mut record: Value| {
            record.as_object_mut().unwrap().remove("appended_at");
            record
        };
        output.lines().into_iter().map(strip).collect::<Vec<_>>()
    };
    assert_eq!(records(&read), records(&copy));
    assert!(copy.stdout.contains("1.50"), "numbers keep their form");

    let keyed = ["produce", "--topic", "t", "--values", "--key-field", "id"];
    run_with(client(url, &keyed), "{\"id\":\"a\"}\n{\"id\":7}\n").await;
    run_with(client(url, &["produce", "--topic", "t", "--plain"]), "say \"hi\"\r\n\n").await;
    let read = run(client(url, &["consume", "--topic", "t", "--offset", "3"])).await.lines();
    let keys: Vec<_> = read.iter().map(|record| record["key"].clone()).collect();
    assert_eq!(keys, [json!("a"), json!("7"), json!(null), json!(null)]);
    assert_eq!((&read[2]["value"], &read[3]["value"]), (&json!("say \"hi\""), &json!("")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_line_is_named_and_what_stands_before_it_is_stored() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("t", 1).await;
    let sized = |more: &[&'static str]| {
        let arguments = ["produce", "--topic", "t", "--batch-size", "2"];
        client(url, &[&arguments[..], more].concat())
    };
    let good = "{\"value\":1}\n";
    let by_server =
        run_with(sized(&[]), format!("{good}{good}\n{good}{{\"valu\":1}}\n{good}")).await;
    let stderr = by_server.failed(1);
    assert!(
        stderr.contains("line 5: ") && stderr.contains("(invalid_request, HTTP 400)"),
        "{stderr}"
    );
    assert!(stderr.contains("--values") && stderr.contains("stored 2 records"), "{stderr}");
    assert_eq!(stored(&served.client).await, Some(2));
    let here = run_with(sized(&["--values"]), "1\n2\n3\n{\n5\n").await;
    assert!(here.failed(1).contains("line 4: not JSON"), "{}", here.stderr);
    assert_eq!(stored(&served.client).await, Some(4));
    let nowhere = run_with(client(url, &["produce", "--topic", "absent"]), good).await;
    assert!(nowhere.failed(1).contains("topic_not_found"), "{}", nowhere.stderr);
    let beyond = run_with(sized(&["--partition", "1"]), good).await;
    assert!(beyond.failed(1).contains("partition_not_found"), "{}", beyond.stderr);
}

/// An open lists a thousand scopes; the place of a producer with more is found all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_of_a_thousand_scopes_finds_its_place() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("many", 1001).await;
    served.client.put_topic("t", 1).await;
    let open = json!({"transactional_id": "importer"});
    let session = served.client.post("/v1/sessions", &open).await.ok(201);
    let append = async |partition: i32| {
        let body = json!({"producer_id": session["producer_id"], "epoch": session["epoch"],
            "sequence": 0, "records": [{"value": partition}]});
        served.client.post(&partition_path("many", partition), &body).await.ok(200)
    };
    for first in (0..1001).step_by(64) {
        join_all((first..1001.min(first + 64)).map(&append)).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(dir.path(), 250);
    for passed_over in [false, true] {
        let output = run(produce(url, &file, &["--partition", "0"])).await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        assert_eq!(output.stderr.contains("3 requests of earlier runs"), passed_over);
    }
    judge(consume(url, &[]), 250).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_gives_up_when_told_to() {
    let mut served = Served::alone().await;
    let url = served.client.url.clone();
    served.client.put_topic("t", 1).await;
    let arguments = ["produce", "--topic", "t", "--plain", "--batch-size", "1"];
    let arguments = [&arguments[..], &["--max-retry-ms", "500"]].concat();
    let mut child = client(&url, &arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    until_stored(&served.client, 1).await;
    served.shut_down().await;
    stdin.write_all(b"two\n").unwrap();
    let output = ended(child).await;
    let stderr = output.failed(1);
    assert!(stderr.contains("gave up after 0.") && stderr.contains("stored 1 record"), "{stderr}");
}
