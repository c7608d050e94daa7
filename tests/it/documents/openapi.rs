//! The OpenAPI document: the committed one is the code's, the served one is the same, it describes
//! and shows all there is, and what it shows is true.

use std::{collections::BTreeSet, fs, path::Path};

use oncelog::{http, model::Code};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    document::{API, at_the_documents_time, examples, fits, operations},
    http::{Answer, Server},
};

const WRITE: &str = "ONCELOG_TEST_WRITE_OPENAPI";
const PROBLEM: &str = "application/problem+json";
const NDJSON: &str = "application/x-ndjson";

/// `make openapi` writes it.
#[test]
fn the_committed_document_is_the_codes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json");
    let document = http::openapi().to_pretty_json().unwrap() + "\n";
    if std::env::var_os(WRITE).is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &document).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    // not assert_eq: nobody wants to read both
    assert!(committed == document, "openapi/openapi.json is not the code's: run `make openapi`");
}

#[tokio::test]
async fn the_served_document_is_the_same() {
    let answer = Server::signed().await.get("/openapi.json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.ok(), *API);
}

#[track_caller]
fn described(thing: &Value, at: &str) {
    let text = thing["description"].as_str().unwrap_or_default();
    assert!(text.len() > 1, "{at} has no description: {thing}");
}

#[test]
fn everything_is_described() {
    assert!(API["openapi"].as_str().unwrap().starts_with("3.1"));
    described(&API["info"], "info");
    let tags = API["tags"].as_array().unwrap();
    tags.iter().for_each(|tag| described(tag, "tag"));
    for (method, path, operation) in operations() {
        let at = format!("{method} {path}");
        described(operation, &at);
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{at}");
        let tag = &operation["tags"][0];
        assert!(tags.iter().any(|known| known["name"] == *tag), "{at}: {tag}");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{at}");
        for (status, response) in responses {
            described(response, &format!("{at} {status}"));
            let problem = status.starts_with('4') || status.starts_with('5');
            assert_eq!(response["content"].get(PROBLEM).is_some(), problem, "{at} {status}");
            for header in response["headers"].as_object().into_iter().flatten() {
                described(header.1, &at);
            }
        }
        if let Some(body) = operation.get("requestBody") {
            described(body, &format!("{at} body"));
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            described(parameter, &at);
            let in_path = path.contains(&format!("{{{}}}", parameter["name"].as_str().unwrap()));
            assert_eq!(in_path, parameter["in"] == "path", "{at}: {parameter}");
        }
    }
    for (name, schema) in API["components"]["schemas"].as_object().unwrap() {
        let properties = schema["properties"].as_object().into_iter().flatten();
        for (property, schema) in properties {
            let of = schema["$ref"]
                .as_str()
                .and_then(|at| API.pointer(at.trim_start_matches('#')))
                .unwrap_or(schema);
            let own = schema.get("description").map_or(of, |_| schema);
            described(own, &format!("{name}.{property}"));
        }
    }
}

/// Every example of a body fits its schema; there is no body without.
fn shown(content: &'static Value, at: &str) {
    for (media, content) in content.as_object().into_iter().flatten() {
        let examples = examples(content);
        assert!(!examples.is_empty(), "{at}: no example of {media}");
        for (name, example) in examples {
            fits(&content["schema"], example, &format!("{at} {media} {name}"));
        }
    }
}

#[test]
fn everything_is_shown_as_it_is_described() {
    for (method, path, operation) in operations() {
        let at = format!("{method} {path}");
        shown(&operation["requestBody"]["content"], &at);
        for (status, response) in operation["responses"].as_object().unwrap() {
            shown(&response["content"], &format!("{at} {status}"));
            let lines = &response["x-ndjson"];
            each_line_is(&lines["example"], &lines["schema"], &at);
        }
        let record = json!({"$ref": "#/components/schemas/Record"});
        each_line_is(&operation["requestBody"]["content"][NDJSON]["example"], &record, &at);
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let example = parameter.get("example").unwrap_or(&parameter["schema"]["examples"][0]);
            let required = parameter["required"] == true;
            assert_eq!(parameter.get("example").is_some(), required, "{at}: {parameter}");
            fits(&parameter["schema"], example, &format!("{at} {}", parameter["name"]));
        }
    }
}

fn each_line_is(lines: &Value, schema: &Value, at: &str) {
    for line in lines.as_str().into_iter().flat_map(str::lines) {
        fits(schema, &serde_json::from_str(line).unwrap(), at);
    }
}

#[test]
#[should_panic(expected = "colour")]
fn what_is_not_described_does_not_fit() {
    let health = json!({"$ref": "#/components/schemas/Health"});
    fits(&health, &json!({"status": "live"}), "this does");
    fits(&health, &json!({"status": "live", "colour": "green"}), "this does not");
}

