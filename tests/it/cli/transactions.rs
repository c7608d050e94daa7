//! `txn`, and `produce --transaction-size`: whole transactions, each once, whatever is killed or
//! lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use futures_util::future::join_all;
use oncelog::http::Limits;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use uuid::Uuid;

use super::{client, ended, oncelog, run, run_with};
use crate::{
    history::crash::{fixed_port, kill_9_postmaster},
    support::{
        self,
        http::{Server, Setup},
        proxy::Proxy,
        served::{Client, Process, Served, replica, until},
    },
};

const SIZE: usize = 20;

/// A file of records, of which each has a number, and two of three a key.
fn numbered(dir: &Path, lines: usize) -> PathBuf {
    let path = dir.join("lines.ndjson");
    let line = |number: usize| match number % 3 {
        0 => format!("{{\"value\":{number}}}\n"),
        _ => format!("{{\"key\":\"k{}\",\"value\":{number}}}\n", number % 7),
    };
    fs::write(&path, (0..lines).map(line).collect::<String>()).unwrap();
    path
}

fn id_of(transaction: &Value) -> String {
    transaction["transaction_id"].as_str().unwrap().to_owned()
}

fn new_id() -> String {
    Uuid::now_v7().to_string()
}

fn produce(url: &str, file: &Path, id: &str, more: &[&str]) -> Command {
    let size = SIZE.to_string();
    let arguments =
        ["produce", file.to_str().unwrap(), "--topic", "t", "--transaction-size", &size];
    client(url, &[&arguments[..], &["--transaction-id", id], more].concat())
}

async fn records(url: &str) -> Vec<Value> {
    run(client(url, &["consume", "--topic", "t"])).await.lines()
}

/// Every number once, in each partition in order, and the records of each transaction are those of
/// its lines; the ids, in the order of the lines.
#[track_caller]
fn judge(records: &[Value], lines: usize, size: usize) -> Vec<String> {
    let mut numbers: Vec<usize> = Vec::new();
    let mut last: BTreeMap<i64, usize> = BTreeMap::new();
    let mut chunks: BTreeMap<usize, String> = BTreeMap::new();
    for record in records {
        let number = record["value"].as_u64().unwrap() as usize;
        let before = last.insert(record["partition"].as_i64().unwrap(), number);
        assert!(before.is_none_or(|before| before < number), "{record} after {before:?}");
        let id = record["transaction_id"].as_str().unwrap();
        let known = chunks.entry(number / size).or_insert_with(|| id.to_owned());
        assert_eq!(known, id, "{record}");
        numbers.push(number);
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..lines).collect::<Vec<_>>());
    let ids: Vec<String> = chunks.into_values().collect();
    assert!(ids.is_sorted() && ids.windows(2).all(|two| two[0] != two[1]), "{ids:?}");
    ids
}

async fn committed(client: &Client) -> Option<usize> {
    let path = "/v1/transactions?state=committed&limit=1000";
    let list = client.send(reqwest::Method::GET, path, &[], None).await.ok()?;
    let list: Value = serde_json::from_str(&list.text).ok()?;
    Some(list["transactions"].as_array()?.len())
}

/// The server, its PostgreSQL (which flushes) and the producer are killed in the middle of it:
/// where, the log's own progress decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transaction_is_there_once_and_complete_under_kills() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (dir, input) = (support::open_dir(), tempfile::tempdir().unwrap());
    let (data_dir, listen) =
        (dir.path().join("data"), format!("127.0.0.1:{}", fixed_port(&mut rng)));
    let mut server = Process::embedded(&listen, &data_dir).await;
    let (url, client) = (server.url.clone(), Client::new(&server.url, None));
    client.put_topic("t", 3).await;
    let (lines, id) = (900 * SIZE - 7, new_id());
    let file = numbered(input.path(), lines);
    let mut producer = produce(&url, &file, &id, &[]).spawn().unwrap();
    let rounds =
        ["oncelog", "PRODUCER", "Postgres", "PRODUCER oncelog", "PRODUCER Postgres oncelog"];
    for (round, killed) in (1..).zip(rounds) {
        let count = round * 120 + rng.random_range(0..60);
        let count = until(&format!("{count} transactions"), async || {
            committed(&client).await.filter(|committed| *committed >= count)
        })
        .await;
        println!("{killed} killed at {count}");
        assert!(producer.try_wait().unwrap().is_none(), "{killed}: it was no longer in the middle");
        let is_killed = |what| killed.contains(what);
        if is_killed("PRODUCER") {
            producer.kill().unwrap();
            producer.wait().unwrap();
        }
        if is_killed("Postgres") {
            kill_9_postmaster(&data_dir);
        }
        if is_killed("oncelog") {
            server.kill_9().await;
            server = Process::embedded(&listen, &data_dir).await;
        }
        if is_killed("PRODUCER") {
            producer = produce(&url, &file, &id, &[]).spawn().unwrap();
        }
    }
    let output = ended(producer).await;
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    println!("{}", output.stderr);
    assert!(output.stderr.contains("transactions of earlier runs"), "{}", output.stderr);
    let ids = judge(&records(&url).await, lines, SIZE);
    assert_eq!((ids.len(), &ids[0]), (900, &id));
}

