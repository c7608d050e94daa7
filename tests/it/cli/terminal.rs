//! What a person at a terminal sees, and how a command ends that is interrupted.

use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use nix::{
    pty::{Winsize, openpty},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use super::{client, oncelog, run, run_with};
use crate::support::{
    self,
    proxy::Proxy,
    served::{Served, replica, until},
};

/// Nobody listens there.
const NOBODY: &str = "http://127.0.0.1:9";
const PRODUCE: &[&str] = &["produce", "--topic", "t", "--plain", "--batch-size", "1"];

/// A command on a terminal, and what has appeared there so far. Dropped, it is killed.
struct Terminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Runs a command whose output goes to a new terminal, and whose input comes from there unless
    /// it is another.
    fn run(command: Command, input: Option<Stdio>) -> Self {
        Self::of_width(100, command, input)
    }

    fn of_width(columns: u16, mut command: Command, input: Option<Stdio>) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let other_end = || Stdio::from(pty.slave.try_clone().unwrap());
        command.stdin(input.unwrap_or_else(other_end)).stdout(other_end()).stderr(other_end());
        let child = command.env("TERM", "xterm").spawn().unwrap();
        // so that the child's ends are the last ones
        drop((command, pty.slave));
        let mut master = File::from(pty.master);
        let keys = master.try_clone().unwrap();
        let screen = Arc::<Mutex<Vec<u8>>>::default();
        let shown = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                match master.read(&mut bytes) {
                    Ok(count) if count > 0 => {
                        shown.lock().unwrap().extend_from_slice(&bytes[..count]);
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // EIO: nobody holds the other end any more
                    _ => return,
                }
            }
        });
        Self { child, keys, screen, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    async fn until(&self, words: &str) {
        until(words, async || self.text().contains(words).then_some(())).await;
    }

    /// The exit code, and all that was shown.
    async fn end(mut self) -> (Option<i32>, String) {
        let status = until("it to end", async || self.child.try_wait().unwrap()).await;
        self.reader.take().unwrap().join().unwrap();
        (status.code(), self.text().replace('\r', ""))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// The same command, which SIGINT ends also where a shell runs the tests in the background: there
/// it is ignored, and a child would inherit that.
fn interruptible(command: &Command) -> Command {
    let mut same = Command::new("env");
    same.arg("--default-signal=INT").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => same.env(name, value),
            None => same.env_remove(name),
        };
    }
    same.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    same
}

async fn one_topic() -> Served {
    let served = Served::alone().await;
    served.client.put_topic("t", 1).await;
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_drawn_on_a_terminal_only_and_taken_away_at_the_end() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let terminal = Terminal::run(client(url, PRODUCE), Some(reader.into()));
    writer.write_all(b"one\ntwo\n").unwrap();
    terminal.until("2 records, ").await;
    drop(writer);
    let (code, text) = terminal.end().await;
    assert_eq!(code, Some(0), "{text}");
    let (drawn, last) = text.rsplit_once("oncelog: stored 2 records in 2 requests to t").unwrap();
    // the line of the bar is cleared before the last word is said
    assert!(drawn.ends_with("\u{1b}[2K"), "{text:?}");
    assert!(!last.contains("2 records, "), "{text:?}");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lines");
    std::fs::write(&file, "three\n").unwrap();
    let arguments = [PRODUCE, &[file.to_str().unwrap()]].concat();
    let terminal = Terminal::run(client(url, &arguments), None);
    let (code, text) = terminal.end().await;
    assert!(code == Some(0) && text.contains("stored 1 record in 1 request to t"), "{text:?}");

    let piped = run_with(client(url, PRODUCE), "four\n").await;
    assert_eq!((piped.code, &*piped.stdout), (Some(0), ""));
    assert!(piped.stderr.starts_with("oncelog: stored 1 record in 1 request to t in "));
    assert_eq!(piped.stderr.lines().count(), 1, "{:?}", piped.stderr);
    assert!(!piped.stderr.contains(['\u{1b}', '\r']), "{:?}", piped.stderr);
}

