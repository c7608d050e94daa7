//! What the documents for users say is what the program does.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use futures_util::future::join_all;
use oncelog::{
    config::{KEYS, Key},
    model::{
        Code,
        settings::{self, Setting},
    },
};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use uuid::Uuid;

use crate::{
    cli::{oncelog, run},
    support::{self, served::Process},
};

const WRITE: &str = "ONCELOG_TEST_WRITE_DOCS";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// A request, and what it is said to be answered.
struct Exchange {
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<String>,
    status: String,
    answer: Option<Value>,
}

/// The fenced blocks, in order, which must all be examples, or drawings; those of one block,
/// divided by `---`, are sent at the same time.
fn examples(document: &str) -> Vec<Vec<Exchange>> {
    let blocks: Vec<&str> = document.split("```http\n").skip(1).collect();
    let count = blocks.len() + document.matches("```text\n").count();
    assert_eq!(document.matches("```").count(), 2 * count, "a block that is no example");
    let block = |text: &str| -> Vec<Exchange> {
        let (block, _) = text.split_once("\n```").unwrap();
        block.split("\n---\n").map(exchange).collect()
    };
    blocks.into_iter().map(block).collect()
}

fn exchange(text: &str) -> Exchange {
    let (request, answer) = text.split_once("\n\n").unwrap();
    let (head, mut body) = request.split_once('\n').unwrap_or((request, ""));
    let (method, path) = head.split_once(' ').unwrap();
    let mut headers = Vec::new();
    while let Some((name, rest)) = body.split_once(": ").filter(|_| !body.starts_with('{')) {
        let (value, rest) = rest.split_once('\n').unwrap_or((rest, ""));
        headers.push((name.to_owned(), value.to_owned()));
        body = rest;
    }
    let (status, answer) = answer.split_once('\n').unwrap_or((answer, ""));
    let answer = answer.replace(", ...}", ", \"...\": null}");
    let answer = (!answer.is_empty())
        .then(|| serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}")));
    Exchange {
        method: method.parse().unwrap(),
        path: path.to_owned(),
        headers,
        body: (!body.is_empty()).then(|| body.to_owned()),
        status: status.to_owned(),
        answer,
    }
}

/// What stands in the document for what is another one in each run: the same there, the same here.
#[derive(Default)]
struct StandIns {
    ids: BTreeMap<Uuid, Uuid>,
    instants: BTreeMap<String, String>,
    /// What the server makes up: cursors, and ids that an answer names first.
    made: BTreeMap<String, String>,
}

impl StandIns {
    /// The text with ids of today, in the order in which the document first names them. Those of
    /// years ago stay: they are meant to be old.
    fn fill(&mut self, text: &str) -> String {
        let text = &self.with_made(text);
        const RECENT: u64 = 1_735_689_600; // 2025 began
        let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
        let fill = |piece: &str| {
            let word = piece.trim_end_matches(|c| !is_part(c));
            let id = Uuid::try_parse(word).ok().filter(|id| {
                word.len() == 36 && id.get_timestamp().is_some_and(|t| t.to_unix().0 >= RECENT)
            });
            let Some(id) = id.filter(|_| !self.made.values().any(|made| made == word)) else {
                return piece.to_owned();
            };
            let fresh = self.ids.entry(id).or_insert_with(Uuid::now_v7);
            format!("{fresh}{}", &piece[word.len()..])
        };
        text.split_inclusive(|c| !is_part(c)).map(fill).collect()
    }

    fn with_made(&self, text: &str) -> String {
        let made = self.made.iter();
        made.fold(text.to_owned(), |text, (stated, actual)| text.replace(stated, actual))
    }

    /// An exchange with ids of today.
    fn filled(&mut self, example: &Exchange) -> Exchange {
        Exchange {
            method: example.method.clone(),
            path: self.fill(&example.path),
            headers: example.headers.iter().map(|(n, v)| (n.clone(), self.fill(v))).collect(),
            body: example.body.as_ref().map(|body| self.fill(body)),
            status: example.status.clone(),
            answer: example.answer.as_ref().map(|answer| self.filled_answer(answer)),
        }
    }

    /// Ids that the server makes stay: see `make_up`.
    fn filled_answer(&mut self, answer: &Value) -> Value {
        let mut filled: Value = serde_json::from_str(&self.fill(&answer.to_string())).unwrap();
        if let Some(made) = answer.get("member_id") {
            filled["member_id"] = made.clone();
        }
        filled
    }

    /// Every stated field is in the answer as it is stated; others are only where `...` stands.
    fn is_said(&mut self, stated: &Value, answer: &Value) -> bool {
        match (stated, answer) {
            (Value::Object(stated), Value::Object(answer)) => {
                let is_part = stated.contains_key("...");
                let mut fields = stated.iter().filter(|(name, _)| *name != "...");
                (is_part || stated.len() == answer.len())
                    && fields.all(|(name, stated)| {
                        answer.get(name).is_some_and(|answer| {
                            self.make_up(name, stated, answer);
                            self.is_said(stated, answer)
                        })
                    })
            }
            (Value::Array(stated), Value::Array(answer)) => {
                stated.len() == answer.len()
                    && stated
                        .iter()
                        .zip(answer)
                        .all(|(stated, answer)| self.is_said(stated, answer))
            }
            (Value::String(stated), Value::String(answer)) if is_instant(stated) => {
                is_instant(answer)
                    && self.instants.entry(stated.clone()).or_insert(answer.clone()) == answer
            }
            (Value::String(stated), answer) => *answer == *self.with_made(stated),
            _ => stated == answer,
        }
    }

