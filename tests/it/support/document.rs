//! The OpenAPI document as a judge, of its own examples and of whatever a test is answered.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, LazyLock, Mutex},
};

use jsonschema::{Draft, Validator};
use oncelog::http;
use serde_json::{Map, Value, json};

use super::http::Answer;

pub static API: LazyLock<Value> = LazyLock::new(|| serde_json::to_value(http::openapi()).unwrap());

/// Every operation: its method, its path and itself.
pub fn operations() -> impl Iterator<Item = (&'static str, &'static str, &'static Value)> {
    let paths = API["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
    })
}

/// All examples of a body: what each is called (nothing, if it is the only one), and itself.
pub fn examples(content: &'static Value) -> Vec<(&'static str, &'static Value)> {
    let one = content.get("example").map(|example| ("", example));
    let named = content["examples"].as_object().into_iter().flatten();
    let named = named.map(|(name, example)| {
        let shared = example["$ref"].as_str().map(|at| API.pointer(&at[1..]).unwrap());
        (name.as_str(), &shared.unwrap_or(example)["value"])
    });
    one.into_iter().chain(named).collect()
}

/// The components, with objects that have no members but those described.
static CLOSED: LazyLock<Value> = LazyLock::new(|| {
    let mut components = API["components"].clone();
    close(&mut components);
    components
});

fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.get("type").is_some() && members.contains_key("properties") {
                members.entry("additionalProperties").or_insert(Value::Bool(false));
            }
            members.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Panics if the value is not as the schema says.
#[track_caller]
pub fn fits(schema: &Value, value: &Value, at: &str) {
    static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let validator = {
        let mut known = KNOWN.lock().unwrap();
        let validator = known.entry(schema.to_string()).or_insert_with(|| {
            let mut root = schema.clone();
            root["components"] = CLOSED.clone();
            let options = jsonschema::options().with_draft(Draft::Draft202012);
            Arc::new(options.should_validate_formats(true).build(&root).unwrap())
        });
        validator.clone()
    };
    let faults: Vec<_> = validator
        .iter_errors(value)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{at}: {faults:?}");
}

/// Facts that a code has only at times: where the scope is the reason, and not that the tenant is
/// suspended; where a prepared transaction is; where one of several partitions is.
const SOMETIMES: [(&str, &str); 6] = [
    ("draining", "reason"),
    ("forbidden", "required_scope"),
    ("offset_commit_conflict", "transaction_id"),
    ("offset_out_of_range", "partition"),
    ("offset_out_of_range", "topic"),
    ("unavailable", "reason"),
];

/// Whatever a test is answered, the document says of the operation that it may be.
pub fn allows(method: &str, path: &str, answer: &Answer) {
    let path = path.split('?').next().unwrap();
    let fit = |template: &str| {
        let parts = |path: &str| path.split('/').count();
        let mut pairs = template.split('/').zip(path.split('/'));
        parts(template) == parts(path)
            && pairs.all(|(t, p)| t == p || t.starts_with('{') && !p.is_empty())
    };
    // other paths and methods are no operations: 404 and 405
    let method = method.to_ascii_lowercase();
    let known = operations().find(|(known, template, _)| *known == method && fit(template));
    let Some((.., operation)) = known else { return };
    let at = format!("{method} {path} {}", answer.status);
    let response = &operation["responses"][answer.status.to_string()];
    let words = response["description"].as_str();
    let words = words.unwrap_or_else(|| panic!("{at}: undocumented {answer:?}"));
    let media = answer.header("content-type").map(|media| media.split(';').next().unwrap());
    let Some(content) = response.get("content") else {
        assert!(answer.body.is_empty(), "{at}: undocumented {answer:?}");
        return;
    };
    let media = media.unwrap_or_default();
    let lines = &response["x-ndjson"];
    let content = if media == "application/x-ndjson" { lines } else { &content[media] };
    assert!(content.is_object(), "{at}: undocumented {media}");
    if content == lines {
        let record = &lines["schema"];
        for line in answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if let Ok(line) = serde_json::from_slice(line) {
                fits(record, &line, &at);
            }
        }
        return;
    }
    // a compressed body; a value that is no number to us (1e400) and comes back as it was sent
    let Ok(body) = serde_json::from_slice::<Value>(&answer.body) else {
        assert!(answer.status == 200, "{at}: {answer:?}");
        return;
    };
    if media.ends_with("json") {
        fits(&content["schema"], &body, &at);
    }
    if answer.status >= 400 {
        let code = body["code"].as_str().unwrap();
        assert!(words.contains(&format!("`{code}`")), "{at}: undocumented {code}");
        let members = |problem: &Value| -> BTreeSet<String> {
            let names = problem.as_object().into_iter().flat_map(Map::keys);
            names.filter(|name| !SOMETIMES.contains(&(code, name.as_str()))).cloned().collect()
        };
        let shown = examples(content);
        let example = shown.iter().find(|(name, _)| *name == code).unwrap().1;
        assert_eq!(members(&body), members(example), "{at}: {code} is shown otherwise");
    }
}

/// An object as the document has it: with the instants of its examples.
pub fn at_the_documents_time(value: &Value) -> Value {
    match value {
        Value::String(text)
            if text.len() == 24 && text.starts_with("20") && text.ends_with('Z') =>
        {
            json!("2026-11-21T08:00:00.000Z")
        }
        Value::Array(items) => items.iter().map(at_the_documents_time).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| (name.clone(), at_the_documents_time(value)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}
