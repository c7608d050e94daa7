//! The OpenAPI document: the committed one is the code's, the served one is the same, and it
//! describes all there is.

use std::{fs, path::Path};

use oncelog::http;
use serde_json::Value;

use crate::support::http::Server;

const WRITE: &str = "ONCELOG_TEST_WRITE_OPENAPI";

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

fn operations(api: &Value) -> impl Iterator<Item = (String, &Value)> {
    let paths = api["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

#[track_caller]
fn described(thing: &Value, at: &str) {
    let text = thing["description"].as_str().unwrap_or_default();
    assert!(text.len() > 1, "{at} has no description: {thing}");
}

#[test]
fn everything_is_described_and_shown() {
    let api = serde_json::to_value(http::openapi()).unwrap();
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"));
    described(&api["info"], "info");
    for (at, operation) in operations(&api) {
        described(operation, &at);
        assert!(!operation["summary"].as_str().unwrap().is_empty(), "{at}");
        let mut examples = 0;
        let responses = operation["responses"].as_object().unwrap();
        for (status, response) in responses {
            described(response, &format!("{at} {status}"));
            for (media, content) in response["content"].as_object().into_iter().flatten() {
                assert!(content.get("example").is_some(), "{at} {status} {media}");
                examples += 1;
            }
            let problem = status.starts_with('4') || status.starts_with('5');
            let media = response["content"].get("application/problem+json");
            assert_eq!(media.is_some(), problem, "{at} {status}");
        }
        assert!(responses.keys().any(|status| status.starts_with('2')), "{at}");
        if let Some(body) = operation.get("requestBody") {
            described(body, &format!("{at} body"));
            for (media, content) in body["content"].as_object().unwrap() {
                assert!(content.get("example").is_some(), "{at} {media}");
                examples += 1;
            }
        }
        assert!(examples > 0, "{at} has no example");
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            described(parameter, &at);
            let in_path = at.contains(&format!("{{{}}}", parameter["name"].as_str().unwrap()));
            assert_eq!(in_path, parameter["in"] == "path", "{at}: {parameter}");
        }
    }
}

#[test]
fn every_example_of_a_problem_is_of_its_code() {
    let api = serde_json::to_value(http::openapi()).unwrap();
    for (at, operation) in operations(&api) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let Some(problem) = response["content"].get("application/problem+json") else {
                continue;
            };
            let example = &problem["example"];
            assert_eq!(example["status"].to_string(), *status, "{at}");
            let code = example["code"].as_str().unwrap();
            let words = response["description"].as_str().unwrap();
            assert!(words.contains(&format!("`{code}`")), "{at} {status}: {words}");
        }
    }
}

#[tokio::test]
async fn the_served_document_is_the_same() {
    let server = Server::signed().await;
    let answer = server.get("/openapi.json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.ok(), serde_json::to_value(http::openapi()).unwrap());
    // its examples of requests are taken as they stand
    let server = Server::start().await;
    let api = answer.json();
    let example = |path: &str, method: &str, media: &str| -> String {
        let content = &api["paths"][path][method]["requestBody"]["content"][media]["example"];
        content.as_str().map_or_else(|| content.to_string(), ToOwned::to_owned)
    };
    let json = "application/json";
    let topic = "/v1/topics/{topic}";
    server.put("/v1/topics/orders").json(example(topic, "put", json)).await.created();
    server.patch("/v1/topics/orders").json(example(topic, "patch", json)).await.ok();
    for (path, at) in [
        ("/v1/topics/{topic}/records", "/v1/topics/orders/records"),
        (
            "/v1/topics/{topic}/partitions/{partition}/records",
            "/v1/topics/orders/partitions/3/records",
        ),
    ] {
        server.post(at).ndjson(example(path, "post", "application/x-ndjson")).await.ok();
        // well-formed, though there is no such producer
        let answer = server.post(at).json(example(path, "post", json)).await;
        answer.refused(oncelog::model::Code::UnknownProducer);
    }
}
