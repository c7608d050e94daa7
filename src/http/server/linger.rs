//! Bodies of requests that are refused before they are read. To close a connection while a body
//! still arrives resets it, and the client loses the answer with it. So the rest is read and
//! dropped for a while (RFC 9112, 9.6).

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::{runtime::Handle, time::timeout};

/// A client that has not seen its answer by then loses it. However much it sends until then, only
/// one frame of it is ever held.
const MAX_LINGER: Duration = Duration::from_secs(2);

/// The body of an HTTP/1 request. What was not read of it when it is dropped is read then.
pub struct LingeringBody(Option<Incoming>);

impl LingeringBody {
    pub fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl HttpBody for LingeringBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.0 = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for LingeringBody {
    fn drop(&mut self) {
        let unread = self.0.take().filter(|body| !body.is_end_stream());
        // none: the runtime is ending
        if let Some((body, runtime)) = unread.zip(Handle::try_current().ok()) {
            runtime.spawn(timeout(MAX_LINGER, read_and_drop(body)));
        }
    }
}

async fn read_and_drop(mut body: Incoming) {
    let mut next = async || poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
    while let Some(Ok(_)) = next().await {}
}
