//! The accept loop: a bounded number of connections, bounded request heads, and a graceful
//! shutdown.

mod head;
mod linger;

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Version, header::EXPECT},
    response::Response,
};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use self::{
    head::{Answer, Connection, Stream},
    linger::LingeringBody,
};
use super::{Limits, Routers};
use crate::telemetry;

/// Maximum number of open streams on an HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// How often a silent HTTP/2 peer is pinged, and how long it has to answer.
const PING: Duration = Duration::from_secs(20);
/// Pause after errors such as "too many open files", instead of a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `stop`, then finishes the requests in flight within `drain_timeout_ms`.
pub async fn serve(
    listener: TcpListener,
    routers: Routers,
    limits: &Limits,
    stop: CancellationToken,
) {
    let builder = Arc::new(builder(limits));
    let header_timeout = Duration::from_millis(limits.header_timeout_ms);
    let slots = Arc::new(Semaphore::new(limits.max_connections.min(Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    let label = routers.listener.label();
    let open = metrics::gauge!(telemetry::HTTP_CONNECTIONS, "listener" => label);
    let mut connections = JoinSet::new();
    loop {
        // Without a free slot nothing is accepted: the backlog of the listener waits.
        let Some((stream, slot)) = stop.run_until_cancelled(accept(&listener, &slots)).await else {
            break;
        };
        while connections.try_join_next().is_some() {}
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (watcher, builder, routers) = (graceful.watcher(), builder.clone(), routers.clone());
        let counted = telemetry::Counted::new(&open);
        connections.spawn(async move {
            let (_slot, _counted) = (slot, counted);
            let connection = Connection::new();
            let service = {
                let connection = connection.clone();
                service_fn(move |request| answer(routers.current(), request, connection.clone()))
            };
            let stream = Stream { tcp: stream, connection: connection.clone() };
            let serving = builder.serve_connection(TokioIo::new(stream), service).into_owned();
            match connection.served(watcher.watch(serving), header_timeout).await {
                Some(done) => closed(done),
                None => tracing::debug!("a request head came too slowly"),
            }
        });
    }
    drop(listener);
    let drain = Duration::from_millis(limits.drain_timeout_ms);
    if timeout(drain, graceful.shutdown()).await.is_err() {
        tracing::warn!(connections = connections.len(), "shutdown aborts requests in flight");
    }
    connections.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (io::Result<TcpStream>, Option<tokio::sync::OwnedSemaphorePermit>) {
    // The semaphore is never closed, so there always is a permit in the end.
    let slot = slots.clone().acquire_owned().await.ok();
    let stream = listener.accept().await.and_then(|(stream, _)| {
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    (stream, slot)
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    connection: Connection,
) -> Result<Response<Answer>, Infallible> {
    let is_multiplexed = request.version() == Version::HTTP_2;
    connection.has_request(is_multiplexed);
    // who waits for a 100 sends nothing after a refusal
    let waits = request.headers().contains_key(EXPECT);
    let request = match is_multiplexed || waits {
        true => request.map(Body::new),
        false => request.map(|body| Body::new(LingeringBody::new(body))),
    };
    let response = router.oneshot(request).await?;
    Ok(response.map(|body| Answer { body, connection }))
}

fn closed<E: std::fmt::Display>(done: Result<(), E>) {
    if let Err(error) = done {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // hyper panics below 8 KiB.
    let head_bytes = limits.max_header_bytes.max(8 << 10);
    builder
        .http1()
        .timer(TokioTimer::new())
        // from the end of the last answer on; `Connection` limits the head itself
        .header_read_timeout(Duration::from_millis(limits.keep_alive_timeout_ms))
        .max_buf_size(head_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX))
        .max_concurrent_streams(MAX_STREAMS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::Notify,
        task::JoinHandle,
    };

    use super::*;

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
        let router = Router::new().route("/", get(|| async { "fast" })).route("/slow", get(slow));
        let stop = CancellationToken::new();
        let (token, stopped) = (stop.clone(), limits);
        let server =
            tokio::spawn(async move { serve(listener, router.into(), &stopped, token).await });
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
        let slow =
            running.connect("GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
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
        let slow =
            running.connect("GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        running.arrived.notified().await;
        let waits = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let mut second = running.connect(waits).await;
        assert!(timeout(Duration::from_millis(50), second.read_u8()).await.is_err());
        running.go.notify_one();
        assert!(rest(slow).await.ends_with("slow"));
        assert!(rest(second).await.ends_with("fast"));
    }
}
