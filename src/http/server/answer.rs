//! Answers on their way: in pieces, each of which is known to be taken when hyper drops it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::connection::InFlight;

/// Answers leave in pieces of at most this size: one that its client does not take within
/// `answer_timeout_ms` (by default 30 s: 1 KiB a second) is not being read.
const PIECE_BYTES: usize = 30 << 10;
/// Pieces of at most this size are not watched: hyper copies them into its own buffer.
const UNWATCHED_BYTES: usize = 1 << 10;

/// A part of an answer; it is taken when it is dropped.
struct Piece {
    bytes: Bytes,
    in_flight: Arc<InFlight>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.in_flight.progressed();
    }
}

/// The body of an answer, in pieces.
pub struct Answer {
    body: Body,
    rest: Bytes,
    in_flight: Arc<InFlight>,
}

impl Answer {
    pub fn new(body: Body, in_flight: InFlight) -> Self {
        Self { body, rest: Bytes::new(), in_flight: Arc::new(in_flight) }
    }

    fn piece(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        if bytes.len() <= UNWATCHED_BYTES {
            return bytes;
        }
        self.in_flight.progressed();
        Bytes::from_owner(Piece { bytes, in_flight: self.in_flight.clone() })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.piece()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