    /// What the server has made up, when it is answered first.
    fn make_up(&mut self, name: &str, stated: &Value, answer: &Value) {
        if let ("cursor" | "member_id", Some(stated), Some(answer)) =
            (name, stated.as_str(), answer.as_str())
        {
            self.made.entry(stated.to_owned()).or_insert_with(|| answer.to_owned());
        }
    }
}

fn is_instant(text: &str) -> bool {
    text.len() == 24 && chrono::DateTime::parse_from_rfc3339(text).is_ok()
}

/// Sends all examples of a document to a fresh server; answers the codes of the problems, each
/// once.
async fn answered_as_it_says(name: &str) -> BTreeSet<String> {
    let dir = support::open_dir();
    let data_dir = dir.path().join("data");
    // the requests that are sent at the same time must find each other on a busy machine too
    let arguments = ["--listen", "127.0.0.1:0", "--gap-wait-ms", "3000", "--data-dir"];
    let arguments = [&arguments[..], &[data_dir.to_str().unwrap()]].concat();
    let server = Process::serve(&arguments, &[]).await;
    let http = reqwest::Client::new();
    let mut stand_ins = StandIns::default();
    let mut codes = BTreeSet::new();
    for block in examples(&document(name)) {
        let block: Vec<_> = block.iter().map(|example| stand_ins.filled(example)).collect();
        let sent = block.iter().map(|example| {
            let url = format!("{}{}", server.url, example.path);
            let mut request = http.request(example.method.clone(), url);
            for (name, value) in &example.headers {
                request = request.header(name, value);
            }
            if let Some(body) = &example.body {
                request = request.header("content-type", "application/json").body(body.clone());
            }
            async move {
                let answer = request.send().await.unwrap();
                (answer.status(), answer.text().await.unwrap())
            }
        });
        for (example, (status, text)) in block.iter().zip(join_all(sent).await) {
            let Exchange { method, path, headers, body, status: stated, answer } = example;
            let wrong = format!("{method} {path} {headers:?} {body:?}: {status} {text}");
            assert_eq!(status_line(status), *stated, "{wrong}");
            let actual = (!text.is_empty()).then(|| serde_json::from_str(&text).unwrap());
            let is_said = match (answer, &actual) {
                (Some(stated), Some(actual)) => stand_ins.is_said(stated, actual),
                (stated, actual) => stated == actual,
            };
            assert!(is_said, "{wrong}");
            codes.extend(actual.and_then(|actual| Some(actual["code"].as_str()?.to_owned())));
        }
    }
    codes
}