/// Stands before a server, and loses every third answer: the connection ends in its place.
async fn losing_answers(url: &str) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = format!("http://{}", listener.local_addr().unwrap());
    let (server, answers) = (url.strip_prefix("http://").unwrap().to_owned(), Arc::default());
    let counted: Arc<AtomicU64> = Arc::clone(&answers);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (server, answers) = (server.clone(), counted.clone());
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
                loop {
                    tokio::select! {
                        read = client.read(&mut asked) => {
                            let Ok(n @ 1..) = read else { return };
                            server.write_all(&asked[..n]).await.unwrap();
                        }
                        read = server.read(&mut answered) => {
                            let Ok(n @ 1..) = read else { return };
                            if answers.fetch_add(1, Relaxed) % 3 == 0 {
                                return;
                            }
                            client.write_all(&answered[..n]).await.unwrap();
                        }
                    }
                }
            });
        }
    });
    (here, answers)
}

/// Answers of the server to the producer, and of PostgreSQL to the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_neither_double_nor_lose_a_transaction() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let options = support::database().await;
    let proxy = Proxy::start(&options, seed).await;
    let served = Served::start(&proxy.options(&options), Default::default()).await;
    served.client.put_topic("t", 3).await;
    let (url, answers) = losing_answers(&served.client.url).await;
    let input = tempfile::tempdir().unwrap();
    let file = numbered(input.path(), 40 * SIZE);
    proxy.lose_answers(30_000);
    let (size, path) = (SIZE.to_string(), file.to_str().unwrap());
    let arguments = ["produce", path, "--topic", "t", "--transaction-size", &size];
    let output = run(client(&url, &arguments)).await;
    proxy.lose_answers(0);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    println!(
        "{} answers, {} cuts; {}",
        answers.load(Relaxed),
        proxy.cuts.load(Relaxed),
        output.stderr
    );
    let stored = format!("stored {} records in 40 transactions to t in ", 40 * SIZE);
    assert!(output.stderr.contains(&stored), "{}", output.stderr);
    assert!(output.stderr.contains("; retried "), "{}", output.stderr);
    assert_eq!(judge(&records(&served.client.url).await, 40 * SIZE, SIZE).len(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_again_with_the_same_id_it_goes_on_and_wants_the_same_input() {
    let served = Served::alone().await;
    let (url, dir) = (served.client.url.as_str(), tempfile::tempdir().unwrap());
    served.client.put_topic("t", 2).await;
    let id = run(oncelog(&["txn", "id"])).await.stdout.trim().to_owned();
    // what was killed after 0 to 9 transactions
    for done in [0, 1, 2, 3, 7, 9] {
        let file = numbered(dir.path(), done * SIZE);
        let output = run(produce(url, &file, &id, &[])).await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);
        assert_eq!(judge(&records(url).await, done * SIZE, SIZE).len(), done);
    }
    let whole = numbered(dir.path(), 9 * SIZE + 1);
    let last = run(produce(url, &whole, &id, &[])).await;
    assert!(last.stderr.contains("stored 1 record in 1 transaction to t"), "{}", last.stderr);
    assert!(last.stderr.contains("skipped 9 transactions of earlier runs"), "{}", last.stderr);
    let again = run(produce(url, &whole, &id, &[])).await;
    assert!(again.stderr.contains("stored 0 records in 0 transactions"), "{}", again.stderr);

    let shorter = numbered(dir.path(), 5 * SIZE);
    let shorter = run(produce(url, &shorter, &id, &[])).await;
    assert!(shorter.failed(1).contains("holds 10 transactions of this --transaction-id, but the"));
    let longer = numbered(dir.path(), 9 * SIZE + 2);
    let longer = run(produce(url, &longer, &id, &[])).await;
    let told = longer.failed(1);
    assert!(
        told.contains("lines 181 to 182 are not what was sent before as transaction 9"),
        "{told}"
    );
    let other = run(produce(url, &whole, &id, &["--partition", "0"])).await;
    assert!(other.failed(1).contains("or another --transaction-id"), "{}", other.stderr);
    judge(&records(url).await, 9 * SIZE + 1, SIZE);

    // an id of long ago: nobody knows any more whether it has run
    let old = "01700000-0000-7000-8000-000000000000";
    let old = run(produce(url, &whole, old, &[])).await;
    let told = old.failed(1);
    assert!(told.contains("(transaction_expired, HTTP 410)"), "{told}");
    assert!(told.contains("transaction_retention_ms (7 days"), "{told}");
    // one that something else uses
    let begun = served.client.post("/v1/transactions", &json!({})).await.ok(201);
    let taken = run(produce(url, &whole, begun["transaction_id"].as_str().unwrap(), &[])).await;
    assert!(taken.failed(1).contains("is ongoing, so it is not of an earlier run"));
}

/// Both send the same transactions: neither is fenced, and each is stored once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_runs_with_one_id_store_each_transaction_once() {
    let served = Served::alone().await;
    let (url, dir) = (served.client.url.as_str(), tempfile::tempdir().unwrap());
    served.client.put_topic("t", 2).await;
    let (file, id) = (numbered(dir.path(), 30 * SIZE), new_id());
    let runs = [(); 3].map(|()| produce(url, &file, &id, &[]).spawn().unwrap());
    for run in runs {
        let output = ended(run).await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);
    }
    assert_eq!(judge(&records(url).await, 30 * SIZE, SIZE).len(), 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limits_of_a_topic_hold_for_the_appends_of_a_transaction() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("t", 1).await;
    served.client.put_topic("copy", 1).await;
    let small = ["max_batch_records=10", "max_transaction_batches=4"];
    run(client(url, &[&["settings", "set"], &small[..]].concat())).await.lines();
    let publish = |size: &'static str, more: &[&'static str]| {
        let arguments = ["produce", "--topic", "t", "--plain", "--transaction-size", size];
        client(url, &[&arguments[..], more].concat())
    };
    let lines: String = (0..30).map(|number| format!("line {number}\n")).collect();
    let refused = run_with(publish("30", &[]), lines.clone()).await;
    let told = refused.failed(1);
    assert!(told.contains("transaction 0, from line 1: ") && told.contains("(batch_too_large, "));
    assert!(told.contains("give a smaller --batch-size"), "{told}");
    let refused = run_with(publish("30", &["--batch-size", "6"]), lines.clone()).await;
    let told = refused.failed(1);
    assert!(told.contains("(transaction_too_large, HTTP 413)"), "{told}");
    assert!(told.contains("give a smaller --transaction-size"), "{told}");
    assert!(records(url).await.is_empty());
    run_with(publish("30", &["--batch-size", "10"]), lines).await.lines();
    let read = records(url).await;
    assert!(
        read.len() == 30 && read.iter().all(|r| r["transaction_id"] == read[0]["transaction_id"])
    );
    let id = read[0]["transaction_id"].as_str().unwrap();
    let shown = &run(client(url, &["txn", "show", id])).await.lines()[0];
    assert_eq!((&shown["state"], &shown["append_count"]), (&json!("committed"), &json!(3)));

    // 16 MiB are the largest request, here or as the server is configured
    let huge = format!("{}\n", "x".repeat(1 << 20)).repeat(17);
    let refused = run_with(publish("17", &[]), huge).await;
    assert!(refused.failed(1).contains("give a smaller --transaction-size"), "{}", refused.stderr);

    // what a read prints can be published as it is
    let piped = run(client(url, &["consume", "--topic", "t"])).await.stdout;
    let copy = ["produce", "--topic", "copy", "--transaction-size", "8", "--partition", "0"];
    run_with(client(url, &copy), piped).await.lines();
    let copied = run(client(url, &["consume", "--topic", "copy"])).await.lines();
    let values = |records: &[Value]| records.iter().map(|r| r["value"].clone()).collect::<Vec<_>>();
    assert_eq!(values(&copied), values(&read));
    assert!(copied.iter().all(|record| record["transaction_id"] != id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_too_large_for_the_server_is_refused_at_once() {
    let limits = Limits { max_body_bytes: 10_000, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    server.topic("t", 1).await;
    let arguments = ["produce", "--topic", "t", "--plain", "--transaction-size", "1000"];
    let lines = "a line of text\n".repeat(1_000);
    let url = format!("http://{}", server.address);
    let refused = run_with(client(&url, &arguments), lines).await;
    let told = refused.failed(1);
    assert!(told.contains("transaction 0, from line 1: ") && told.contains("(payload_too_large, "));
    assert!(told.contains("max_body_bytes, 16 MiB unless configured"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_line_leaves_nothing_of_its_transaction() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("t", 1).await;
    let publish = |more: &[&'static str]| {
        let arguments = ["produce", "--topic", "t", "--transaction-size", "3", "--batch-size", "2"];
        client(url, &[&arguments[..], more].concat())
    };
    let good = "{\"value\":1}\n";
    // the server's word on it, and this command's: a line is one record, whatever it holds
    for (bad, words) in [
        ("{\"valu\":1}", "line 7: "),
        ("{\"value\":1},{\"value\":2}", "line 7: not a record: "),
        ("]}", "line 7: not a record: "),
    ] {
        let input = format!("{}\n{}{bad}\n{good}", good.repeat(3), good.repeat(2));
        let output = run_with(publish(&[]), input).await;
        let told = output.failed(1);
        assert!(told.contains(words), "{told}");
        assert!(told.contains("before that it stored 3 records in 1 transaction"), "{told}");
    }
    assert_eq!(records(url).await.len(), 9);
    let nowhere = ["produce", "--topic", "absent", "--transaction-size", "3"];
    let nowhere = run_with(client(url, &nowhere), good).await;
    let told = nowhere.failed(1);
    assert!(told.contains("topic_not_found") && told.contains("oncelog topic create"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_sees_transactions_and_ends_what_is_stuck() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("t", 1).await;
    let post = async |path: &str, body: Value| served.client.post(path, &body).await;
    let session = post("/v1/sessions", json!({})).await.ok(201);
    let [producer, epoch] = [&session["producer_id"], &session["epoch"]];
    let bound = json!({"producer_id": producer, "epoch": epoch});
    let records = json!([{"topic": "t", "records": [{"value": 1}, {"value": 2}]}]);
    let whole = json!({"commit": true, "appends": records});
    let whole = id_of(&post("/v1/transactions", whole).await.ok(201));
    let ongoing = id_of(&post("/v1/transactions", bound.clone()).await.ok(201));
    let prepared = id_of(&post("/v1/transactions", json!({"appends": records})).await.ok(201));
    post(&format!("/v1/transactions/{prepared}/prepare"), json!({})).await.ok(200);

    let list = async |more: &[&str]| {
        let listed = run(client(url, &[&["txn", "list"], more].concat())).await.lines();
        listed.iter().map(id_of).collect::<Vec<_>>()
    };
    assert_eq!(list(&[]).await, [&*prepared, &*ongoing, &*whole]);
    assert_eq!(list(&["--state", "prepared"]).await, [&*prepared]);
    assert_eq!(list(&["--producer", &producer.to_string()]).await, [&*ongoing]);
    assert_eq!(list(&["--older-than", "1h"]).await, [""; 0]);
    assert_eq!(list(&["--limit", "2"]).await, [&*prepared, &*ongoing]);
    assert_eq!(list(&["--limit", "0"]).await, [""; 0]);
    let txn = async |verb: &str, id: &str| run(client(url, &["txn", verb, id])).await;
    let shown = &txn("show", &whole).await.lines()[0];
    let place = json!([{"topic": "t", "partition": 0, "base_offset": 0, "record_count": 2}]);
    assert_eq!((&shown["state"], &shown["appends"]), (&json!("committed"), &place));

    let refused = txn("commit", &ongoing).await;
    let told = refused.failed(1);
    assert!(told.contains("an operator can commit only prepared transactions"), "{told}");
    assert!(told.contains(&format!("`oncelog txn abort {ongoing}`")), "{told}");
    let already = format!("transaction {ongoing} was already aborted (operator)");
    for done in [format!("aborted transaction {ongoing}"), already] {
        let aborted = txn("abort", &ongoing).await;
        assert_eq!(aborted.lines()[0]["reason"], "operator");
        assert_eq!(aborted.stderr, format!("oncelog: {done}\n"));
    }
    let already = format!("transaction {prepared} was already committed");
    for done in [format!("committed transaction {prepared}"), already] {
        let committed = txn("commit", &prepared.to_uppercase()).await;
        assert_eq!(committed.lines()[0]["appends"][0]["base_offset"], 2);
        assert_eq!(committed.stderr, format!("oncelog: {done}\n"));
    }
    let late = txn("abort", &prepared).await;
    let told = late.failed(1);
    assert!(
        told.contains("(invalid_transaction_state, HTTP 409); see `oncelog txn show "),
        "{told}"
    );
    let unknown = txn("show", &new_id()).await;
    let told = unknown.failed(1);
    assert!(told.contains("transaction_not_found") && told.contains("oncelog txn list"), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_goes_through_all_pages() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    let whole = json!({"commit": true});
    let ongoing = id_of(&served.client.post("/v1/transactions", &json!({})).await.ok(201));
    for _ in 0..17 {
        let begins = (0..64).map(|_| served.client.post("/v1/transactions", &whole));
        join_all(begins).await.iter().for_each(|begun| drop(begun.ok(201)));
    }
    let list =
        async |more: &[&str]| run(client(url, &[&["txn", "list"], more].concat())).await.lines();
    let listed = list(&[]).await;
    let ids: BTreeSet<String> = listed.iter().map(id_of).collect();
    assert_eq!((listed.len(), ids.len(), ids.contains(&ongoing)), (17 * 64 + 1, 17 * 64 + 1, true));
    let committed = list(&["--state", "committed"]).await;
    assert_eq!(committed.len(), 17 * 64);
    assert!(committed.iter().all(|transaction| transaction["state"] == "committed"));
    assert!(listed.iter().map(id_of).is_sorted_by(|newer, older| newer > older));
    assert_eq!(list(&["--limit", "3"]).await, listed[..3]);
    assert_eq!(list(&["--limit", "1003"]).await, listed[..1003]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_a_transaction_needs_the_operators_scope() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    // its token has admin, produce and consume
    let (_process, server) = replica(&proxy, &options).await;
    let begun = server.post("/v1/transactions", &json!({})).await.ok(201);
    let id = begun["transaction_id"].as_str().unwrap();
    let as_client = |verb: &str| {
        let mut command = client(&server.url, &["txn", verb, id]);
        command.env("ONCELOG_TOKEN", server.token.as_deref().unwrap());
        command
    };
    for verb in ["abort", "commit"] {
        let output = run(as_client(verb)).await;
        let told = output.failed(1);
        assert!(told.contains("The token's scope lacks operator. (forbidden, HTTP 403)"), "{told}");
    }
    assert_eq!(run(as_client("show")).await.lines()[0]["state"], "ongoing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_it_says_how_to_go_on() {
    let served = Served::alone().await;
    let url = served.client.url.as_str();
    served.client.put_topic("t", 1).await;
    let id = new_id();
    let table: [(&[&str], &str); 2] = [
        (&[], "without --transaction-id the run cannot be resumed"),
        (&["--transaction-id", &id], "run the same command again to resume"),
    ];
    for (more, words) in table {
        let arguments = ["produce", "--topic", "t", "--plain", "--transaction-size", "1"];
        let mut command = client(url, &[&arguments[..], more].concat());
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let before = records(url).await.len();
        std::io::Write::write_all(&mut stdin, b"one\n").unwrap();
        until("its record", async || (records(url).await.len() > before).then_some(())).await;
        let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        let output = ended(child).await;
        assert!(output.failed(130).contains(words), "{}", output.stderr);
    }
}
