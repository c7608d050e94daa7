//! Responses that are the same for every client until the program changes: compressed once,
//! identified by an ETag and shared, so that serving one more costs nothing.

use std::fmt::Write;

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::{
    compress::{LEAST_BYTES, encode},
    extract::media::{Encoding, accept_encoding},
};

/// Swagger UI has its icons in `data:` URLs; nothing else is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    // a new version of the program has new files under the same names
    (header::CACHE_CONTROL, "no-cache"),
    (header::VARY, "accept-encoding"),
];

pub struct Constant {
    content_type: &'static str,
    plain: Bytes,
    gzip: OnceCell<Bytes>,
    zstd: OnceCell<Bytes>,
    /// The ETag is weak, because it also holds for the compressed forms.
    etag: String,
}

impl Constant {
    pub fn new(content_type: &'static str, plain: impl Into<Bytes>) -> Self {
        let plain = plain.into();
        let mut etag = String::from("W/\"");
        for byte in Sha256::digest(&plain).iter().take(8) {
            // Writing to a string does not fail.
            let _ = write!(etag, "{byte:02x}");
        }
        etag.push('"');
        Self { content_type, plain, gzip: OnceCell::new(), zstd: OnceCell::new(), etag }
    }

    pub async fn answer(&self, headers: &HeaderMap) -> Response {
        let known = headers.get_all(header::IF_NONE_MATCH).iter().any(|tags| {
            let tags = tags.to_str().unwrap_or_default();
            tags.split(',').map(str::trim).any(|tag| tag == "*" || tag == self.etag)
        });
        let mut answer = if known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            self.body(accept_encoding(headers)).await
        };
        let headers = answer.headers_mut();
        headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(header::ETAG, etag);
        }
        answer
    }

    async fn body(&self, encoding: Encoding) -> Response {
        let small = match encoding {
            _ if self.plain.len() < LEAST_BYTES => None,
            Encoding::Identity => None,
            Encoding::Gzip => self.encoded(&self.gzip, encoding).await,
            Encoding::Zstd => self.encoded(&self.zstd, encoding).await,
        };
        let is_small = small.is_some();
        let mut answer = Body::from(small.unwrap_or_else(|| self.plain.clone())).into_response();
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if is_small {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding.as_str()));
        }
        answer
    }

    /// Built by the first request.
    async fn encoded(&self, cell: &OnceCell<Bytes>, encoding: Encoding) -> Option<Bytes> {
        let encoded =
            cell.get_or_try_init(async || encode(&self.plain, encoding).await.map(Bytes::from));
        encoded.await.ok().cloned()
    }
}