/// What each says of a code, is said when it is answered: see `support::document::allows`.
#[test]
fn every_problem_is_shown() {
    for (method, path, operation) in operations() {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let at = format!("{method} {path} {status}");
            let Some(content) = response["content"].get(PROBLEM) else { continue };
            let words = response["description"].as_str().unwrap();
            let listed =
                Code::ALL.iter().filter(|code| words.contains(&format!("`{}`", code.as_str())));
            let listed: BTreeSet<&str> = listed.map(|code| code.as_str()).collect();
            let examples = examples(content);
            assert_eq!(
                examples.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(),
                listed,
                "{at}"
            );
            for (name, example) in examples {
                assert_eq!(example["status"].to_string(), *status, "{at}");
                assert_eq!(example["code"], name, "{at}");
            }
        }
    }
}

/// What is to be seen of an answer.
#[derive(Clone, Copy, PartialEq)]
enum Told {
    /// The document's example, but for the time of day.
    Exactly,
    /// The same in kind.
    Alike,
}
use Told::{Alike, Exactly};

const JSON: &str = "application/json";

/// On a new server, in this order, the examples can be sent as they are. An operation, its media
/// type or the name of its example, the status, and whether the answer is the one shown.
const STORY: &[(&str, &str, u16, Told)] = &[
    ("livez", "", 200, Exactly),
    ("readyz", "", 200, Exactly),
    ("metrics", "", 200, Alike),
    ("openapi", "", 200, Alike),
    ("docs", "", 200, Alike),
    ("docs_file", "", 200, Alike),
    ("docs_guide", "", 200, Alike),
    ("get_settings", "", 200, Exactly),
    ("patch_settings", JSON, 200, Exactly),
    ("put_topic", JSON, 201, Exactly),
    ("put_topic", JSON, 200, Exactly),
    ("get_topic", "", 200, Exactly),
    ("list_topics", "", 200, Exactly),
    ("patch_topic", JSON, 200, Exactly),
    ("open_session", "repeatable", 201, Exactly),
    ("open_session", "repeatable", 200, Exactly),
    ("append_to_topic", JSON, 200, Exactly),
    ("append_to_partition", JSON, 200, Exactly),
    ("read_partition", JSON, 200, Exactly),
    ("read_partition", NDJSON, 200, Exactly),
    ("read_topic", JSON, 200, Exactly),
    ("read_topic", NDJSON, 200, Exactly),
    ("read_topic_by_body", JSON, 200, Exactly),
    ("commit_group_offsets", "compare_and_set", 200, Exactly),
    ("commit_group_offsets", "unconditional", 200, Exactly),
    ("list_group_offsets", "", 200, Exactly),
    ("list_groups", "", 200, Exactly),
    ("get_group", "", 200, Exactly),
    ("join_group", "by_name", 201, Exactly),
    ("heartbeat", JSON, 200, Exactly),
    ("fetch_group", JSON, 200, Exactly),
    ("fetch_group", NDJSON, 200, Exactly),
    ("fetch_group_by_body", JSON, 200, Exactly),
    ("commit_group_offsets", "by_cursor", 200, Alike),
    ("leave_group", "", 204, Exactly),
    ("reset_group_offsets", "to_an_instant", 200, Alike),
    ("append_to_topic", NDJSON, 200, Alike),
    ("append_to_partition", NDJSON, 200, Alike),
    ("get_session", "", 200, Exactly),
    ("list_sessions", "", 200, Exactly),
    ("list_session_sequences", "", 200, Exactly),
    ("begin_transaction", "one_request", 201, Exactly),
    ("begin_transaction", "one_request", 200, Exactly),
    ("get_transaction", "", 200, Exactly),
    ("list_transactions", "", 200, Exactly),
    ("begin_transaction", "compare_and_set", 201, Alike),
    ("begin_transaction", "of_a_session", 201, Alike),
    ("append_to_transaction", JSON, 200, Exactly),
    ("add_offsets_to_transaction", "of_a_member", 200, Exactly),
    ("add_offsets_to_transaction", "compare_and_set", 200, Exactly),
    ("commit_transaction", "with_the_last", 200, Exactly),
    ("commit_transaction", "as_it_stands", 200, Alike),
    ("begin_transaction", "by_id", 201, Alike),
    ("prepare_transaction", JSON, 200, Exactly),
    ("abort_transaction", JSON, 200, Exactly),
    ("begin_transaction", "at_once", 201, Alike),
    ("open_session", "by_name", 201, Alike),
    ("end_session", "", 204, Exactly),
    ("reset_group_offsets", "back", 200, Alike),
    ("reset_group_offsets", "to_the_start", 200, Alike),
    ("delete_group", "", 204, Exactly),
    ("join_group", "static", 201, Alike),
    ("trim_partition", "", 204, Exactly),
    ("delete_topic", "", 204, Exactly),
    ("put_tenant", JSON, 201, Exactly),
    ("put_tenant", JSON, 200, Exactly),
    ("get_tenant", "", 200, Exactly),
    ("list_tenants", "", 200, Exactly),
    ("patch_tenant", JSON, 200, Exactly),
    ("revoke_tenant_tokens", JSON, 201, Alike),
    ("list_tenant_revocations", "", 200, Alike),
    ("remove_tenant_revocation", "", 204, Exactly),
    ("delete_tenant", "", 204, Exactly),
];

