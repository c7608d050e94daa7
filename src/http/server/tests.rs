use std::net::SocketAddr;

use axum::routing::get;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Notify,
    task::JoinHandle,
};

use super::*;

/// More than lies between a server and a client that does not read.
const LARGE_BYTES: usize = 16 << 20;

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    server: JoinHandle<()>,
    /// A request to `/slow` has arrived, and may be answered.
    arrived: Arc<Notify>,
    go: Arc<Notify>,
}

async fn run(limits: Limits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let [arrived, go] = [(); 2].map(|()| Arc::new(Notify::new()));
    let signals = (arrived.clone(), go.clone());
    let slow = move || {
        let (arrived, go) = signals.clone();
        async move {
            arrived.notify_one();
            go.notified().await;
            "slow"
        }
    };
    let large = || async { vec![b'x'; LARGE_BYTES] };
    let router = Router::new()
        .route("/", get(|| async { "fast" }))
        .route("/slow", get(slow))
        .route("/large", get(large));
    let stop = CancellationToken::new();
    let (token, stopped) = (stop.clone(), limits);
    let server =
        tokio::spawn(async move { serve(listener, router.into(), &stopped, None, token).await });
    Running { address, stop, server, arrived, go }
}

impl Running {
    async fn connect(&self, said: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(said.as_bytes()).await.unwrap();
        stream
    }
}

/// All that comes until the server closes.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let reading = stream.read_to_end(&mut bytes);
    let _ = timeout(Duration::from_secs(10), reading).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

fn limits() -> Limits {
    Limits { header_timeout_ms: 60_000, drain_timeout_ms: 60_000, ..Limits::default() }
}

