//! Answers that anybody may ask for, and that nobody reads.

use std::net::SocketAddr;

use futures_util::future::join_all;
use reqwest::Method;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
};

use super::{MIB, address, address_of};
use crate::{
    metrics::Measured,
    support::{self, document::operations, http2, served::until},
};

/// What one of them may cost, all told. Half of it is what a build for tests needs for a request at
/// work, which the allocator keeps for the next; the texts and the encoders' states are far larger.
const UNREAD_BYTES: usize = 32 << 10;
/// How many texts of `/metrics` are kept at most, for however many readers.
const KEPT_TEXTS: usize = 32;
const ENCODINGS: [&str; 3] = ["identity", "gzip", "zstd"];

/// The paths that need no token.
fn open_paths() -> Vec<String> {
    let open = operations().filter(|(_, path, _)| !path.starts_with("/v1/"));
    let files = ["swagger-ui-bundle.js", "swagger-ui.css", "page.css", "start.js"];
    let paths = open.flat_map(|(method, path, _)| {
        assert_eq!(method, "get");
        let named = if path.contains("{file}") { &files[..] } else { &files[..1] };
        let path = path.replace("{page}", "README.md");
        named.iter().map(move |file| path.replace("{file}", file))
    });
    paths.chain(["/docs/".to_owned(), "/nowhere".to_owned(), "/v1/topics".to_owned()]).collect()
}

/// The listener of a path, and how many connections it lets a test hold.
fn listener(measured: &Measured, path: &str) -> (SocketAddr, usize) {
    match path {
        "/metrics" => (address_of(&measured.process.admin_url), 200),
        _ => (address(measured), usize::MAX),
    }
}

async fn make_what_is_made_once(measured: &Measured) {
    for path in open_paths() {
        for encoding in ENCODINGS {
            let accept = [("accept-encoding", encoding)];
            for client in [measured.client.clone(), measured.client.admin()] {
                client.send(Method::GET, &path, &accept, None).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn over_http_2_they_cost_next_to_nothing() {
    const CONNECTIONS: usize = 10;
    const STREAMS: u32 = 250;
    let measured = Measured::start(&support::database().await, &[]).await;
    make_what_is_made_once(&measured).await;
    let before = measured.process.memory_bytes("VmRSS");
    let most = before + CONNECTIONS * STREAMS as usize * UNREAD_BYTES;
    for path in open_paths() {
        let (address, _) = listener(&measured, &path);
        for window_bytes in [0, 1] {
            let mut connections = Vec::new();
            for index in 0..CONNECTIONS {
                let mut connection = http2::Connection::open(address, window_bytes).await;
                let encoding = ENCODINGS[index % ENCODINGS.len()];
                connection.get(&path, &[("accept-encoding", encoding)], STREAMS).await;
                connections.push(connection);
            }
            for connection in &mut connections {
                connection.all_answered().await;
            }
            let now = measured.process.memory_bytes("VmRSS");
            println!("{path} {window_bytes}: {} KiB", now.saturating_sub(before) >> 10);
            assert!(now < most, "{path}, window {window_bytes}: {} MiB", (now - before) / MIB);
        }
    }
}

#[tokio::test]
async fn over_http_1_they_cost_next_to_nothing() {
    const CONNECTIONS: usize = 500;
    let measured = Measured::start(&support::database().await, &[]).await;
    let address = address(&measured);
    make_what_is_made_once(&measured).await;
    let before = measured.process.memory_bytes("VmRSS");
    // what a connection costs that reads
    let idle = (0..CONNECTIONS).map(|_| asking(address, "/livez", "identity"));
    let idle = join_all(idle).await;
    let connections = measured.process.memory_bytes("VmRSS").saturating_sub(before);
    drop(idle);
    // and the texts of /metrics, of which a slow machine writes more while they come
    let text = measured.client.admin().send(Method::GET, "/metrics", &[], None).await.unwrap();
    let texts = KEPT_TEXTS * text.text.len();
    let most = connections + CONNECTIONS * UNREAD_BYTES + texts;
    println!("{CONNECTIONS} connections: {} KiB; texts: {} KiB", connections >> 10, texts >> 10);
    for path in open_paths() {
        let before = measured.process.memory_bytes("VmRSS");
        let (address, most_connections) = listener(&measured, &path);
        let unread = ENCODINGS.iter().cycle().take(CONNECTIONS.min(most_connections));
        let unread = join_all(unread.map(|encoding| asking(address, &path, encoding))).await;
        // What stays while they wait: what a busy machine needed to write them is given back.
        let mut cost = 0;
        let small = async || {
            cost = measured.process.memory_bytes("VmRSS").saturating_sub(before);
            (cost < most).then_some(())
        };
        until(&format!("{path} to cost less than {} KiB", most >> 10), small).await;
        println!("{path}: {} KiB", cost >> 10);
        drop(unread);
    }
}

/// A connection on which an answer has begun to come, and waits in front of a small window.
async fn asking(address: SocketAddr, path: &str, encoding: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2 << 10).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let ask =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept-encoding: {encoding}\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'H');
    stream
}
