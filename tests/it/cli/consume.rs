//! `consume`: where it starts, where it ends, and who reads it.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use super::{client, ended, run};
use crate::support::served::{Served, until};

/// A server with `t` of three partitions, of which partition p holds p records more than ten.
async fn filled() -> Served {
    let served = Served::alone().await;
    served.client.put_topic("t", 3).await;
    for partition in 0..3 {
        let values: Vec<Value> =
            (0..10 + partition).map(|n| json!({"p": partition, "n": n})).collect();
        served.client.append("t", partition, &values).await;
    }
    served
}

async fn consume(served: &Served, arguments: &[&str]) -> Vec<Value> {
    let all = [&["consume", "--topic", "t"], arguments].concat();
    run(client(&served.client.url, &all)).await.lines()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_where_it_is_told_and_ends_at_the_end() {
    let served = filled().await;
    let all = consume(&served, &[]).await;
    let places: Vec<_> = all.iter().map(|r| (&r["partition"], &r["offset"])).collect();
    let want: Vec<_> =
        (0..3).flat_map(|p| (0..10 + p).map(move |n| (json!(p), json!(n)))).collect();
    assert!(places.into_iter().eq(want.iter().map(|(p, n)| (p, n))));
    let one = consume(&served, &["--partition", "2"]).await;
    assert_eq!((one.len(), &one[11]["value"]["n"]), (12, &json!(11)));
    assert_eq!(one[0].get("partition"), None, "who asked for one knows which");

    let count = async |arguments: &[&str]| consume(&served, arguments).await.len();
    assert_eq!(count(&["--limit", "0"]).await, 0);
    assert_eq!(count(&["--limit", "15"]).await, 15);
    assert_eq!(count(&["--partition", "1", "--offset", "8"]).await, 3);
    assert_eq!(count(&["--partition", "1", "--offset", "11"]).await, 0);
    assert_eq!(count(&["--offset", "latest"]).await, 0);
    assert_eq!(count(&["--timestamp", "2000-01-01T01:00:00+01:00"]).await, 33);
    assert_eq!(count(&["--timestamp", "2100-01-01T00:00:00Z"]).await, 0);
    assert_eq!(count(&["--follow", "--until-end"]).await, 33);
    assert_eq!(count(&["--follow", "--until-end", "--offset", "latest"]).await, 0);
    assert_eq!(count(&["--follow", "--limit", "20"]).await, 20);

    let url = &served.client.url;
    let beyond = run(client(url, &["consume", "--topic", "t", "--offset", "11"])).await;
    assert!(beyond.failed(1).contains("offset_out_of_range"), "{}", beyond.stderr);
    let absent = run(client(url, &["consume", "--topic", "t", "--partition", "3"])).await;
    assert!(absent.failed(2).contains("partitions 0 to 2"), "{}", absent.stderr);
    let of_which =
        run(client(url, &["consume", "--topic", "t", "--offset", "3", "--follow"])).await;
    assert!(of_which.failed(2).contains("--partition"), "{}", of_which.stderr);
    assert_eq!(count(&["--offset", "9"]).await, 1 + 2 + 3);
}

/// Where each line was: `1@7`.
fn places(lines: &[Value]) -> Vec<String> {
    lines.iter().map(|line| format!("{}@{}", line["partition"], line["offset"])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_some_records_before_the_end() {
    let served = filled().await;
    let last = consume(&served, &["--offset", "-2"]).await;
    assert_eq!(places(&last), ["0@8", "0@9", "1@9", "1@10", "2@10", "2@11"]);
    let one = consume(&served, &["--partition", "1", "--offset=-3"]).await;
    assert_eq!(places(&one), ["null@8", "null@9", "null@10"]);
    assert_eq!(consume(&served, &["--offset", "-0"]).await.len(), 0);
    assert_eq!(consume(&served, &["--offset", "-100"]).await.len(), 33);
    let followed = consume(&served, &["--offset", "-2", "--follow", "--until-end"]).await;
    assert_eq!(followed, last);

    let mut follower = Follower::start(&served, &["--offset", "-1", "--limit", "5"]);
    let tail: Vec<Value> = (0..3).map(|_| follower.next()).collect();
    assert_eq!(places(&tail), ["0@9", "1@10", "2@11"]);
    for (partition, place) in [(2, "2@12"), (0, "0@10")] {
        served.client.append("t", partition, &[json!("new")]).await;
        assert_eq!(places(&[follower.next()]), [place]);
    }
    follower.ends().await;

    served.client.delete("/v1/topics/t/partitions/0/records?before=10").await;
    let rest = consume(&served, &["--offset", "-3", "--limit", "2"]).await;
    assert_eq!(places(&rest), ["0@10", "1@8"], "not before the log starts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_one_key_are_read_from_its_partition() {
    let served = Served::alone().await;
    served.client.put_topic("t", 3).await;
    let keyed = |n: i32| json!({"key": format!("k{}", n % 10), "value": n});
    let records = json!({"records": (0..100).map(keyed).collect::<Vec<_>>()});
    served.client.post("/v1/topics/t/records", &records).await.ok(200);
    let values = |lines: &[Value]| -> Vec<i64> {
        lines.iter().map(|line| line["value"].as_i64().unwrap()).collect()
    };
    let mut partitions = std::collections::BTreeSet::new();
    for n in 0..10 {
        let found = consume(&served, &["--key", &format!("k{n}")]).await;
        assert_eq!(values(&found), (0..10).map(|ten| ten * 10 + n).collect::<Vec<_>>());
        let partition = found[0]["partition"].as_i64().unwrap();
        partitions.insert(partition);
        // in another partition there are none, and elsewhere none is read
        let other = ((partition + 1) % 3).to_string();
        let elsewhere = consume(&served, &["--key", &format!("k{n}"), "--partition", &other]).await;
        assert_eq!(elsewhere.len(), 0);
    }
    assert!(partitions.len() > 1);
    assert_eq!(values(&consume(&served, &["--key", "k3", "--limit", "2"]).await), [3, 13]);
    assert_eq!(consume(&served, &["--key", "none"]).await.len(), 0);
    let mut follower =
        Follower::start(&served, &["--key", "k7", "--offset", "latest", "--limit", "1"]);
    let waiting = || served.broker.waiting_reads() > 0;
    until("the follower to wait", async || waiting().then_some(())).await;
    let more = json!({"records": (0..20).map(keyed).collect::<Vec<_>>()});
    served.client.post("/v1/topics/t/records", &more).await.ok(200);
    assert_eq!(values(&[follower.next()]), [7]);
    follower.ends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_printed_in_a_format() {
    let served = Served::alone().await;
    served.client.put_topic("t", 2).await;
    let sent = json!({"records": [
        {"key": "k", "value": {"a": [1]}, "headers": {"b": "2", "a": "1"}},
        {"value": "a text", "timestamp": "1970-01-01T00:00:01Z"},
        {"key": "", "value_base64": "QUIK"}]});
    served.client.post("/v1/topics/t/partitions/1/records", &sent).await.ok(200);
    let formatted = async |arguments: &[&str]| {
        let all = [&["consume", "--topic", "t"], arguments].concat();
        let output = run(client(&served.client.url, &all)).await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        output.stdout
    };
    let lines = "t/1@0 k={\"a\":[1]} a=1,b=2\nt/1@1 =a text \nt/1@2 =AB\n \n";
    for which in [
        &["--format", "%t/%p@%o %k=%v %h"][..],
        &["--partition", "1", "--format", "%t/%p@%o %k=%v %h\\n"],
        &["--offset", "-9", "--follow", "--until-end", "--format", "%t/%p@%o %k=%v %h%n"],
        &["--group", "g", "--format", "%t/%p@%o %k=%v %h"],
    ] {
        assert_eq!(formatted(which).await, lines, "{which:?}");
    }
    assert_eq!(formatted(&["--format", "%T\\0", "--offset", "-2", "--limit", "1"]).await, "1000\0");
    assert_eq!(formatted(&["--format", "%v", "--key", "k"]).await, "", "it is in partition 0");
}

/// In many answers, with one request at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_partitions_than_anyone_counts_make_one_output() {
    let served = Served::alone().await;
    served.client.put_topic("t", 300).await;
    let long = "x".repeat(1_000);
    for round in 0..10 {
        let records: Vec<Value> =
            (0..400).map(|n| json!({"key": format!("k{n}"), "value": [round, long]})).collect();
        let sent = json!({"records": records});
        served.client.post("/v1/topics/t/records", &sent).await.ok(200);
    }
    for arguments in [&[][..], &["--follow", "--until-end"]] {
        let mut next = std::collections::BTreeMap::new();
        let all = consume(&served, arguments).await;
        for record in &all {
            let next = next.entry(record["partition"].as_i64().unwrap()).or_insert(0);
            assert_eq!(record["offset"], json!(*next), "{record}");
            *next += 1;
        }
        assert_eq!((all.len(), next.len() > 150), (4_000, true));
    }
    let mut follower = Follower::start(&served, &["--offset", "latest", "--limit", "2"]);
    // it is there once it waits
    let waiting = || served.broker.waiting_reads() > 0;
    until("the follower to wait", async || waiting().then_some(())).await;
    let grow = json!({"partition_count": 301}).to_string();
    let headers = [("content-type", "application/json")];
    let patch = served.client.send(reqwest::Method::PATCH, "/v1/topics/t", &headers, Some(grow));
    patch.await.unwrap().ok(200);
    for partition in [300, 17] {
        served.client.append("t", partition, &[json!("new")]).await;
        assert_eq!(follower.next()["partition"], json!(partition));
    }
    follower.ends().await;
}

/// What was trimmed before it could be read is told, not passed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_tells_what_it_could_not_read() {
    let served = filled().await;
    let mut follower = Follower::start(&served, &[]);
    (0..33).for_each(|_| drop(follower.next()));
    let waiting = || served.broker.waiting_reads() > 0;
    until("the follower to wait", async || waiting().then_some(())).await;
    kill(Pid::from_raw(follower.child.id().cast_signed()), Signal::SIGSTOP).unwrap();
    served.client.append("t", 1, &[json!("read by nobody")]).await;
    until("its read to be woken", async || (!waiting()).then_some(())).await;
    // it looks again, before these do, and answers
    for _ in 0..3 {
        served.client.get("/v1/topics/t/records?limit=1000").await;
    }
    served.client.append("t", 0, &[json!("gone")]).await;
    served.client.delete("/v1/topics/t/partitions/0/records?before=11").await;
    kill(Pid::from_raw(follower.child.id().cast_signed()), Signal::SIGCONT).unwrap();
    assert_eq!(follower.next()["value"], json!("read by nobody"));
    let status = until("it to end", async || follower.child.try_wait().unwrap()).await;
    let mut stderr = String::new();
    follower.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(stderr.contains("offset_out_of_range"), "{stderr}");
}

/// More than one answer holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_answers_make_one_output() {
    let served = Served::alone().await;
    served.client.put_topic("t", 1).await;
    let long = "x".repeat(2_000);
    for first in (0..4_000).step_by(400) {
        let values: Vec<Value> = (first..first + 400).map(|n| json!([n, long])).collect();
        served.client.append("t", 0, &values).await;
    }
    let read = consume(&served, &[]).await;
    assert!((0..4_000).eq(read.iter().map(|record| record["value"][0].as_i64().unwrap())));
}

/// A follower, and what arrives from it.
struct Follower {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Follower {
    fn start(served: &Served, arguments: &[&str]) -> Self {
        let all = [&["consume", "--topic", "t", "--follow"], arguments].concat();
        let mut child = client(&served.client.url, &all).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    /// It must end well by itself.
    async fn ends(mut self) {
        let status = until("consume to end", async || self.child.try_wait().unwrap()).await;
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((status.code(), &*stderr), (Some(0), ""));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_follows_all_partitions_at_a_time() {
    let served = filled().await;
    let mut follower = Follower::start(&served, &["--limit", "35"]);
    let mut seen: Vec<(i64, i64)> = Vec::new();
    let mut take = |record: Value| {
        seen.push((record["partition"].as_i64().unwrap(), record["offset"].as_i64().unwrap()));
    };
    (0..33).for_each(|_| take(follower.next()));
    for (partition, offset) in [(2, 12), (0, 10)] {
        served.client.append("t", partition, &[json!("new")]).await;
        let record = follower.next();
        assert_eq!((&record["partition"], &record["offset"]), (&json!(partition), &json!(offset)));
    }
    follower.ends().await;
    seen.sort_unstable();
    assert!((0..3).flat_map(|p| (0..10 + p).map(move |n| (p, n))).eq(seen));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pipe_ends_it_quietly() {
    let served = Served::alone().await;
    served.client.put_topic("t", 1).await;
    let long = "x".repeat(1_000);
    let values: Vec<Value> = (0..900).map(|n| json!([n, long])).collect();
    served.client.append("t", 0, &values).await;
    let url = &served.client.url;
    let mut child = client(url, &["consume", "--topic", "t"]).spawn().unwrap();
    let mut head = oncelog_head(child.stdout.take().unwrap());
    let first = head.by_ref().take(2).count();
    drop(head);
    let output = ended(child).await;
    assert_eq!((first, output.code, &*output.stderr), (2, Some(0), ""));

    // also when nothing more arrives that could tell it
    let mut follower = Follower::start(&served, &["--partition", "0", "--offset", "899"]);
    assert_eq!(follower.next()["offset"], 899);
    follower.lines = BufReader::new(nothing()).lines();
    tokio::time::timeout(Duration::from_secs(10), follower.ends()).await.unwrap();
}

fn oncelog_head(stdout: std::process::ChildStdout) -> impl Iterator<Item = String> {
    BufReader::with_capacity(512, stdout).lines().map(Result::unwrap)
}

/// In place of a pipe that is closed.
fn nothing() -> std::process::ChildStdout {
    let mut child = std::process::Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    child.stdout.take().unwrap()
}

/// Of that many partitions that a cursor is too long for a URL: it is sent in a body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_of_very_many_partitions_is_sent_too() {
    const PARTITIONS: i32 = 6_500;
    let served = Served::alone().await;
    served.client.put_topic("t", PARTITIONS).await;
    // an answer holds one of these
    let long = "x".repeat(700_000);
    for partition in [0, PARTITIONS - 1] {
        served.client.append("t", partition, &[json!(long)]).await;
    }
    for arguments in [&[][..], &["--group", "g"]] {
        let lines = consume(&served, arguments).await;
        let mut partitions: Vec<_> =
            lines.iter().map(|record| record["partition"].as_i64().unwrap()).collect();
        partitions.sort_unstable();
        assert_eq!(partitions, [0, i64::from(PARTITIONS) - 1], "{arguments:?}");
    }
}
