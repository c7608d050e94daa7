//! The start, the end and the readiness of the real program.

use std::{net::SocketAddr, sync::Arc};

use nix::sys::signal::Signal;
use oncelog::{
    broker::{Broker, ServiceConfig},
    model::Code,
    store::{self, Store},
};
use reqwest::Method;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::support::{
    self,
    http::{Answer, SECRET, Server, claims, signed, token},
    proxy::Proxy,
    served::{Client, Process, replica_with, until},
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
    let admin = process.client(None).admin();
    process.signal(Signal::SIGTERM);
    let left = async || (client.get("/readyz").await.status == 503).then_some(());
    until("the server to leave", left).await;
    not_ready(&client, "draining", "draining").await;
    not_ready(&admin, "draining", "draining").await;
    // a new connection, too
    let other = Client::new(&process.url, None);
    assert_eq!(other.send(Method::GET, "/v1/topics", &[], None).await.unwrap().status, 401);
    other.get("/livez").await.ok(200);
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit().await.code(), Some(1), "a second signal ends it at once");
}

/// A token for operators of the real program.
fn operator() -> Option<String> {
    let mut claims = claims("ops", "operator admin");
    claims["iss"] = json!("oncelog");
    Some(signed(&claims, SECRET))
}

/// A database behind a proxy, and its URL for the real program.
async fn reached() -> (Proxy, String) {
    let options = support::database().await;
    let proxy = Proxy::start(&options, 1).await;
    let reached = proxy.options(&options);
    let (port, database) = (reached.get_port(), reached.get_database().unwrap());
    let url = format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable");
    (proxy, url)
}

#[tokio::test]
async fn where_tokens_are_checked_operators_have_a_listener_of_their_own() {
    let (_proxy, url) = reached().await;
    for docs in [("true", 200), ("false", 404)] {
        let settings = [("ONCELOG_DATABASE_URL", &*url), ("ONCELOG_PUBLIC_DOCS", docs.0)];
        let (process, _) = replica_with(&settings).await;
        assert_ne!(process.url, process.admin_url);
        let public = process.client(operator());
        let (admin, stranger) = (public.admin(), public.admin().showing(None));
        let is_listening = async |client: &Client, table: &[(&str, u16)]| {
            for (path, status) in table {
                let answer = client.get(path).await;
                assert_eq!(answer.status, *status, "{} {path}: {}", client.url, answer.text);
                let elsewhere = match *path {
                    "/metrics" | "/v1/tenants" => "is on the admin listener",
                    "/v1/topics" => "is on the public listener",
                    _ => "",
                };
                if *status == 404 {
                    assert!(answer.text.contains(elsewhere), "{}", answer.text);
                }
            }
        };
        let docs = [("/docs", docs.1), ("/openapi.json", docs.1), ("/docs/start.js", docs.1)];
        is_listening(&public, &docs).await;
        let of_public = [("/livez", 200), ("/readyz", 200), ("/v1/topics", 200)];
        is_listening(&public, &of_public).await;
        is_listening(&public, &[("/metrics", 404), ("/v1/tenants", 404)]).await;
        let of_both = [("/livez", 200), ("/readyz", 200), ("/docs", 200), ("/openapi.json", 200)];
        is_listening(&stranger, &of_both).await;
        is_listening(&stranger, &[("/metrics", 200), ("/v1/tenants", 401)]).await;
        is_listening(&admin, &[("/v1/tenants", 200), ("/v1/topics", 404)]).await;
    }
}

#[tokio::test]
async fn without_tokens_one_listener_carries_all_unless_there_is_to_be_another() {
    let directory = support::open_dir();
    let data_dir = directory.path().join("data");
    let whole = Process::embedded("127.0.0.1:0", &data_dir).await;
    assert_eq!(whole.url, whole.admin_url);
    for path in ["/livez", "/readyz", "/metrics", "/docs", "/v1/tenants", "/v1/topics"] {
        assert_eq!(whole.client(None).get(path).await.status, 200, "{path}");
    }
    drop(whole);
    let data_dir = data_dir.to_str().unwrap();
    let arguments = ["--admin-listen", "127.0.0.1:0", "--data-dir", data_dir];
    let process = Process::serve(&[&LISTEN[..], &arguments[..]].concat(), &[]).await;
    let public = process.client(None);
    assert_eq!(public.get("/v1/tenants").await.status, 404);
    assert_eq!(public.get("/v1/topics").await.status, 200);
    assert_eq!(public.admin().get("/v1/tenants").await.status, 200);
}

