//! The start, the end and the readiness of the real program.

use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::json;

use crate::support::{
    self,
    http::SECRET,
    proxy::Proxy,
    served::{Client, Process, until},
};

/// Nobody listens there.
const NOWHERE: &str = "postgres://postgres@127.0.0.1:9/oncelog?sslmode=disable";
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

fn environment(database_url: &str) -> [(&str, &str); 2] {
    [("ONCELOG_TOKEN_HS256_SECRET", SECRET), ("ONCELOG_DATABASE_URL", database_url)]
}

async fn not_ready(client: &Client, code: &str, reason: &str) {
    let answer = client.get("/readyz").await;
    assert_eq!(answer.problem(), (503, code.to_owned()), "{answer:?}");
    assert_eq!(answer.json()["reason"], reason, "{answer:?}");
    assert_eq!(answer.header("retry-after"), 1);
}

#[tokio::test]
async fn a_server_without_its_database_lives_says_why_it_is_not_ready_and_can_be_ended() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = Process::listening(&LISTEN, &environment(NOWHERE)).await;
        let client = Client::new(&process.url, None);
        client.get("/livez").await.ok(200);
        not_ready(&client, "unavailable", "starting").await;
        for path in ["/v1/topics", "/", "/docs", "/metrics", "/nowhere"] {
            let answer = client.get(path).await;
            assert_eq!(answer.problem(), (503, "unavailable".to_owned()), "{path}");
        }
        let body = json!({"records": [{"value": 1}]});
        let answer = client.post("/v1/topics/t/records", &body).await;
        assert_eq!(answer.problem(), (503, "unavailable".to_owned()));
        process.signal(signal);
        assert!(process.exit().await.success(), "{}", process.log());
        assert!(process.log().contains("stopped before there was a database"));
    }
}

/// The same connection is answered by a replica that starts, and by one that serves.
#[tokio::test]
async fn a_server_serves_once_its_database_answers() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    proxy.close_gate();
    let reached = proxy.options(&options);
    let (port, database) = (reached.get_port(), reached.get_database().unwrap());
    let url = format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable");
    let process = Process::listening(&LISTEN, &environment(&url)).await;
    let client = Client::new(&process.url, None);
    not_ready(&client, "unavailable", "starting").await;
    proxy.open_gate();
    let ready = async || (client.get("/readyz").await.status == 200).then_some(());
    until("the server to be ready", ready).await;
    assert_eq!(client.get("/v1/topics").await.problem(), (401, "unauthenticated".to_owned()));
    proxy.close_gate();
    proxy.cut_all();
    not_ready(&client, "unavailable", "database").await;
}

/// A mistake that no waiting mends: one sentence, at once.
#[tokio::test]
async fn a_database_url_that_is_wrong_ends_the_start_with_a_sentence() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let port = proxy.options(&options).get_port();
    let table = [
        ("postgres@127.0.0.1:{port}/nonesuch?sslmode=disable", "there is no database nonesuch"),
        ("nobody:secret@127.0.0.1:{port}/postgres?sslmode=disable", "does not let nobody connect"),
        ("postgres@127.0.0.1:{port}/postgres?sslmode=require", "cannot use TLS"),
    ];
    for (url, words) in table {
        let url = format!("postgres://{}", url.replace("{port}", &port.to_string()));
        let mut process = Process::start(&LISTEN, &environment(&url));
        assert_eq!(process.exit().await.code(), Some(1));
        until(words, async || process.log().contains(words).then_some(())).await;
        let log = process.log();
        println!("{log}");
        assert!(!log.contains("secret") && !log.contains("retrying"), "{log}");
    }
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_is_not_ready_and_serves_on_for_a_while() {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let reached = proxy.options(&options);
    let (port, database) = (reached.get_port(), reached.get_database().unwrap());
    let url = format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable");
    let delay = [("ONCELOG_SHUTDOWN_DELAY_MS", "600000")];
    let environment = [&environment(&url)[..], &delay[..]].concat();
    let mut process = Process::serve(&LISTEN, &environment).await;
    let client = Client::new(&process.url, None);
    client.get("/readyz").await.ok(200);
    process.signal(Signal::SIGTERM);
    let left = async || (client.get("/readyz").await.status == 503).then_some(());
    until("the server to leave", left).await;
    not_ready(&client, "draining", "draining").await;
    // a new connection, too
    let other = Client::new(&process.url, None);
    assert_eq!(other.send(Method::GET, "/v1/topics", &[], None).await.unwrap().status, 401);
    other.get("/livez").await.ok(200);
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit().await.code(), Some(1), "a second signal ends it at once");
}
