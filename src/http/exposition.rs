//! The text of `/metrics`: rendered once for all concurrent requests and sent in small pieces. It
//! takes no token, so neither frequent scrapes nor slow readers may cost much.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use crate::broker::SingleFlight;

/// Minimum interval between renderings; requests in between wait for the next one.
const INTERVAL: Duration = Duration::from_millis(100);
/// Number of texts kept for readers that have not finished.
const KEPT_TEXTS: usize = 32;
/// Bytes copied for a reader at a time; the server may hold several of these per slow client.
const PIECE_BYTES: usize = 1 << 10;

pub struct Exposition {
    latest: SingleFlight<Arc<str>>,
    /// What readers may still read; the newest is the last.
    texts: Mutex<VecDeque<Arc<str>>>,
}

impl Default for Exposition {
    fn default() -> Self {
        Self { latest: SingleFlight::new(INTERVAL), texts: Mutex::default() }
    }
}

impl Exposition {
    /// Returns a text whose rendering began after this call.
    pub async fn page(&self, write: impl FnOnce() -> String) -> MetricsText {
        let write = async { self.keep(write().into()) };
        MetricsText::of(&self.latest.result(write).await)
    }

    fn keep(&self, text: Arc<str>) -> Arc<str> {
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        texts.push_back(text.clone());
        if texts.len() > KEPT_TEXTS {
            texts.pop_front();
        }
        text
    }
}

/// One reader's text. It ends early if too many newer texts have been rendered.
pub struct MetricsText {
    text: Weak<str>,
    at: usize,
    size_bytes: usize,
}

impl MetricsText {
    fn of(text: &Arc<str>) -> Self {
        Self { text: Arc::downgrade(text), at: 0, size_bytes: text.len() }
    }
}

#[derive(Debug)]
pub struct Outdated;

impl fmt::Display for Outdated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the metrics were read too slowly; newer ones have replaced them")
    }
}

impl std::error::Error for Outdated {}

impl HttpBody for MetricsText {
    type Data = Bytes;
    type Error = Outdated;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Outdated>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        let Some(text) = self.text.upgrade() else { return Poll::Ready(Some(Err(Outdated))) };
        let end = self.size_bytes.min(self.at + PIECE_BYTES);
        let piece = text.as_bytes().get(self.at..end).unwrap_or_default();
        self.at = end;
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.size_bytes
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.size_bytes - self.at) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::{Body, to_bytes};
    use futures_util::future::join_all;

    use super::*;

    async fn text(page: MetricsText) -> Result<String, axum::Error> {
        let bytes = to_bytes(Body::new(page), usize::MAX).await?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn those_who_ask_together_share_a_text_and_later_ones_wait_for_theirs() {
        let exposition = Exposition::default();
        let written = AtomicUsize::new(0);
        let write = || written.fetch_add(1, Ordering::Relaxed).to_string();
        let page = async || text(exposition.page(write).await).await.unwrap();
        assert_eq!(page().await, "0");
        // all came after the first was written
        assert!(join_all((0..100).map(|_| page())).await.iter().all(|text| text == "1"));
        assert_eq!(page().await, "2");
    }

    #[tokio::test]
    async fn a_text_is_kept_for_its_readers_but_not_for_ever() {
        let exposition =
            Exposition { latest: SingleFlight::new(Duration::ZERO), ..Exposition::default() };
        let whole = "metric 1\n".repeat(1_000);
        let mut pages = Vec::new();
        for _ in 0..=KEPT_TEXTS {
            pages.push(exposition.page(|| whole.clone()).await);
        }
        let mut pages = pages.into_iter();
        let outdated = pages.next().unwrap();
        assert_eq!(outdated.size_hint().exact(), Some(whole.len() as u64));
        assert!(text(outdated).await.is_err());
        for page in pages {
            assert_eq!(text(page).await.unwrap(), whole);
        }
    }
}
