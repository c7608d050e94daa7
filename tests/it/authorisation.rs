//! Who may do what: every operation of the OpenAPI document against every kind of token.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::STANDARD, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use oncelog::{http::auth::Keys, model::Code};
use serde_json::{Value, json};

use crate::support::http::{
    AUDIENCE, Answer, ISSUER, SECRET, Server, Setup, claims, now_s, signed, token,
};

/// What opens an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Needs {
    Nothing,
    /// One of these words, for whatever name.
    Word(&'static [&'static str]),
    /// One of these words, not narrowed to some names.
    Tenant(&'static [&'static str]),
    /// One of these words, for the topic or group in the path.
    Named(&'static [&'static str]),
}
use Needs::{Named, Nothing, Tenant, Word};

const ADMIN: &[&str] = &["admin"];
const PRODUCE: &[&str] = &["produce"];
const CONSUME: &[&str] = &["consume"];
const GROUP: &[&str] = &["group"];
const SEE: &[&str] = &["admin", "produce", "consume"];
const WORDS: [&str; 5] = ["produce", "consume", "group", "admin", "operator"];

/// operation, method and path, body, what it needs, what it answers
type Row = (&'static str, &'static str, Option<&'static str>, Needs, u16);

const RECORDS: Option<&str> = Some(r#"{"records":[{"value":1}]}"#);
const OFFSETS: Option<&str> = Some(r#"{"offsets":[{"topic":"{topic}","partition":0,"offset":0}]}"#);
const OPERATIONS: &[Row] = &[
    ("open_session", "POST /v1/sessions", Some("{}"), Word(PRODUCE), 201),
    ("list_sessions", "GET /v1/sessions", None, Word(PRODUCE), 200),
    ("get_session", "GET /v1/sessions/{producer_id}", None, Word(PRODUCE), 200),
    ("end_session", "DELETE /v1/sessions/{producer_id}", None, Word(PRODUCE), 204),
    (
        "list_session_sequences",
        "GET /v1/sessions/{producer_id}/sequences",
        None,
        Word(PRODUCE),
        200,
    ),
    ("get_settings", "GET /v1/settings", None, Word(ADMIN), 200),
    ("patch_settings", "PATCH /v1/settings", Some("{}"), Tenant(ADMIN), 200),
    ("list_topics", "GET /v1/topics", None, Word(SEE), 200),
    ("put_topic", "PUT /v1/topics/{topic}", Some("{}"), Named(ADMIN), 200),
    ("get_topic", "GET /v1/topics/{topic}", None, Named(SEE), 200),
    ("patch_topic", "PATCH /v1/topics/{topic}", Some("{}"), Named(ADMIN), 200),
    ("delete_topic", "DELETE /v1/topics/{topic}", None, Named(ADMIN), 204),
    ("append_to_topic", "POST /v1/topics/{topic}/records", RECORDS, Named(PRODUCE), 200),
    (
        "append_to_partition",
        "POST /v1/topics/{topic}/partitions/{partition}/records",
        RECORDS,
        Named(PRODUCE),
        200,
    ),
    (
        "read_partition",
        "GET /v1/topics/{topic}/partitions/{partition}/records",
        None,
        Named(CONSUME),
        200,
    ),
    (
        "trim_partition",
        "DELETE /v1/topics/{topic}/partitions/{partition}/records?before=0",
        None,
        Named(ADMIN),
        204,
    ),
    ("commit_group_offsets", "POST /v1/groups/{group}/offsets", OFFSETS, Named(GROUP), 200),
    ("list_group_offsets", "GET /v1/groups/{group}/offsets", None, Named(GROUP), 200),
    ("livez", "GET /livez", None, Nothing, 200),
    ("readyz", "GET /readyz", None, Nothing, 200),
    ("metrics", "GET /metrics", None, Nothing, 200),
    ("openapi", "GET /openapi.json", None, Nothing, 200),
    ("docs", "GET /docs", None, Nothing, 200),
    ("docs_file", "GET /docs/{file}", None, Nothing, 200),
];

fn all_words() -> String {
    WORDS.join(" ")
}

/// A server, and in tenant `acme` a topic, a group of the same name, and a session.
struct World {
    server: Server,
    producer_id: Value,
}

const TOPIC: &str = "orders.eu";

impl World {
    async fn new() -> Self {
        let server = Server::signed().await;
        let all = token("acme", &all_words());
        let open = server.post("/v1/sessions").json(r#"{"transactional_id":"p"}"#).token(&all);
        let producer_id = open.await.created()["producer_id"].clone();
        let world = Self { server, producer_id };
        world.prepare().await;
        world
    }

    /// Makes again what an operation may have taken away.
    async fn prepare(&self) {
        let all = token("acme", &all_words());
        self.server.put(&format!("/v1/topics/{TOPIC}")).token(&all).await;
        let commit = self.server.post(&format!("/v1/groups/{TOPIC}/offsets")).token(&all);
        commit.json(OFFSETS.unwrap().replace("{topic}", TOPIC)).await.ok();
    }

    async fn call(&self, row: &Row, token: Option<&str>) -> Answer {
        self.call_on(row, token, TOPIC, &self.producer_id.to_string()).await
    }

    async fn call_on(&self, row: &Row, token: Option<&str>, topic: &str, producer: &str) -> Answer {
        let (_, line, body, ..) = row;
        let (method, path) = line.split_once(' ').unwrap();
        let path = path.replace("{topic}", topic).replace("{group}", topic);
        let path = path.replace("{partition}", "0");
        let path = path.replace("{file}", "start.js");
        let mut call = self.server.call(method, &path.replace("{producer_id}", producer));
        if let Some(body) = body {
            call = call.json(body.replace("{topic}", topic));
        }
        if let Some(token) = token {
            call = call.token(token);
        }
        call.await
    }
}

#[tokio::test]
async fn every_operation_has_a_row() {
    let server = Server::signed().await;
    let api = server.get("/openapi.json").await.ok();
    let mut operations = BTreeSet::new();
    for (path, item) in api["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            operations.insert((id.clone(), format!("{} {path}", method.to_uppercase())));
            let row = OPERATIONS.iter().find(|row| row.0 == id);
            let Some((.., needs, _)) = row else { panic!("{id} has no row in the matrix") };
            // what the document says of scopes is what holds
            let security = operation["security"].as_array().unwrap().iter();
            let words: BTreeSet<&str> =
                security.filter_map(|one| one["bearer"][0].as_str()).collect();
            let needed = match needs {
                Nothing => &[],
                Word(words) | Tenant(words) | Named(words) => *words,
            };
            assert_eq!(words, needed.iter().copied().collect(), "{id}");
        }
    }
    let line = |line: &str| line.split('?').next().unwrap().to_owned();
    let rows: BTreeSet<_> = OPERATIONS.iter().map(|row| (row.0.to_owned(), line(row.1))).collect();
    assert_eq!(rows, operations);
}

#[tokio::test]
async fn without_a_good_token_nothing_opens() {
    let world = World::new().await;
    let with = |claim: &str, value: Value| {
        let mut claims = claims("acme", &all_words());
        claims[claim] = value;
        signed(&claims, SECRET)
    };
    let bad = [
        ("garbage", "garbage".to_owned()),
        ("expired", with("exp", json!(now_s() - 60))),
        ("not yet", with("nbf", json!(now_s() + 600))),
        ("audience", with("aud", json!("another"))),
        ("issuer", with("iss", json!("another"))),
        ("tenant", with("tenant", json!("no/name"))),
        ("secret", signed(&claims("acme", &all_words()), "another secret of thirty-two byt")),
    ];
    for row in OPERATIONS {
        let (id, .., needs, status) = row;
        if *needs == Nothing {
            assert_eq!(world.call(row, None).await.status, *status, "{id}");
            assert_eq!(world.call(row, Some("garbage")).await.status, *status, "{id}");
            continue;
        }
        world.call(row, None).await.refused(Code::Unauthenticated);
        for (what, token) in &bad {
            let answer = world.call(row, Some(token)).await;
            assert_eq!(answer.status, 401, "{id}: {what}");
            answer.refused(Code::Unauthenticated);
            assert!(!answer.text().contains(token.as_str()) || *what == "garbage");
        }
    }
}

#[tokio::test]
async fn the_right_scope_opens_and_no_other() {
    let world = World::new().await;
    for row in OPERATIONS {
        let (id, .., needs, status) = row;
        let words = match needs {
            Nothing => continue,
            Word(words) | Tenant(words) | Named(words) => *words,
        };
        // every other word together, for every name
        let others: Vec<_> = WORDS.iter().filter(|w| !words.contains(w)).copied().collect();
        for scope in [others.join(" "), String::new(), "PRODUCE produce: xproduce".to_owned()] {
            let answer = world.call(row, Some(&token("acme", &scope))).await;
            let problem = answer.refused(Code::Forbidden);
            assert_eq!(problem["required_scope"], words.join(" | "), "{id}: {scope}");
        }
        for word in words {
            world.prepare().await;
            let answer = world.call(row, Some(&token("acme", word))).await;
            assert_eq!(answer.status, *status, "{id} with {word}: {}", answer.text());
            for pattern in ["orders.*", "orders.eu", "*", "*.eu", "o*s.*u"] {
                world.prepare().await;
                let scope = format!("other {word}:{pattern} {word}:nothing");
                let answer = world.call(row, Some(&token("acme", &scope))).await;
                if *needs == Tenant(words) {
                    let problem = answer.refused(Code::Forbidden);
                    assert_eq!(problem["required_scope"], words.join(" | "), "{id}: {scope}");
                } else {
                    assert_eq!(answer.status, *status, "{id} with {scope}: {}", answer.text());
                }
            }
            if *needs != Named(words) {
                continue;
            }
            for pattern in ["orders", "orders.", "orders.eu2", "*us", "ORDERS.*", "."] {
                let other = if words == GROUP { "consume" } else { "group" };
                let scope = format!("{word}:{pattern} {other}:orders.eu operator");
                let answer = world.call(row, Some(&token("acme", &scope))).await;
                let problem = answer.refused(Code::Forbidden);
                let wanted: Vec<_> = words.iter().map(|word| format!("{word}:{TOPIC}")).collect();
                assert_eq!(problem["required_scope"], wanted.join(" | "), "{id}: {scope}");
            }
        }
    }
}

/// The words of a refusal with names and ids of the request taken out.
fn anonymous(answer: &Answer, topic: &str, producer: &str) -> (u16, String) {
    let mut body = answer.json();
    body["instance"] = Value::Null;
    (answer.status, body.to_string().replace(topic, "TOPIC").replace(producer, "PRODUCER"))
}

#[tokio::test]
async fn what_belongs_to_another_tenant_is_as_if_it_were_not() {
    let world = World::new().await;
    let append = r#"{"records":[{"key":"k","value":"secret"}]}"#;
    let path = format!("/v1/topics/{TOPIC}/records");
    world.server.post(&path).json(append).token(&token("acme", "produce")).await.ok();
    let stranger = token("other", &all_words());
    let theirs = world.producer_id.to_string();
    for row in OPERATIONS {
        let (id, .., needs, _) = row;
        match *id {
            _ if *needs == Nothing => {}
            // what makes something makes the stranger's own: see `tenants_share_nothing`
            "open_session" | "put_topic" => {}
            // the stranger's own: see `settings::settings_are_the_tenants_alone`
            "get_settings" | "patch_settings" => {}
            "list_topics" => {
                let empty = json!({"topics": [], "next_after": null});
                assert_eq!(world.call(row, Some(&stranger)).await.ok(), empty);
            }
            "list_sessions" => {
                let empty = json!({"sessions": [], "next_after": null});
                assert_eq!(world.call(row, Some(&stranger)).await.ok(), empty);
            }
            _ => {
                let there = world.call(row, Some(&stranger)).await;
                let nowhere = world.call_on(row, Some(&stranger), "nothing", "987654321").await;
                assert_eq!(there.status, 404, "{id}");
                assert_eq!(
                    anonymous(&there, TOPIC, &theirs),
                    anonymous(&nowhere, "nothing", "987654321"),
                    "{id}"
                );
                let names = |answer: &Answer| -> BTreeSet<String> {
                    answer.headers.keys().map(ToString::to_string).collect()
                };
                assert_eq!(names(&there), names(&nowhere), "{id}");
            }
        }
    }
    // and nothing was done to it
    let all = token("acme", &all_words());
    let topic = world.server.get(&format!("/v1/topics/{TOPIC}")).token(&all).await.ok();
    assert_eq!(topic["partitions"][0]["high_watermark"], 1);
    let session = world.server.get(&format!("/v1/sessions/{theirs}")).token(&all).await.ok();
    assert_eq!((&session["epoch"], &session["closed"]), (&json!(0), &json!(false)));
}

#[tokio::test]
async fn tenants_share_nothing() {
    let server = Server::signed().await;
    let open_id = uuid::Uuid::now_v7().to_string();
    let mut producers = Vec::new();
    for tenant in ["a", "b"] {
        let all = token(tenant, &all_words());
        let topic = json!({"partition_count": if tenant == "a" { 1 } else { 3 }});
        server.put("/v1/topics/orders").json(topic).token(&all).await.created();
        // one name and one open id, two producers
        let open = json!({"transactional_id": "p", "open_id": open_id});
        let session = server.post("/v1/sessions").json(open).token(&all).await.created();
        assert_eq!((&session["epoch"], &session["duplicate"]), (&json!(0), &json!(false)));
        producers.push(session["producer_id"].as_i64().unwrap());
        let append = json!({"producer_id": producers.last(), "epoch": 0, "sequence": 0,
            "records": [{"value": tenant}]});
        let path = "/v1/topics/orders/partitions/0/records";
        let appended = server.post(path).json(append).token(&all).await.ok();
        assert_eq!(appended["base_offset"], 0);
        let read = server.get(path).token(&all).await.ok();
        assert_eq!(read["records"].as_array().unwrap().len(), 1);
        assert_eq!(read["records"][0]["value"], tenant);
    }
    let [a, b] = producers[..] else { panic!() };
    assert_ne!(a, b);
    // a producer of a is none of b's
    let of_b = token("b", &all_words());
    let append = json!({"producer_id": a, "epoch": 0, "sequence": 1, "records": [{"value": 1}]});
    for path in ["/v1/topics/orders/records", "/v1/topics/orders/partitions/0/records"] {
        let answer = server.post(path).json(&append).token(&of_b).await;
        answer.refused(Code::UnknownProducer);
    }
    for open in [
        json!({"producer_id": a, "epoch": 0}),
        json!({"producer_id": a, "epoch": 0, "transactional_id": "p"}),
    ] {
        server.post("/v1/sessions").json(open).token(&of_b).await.refused(Code::UnknownProducer);
    }
    server.delete("/v1/topics/orders").token(&of_b).await.no_content();
    server.get("/v1/topics/orders").token(&of_b).await.refused(Code::TopicNotFound);
    server.get("/v1/topics/orders").token(&token("a", "admin")).await.ok();
}

#[tokio::test]
async fn lists_show_what_the_scopes_cover() {
    let server = Server::signed().await;
    let admin = token("acme", "admin");
    for topic in ["b.1", "a.1", "b.3", "B.1", "b.2", "a.2", "c"] {
        server.put(&format!("/v1/topics/{topic}")).token(&admin).await.created();
    }
    let list = async |scope: &str, query: &str| -> (Vec<String>, Value) {
        let path = format!("/v1/topics{query}");
        let list = server.get(&path).token(&token("acme", scope)).await.ok();
        let topics = list["topics"].as_array().unwrap().iter();
        let names = topics.map(|topic| topic["topic"].as_str().unwrap().to_owned()).collect();
        (names, list["next_after"].clone())
    };
    assert_eq!(list("admin", "").await.0, ["B.1", "a.1", "a.2", "b.1", "b.2", "b.3", "c"]);
    assert_eq!(list("consume:b.* produce:c", "").await.0, ["b.1", "b.2", "b.3", "c"]);
    // neither a short page nor next_after tells of names that are not covered
    let first = list("consume:b.*", "?limit=2").await;
    assert_eq!(first, (vec!["b.1".into(), "b.2".into()], json!("b.2")));
    assert_eq!(list("consume:b.*", "?limit=2&after=b.2").await, (vec!["b.3".into()], Value::Null));
    assert_eq!(list("consume:b.*", "?limit=3").await.1, Value::Null);
    assert_eq!(list("group consume:x", "").await, (vec![], Value::Null));
}

// Made for tests alone; nothing else trusts them.
const ED25519: &[u8] = include_bytes!("../keys/ed25519.pem");
const P256: &[u8] = include_bytes!("../keys/p256.pem");
const RSA: &[u8] = include_bytes!("../keys/rsa2048.pem");

fn pairs() -> [(EncodingKey, Algorithm, &'static str); 3] {
    [
        (EncodingKey::from_ed_pem(ED25519).unwrap(), Algorithm::EdDSA, "ed"),
        (EncodingKey::from_ec_pem(P256).unwrap(), Algorithm::ES256, "ec"),
        (EncodingKey::from_rsa_pem(RSA).unwrap(), Algorithm::RS256, "rsa"),
    ]
}

fn jwks() -> Value {
    let jwk = |(key, algorithm, kid): &(EncodingKey, Algorithm, &str)| {
        let mut jwk = Jwk::from_encoding_key(key, *algorithm).unwrap();
        jwk.common.key_id = Some((*kid).into());
        jwk
    };
    json!({"keys": pairs().iter().map(jwk).collect::<Vec<_>>()})
}

async fn with_jwks() -> Server {
    let keys = Keys::jwks(&jwks().to_string(), AUDIENCE, ISSUER).unwrap();
    Server::with(Setup { keys, ..Setup::default() }).await
}

#[tokio::test]
async fn keys_of_a_jwks_sign_with_their_own_algorithm_only() {
    let server = with_jwks().await;
    let claims = claims("acme", "admin");
    for (key, algorithm, kid) in pairs() {
        let header = |kid: Option<&str>, algorithm| Header {
            kid: kid.map(Into::into),
            ..Header::new(algorithm)
        };
        let token = encode(&header(Some(kid), algorithm), &claims, &key).unwrap();
        server.get("/v1/topics").token(&token).await.ok();
        for other in [None, Some("another"), Some(if kid == "ed" { "ec" } else { "ed" })] {
            let token = encode(&header(other, algorithm), &claims, &key).unwrap();
            server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
        }
    }
    // the right key, but another algorithm of its family
    let rsa = EncodingKey::from_rsa_pem(RSA).unwrap();
    for algorithm in [Algorithm::RS384, Algorithm::RS512, Algorithm::PS256] {
        let header = Header { kid: Some("rsa".into()), ..Header::new(algorithm) };
        let token = encode(&header, &claims, &rsa).unwrap();
        server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
    }
}

#[tokio::test]
async fn public_keys_are_no_secrets_and_none_is_no_algorithm() {
    let server = with_jwks().await;
    let claims = claims("acme", &all_words());
    let jwks = jwks();
    for (index, (field, kid)) in [("x", "ed"), ("x", "ec"), ("n", "rsa")].into_iter().enumerate() {
        let jwk = &jwks["keys"][index];
        let text = jwk[field].as_str().unwrap();
        let bytes = URL_SAFE_NO_PAD.decode(text).unwrap();
        // RFC 8410: the SubjectPublicKeyInfo of an Ed25519 key is its bytes behind this
        let prefix = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        let der = [&prefix[..], &bytes].concat();
        let base64 = STANDARD.encode(&der);
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{base64}\n-----END PUBLIC KEY-----\n");
        let secrets = [text.as_bytes().to_vec(), bytes, der, pem.into(), jwk.to_string().into()];
        for secret in secrets {
            let key = EncodingKey::from_secret(&secret);
            for kid in [Some(kid.to_owned()), None] {
                let token = encode(&Header { kid, ..Header::default() }, &claims, &key).unwrap();
                server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
            }
        }
    }
    let shared = Server::signed().await;
    let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        for kid in [json!({"alg": alg}), json!({"alg": alg, "typ": "JWT", "kid": "rsa"})] {
            let header = URL_SAFE_NO_PAD.encode(kid.to_string());
            let signature = signed(&claims, SECRET).rsplit_once('.').unwrap().1.to_owned();
            for signature in ["", &signature] {
                let token = format!("{header}.{payload}.{signature}");
                for server in [&server, &shared] {
                    server.get("/v1/topics").token(&token).await.refused(Code::Unauthenticated);
                }
            }
        }
    }
}

#[tokio::test]
async fn there_is_one_authorization_header_and_it_bears() {
    let server = Server::signed().await;
    let good = token("acme", "admin");
    let get = || server.get("/v1/topics");
    get().header("authorization", &format!("bearer {good}")).await.ok();
    get().header("authorization", &format!("Basic {good}")).await.refused(Code::Unauthenticated);
    get().header("authorization", &good).await.refused(Code::Unauthenticated);
    get().token(&good).token(&good).await.refused(Code::Unauthenticated);
    get().token("").await.refused(Code::Unauthenticated);
    // nothing but the header is looked at
    let path = format!("/v1/topics?access_token={good}");
    server.get(&path).await.refused(Code::Unauthenticated);
}

/// Everything is wrong with the first request; each next one mends what was refused.
#[tokio::test]
async fn mistakes_are_judged_in_the_documented_order() {
    let limits = oncelog::http::Limits { max_body_bytes: 300, ..Default::default() };
    let keys = crate::support::http::shared_keys();
    let server = Server::with(Setup { limits, keys, ..Setup::default() }).await;
    let admin = token("acme", "admin");
    let (produce, consume) = (token("acme", "produce:orders"), token("acme", "consume"));
    let path = "/v1/topics/orders/partitions/1/records";
    let (json, text) = ("application/json", "text/plain");
    let large = " ".repeat(301);
    let bad_shape = r#"{"records":[]}"#.to_owned();
    let full = |producer: i64, sequence: i64, offset: i64| {
        let records = [json!({"value": 1}), json!({"value": 2})];
        json!({"producer_id": producer, "epoch": 0, "sequence": sequence,
            "expected_offset": offset, "records": records})
        .to_string()
    };
    let call = async |token: &str, media: &str, body: &str, code: Code| {
        let mut call = server.post(path).header("content-type", media).body(body);
        if !token.is_empty() {
            call = call.token(token);
        }
        call.await.refused(code);
    };
    server.post("/v1/nothing").body("x").await.refused(Code::RouteNotFound);
    server.put(path).body("x").await.refused(Code::MethodNotAllowed);
    call("", text, &large, Code::Unauthenticated).await;
    call(&consume, text, &large, Code::Forbidden).await;
    call(&produce, text, &large, Code::UnsupportedMediaType).await;
    call(&produce, json, &large, Code::PayloadTooLarge).await;
    call(&produce, json, &bad_shape, Code::InvalidRequest).await;
    call(&produce, json, &full(999, 9, 9), Code::TopicNotFound).await;
    let topic = server.put("/v1/topics/orders").token(&admin);
    topic.json(json!({"settings": {"max_batch_records": 1}})).await.created();
    call(&produce, json, &full(999, 9, 9), Code::PartitionNotFound).await;
    let more = server.patch("/v1/topics/orders").token(&admin);
    more.json(json!({"partition_count": 2})).await.ok();
    call(&produce, json, &full(999, 9, 9), Code::UnknownProducer).await;
    let open = server.post("/v1/sessions").json("{}").token(&produce).await.created();
    let producer = open["producer_id"].as_i64().unwrap();
    call(&produce, json, &full(producer, 9, 9), Code::UnknownProducerState).await;
    call(&produce, json, &full(producer, 0, 0), Code::BatchTooLarge).await;
}