/// What stands in the document, and for what: how ids begin that must be new, and the id of the
/// member that has joined last.
type Stands = [(&'static str, String)];
const OLD: &str = "019aa5b6-5c00-7000-8000-";
const MEMBER: &str = "019aa5b6-5c00-7000-8000-00000000000a";

fn told_here(text: &str, stands: &Stands) -> String {
    stands.iter().fold(text.to_owned(), |text, (old, new)| text.replace(old, new))
}

/// Sends the example as is, but for ids.
async fn send(server: &Server, id: &str, show: &str, stands: &Stands) -> (Answer, &'static Value) {
    let found = operations().find(|(.., operation)| operation["operationId"] == id);
    let (method, path, operation) = found.unwrap_or_else(|| panic!("there is no operation {id}"));
    let mut path = path.to_owned();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let Some(example) = parameter.get("example") else { continue };
        let text = example.as_str().map_or_else(|| example.to_string(), ToOwned::to_owned);
        let name = parameter["name"].as_str().unwrap();
        if parameter["in"] == "path" {
            path = path.replace(&format!("{{{name}}}"), &text);
        } else {
            path += &format!("?{name}={text}");
        }
    }
    let mut call = server.call(&method.to_uppercase(), &told_here(&path, stands));
    if let Some(body) = operation.get("requestBody") {
        let media = if show.contains('/') { show } else { JSON };
        let shown = examples(&body["content"][media]);
        let example = shown.iter().find(|(name, _)| name.is_empty() || *name == show).unwrap().1;
        let text = example.as_str().map_or_else(|| example.to_string(), ToOwned::to_owned);
        call = call.header("content-type", media).body(told_here(&text, stands));
    } else if !show.is_empty() {
        call = call.header("accept", show);
    }
    (call.await, operation)
}

/// An answer as the document would show it.
fn shown_as(answer: &Answer, stands: &Stands) -> Value {
    let text = answer.text().to_owned();
    let text = stands.iter().fold(text, |text, (old, new)| text.replace(new, old));
    if answer.header("content-type") != Some(NDJSON) {
        return at_the_documents_time(&serde_json::from_str(&text).unwrap());
    }
    lines(&text)
}

fn lines(text: &str) -> Value {
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.map(|line: Value| at_the_documents_time(&line)).collect()
}

#[tokio::test]
async fn the_examples_are_a_true_story() {
    let server = Server::start().await;
    let new = Uuid::now_v7().to_string();
    let mut stands = [(MEMBER, "nobody".to_owned()), (OLD, new[..OLD.len()].to_owned())];
    let mut told: BTreeSet<(String, String)> = BTreeSet::new();
    for (id, show, status, how) in STORY {
        let (answer, operation) = send(&server, id, show, &stands).await;
        assert_eq!(answer.status, *status, "{id} {show}: {}", answer.text());
        if *id == "join_group" {
            stands[0].1 = answer.json()["member_id"].as_str().unwrap().to_owned();
        }
        told.insert(((*id).to_owned(), (*show).to_owned()));
        if *how == Exactly && *status != 204 {
            let media = answer.header("content-type").unwrap();
            let response = &operation["responses"][status.to_string()];
            let example =
                if media == NDJSON { &response["x-ndjson"] } else { &response["content"][media] };
            let example = &example["example"];
            let example = example.as_str().map_or_else(|| example.clone(), lines);
            assert_eq!(shown_as(&answer, &stands), example, "{id} {show}");
        }
    }
    // no operation and no example of a request is left out
    for (method, path, operation) in operations() {
        let id = operation["operationId"].as_str().unwrap();
        assert!(told.iter().any(|(told, _)| told == id), "{method} {path} ({id}) is not told");
        for (media, content) in
            operation["requestBody"]["content"].as_object().into_iter().flatten()
        {
            for (name, _) in examples(content) {
                let show = if name.is_empty() { media } else { name };
                let row = (id.to_owned(), show.to_owned());
                assert!(told.contains(&row), "{row:?} is not told");
            }
        }
    }
}