/// All connections of the public listener have work, and none of the other. Who begins a head and
/// does not go on has none: it gives way.
#[tokio::test]
async fn a_flood_of_connections_leaves_the_probes_alone() {
    let (_proxy, url) = reached().await;
    let (process, client) = replica_with(&[
        ("ONCELOG_DATABASE_URL", &url),
        ("ONCELOG_MAX_CONNECTIONS", "2"),
        ("ONCELOG_HEADER_TIMEOUT_MS", "600000"),
    ])
    .await;
    client.put_topic("t", 1).await;
    let address: SocketAddr = process.url.strip_prefix("http://").unwrap().parse().unwrap();
    let wait = format!(
        "GET /v1/topics/t/partitions/0/records?wait_ms=30000 HTTP/1.1\r\nhost: localhost\r\n\
         authorization: Bearer {}\r\n",
        client.token.as_ref().unwrap()
    );
    let (admin, mut held) = (client.admin(), Vec::new());
    for count in 1..=2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{wait}\r\n").as_bytes()).await.unwrap();
        held.push(stream);
        let line =
            format!("oncelog_http_requests_in_flight{{operation=\"read_partition\"}} {count}\n");
        let waits = async || admin.get("/metrics").await.text.contains(&line).then_some(());
        until("the connection to have work", waits).await;
    }
    let mut unfinished = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(wait.as_bytes()).await.unwrap();
        unfinished.push(stream);
    }
    let mut waiting = TcpStream::connect(address).await.unwrap();
    waiting.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    for path in ["/livez", "/readyz", "/metrics"] {
        // each over a connection of its own
        assert_eq!(process.client(None).admin().get(path).await.status, 200, "{path}");
    }
    assert!(waiting.try_read(&mut [0]).is_err(), "there is no slot for it");
    drop(held);
    assert_eq!(Answer::read(&mut waiting).await.status, 200);
}

#[tokio::test]
async fn an_admin_port_that_is_taken_is_told_at_once() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let settings = [&environment(NOWHERE)[..], &[("ONCELOG_ADMIN_LISTEN", &*address)][..]].concat();
    let mut process = Process::start(&LISTEN, &settings);
    assert_eq!(process.exit().await.code(), Some(1));
    let words = format!("cannot listen on {address}: set admin_listen to an address that is free");
    until(&words, async || process.log().contains(&words).then_some(())).await;
}

/// A probe neither waits for other work, nor takes a replica out because it has much to do.
#[tokio::test]
async fn readiness_does_not_wait_for_a_connection_of_the_pool() {
    let store = Store::new(support::database().await, 1);
    let broker = Broker::start_without_janitor(store.clone(), ServiceConfig::default());
    let [taken, go] = [(); 2].map(|()| Arc::new(Notify::new()));
    let work = {
        let (taken, go) = (taken.clone(), go.clone());
        tokio::spawn(store.run(async move |_: &mut store::Connection| {
            taken.notify_one();
            go.notified().await;
            Ok::<_, store::Error>(())
        }))
    };
    taken.notified().await;
    broker.ready().await.unwrap();
    broker.ready().await.unwrap();
    go.notify_one();
    work.await.unwrap().unwrap();
    broker.stop().await;
}

/// Pages of strangers reach this machine by its user's browser.
#[tokio::test]
async fn without_tokens_only_programs_of_this_machine_and_its_own_page_are_answered() {
    let paths = ["/v1/topics", "/v1/tenants", "/metrics", "/docs", "/readyz", "/nowhere"];
    let ask = |path: &str, headers: &str| format!("GET {path} HTTP/1.1\r\n{headers}\r\n");
    let server = Server::start().await;
    let foreign = [
        "host: attacker.example\r\n",
        "host: localhost\r\norigin: http://attacker.example\r\n",
        "host: localhost\r\nsec-fetch-site: cross-site\r\n",
    ];
    for (path, headers) in paths.iter().flat_map(|path| foreign.map(|headers| (path, headers))) {
        let problem = server.raw(ask(path, headers)).await.refused(Code::Forbidden);
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("asks for no token") && detail.contains("set a token key"));
    }
    // what needs no preflight changes nothing
    let open = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\n\
                origin: http://attacker.example\r\ncontent-length: 0\r\n\r\n";
    server.raw(open).await.refused(Code::Forbidden);
    let sessions = server.get("/v1/sessions").await.ok();
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 0);
    let host = server.address;
    let own = format!("host: {host}\r\norigin: http://{host}\r\n");
    let own = own + "sec-fetch-site: same-origin\r\n";
    assert_eq!(server.raw(ask("/v1/topics", &own)).await.status, 200);

    // a token is more than a page of a stranger has
    let signed = Server::signed().await;
    let token = format!("authorization: Bearer {}\r\n", token("acme", "admin"));
    for headers in foreign {
        let answer = signed.raw(ask("/v1/topics", &format!("{headers}{token}"))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}
