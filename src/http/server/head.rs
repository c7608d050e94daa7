//! Where a connection is, so that a head that comes slowly is told from a connection that waits
//! for its next request: hyper has one limit for both.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, sleep},
};

#[derive(Clone, Copy)]
enum Phase {
    /// A head is expected, or has begun to come, since then.
    Head(Instant),
    /// A request is answered.
    Busy,
    /// Nothing has come since the last answer.
    Idle,
    /// HTTP/2: many requests, in frames; pings find out whether the peer lives.
    Multiplexed,
}

/// The phase of a connection. It changes only while the connection is polled.
#[derive(Clone)]
pub struct Connection(Arc<Mutex<Phase>>);

impl Connection {
    /// A new one, whose first head is awaited.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Phase::Head(Instant::now()))))
    }

    fn change(&self, change: impl FnOnce(Phase) -> Phase) {
        let mut phase = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *phase = change(*phase);
    }

    /// A head is complete.
    pub fn has_request(&self, is_multiplexed: bool) {
        let next = if is_multiplexed { Phase::Multiplexed } else { Phase::Busy };
        self.change(|_| next);
    }

    fn answered(&self) {
        self.change(|phase| if matches!(phase, Phase::Busy) { Phase::Idle } else { phase });
    }

    fn received(&self) {
        let begun = Phase::Head(Instant::now());
        self.change(|phase| if matches!(phase, Phase::Idle) { begun } else { phase });
    }

    /// An answer that is still written delays the head after it.
    fn wrote(&self) {
        let begun = Phase::Head(Instant::now());
        self.change(|phase| if matches!(phase, Phase::Head(_)) { begun } else { phase });
    }

    fn head_deadline(&self, limit: Duration) -> Option<Instant> {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Phase::Head(since) => Some(since + limit),
            Phase::Busy | Phase::Idle | Phase::Multiplexed => None,
        }
    }

    /// Serves until the end, or until a head has taken longer than `limit`: None.
    pub async fn served<F: Future>(&self, serving: F, limit: Duration) -> Option<F::Output> {
        let (mut serving, mut timer) = (pin!(serving), pin!(sleep(limit)));
        poll_fn(|context| {
            if let Poll::Ready(done) = serving.as_mut().poll(context) {
                return Poll::Ready(Some(done));
            }
            let Some(deadline) = self.head_deadline(limit) else { return Poll::Pending };
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            timer.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

/// The stream of a connection.
pub struct Stream {
    pub tcp: TcpStream,
    pub connection: Connection,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.tcp).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.connection.received();
        }
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.connection.wrote();
        Pin::new(&mut self.tcp).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.connection.wrote();
        Pin::new(&mut self.tcp).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(context)
    }
}

/// The body of an answer; when it is dropped, the request is answered.
pub struct Answer {
    pub body: Body,
    pub connection: Connection,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.answered();
    }
}
