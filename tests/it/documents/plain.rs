//! The document is plain enough for generators of clients. `make check-clients` runs them, and
//! `docs/clients.md` says of them what is in their programs.

use std::{collections::BTreeSet, fs, path::Path};

use oncelog::model::{Code, MAX_INTEGER, Retry};
use serde_json::{Value, json};

use crate::support::{
    document::{API, fits, operations},
    http::Server,
};

/// Calls with every schema of the document, and where it is.
fn schemas(at: &str, value: &'static Value, see: &mut impl FnMut(&str, &'static Value)) {
    match value {
        Value::Object(members) => {
            see(at, value);
            let shown = |name: &str| matches!(name, "example" | "examples");
            for (name, member) in members.iter().filter(|(name, _)| !shown(name)) {
                schemas(&format!("{at}/{name}"), member, see);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                schemas(&format!("{at}/{index}"), item, see);
            }
        }
        _ => {}
    }
}

#[test]
fn schemas_are_plain() {
    let mut unions = BTreeSet::new();
    schemas("", &API, &mut |at, schema| {
        assert_ne!(schema["type"], "null", "{at}: null is a kind of a field, not a schema");
        assert_ne!(schema["enum"], json!(["default"]), "{at}: a class for one word");
        for union in ["oneOf", "anyOf", "allOf"] {
            if schema.get(union).is_some() {
                unions.insert(at.to_owned());
            }
        }
        let kinds = &schema["type"];
        let integer = |kind: &Value| kind == "integer";
        if integer(kinds) || kinds.as_array().is_some_and(|kinds| kinds.iter().any(integer)) {
            let most = schema["maximum"].as_i64().or(schema["enum"][0].as_i64());
            assert!(most.is_some_and(|most| most <= MAX_INTEGER), "{at} has no maximum: {schema}");
            assert!(schema["format"].is_string(), "{at}: 32 or 64 bits? {schema}");
        }
        // openapi-typescript requires a field that has a default
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            assert!(property.get("default").is_none(), "{at}/{name} has a default");
        }
    });
    let named = ["NullableSettingChange", "ResetTarget", "SettingChange"];
    let named = named.map(|name| format!("/components/schemas/{name}"));
    assert_eq!(unions, named.into(), "every union is a component that is shared");
}

#[test]
fn an_answer_has_one_type() {
    let mut lines = 0;
    for (method, path, operation) in operations() {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let medias: Vec<_> = response["content"].as_object().into_iter().flatten().collect();
            let types: BTreeSet<_> =
                medias.iter().map(|(_, content)| content["schema"].to_string()).collect();
            assert!(types.len() <= 1, "{method} {path} {status}: {types:?}");
            lines += usize::from(response.get("x-ndjson").is_some());
        }
    }
    assert_eq!(lines, 5, "the reads and the fetches answer with lines as well");
}

/// The words of the named enum that a problem's field is.
fn words(of: &str) -> BTreeSet<&'static str> {
    let field = &API["components"]["schemas"]["Problem"]["properties"][of]["$ref"];
    let words = API.pointer(&field.as_str().unwrap()[1..]).unwrap()["enum"].as_array();
    words.unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn clients_can_decide_by_code_and_retry() {
    assert_eq!(words("code"), Code::ALL.iter().map(|code| code.as_str()).collect());
    assert_eq!(words("retry"), Code::ALL.iter().map(|code| code.retry().as_str()).collect());
    let effects = Code::ALL.iter().map(|code| code.side_effects().as_str());
    assert_eq!(words("side_effects"), effects.collect());
    for (method, path, operation) in operations() {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let words = response["description"].as_str().unwrap();
            let later = Code::ALL.iter().filter(|code| code.retry() == Retry::Later);
            let named = later.filter(|code| words.contains(&format!("`{}`:", code.as_str())));
            let waits = status == "503" || named.count() > 0;
            let header = response["headers"].get("Retry-After");
            assert_eq!(header.is_some(), waits, "{method} {path} {status}");
        }
    }
}

#[test]
fn changes_of_settings_are_held() {
    let patch = json!({"$ref": "#/components/schemas/SettingsPatch"});
    let good = json!({"retention_ms": null, "max_topics": 5, "dedup_window_ms": "default"});
    fits(&patch, &good, "a change");
    for bad in
        [json!({"max_topics": null}), json!({"max_topics": "x"}), json!({"retention_ms": -1})]
    {
        let held = std::panic::catch_unwind(|| fits(&patch, &bad, "no change"));
        assert!(held.is_err(), "{bad} is allowed");
    }
}

/// An empty body counts as `{}`, and is refused exactly where the document requires one.
#[tokio::test]
async fn a_body_is_required_where_it_is() {
    let server = Server::start().await;
    let (mut required, mut optional) = (0, 0);
    for (method, path, operation) in operations() {
        let Some(body) = operation.get("requestBody") else { continue };
        let mut path = path.to_owned();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let (name, example) = (parameter["name"].as_str().unwrap(), &parameter["example"]);
            let text = example.as_str().map_or_else(|| example.to_string(), ToOwned::to_owned);
            path = path.replace(&format!("{{{name}}}"), &text);
        }
        let answer = server.call(&method.to_uppercase(), &path).await;
        let missed = answer.status == 400 && answer.json()["code"] == "invalid_request";
        assert_eq!(body["required"] == true, missed, "{method} {path}: {}", answer.text());
        *if missed { &mut required } else { &mut optional } += 1;
    }
    assert!(required > 5 && optional > 5, "{required} {optional}");
}

/// Words alone, without the breaks of lines and the names of files.
fn bare(text: &str) -> String {
    let text = text.replace("\"$GENERATOR\"", "openapi-generator-cli.jar");
    let text = text.replace("\"$DOCUMENT\"", "openapi.json").replace("\"$PYTHON\"", "python");
    let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "\\").collect();
    words.join(" ")
}

#[test]
fn the_page_of_clients_quotes_the_programs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/clients.md")).unwrap();
    let mut programs = Vec::new();
    let mut pins = fs::read_to_string(root.join("scripts/check-clients")).unwrap();
    for entry in fs::read_dir(root.join("tests/clients")).unwrap().flatten() {
        if !entry.path().is_dir() {
            pins += &fs::read_to_string(entry.path()).unwrap();
            continue;
        }
        let texts = fs::read_dir(entry.path()).unwrap().flatten();
        let texts: Vec<_> = texts.map(|file| fs::read_to_string(file.path()).unwrap()).collect();
        pins += &texts.concat();
        programs.push((entry.file_name(), texts.iter().map(|text| bare(text)).collect::<Vec<_>>()));
    }
    assert_eq!(programs.len(), 8);
    let blocks: Vec<_> = page.split("\n```").skip(1).step_by(2).collect();
    for block in &blocks {
        let (_, quoted) = block.split_once('\n').unwrap();
        let mut texts = programs.iter().flat_map(|(_, texts)| texts);
        assert!(texts.any(|text| text.contains(&bare(quoted))), "in no program: {quoted}");
    }
    for (name, texts) in &programs {
        let quoted = |block: &&str| {
            let text = bare(block.split_once('\n').unwrap().1);
            block.starts_with("sh\n") && texts.iter().any(|program| program.contains(&text))
        };
        assert_eq!(blocks.iter().filter(|block| quoted(block)).count(), 1, "{name:?}");
    }
    for row in page.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let words = row.split([' ', '|', ',']).filter(|word| word.starts_with(char::is_numeric));
        for version in words {
            // the package of Json.NET counts otherwise: 12.0.1 is 12.0.101
            assert!(pins.contains(version), "{version} is pinned nowhere");
        }
    }
}
