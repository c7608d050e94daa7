//! The accept loop: a bounded number of connections, TLS, timeouts by progress, and a graceful
//! shutdown.

mod answer;
mod connection;
mod forwarded;
mod linger;
mod slots;
mod stream;
mod tls;

use std::{convert::Infallible, io, net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Version, header::EXPECT},
    response::Response,
};
use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use ipnet::IpNet;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

pub use self::tls::{Tls, TlsFiles};
use self::{
    answer::Answer,
    connection::{Connection, Timeouts},
    linger::LingeringBody,
    slots::{Slot, Slots},
    stream::Stream,
    tls::Accepted,
};
use super::{Limits, Routers, extract::caller::Caller};
use crate::telemetry;

/// Maximum number of open streams on an HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// How often a silent HTTP/2 peer is pinged, and how long it has to answer.
const PING: Duration = Duration::from_secs(20);
/// Pause after errors such as "too many open files", instead of a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For each place of a connection in TLS handshakes there are this many others.
const PLACES_PER_HANDSHAKE: usize = 8;

/// What every connection of a listener shares.
struct Server {
    routers: Routers,
    builder: Builder<TokioExecutor>,
    tls: Option<Tls>,
    timeouts: Timeouts,
    trusted_proxies: Arc<[IpNet]>,
    slots: Arc<Slots>,
    /// Of connections that are not established yet: they take none of the others' places.
    handshakes: Arc<Slots>,
    stop: CancellationToken,
}

/// Serves until `stop`, then finishes the requests in flight within `drain_timeout_ms`.
pub async fn serve(
    listener: TcpListener,
    routers: Routers,
    limits: &Limits,
    tls: Option<Tls>,
    stop: CancellationToken,
) {
    let server = Arc::new(Server {
        builder: builder(limits),
        tls,
        timeouts: Timeouts::of(limits),
        trusted_proxies: limits.trusted_proxies.clone().into(),
        slots: Slots::new(limits.max_connections),
        handshakes: Slots::new(limits.max_connections.div_ceil(PLACES_PER_HANDSHAKE)),
        stop: stop.clone(),
        routers,
    });
    let open = metrics::gauge!(telemetry::HTTP_CONNECTIONS, "listener" => server.label());
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener)).await {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = Connection::new(peer);
        // Without a free place nothing more is accepted: the backlog of the listener waits.
        let places = if server.tls.is_some() { &server.handshakes } else { &server.slots };
        let Some(place) = stop.run_until_cancelled(places.take(&connection)).await else { break };
        let (server, counted) = (server.clone(), telemetry::Counted::new(&open));
        connections.spawn(async move {
            let _counted = counted;
            let served = server.connected(stream, &connection, place);
            if connection.until_ended(served).await.is_none() {
                server.cut("no_room");
            }
        });
    }
    drop(listener);
    let drain = Duration::from_millis(limits.drain_timeout_ms);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(drain, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "shutdown aborts requests in flight");
    }
    connections.shutdown().await;
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, IpAddr)> {
    let (stream, peer) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, peer.ip()))
}

impl Server {
    fn label(&self) -> &'static str {
        self.routers.listener.label()
    }

    async fn connected(&self, stream: TcpStream, connection: &Connection, place: Slot) {
        let Some(tls) = &self.tls else {
            return self.established(stream, connection, place, false).await;
        };
        let deadline = Instant::now() + self.timeouts.head;
        let handshake = self.stop.run_until_cancelled(tls.accept(stream, deadline));
        let Some(Some(accepted)) = handshake.await else { return };
        let slot = self.slots.take(connection).await;
        drop(place);
        connection.established();
        match accepted {
            Accepted::Tls(stream) => self.established(stream, connection, slot, false).await,
            Accepted::Plain(stream) => self.established(stream, connection, slot, true).await,
        }
    }

    async fn established<S>(
        &self,
        stream: S,
        connection: &Connection,
        slot: Slot,
        is_plain_in_tls: bool,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = {
            let (routers, connection) = (self.routers.clone(), connection.clone());
            let proxies = self.trusted_proxies.clone();
            service_fn(move |request| {
                let router = routers.answering(&request, is_plain_in_tls);
                let client = forwarded::client(connection.peer(), request.headers(), &proxies);
                answer(router, request, Caller::at(client), connection.clone())
            })
        };
        let stream = Stream { inner: stream, connection: connection.clone() };
        let serving = self.builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let served = connection.served(serving, &self.timeouts, slot.number, self.stop.clone());
        match served.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
            Err(cut) => self.cut(cut.as_str()),
        }
    }

    fn cut(&self, reason: &'static str) {
        tracing::debug!(reason, "a connection was cut");
        metrics::counter!(telemetry::HTTP_CONNECTIONS_CUT_TOTAL,
            "listener" => self.label(), "reason" => reason)
        .increment(1);
    }
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    caller: Caller,
    connection: Connection,
) -> Result<Response<Answer>, Infallible> {
    let is_multiplexed = request.version() == Version::HTTP_2;
    let in_flight = connection.request(is_multiplexed);
    // who waits for a 100 sends nothing after a refusal
    let waits = request.headers().contains_key(EXPECT);
    let mut request = match is_multiplexed || waits {
        true => request.map(Body::new),
        false => request.map(|body| Body::new(LingeringBody::new(body))),
    };
    request.extensions_mut().insert(caller.clone());
    let response = router.oneshot(request).await?;
    if let Some(tenant) = caller.tenant() {
        connection.belongs_to(tenant);
    }
    Ok(response.map(|body| Answer::new(body, in_flight)))
}

fn builder(limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // hyper panics below 8 KiB.
    let head_bytes = limits.max_header_bytes.max(8 << 10);
    builder
        .http1()
        // `Connection` limits heads and waits
        .header_read_timeout(None)
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
mod tests;
