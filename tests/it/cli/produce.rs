//! `produce`: each line once and in order, whatever is killed.

use std::{
    fmt::Write as _,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use futures_util::future::join_all;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

use super::{Output, client, ended, run, run_with};
use crate::{
    crash::{fixed_port, kill_9_postmaster},
    served::{Client, Process, Served, partition_path, until},
    support,
};

const LINES: u64 = 200_000;

/// A file of records, of which each has a number.
fn numbered(dir: &Path, lines: u64) -> PathBuf {
    let mut text = String::new();
    for number in 0..lines {
        writeln!(text, "{{\"key\":\"k{}\",\"value\":{{\"n\":{number}}}}}", number % 7).unwrap();
    }
    let path = dir.join("lines.ndjson");
    fs::write(&path, text).unwrap();
    path
}

fn produce(url: &str, file: &Path, more: &[&str]) -> std::process::Command {
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

async fn until_stored(client: &Client, count: u64) {
    until(&format!("{count} records"), async || {
        stored(client).await.is_some_and(|stored| stored >= count).then_some(())
    })
    .await;
}

/// The one partition holds every number once, in order.
async fn judge(url: &str, lines: u64) {
    let read = run(client(url, &["consume", "--topic", "t", "--partition", "0"])).await;
    let records = read.lines();
    assert_eq!(records.len() as u64, lines);
    for (number, record) in (0..).zip(&records) {
        assert_eq!((&record["offset"], &record["value"]["n"]), (&json!(number), &json!(number)));
        assert_eq!(record["key"], format!("k{}", number % 7));
    }
}

fn kill_9(child: &mut Child) {
    assert!(child.try_wait().unwrap().is_none(), "it had ended before it could be killed");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_it_goes_on_and_each_line_is_there_once() {
    let served = Served::alone().await;
    let (url, dir) = (served.client.url.as_str(), tempfile::tempdir().unwrap());
    served.client.put_topic("t", 1).await;
    let file = numbered(dir.path(), LINES);
    for count in [15_000, 50_000, 85_000] {
        let mut producer = produce(url, &file, &[]).spawn().unwrap();
        until_stored(&served.client, count).await;
        kill_9(&mut producer);
    }
    let passed_over = stored(&served.client).await.unwrap();
    let last = run(produce(url, &file, &[])).await;
    assert_eq!(last.code, Some(0), "{}", last.stderr);
    assert!(last.stderr.contains("requests of earlier runs passed over"), "{}", last.stderr);
    println!("killed last at {passed_over}: {}", last.stderr.trim());
    judge(url, LINES).await;

    let again = run(produce(url, &file, &[])).await;
    assert_eq!(again.code, Some(0));
    assert!(again.stderr.contains("stored 0 records"), "{}", again.stderr);
    let smaller = run(produce(url, &file, &["--batch-size", "50"])).await;
    assert!(smaller.failed(1).contains("are not what was sent before"), "{}", smaller.stderr);
    let larger = run(produce(url, &file, &["--batch-size", "300"])).await;
    assert!(larger.failed(1).contains("the input has only 667"), "{}", larger.stderr);
    assert_eq!(stored(&served.client).await, Some(LINES));
}

/// Kills of oncelog, of its PostgreSQL and of the producer itself, all in one file's time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_survives_kills_of_the_server_and_of_postgres() {
    let mut rng = StdRng::seed_from_u64(rand::random());
    let (dir, input) = (support::open_dir(), tempfile::tempdir().unwrap());
    let (data_dir, listen) =
        (dir.path().join("data"), format!("127.0.0.1:{}", fixed_port(&mut rng)));
    let mut server = Process::embedded(&listen, &data_dir).await;
    let client = Client::new(&server.url, None);
    client.put_topic("t", 1).await;
    let file = numbered(input.path(), LINES);
    let mut follower = super::client(&server.url, &["consume", "--topic", "t", "--follow"]);
    let follower = follower.args(["--limit", &LINES.to_string()]).spawn().unwrap();
    let mut producer = produce(&server.url, &file, &[]).spawn().unwrap();
    for (round, what) in ["server", "postgres", "producer", "both"].into_iter().enumerate() {
        until_stored(&client, 30_000 * (round as u64 + 1)).await;
        assert!(producer.try_wait().unwrap().is_none(), "it ended too early");
        if what == "postgres" || what == "both" {
            kill_9_postmaster(&data_dir);
        }
        if what == "server" || what == "both" {
            server.kill_9().await;
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
            server = Process::embedded(&listen, &data_dir).await;
        }
        if what == "producer" {
            kill_9(&mut producer);
            producer = produce(&server.url, &file, &[]).spawn().unwrap();
        }
    }
    let output = ended(producer).await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    println!("{}", output.stderr);
    assert!(output.stderr.contains("trying again"), "{}", output.stderr);
    judge(&server.url, LINES).await;
    // who followed all the time saw the same
    let followed = ended(follower).await.lines();
    assert!((0..LINES).eq(followed.iter().map(|record| record["value"]["n"].as_u64().unwrap())));
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
    judge(url, 250).await;
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
