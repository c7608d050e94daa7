//! The audit log: a line for all that administrators and operators do, for who takes a producer's
//! place, and for refused tokens; with who it was, and no secret.

use std::{os::unix::fs::PermissionsExt, path::PathBuf, time::Instant};

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    metrics::Measured,
    support::{
        self,
        http::{SECRET, claims, signed},
        served::{Client, until},
    },
};

/// A server with an audit log, which trusts the proxies of this machine.
struct Audited {
    measured: Measured,
    directory: tempfile::TempDir,
}

impl Audited {
    async fn start() -> Self {
        let directory = support::open_dir();
        let file = directory.path().join("audit.log");
        let settings = [
            ("ONCELOG_TOKEN_ISSUER", "issuer"),
            ("ONCELOG_AUDIT_LOG_FILE", file.to_str().unwrap()),
            ("ONCELOG_TRUSTED_PROXIES", "127.0.0.1,10.0.0.0/8"),
        ];
        let measured = Measured::start(&support::database().await, &settings).await;
        Self { measured, directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("audit.log")
    }

    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn client(&self, claims: &Value) -> Client {
        self.measured.client.showing(Some(signed(claims, SECRET)))
    }
}

/// Through two proxies.
async fn send(client: &Client, method: Method, path: &str, body: &str) -> support::served::Answer {
    let headers = [
        ("content-type", "application/json"),
        ("x-forwarded-for", "1.1.1.1, 203.0.113.7, 10.1.1.1"),
    ];
    let body = (!body.is_empty()).then(|| body.to_owned());
    client.send(method, path, &headers, body).await.unwrap()
}

/// What a line says, but for instants and ids.
fn said(line: &Value) -> String {
    let words = ["operation", "path", "outcome", "tenant", "subject", "token_id", "client"];
    words.map(|name| line[name].as_str().unwrap_or("-")).join(" ")
}

#[tokio::test]
async fn who_changes_something_is_named() {
    let server = Audited::start().await;
    let mut alice = claims("acme", "admin produce operator");
    (alice["sub"], alice["jti"]) = (json!("alice"), json!("token-7"));
    let alice = server.client(&alice);
    let post = async |path: &str, body: &str| send(&alice, Method::POST, path, body).await;
    send(&alice, Method::PUT, "/v1/topics/orders", "{}").await.ok(201);
    send(&alice, Method::GET, "/v1/topics/orders", "").await.ok(200);
    send(&alice, Method::PATCH, "/v1/settings", r#"{"max_topics": 1}"#).await.ok(200);
    send(&alice, Method::PUT, "/v1/topics/more", "{}").await.ok(429);
    send(&alice.admin(), Method::PUT, "/v1/tenants/rival", "{}").await.ok(201);
    // a first open takes nobody's place, nor does its repeat
    let open = |id: Uuid| format!(r#"{{"transactional_id": "p", "open_id": "{id}"}}"#);
    let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
    let producer = post("/v1/sessions", &open(one)).await.ok(201)["producer_id"].clone();
    post("/v1/sessions", &open(one)).await.ok(200);
    post("/v1/sessions", &open(other)).await.ok(201);
    post("/v1/sessions", &open(other)).await.ok(200);
    // an end by an operator, and one by a client
    let begin = async || {
        let begun = post("/v1/transactions", "{}").await.ok(201);
        format!("/v1/transactions/{}/abort", begun["transaction_id"].as_str().unwrap())
    };
    let (by_operator, by_client) = (begin().await, begin().await);
    // however it is written
    post(&format!("{by_operator}?a%73=%6Fperator"), "{}").await.ok(200);
    post(&by_client, "{}").await.ok(200);
    let producer = format!("/v1/sessions/{producer}");
    assert_eq!(send(&alice, Method::DELETE, &producer, "").await.status, 204);
    let mut eve = claims("acme", "consume");
    eve["sub"] = json!("eve\n\"quoted\"");
    send(&server.client(&eve), Method::DELETE, "/v1/topics/orders", "").await.ok(403);
    let unsigned = server.measured.client.showing(Some("nonsense".to_owned()));
    send(&unsigned, Method::GET, "/v1/topics", "").await.ok(401);

    let lines =
        until("its lines", async || Some(server.lines()).filter(|all| all.len() >= 9)).await;
    let who = "acme alice token-7 203.0.113.7";
    let want = [
        format!("put_topic /v1/topics/orders done {who}"),
        format!("patch_settings /v1/settings done {who}"),
        format!("put_topic /v1/topics/more quota_exceeded {who}"),
        format!("put_tenant /v1/tenants/rival done {who}"),
        format!("open_session /v1/sessions fenced {who}"),
        format!("abort_transaction {by_operator} done {who}"),
        format!("end_session {producer} done {who}"),
    ];
    let (done, refused) = lines.split_at(want.len());
    assert_eq!(done.iter().map(said).collect::<Vec<_>>(), want);
    let [eve, nobody] = refused else { panic!("{lines:#?}") };
    assert_eq!(
        (&eve["subject"], &eve["outcome"]),
        (&json!("eve\n\"quoted\""), &json!("forbidden"))
    );
    // a token without an id is known by a part of its hash
    assert_eq!(eve["token_id"].as_str().unwrap().len(), 12);
    assert_eq!(said(nobody), "list_topics /v1/topics unauthenticated - - - 203.0.113.7");
    assert!(lines.iter().all(|line| line["request_id"].is_string() && line["target"] == "audit"));

    let text = std::fs::read_to_string(server.path()).unwrap();
    assert!(!text.contains(SECRET) && !text.contains("eyJ") && !text.contains("nonsense"));
    let mode = std::fs::metadata(server.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // none of it is in the log
    assert!(!server.measured.process.log().contains("alice"));
}

/// Of what is refused only some lines a second are written; the next one says how many were not.
#[tokio::test]
async fn a_flood_of_refusals_fills_no_disk() {
    let server = Audited::start().await;
    let unsigned = server.measured.client.showing(Some("nonsense".to_owned()));
    let begun = Instant::now();
    for _ in 0..20 {
        let burst = (0..50).map(|_| unsigned.get("/v1/topics"));
        futures_util::future::join_all(burst).await;
    }
    let told = async || {
        unsigned.get("/v1/topics").await.ok(401);
        let lines = server.lines();
        let left_out: u64 = lines.iter().map(|line| line["left_out"].as_u64().unwrap()).sum();
        (left_out + lines.len() as u64 >= 1_000).then_some(lines.len() as u64)
    };
    let written = until("all are written or counted", told).await;
    let seconds = begun.elapsed().as_secs() + 2;
    assert!(written <= 20 * seconds, "{written} lines in {seconds} s");
}
