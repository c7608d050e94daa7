//! Mistakes: the most of them, and the longest, that a request of a size can make.

use oncelog::model::Code;
use reqwest::Method;
use serde_json::{Value, json};

use super::{MIB, gzip};
use crate::{
    metrics::Measured,
    support::{
        self,
        document::{API, operations},
        http::{SECRET, Server, claims, signed},
        served::{Answer, Client},
    },
};

/// Largest problem document.
const MAX_PROBLEM_BYTES: usize = 64 << 10;
/// The bodies here, which are the largest there may be.
const BODY_BYTES: usize = MIB;
/// Most memory that the server may need for a request at any time, in bytes of its body.
const MOST_TIMES: usize = 24;

/// Everybody's token: for tenants as well.
fn all(client: &Client) -> Client {
    let mut claims = claims("default", "admin produce consume group operator");
    claims["iss"] = json!("oncelog");
    client.showing(Some(signed(&claims, SECRET)))
}

fn resolved(schema: &'static Value) -> &'static Value {
    let part = schema["$ref"].as_str().or_else(|| {
        let parts = schema["oneOf"].as_array().or_else(|| schema["anyOf"].as_array())?;
        parts.iter().find_map(|part| part["$ref"].as_str())
    });
    part.map_or(schema, |at| API.pointer(&at[1..]).unwrap())
}

/// The names of an object's fields, and what each is.
fn fields(schema: &'static Value) -> Vec<(&'static str, &'static Value)> {
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields.map(|(name, schema)| (name.as_str(), resolved(schema))).collect()
}

/// As often as fits, between a head and a tail.
fn filled(head: &str, element: &str, separator: &str, tail: &str) -> String {
    let room = BODY_BYTES - head.len() - tail.len() - element.len();
    let times = room / (element.len() + separator.len());
    let repeated = format!("{element}{separator}").repeat(times);
    format!("{head}{repeated}{element}{tail}")
}

const SHORTEST: [&str; 6] = ["0", "\"\"", "{}", "[]", "null", "{\"\":0}"];

/// The worst that may be sent in the place of an object of this schema; `head` and `tail` stand
/// around it.
fn worst(schema: &'static Value, head: &str, tail: &str, depth: usize) -> Vec<String> {
    let long = |name: &str, end: &str| {
        filled(&format!("{head}{{\"{name}"), "x", "", &format!("{end}}}{tail}"))
    };
    let mut bodies =
        vec![long("", "\":0"), filled(&format!("{head}{{"), "\"\":0", ",", &format!("}}{tail}"))];
    bodies.push(filled(&format!("{head}{{\""), "\\u0001", "", &format!("\":0}}{tail}")));
    for (name, field) in fields(schema) {
        bodies.push(long(&format!("{name}\":\""), "\""));
        bodies.push(long(&format!("{name}\":1"), ""));
        for element in SHORTEST {
            bodies.push(filled(
                &format!("{head}{{\"{name}\":["),
                element,
                ",",
                &format!("]}}{tail}"),
            ));
        }
        let below = if field["items"].is_null() { field } else { resolved(&field["items"]) };
        if depth > 0 && !fields(below).is_empty() {
            let (open, close) = if field["items"].is_null() { ("", "") } else { ("[", "]") };
            let head = format!("{head}{{\"{name}\":{open}");
            bodies.extend(worst(below, &head, &format!("{close}}}{tail}"), depth - 1));
        }
    }
    bodies
}

struct Judge {
    measured: Measured,
    client: Client,
    most: (usize, String),
}

impl Judge {
    /// Sends it, and looks at the answer and at what it took.
    async fn send(
        &mut self,
        method: &str,
        path: &str,
        media: Option<&str>,
        body: String,
    ) -> Answer {
        let method: Method = method.to_uppercase().parse().unwrap();
        let what = format!("{method} {path:.60} {:.60}", body);
        let process = &self.measured.process;
        process.forget_peak();
        let before = process.memory_bytes("VmRSS");
        let headers: Vec<_> = media.into_iter().map(|media| ("content-type", media)).collect();
        let body = media.map(|_| body);
        let listener = match path.starts_with("/v1/tenants") {
            true => self.client.admin(),
            false => self.client.clone(),
        };
        let answer = listener.send(method, path, &headers, body).await.unwrap();
        let took = process.memory_bytes("VmHWM").saturating_sub(before);
        assert!(
            (400..500).contains(&answer.status) || answer.text.len() < 4096,
            "{what}: {answer:?}"
        );
        assert!(answer.text.len() <= MAX_PROBLEM_BYTES, "{what}: {}", answer.text.len());
        if answer.status == 400 && answer.json()["code"] == "invalid_request" {
            let answer = answer.json();
            let errors = answer["errors"].as_array().unwrap();
            assert!(errors.len() <= 20, "{what}: {}", errors.len());
            for text in errors.iter().flat_map(|error| [&error["pointer"], &error["detail"]]) {
                assert!(text.as_str().unwrap().len() <= 256, "{what}: {text}");
            }
        }
        if took > self.most.0 {
            self.most = (took, what);
        }
        answer
    }
}

#[tokio::test]
async fn no_operation_answers_much_or_takes_much_for_any_mistake() {
    let settings = [("ONCELOG_MAX_BODY_BYTES", &*BODY_BYTES.to_string())];
    let measured = Measured::start(&support::database().await, &settings).await;
    measured.client.put_topic("orders", 1).await;
    let client = all(&measured.client);
    let mut judge = Judge { measured, client, most: (0, String::new()) };
    let name = "x".repeat(60_000);
    for (method, path, operation) in operations().filter(|(_, path, _)| path.starts_with("/v1/")) {
        let full =
            path.replace("{topic}", "orders").replace("{group}", "g").replace("{tenant}", "t");
        let full = full.replace("{partition}", "0").replace("{producer_id}", "1");
        let full = full.replace("{member_id}", "m");
        let full = full.replace("{transaction_id}", "019aa5b6-5c00-7000-8000-000000000002");
        let content = operation["requestBody"]["content"].as_object();
        let medium = content.map(|content| content.keys().next().unwrap().as_str());
        // deleting what the next ones need is not a mistake
        let queries = [format!("?{name}=1"), format!("?a={name}"), "?a=1&".repeat(10_000)];
        for query in queries {
            let answer = judge.send(method, &format!("{full}{query}"), medium, "{}".into()).await;
            assert!((400..500).contains(&answer.status), "{method} {full} {answer:?}");
        }
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        for parameter in parameters {
            let own = parameter["name"].as_str().unwrap();
            match parameter["in"].as_str().unwrap() {
                "query" => drop(
                    judge.send(method, &format!("{full}?{own}={name}"), medium, "{}".into()).await,
                ),
                "path" => {
                    let path = path.replace(&format!("{{{own}}}"), &name);
                    judge.send(method, &path, medium, "{}".into()).await;
                }
                _ => {}
            }
        }
        for (media, content) in content.into_iter().flatten() {
            let bodies = if media.contains("ndjson") {
                let lines =
                    [SHORTEST.as_slice(), &["", "{\"value\":1}", "{\"value\":1,\"id\":\"\"}"]]
                        .concat();
                lines.iter().map(|line| filled("", line, "\n", "")).collect()
            } else {
                worst(resolved(&content["schema"]), "", "", 2)
            };
            for body in bodies {
                judge.send(method, &full, Some(media), body).await;
            }
        }
    }
    let (most, what) = judge.most;
    println!("{} KiB: {what}", most >> 10);
    assert!(most < MOST_TIMES * BODY_BYTES, "{} MiB: {what}", most / MIB);
}

/// As they were found: a list of names, each of them bad, and one more often than the list may be
/// long.
#[tokio::test]
async fn a_few_bytes_of_empty_names_are_answered_by_few() {
    let server = Server::start().await;
    let reset = async |count: usize| {
        let names = vec!["\"\""; count].join(",");
        let body = gzip(format!("{{\"topics\":[{names}],\"to\":\"latest\"}}").as_bytes());
        let call = server.post("/v1/groups/g/offsets/reset").header("content-encoding", "gzip");
        let answer = call.header("content-type", "application/json").body(body.clone()).await;
        (body.len(), answer)
    };
    let (sent, answer) = reset(50_000).await;
    assert!(sent < 300);
    answer.invalid(&["/topics"]);
    assert!(answer.body.len() < 1_000);
    let (_, answer) = reset(1_000).await;
    let problem = answer.refused(Code::InvalidRequest);
    assert_eq!(problem["errors"].as_array().unwrap().len(), 20);
    assert!(
        problem["detail"].as_str().unwrap().ends_with("(see errors, and 980 more)"),
        "{problem}"
    );
    let (_, answer) = reset(20).await;
    let problem = answer.refused(Code::InvalidRequest);
    assert_eq!(problem["errors"].as_array().unwrap().len(), 20);
    assert!(
        problem["detail"].as_str().unwrap().ends_with("(and 19 more, see errors)"),
        "{problem}"
    );
}

#[tokio::test]
async fn counts_are_judged_before_what_is_counted() {
    let server = Server::start().await;
    server.topic("orders", 1).await;
    let begun = server.post("/v1/transactions").json("{}").await.created();
    let id = begun["transaction_id"].as_str().unwrap();
    let list = |field: &str, element: &str, count: usize| {
        format!("{{\"{field}\":[{}]}}", vec![element; count].join(","))
    };
    let append = r#"{"topic":"orders","partition":0,"records":[{"value":1}]}"#;
    let offset =
        r#"{"group":"g","topic":"orders","partition":0,"offset":0,"expected_offset":null}"#;
    let plain = r#"{"topic":"orders","partition":0,"offset":0}"#;
    let records = format!("/v1/transactions/{id}/records");
    let offsets = format!("/v1/transactions/{id}/offsets");
    let commit = format!("/v1/transactions/{id}/commit");
    let table = [
        (&*records, "appends", append, Code::TransactionTooLarge),
        (&*offsets, "offsets", offset, Code::TransactionTooLarge),
        (&*commit, "appends", append, Code::TransactionTooLarge),
        (&*commit, "offsets", offset, Code::TransactionTooLarge),
        ("/v1/transactions", "appends", append, Code::TransactionTooLarge),
        ("/v1/transactions", "offsets", offset, Code::TransactionTooLarge),
        ("/v1/groups/g/offsets", "offsets", plain, Code::PayloadTooLarge),
    ];
    for (path, field, good, code) in table {
        let problem = server.post(path).json(list(field, good, 10_001)).await.refused(code);
        assert_eq!(problem["limit"], 10_000, "{path}");
        // what is wrong beyond is not looked at, what is wrong before is
        let beyond = format!("{{\"{field}\":[{},0,{{}}]}}", vec![good; 10_001].join(","));
        server.post(path).json(beyond).await.refused(code);
        let before = format!("{{\"{field}\":[0,{}]}}", vec![good; 10_001].join(","));
        server.post(path).json(before).await.invalid(&[&format!("/{field}/0")]);
    }
    let names = vec!["\"\""; 1_001].join(",");
    let join = format!("{{\"topics\":[{names}]}}");
    server.post("/v1/groups/g/members").json(join).await.invalid(&["/topics"]);
    // nothing of all that was done, and as many as there may be are taken
    server.post(&offsets).json(list("offsets", offset, 10_000)).await.ok();
    server.post(&commit).json("{}").await.ok();
    server.post("/v1/groups/h/offsets").json(list("offsets", plain, 10_000)).await.ok();
    let read = server.get("/v1/topics/orders/partitions/0/records").await.ok();
    assert_eq!(read["high_watermark"], 0);
}