#[tokio::test]
async fn a_shutdown_finishes_what_is_in_flight_and_closes_what_idles() {
    let running = run(limits()).await;
    let slow = running.connect("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
    running.arrived.notified().await;
    let silent = running.connect("").await;
    let mut idle = running.connect("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    idle.read_u8().await.unwrap();
    running.stop.cancel();
    assert!(rest(idle).await.ends_with("fast"));
    assert_eq!(rest(silent).await, "");
    running.go.notify_one();
    assert!(rest(slow).await.ends_with("slow"));
    running.server.await.unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn a_shutdown_gives_up_after_its_deadline() {
    let running = run(Limits { drain_timeout_ms: 50, ..limits() }).await;
    let slow = running.connect("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await;
    running.arrived.notified().await;
    running.stop.cancel();
    timeout(Duration::from_secs(10), running.server).await.unwrap().unwrap();
    assert_eq!(rest(slow).await, "");
}

#[tokio::test]
async fn unfinished_heads_are_cut() {
    let running = run(Limits { header_timeout_ms: 50, ..limits() }).await;
    for said in ["", "PRI", "GET / HT", "GET / HTTP/1.1\r\nhost:"] {
        rest(running.connect(said).await).await;
    }
    // A request that takes longer than its head is left alone.
    let slow = running.connect("GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    running.arrived.notified().await;
    sleep(Duration::from_millis(100)).await;
    running.go.notify_one();
    assert!(rest(slow).await.ends_with("slow"));
}

/// What load balancers keep open stays open; a head that has begun must come.
#[tokio::test]
async fn a_connection_may_idle_longer_than_a_head_may_take() {
    let (head, idle) = (Duration::from_millis(200), Duration::from_millis(1_500));
    let running = run(Limits {
        header_timeout_ms: head.as_millis() as u64,
        keep_alive_timeout_ms: idle.as_millis() as u64,
        ..limits()
    })
    .await;
    let [mut silent, mut slow] = [running.connect("").await, running.connect("").await];
    for _ in 0..2 {
        for stream in [&mut silent, &mut slow] {
            stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"fast") {
                assert!(stream.read_buf(&mut answer).await.unwrap() > 0);
            }
        }
        sleep(2 * head).await;
    }
    slow.write_all(b"GET / HT").await.unwrap();
    let begun = tokio::time::Instant::now();
    rest(slow).await;
    assert!(begun.elapsed() < idle, "it is a head that was waited for");
    rest(silent).await;
    assert!(begun.elapsed() > head, "it may idle");
}

#[tokio::test]
async fn http_2_is_spoken_without_tls_and_ended_in_order() {
    let running = run(limits()).await;
    let mut stream = running.connect("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // GET / of http://x, from HPACK's static table.
    let get = [0, 0, 6, 1, 5, 0, 0, 0, 1, 0x82, 0x84, 0x86, 0x41, 1, b'x'];
    stream.write_all(&[&settings[..], &get[..]].concat()).await.unwrap();
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"fast") {
        let reading = stream.read_buf(&mut bytes);
        assert!(timeout(Duration::from_secs(10), reading).await.unwrap().unwrap() > 0);
    }
    running.stop.cancel();
    // It says that it goes, asks whether that was heard, and goes.
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0];
    let asked = |bytes: &[u8]| bytes.len() > 17 && bytes[bytes.len() - 17..].starts_with(&ping);
    while !asked(&bytes) {
        let reading = stream.read_buf(&mut bytes);
        assert!(timeout(Duration::from_secs(10), reading).await.unwrap().unwrap() > 0);
    }
    let heard = [&[0, 0, 8, 6, 1, 0, 0, 0, 0], &bytes[bytes.len() - 8..]].concat();
    stream.write_all(&heard).await.unwrap();
    timeout(Duration::from_secs(10), running.server).await.unwrap().unwrap();
}

#[tokio::test]
async fn connections_beyond_the_bound_wait() {
    let running = run(Limits { max_connections: 1, ..limits() }).await;
    let slow = running.connect("GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    running.arrived.notified().await;
    let waits = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut second = running.connect(waits).await;
    assert!(timeout(Duration::from_millis(50), second.read_u8()).await.is_err());
    running.go.notify_one();
    assert!(rest(slow).await.ends_with("slow"));
    assert!(rest(second).await.ends_with("fast"));
}

fn unread(answer_timeout_ms: u64) -> Limits {
    Limits { answer_timeout_ms, ..limits() }
}

/// However long it takes until the client reads, what it finds then breaks off.
#[tokio::test]
async fn an_answer_that_is_not_read_is_cut() {
    let running = run(unread(100)).await;
    let ask = "GET /large HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut stream = running.connect(ask).await;
    stream.readable().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    assert!(bytes.len() < LARGE_BYTES, "{}", bytes.len());
    // it is a matter of progress, not of how long the whole takes
    let mut stream = running.connect(ask).await;
    let mut got = 0;
    let mut piece = vec![0; LARGE_BYTES / 16];
    while got < LARGE_BYTES {
        stream.read_exact(&mut piece).await.unwrap();
        got += piece.len();
        sleep(Duration::from_millis(20)).await;
    }
}

/// What an answer waits for on the server is not its client's doing.
#[tokio::test]
async fn an_answer_that_is_not_there_yet_is_not_cut() {
    let running = run(unread(50)).await;
    let slow = running.connect("GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    running.arrived.notified().await;
    sleep(Duration::from_millis(200)).await;
    running.go.notify_one();
    assert!(rest(slow).await.ends_with("slow"));
}

/// GET, over HTTP/2, of a path that is in HPACK's plain form.
fn get_frame(stream: u8, path: &str) -> Vec<u8> {
    let path = path.as_bytes();
    let block = [&[0x82, 0x04, path.len() as u8], path, &[0x86, 0x41, 1, b'x']].concat();
    [&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, stream], &block[..]].concat()
}

/// A connection of HTTP/2 whose answers may have that many bytes until more are let through.
async fn multiplexed(running: &Running, window_bytes: u32) -> TcpStream {
    let window = window_bytes.to_be_bytes();
    let settings = [&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4], &window[..]].concat();
    let mut stream = running.connect("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    stream.write_all(&settings).await.unwrap();
    stream
}

async fn closed(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut bytes)).await.unwrap();
    bytes
}

/// One stream that is not read is noticed, whatever else its connection does: with no window at
/// all, with one that lets a piece begin, and with one that lets all but the last piece through.
#[tokio::test]
async fn over_http_2_each_answer_is_to_be_read() {
    let running = run(unread(200)).await;
    for window_bytes in [0, 1, LARGE_BYTES as u32 - 1] {
        let mut stream = multiplexed(&running, window_bytes).await;
        // the window of the connection is not what stops it
        let all = [&[0, 0, 4, 8, 0, 0, 0, 0, 0], &(1_u32 << 30).to_be_bytes()[..]].concat();
        stream.write_all(&[all, get_frame(1, "/large")].concat()).await.unwrap();
        let (mut read, mut write) = stream.into_split();
        let busy = async {
            for index in 1..100 {
                write.write_all(&get_frame(2 * index + 1, "/")).await?;
                sleep(Duration::from_millis(50)).await;
            }
            io::Result::Ok(())
        };
        let mut bytes = Vec::new();
        let ends = async { read.read_to_end(&mut bytes).await };
        // what is written after the end fails sooner or later, and what is read ends
        let (_, asked) = tokio::join!(ends, busy);
        assert!(asked.is_err(), "window of {window_bytes}: it was never cut");
    }
}

#[tokio::test]
async fn over_http_2_too_a_connection_may_idle_for_a_while_only() {
    let running = run(Limits { keep_alive_timeout_ms: 100, ..limits() }).await;
    let mut stream = multiplexed(&running, 1 << 16).await;
    stream.write_all(&get_frame(1, "/")).await.unwrap();
    let bytes = closed_in_order(stream).await;
    assert!(bytes.windows(4).any(|bytes| bytes == b"fast"));
}

/// Who is asked to leave, and does not even answer, is cut.
#[tokio::test]
async fn who_does_not_leave_is_cut() {
    let timeouts = Limits { keep_alive_timeout_ms: 50, header_timeout_ms: 200, ..limits() };
    let running = run(timeouts).await;
    let mut stream = multiplexed(&running, 1 << 16).await;
    stream.write_all(&get_frame(1, "/")).await.unwrap();
    assert!(closed(stream).await.windows(4).any(|bytes| bytes == b"fast"));
}

/// Answers the ping with which a server that leaves asks whether it was heard, and reads on.
async fn closed_in_order(mut stream: TcpStream) -> Vec<u8> {
    let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0];
    let mut bytes = Vec::new();
    let pinged = loop {
        if let Some(at) = bytes.windows(9).position(|bytes| bytes == ping)
            && bytes.len() >= at + 17
        {
            break bytes[at + 9..at + 17].to_vec();
        }
        let reading = stream.read_buf(&mut bytes);
        assert!(timeout(Duration::from_secs(10), reading).await.unwrap().unwrap() > 0);
    };
    stream.write_all(&[&[0, 0, 8, 6, 1, 0, 0, 0, 0], &pinged[..]].concat()).await.unwrap();
    bytes.extend(closed(stream).await);
    bytes
}

/// Who has connections for hours is asked to make new ones, which may lead to another replica.
#[tokio::test]
async fn a_connection_grows_only_so_old() {
    let running = run(Limits { max_connection_age_ms: 50, ..limits() }).await;
    let mut stream = multiplexed(&running, 1 << 16).await;
    stream.write_all(&get_frame(1, "/")).await.unwrap();
    closed_in_order(stream).await;
    // HTTP/1: the next answer is the last one, and says so
    let mut stream = running.connect("").await;
    sleep(Duration::from_millis(100)).await;
    let slow = "GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(slow.as_bytes()).await.unwrap();
    running.arrived.notified().await;
    running.go.notify_one();
    let answer = rest(stream).await;
    assert!(answer.contains("connection: close") && answer.ends_with("slow"), "{answer}");
}

#[tokio::test]
async fn who_idles_gives_way() {
    let running = run(Limits { max_connections: 2, ..limits() }).await;
    let slow = running.connect("GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    running.arrived.notified().await;
    let silent = running.connect("").await;
    for _ in 0..3 {
        let mut next = running.connect("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(next.read_u8().await.unwrap(), b'H');
    }
    assert_eq!(rest(silent).await, "");
    running.go.notify_one();
    assert!(rest(slow).await.ends_with("slow"));
}

/// Two proxies may each take another of two hosts for the right one.
#[tokio::test]
async fn a_request_of_http_1_1_has_one_host() {
    let running = run(limits()).await;
    for (hosts, status) in [
        ("", "400"),
        ("host: a\r\nhost: b\r\n", "400"),
        ("host: a\r\nHOST: a\r\n", "400"),
        ("host:\r\n", "200"),
        ("host: a\r\n", "200"),
    ] {
        let head = format!("GET / HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        let answer = rest(running.connect(&head).await).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{hosts:?}: {answer}");
        assert_eq!(answer.contains("exactly one Host header"), status == "400", "{answer}");
    }
    let answer = rest(running.connect("GET / HTTP/1.0\r\n\r\n").await).await;
    assert!(answer.ends_with("fast"), "{answer}");
}
