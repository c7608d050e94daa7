//! Bodies that must come: what is measured is how long the next piece takes, not the whole, so that
//! a large body over a slow line arrives, and one that trickles does not hold memory.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::BodyDataStream;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, Sleep, sleep};

/// As many bytes, as they are sent, are to come within the timeout.
const PIECE_BYTES: usize = 30 << 10;

/// A body that ends with `ErrorKind::TimedOut` if its next piece takes too long.
pub struct Paced {
    body: BodyDataStream,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    /// How much of the present piece has come.
    come_bytes: usize,
}

impl Paced {
    pub fn new(body: BodyDataStream, timeout: Duration) -> Self {
        Self { body, timeout, timer: Box::pin(sleep(timeout)), come_bytes: 0 }
    }
}

impl Stream for Paced {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Poll::Ready(next) = self.body.poll_next_unpin(context) {
            let Some(Ok(chunk)) = next else {
                return Poll::Ready(next.map(|chunk| chunk.map_err(io::Error::other)));
            };
            self.come_bytes += chunk.len();
            if self.come_bytes >= PIECE_BYTES {
                self.come_bytes = 0;
                let deadline = Instant::now() + self.timeout;
                self.timer.as_mut().reset(deadline);
            }
            return Poll::Ready(Some(Ok(chunk)));
        }
        let timer = self.timer.as_mut();
        timer.poll(context).map(|()| Some(Err(io::ErrorKind::TimedOut.into())))
    }
}