/// Sends all examples of a document: their problems have these codes, and no others.
async fn check_examples(name: &str, codes: &str) {
    let answered: Vec<String> = answered_as_it_says(name).await.into_iter().collect();
    assert_eq!(answered.join(" "), codes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_sequences_is_answered_as_it_says() {
    let codes = "invalid_producer_epoch out_of_order_sequence producer_fenced sequence_reused \
        unknown_producer unknown_producer_state";
    check_examples("docs/sequences.md", codes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_transactions_is_answered_as_it_says() {
    let codes = "concurrent_transactions group_not_found idempotency_key_reused \
        invalid_transaction_state offset_commit_conflict producer_fenced topic_in_use transaction_expired \
        transaction_not_found transaction_reused";
    check_examples("docs/transactions.md", codes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_dedup_is_answered_as_it_says() {
    let codes = "duplicate_record idempotency_key_expired idempotency_key_reused record_id_reused";
    check_examples("docs/dedup.md", codes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_groups_is_answered_as_it_says() {
    let codes = "illegal_generation offset_commit_conflict unknown_member";
    check_examples("docs/groups.md", codes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_operating_groups_is_answered_as_it_says() {
    check_examples("docs/operating-groups.md", "group_not_found").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_tenants_is_answered_as_it_says() {
    check_examples("docs/tenants.md", "forbidden invalid_request").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_retention_is_answered_as_it_says() {
    check_examples("docs/retention.md", "offset_out_of_range").await;
}

fn status_line(status: StatusCode) -> String {
    format!("{} {}", status.as_str(), status.canonical_reason().unwrap())
}

/// Unit and kind of what a key takes.
fn unit(key: &Key) -> &'static str {
    match key.value_name {
        "ADDRESS" => "IP address and port",
        "DIR" => "directory",
        "FILE" => "file",
        "URL" => "URL",
        "SECRET" | "NAME" => "text",
        "COUNT" => "number",
        "MS" => "time",
        "BYTES" => "size",
        "FORMAT" | "LEVEL" | "WHICH" => "word",
        "NETWORKS" => "networks",
        "MAXIMA" => "maxima of settings",
        "BOOL" => "true or false",
        other => panic!("what is a {other}?"),
    }
}

/// The table of docs/configuration.md.
fn table() -> String {
    let mut table = "| key in the file | flag | environment | default | unit | meaning |\n\
                     |---|---|---|---|---|---|\n"
        .to_owned();
    for key in KEYS {
        let (name, flag, unit, meaning) = (key.name, key.flag(), unit(key), key.doc.trim());
        let variables: Vec<String> = key.variables().iter().map(|v| format!("`{v}`")).collect();
        let variables = variables.join(" or ");
        let default = match key.default {
            "" => "none".to_owned(),
            _ => format!("`{}`", key.shown_default()),
        };
        table +=
            &format!("| `{name}` | `--{flag}` | {variables} | {default} | {unit} | {meaning} |\n");
    }
    table
}

/// The table of docs/settings.md.
fn settings_table() -> String {
    let mut table = "| setting | default | from | to | null | topics | meaning |\n\
                     |---|---|---|---|---|---|---|\n"
        .to_owned();
    for key in settings::Key::ALL {
        let Setting { name, default, minimum, maximum, nullable, choices, of_topics, help } =
            key.setting();
        let may = |may| if may { "yes" } else { "no" };
        let (null, topics) = (may(nullable), may(of_topics));
        let (minimum, maximum) = match choices {
            [] => (minimum.to_string(), maximum.to_string()),
            choices => (format!("one of {}", choices.join(", ")), String::new()),
        };
        table += &format!(
            "| `{name}` | {default} | {minimum} | {maximum} | {null} | {topics} | {help} |\n"
        );
    }
    table
}

/// `make docs` writes it.
#[track_caller]
fn holds_the_table(name: &str, table: &str) {
    const BEGIN: &str = "<!-- from here to the end of the table: written by `make docs` -->\n\n";
    let written = document(name);
    let (before, rest) = written.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once("\n\n").unwrap();
    let document = format!("{before}{BEGIN}{table}\n{after}");
    if std::env::var_os(WRITE).is_some() {
        fs::write(root().join(name), &document).unwrap();
    } else {
        assert!(written == document, "{name} is not the code's: run `make docs`");
    }
}

#[test]
fn the_table_of_the_configuration_is_the_codes() {
    holds_the_table("docs/configuration.md", &table());
}

#[test]
fn the_table_of_the_settings_is_the_codes() {
    holds_the_table("docs/settings.md", &settings_table());
}

#[tokio::test]
async fn help_and_config_say_the_same_as_the_table() {
    for command in ["serve", "config"] {
        let mut help = oncelog(&[command, "--help"]);
        help.env("COLUMNS", "1000");
        let help = run(help).await.stdout;
        for key in KEYS {
            let start = format!("--{} <{}> ", key.flag(), key.value_name);
            let line = help.lines().find(|line| line.trim_start().starts_with(&start)).unwrap();
            let default = match key.default {
                "" => String::new(),
                _ => format!(" [default: {}]", key.shown_default()),
            };
            let file = key.file_variable(&key.variable());
            let variables: Vec<String> = key.variables().into_iter().chain(file).collect();
            let variables = variables.join(" or ");
            let end = format!("{}{default} [env: {variables}]", key.doc.trim());
            assert!(line.ends_with(&end), "{line}");
        }
    }
    let config = run(oncelog(&["config"])).await.stdout;
    let file: BTreeMap<String, toml::Value> = toml::from_str(&config).unwrap();
    assert!(config.lines().all(|line| line.ends_with("  # default")), "{config}");
    assert_eq!(file.len(), KEYS.len());
    for key in KEYS {
        let value = file[key.name].as_str().map(ToOwned::to_owned);
        let value = value.unwrap_or_else(|| file[key.name].as_integer().unwrap().to_string());
        assert_eq!(value, key.default, "{}", key.name);
    }
}

/// As headings are named in links to them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_leads_somewhere() {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let others =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "migrations/README.md"];
    let mut links = 0;
    for path in docs.chain(others.map(|name| root().join(name))) {
        let text = fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split_once(')').unwrap().0) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target: PathBuf =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link}", path.display());
            let found = anchor.is_empty()
                || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor);
            assert!(found, "{}: {link}", path.display());
            links += 1;
        }
    }
    assert!(links > 20, "{links}");
}

#[test]
fn every_error_code_has_its_section() {
    let text = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let sections: Vec<&str> = text.split("\n### ").skip(1).collect();
    let mut named: Vec<&str> = sections.iter().map(|s| s.split('\n').next().unwrap()).collect();
    named.sort_unstable();
    let mut codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    codes.sort_unstable();
    assert_eq!(named, codes);
    for code in Code::ALL {
        let (status, retry, effects) = (code.status(), code.retry(), code.side_effects());
        let line = format!(
            "{}\n\nHTTP {status} · retry {} · side effects {}\n\n**Cause",
            code.as_str(),
            retry.as_str(),
            effects.as_str()
        );
        assert!(sections.iter().any(|section| section.starts_with(&line)), "{line}");
    }
}