/// What a command shows on a terminal.
async fn shown(url: &str, arguments: &[&str]) -> String {
    let (code, text) = Terminal::run(client(url, arguments), None).end().await;
    assert_eq!(code, Some(0), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_get_tables_and_programs_json() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    let shown = async |arguments: &[&str]| shown(url, arguments).await;
    let list = shown(&["topic", "list"]).await;
    let rows: Vec<Vec<&str>> = list.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["topic", "partitions", "created"]);
    assert_eq!(rows[1][..2], ["t", "1"]);
    let topic = shown(&["topic", "describe", "t"]).await;
    assert!(topic.starts_with("t, created 20") && topic.contains("high watermark"), "{topic}");
    let as_json = shown(&["topic", "list", "--json"]).await;
    let item: serde_json::Value = serde_json::from_str(&as_json).unwrap();
    assert_eq!(item["topic"], "t");
    assert_eq!(run(client(url, &["topic", "list"])).await.lines()[0], item);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_see_times_and_sizes_with_units() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    let shown = async |arguments: &[&str]| shown(url, arguments).await;
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
    let settings =
        shown(&["settings", "set", "dedup_window_ms=2h", "max_batch_bytes=2097152"]).await;
    for row in [
        ["dedup_window_ms", "2h", "tenant", "3650d"],
        ["max_batch_bytes", "2MiB", "tenant", "16MiB"],
        ["max_topics", "1000", "default", "100000"],
    ] {
        assert!(settings.lines().any(|line| words(line) == row), "{settings}");
    }
    shown(&["topic", "set", "t", "retention_ms=7d", "cleanup=compact"]).await;
    served.client.append("t", 0, &[json!("x".repeat(2_000))]).await;
    let topic = shown(&["topic", "describe", "t"]).await;
    assert!(topic.contains("settings cleanup=compact retention_ms=7d\n"), "{topic}");
    assert!(topic.contains(" KiB"), "{topic}");
    let piped = run(client(url, &["topic", "describe", "t"])).await.lines();
    assert_eq!(piped[0]["settings"]["retention_ms"], 604_800_000);
    let config = shown(&["config", "--gap-wait-ms", "2000"]).await;
    assert!(config.contains("gap_wait_ms = \"2s\"  # flag --gap-wait-ms\n"), "{config}");
    assert!(config.contains("max_body_bytes = \"16MiB\"  # default\n"), "{config}");
    assert!(config.contains("snapshot_rows = 1000  # default\n"), "{config}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_fit_the_terminal() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    let join = json!({"topics": ["t"], "instance_id": "019aa5b6-5c00-7000-8000-00000000000f"});
    let joined = served.client.post("/v1/groups/billing/members", &join).await.ok(201);
    let member = joined["member_id"].as_str().unwrap();
    let open = json!({"transactional_id": "a-service-with-a-rather-long-name"});
    served.client.post("/v1/sessions", &open).await.ok(201);
    for (columns, is_whole) in [(60, false), (80, false), (130, true)] {
        for arguments in [
            &["group", "describe", "billing"][..],
            &["settings", "show"],
            &["session", "list"],
            &["topic", "list"],
        ] {
            let terminal = Terminal::of_width(columns, client(url, arguments), None);
            let (code, text) = terminal.end().await;
            println!("{columns}\n{text}");
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(code == Some(0) && widest <= columns.into(), "{widest} of {columns}: {text}");
            // an id is broken only where it must be
            if arguments[0] == "group" && is_whole {
                let partitions = text.split_once("owned").unwrap().1;
                assert!(partitions.contains(member), "{text}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_see_transactions_with_their_ages_and_where_their_records_lie() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    let begin = async |body| {
        let begun = served.client.post("/v1/transactions", &body).await.ok(201);
        begun["transaction_id"].as_str().unwrap().to_owned()
    };
    let appends = json!([{"topic": "t", "records": [{"value": 1}, {"value": 2}]}]);
    let whole = begin(json!({"commit": true, "appends": appends})).await;
    let prepared = begin(json!({"appends": appends})).await;
    let path = format!("/v1/transactions/{prepared}/prepare");
    served.client.post(&path, &json!({})).await.ok(200);
    let shown = async |arguments: &[&str]| {
        let terminal = Terminal::run(client(url, &[&["txn"], arguments].concat()), None);
        let (code, text) = terminal.end().await;
        assert_eq!(code, Some(0), "{text}");
        text
    };
    let list = shown(&["list"]).await;
    println!("{list}");
    let lines: Vec<&str> = list.lines().collect();
    let head: Vec<&str> = lines[0].split_whitespace().collect();
    let heads = ["transaction", "state", "age", "prepared", "for", "producer", "appends"];
    assert_eq!(head, heads);
    let row = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (second, first) = (row(lines[1]), row(lines[2]));
    assert_eq!((&first[..2], &*first[4]), (&[whole.clone(), "committed".to_owned()][..], "1"));
    assert_eq!(second[..2], [prepared.clone(), "prepared".to_owned()]);
    // an age, and for how long it is prepared
    assert!(second[3].starts_with("second") && second[5].starts_with("second"), "{list}");

    let text = shown(&["show", &whole]).await;
    println!("{text}");
    assert!(text.starts_with(&format!("{whole}, committed\nbegun 20")), "{text}");
    assert!(text.contains("\nno session\n1 append\n"), "{text}");
    let place: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(place, ["t", "0", "0", "2"]);
    let text = shown(&["abort", &prepared]).await;
    println!("{text}");
    assert!(text.contains(&format!("aborted transaction {prepared}\n")), "{text}");
    assert!(text.contains(&format!("{prepared}, aborted (operator)\n")), "{text}");
    assert!(!text.contains("base offset"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_see_groups_and_how_far_they_are_behind() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    served.client.append("t", 0, &[json!(1), json!(2), json!(3)]).await;
    let commit = json!({"offsets": [{"topic": "t", "partition": 0, "offset": 1}]});
    served.client.post("/v1/groups/billing/offsets", &commit).await.ok(200);
    let shown = async |arguments: &[&str]| {
        let terminal = Terminal::run(client(url, &[&["group"], arguments].concat()), None);
        let (code, text) = terminal.end().await;
        assert_eq!(code, Some(0), "{text}");
        text
    };
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
    let list = shown(&["list"]).await;
    assert_eq!(words(list.lines().nth(1).unwrap())[..4], ["billing", "0", "0", "earliest"]);
    let group = shown(&["describe", "billing"]).await;
    assert!(group.starts_with("billing, created 20") && group.contains("no members"), "{group}");
    assert!(group.lines().any(|line| words(line) == ["t", "0", "1", "3", "2"]), "{group}");
    assert!(group.contains("2 records behind"), "{group}");
    let reset = shown(&["reset", "billing", "--by", "1", "--dry-run"]).await;
    assert!(reset.lines().any(|line| words(line) == ["t", "0", "2"]), "{reset}");
    assert!(reset.contains("nothing changed"), "{reset}");
    let mut terminal = Terminal::run(client(url, &["group", "delete", "billing"]), None);
    terminal.until("Delete billing with all its offsets? Type its name: ").await;
    terminal.keys.write_all(b"mail\n").unwrap();
    let (code, text) = terminal.end().await;
    assert!(code == Some(1) && text.contains("nothing was deleted"), "{text}");
    assert!(shown(&["describe", "billing"]).await.contains("2 records behind"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_is_deleted_by_who_types_its_name() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    for (typed, code, words) in [("y\n", 1, "nothing was deleted"), ("t\n", 0, "deleted topic t")] {
        let mut terminal = Terminal::run(client(url, &["topic", "delete", "t"]), None);
        terminal.until("Delete t with all its records? Type its name: ").await;
        terminal.keys.write_all(typed.as_bytes()).unwrap();
        let (ended, text) = terminal.end().await;
        assert!(ended == Some(code) && text.contains(words), "{ended:?} {text}");
    }
    assert_eq!(run(client(url, &["topic", "list"])).await.stdout, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn produce_interrupted_tells_what_is_stored() {
    let served = one_topic().await;
    let url = served.client.url.as_str();
    let named = [PRODUCE, &["--transactional-id", "importer"]].concat();
    let table: [(&[&str], Signal, i32, &str); 3] = [
        (PRODUCE, Signal::SIGINT, 130, "without --transactional-id the run cannot be resumed"),
        (&named, Signal::SIGINT, 130, "run the same command again to resume"),
        (&named, Signal::SIGTERM, 143, "run the same command again to resume"),
    ];
    for (arguments, signal, code, words) in table {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let terminal = Terminal::run(client(url, arguments), Some(reader.into()));
        // a named run passes over what the one before it has stored
        writer.write_all(b"one\n").unwrap();
        if signal == Signal::SIGTERM {
            writer.write_all(b"two\n").unwrap();
        }
        terminal.until("1 records, ").await;
        send(&terminal.child, signal);
        let (ended, text) = terminal.end().await;
        assert_eq!(ended, Some(code), "{text:?}");
        let told = text.rsplit_once("oncelog: interrupted").unwrap().1;
        assert!(told.starts_with("\nbefore that it stored 1 record in 1 request to t"), "{told}");
        assert!(told.contains(words), "{told}");
    }
    let count = served.client.read("t", 0, "").await.ok(200)["high_watermark"].clone();
    assert_eq!(count, json!(3), "of `one` under a name there is one");

    // also while nobody answers
    let terminal = Terminal::run(client(NOBODY, PRODUCE), None);
    terminal.until("; retrying").await;
    send(&terminal.child, Signal::SIGINT);
    let (ended, text) = terminal.end().await;
    assert!(ended == Some(130) && text.contains("oncelog: interrupted\nwithout"), "{text:?}");
}

/// The reader of a pipe sees whole lines, and then its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consume_interrupted_ends_quietly() {
    let served = one_topic().await;
    served.client.append("t", 0, &[json!("one"), json!("two")]).await;
    let follow = ["consume", "--topic", "t", "--follow"];
    let follow = client(&served.client.url, &follow);
    let mut child = interruptible(&follow).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for value in ["one", "two"] {
        let line = lines.next().unwrap().unwrap();
        assert!(line.ends_with(&format!("\"value\":\"{value}\"}}")), "{line}");
    }
    send(&child, Signal::SIGINT);
    let output = tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
    // of which a shell says 130
    assert_eq!(output.status.signal(), Some(Signal::SIGINT as i32));
    assert_eq!((lines.count(), output.stderr), (0, Vec::new()));
}

/// Who reads the messages can do what they say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_not_taken_is_explained() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let (_process, server) = replica(&proxy, &options).await;
    let other = {
        let mut command =
            oncelog(&["token", "mint", "--tenant", "default", "--scope", "produce consume:a.*"]);
        command.env("ONCELOG_TOKEN_HS256_SECRET", "another secret of 32 bytes or so");
        run(command).await.stdout
    };
    for (token, words) in [("", "bearer token"), ("sesame", "JWT"), (other.trim(), "signature")] {
        let mut command = client(&server.url, &["topic", "list"]);
        command.env("ONCELOG_TOKEN", token);
        let output = run(command).await;
        let told = output.failed(1);
        println!("{told}");
        assert!(told.contains(words), "{told}");
        assert!(told.contains("(unauthenticated, HTTP 401); "), "{told}");
        assert!(told.contains("ONCELOG_TOKEN") && told.contains("oncelog token inspect"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}
