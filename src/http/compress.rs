//! Compresses responses for clients that ask for it. Each response is compressed as a whole before
//! it is sent, and its memory is counted, so no encoder waits for a slow client.

use std::io;

use async_compression::tokio::write::{GzipEncoder, ZstdEncoder};
use axum::{
    body::{Body, HttpBody, to_bytes},
    extract::{Request, State},
    http::{HeaderValue, header},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use futures_util::stream;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    task::yield_now,
};

use super::extract::{
    access::HeldAnswer,
    caller::Caller,
    media::{Encoding, accept_encoding},
};
use crate::broker::Budget;

/// Smaller responses are not compressed.
pub const LEAST_BYTES: usize = 512;
/// Memory of an encoder beside its output.
const ENCODER_BYTES: usize = 4 << 20;
/// Bytes compressed between two yields to other tasks.
const CHUNK_BYTES: usize = 64 << 10;

/// Compresses responses to authenticated requests while the memory budget for answers allows it.
/// Unauthenticated responses are small, or a `Constant`.
pub async fn compress(State(answers): State<Budget>, request: Request, next: Next) -> Response {
    let is_private = request.uri().path().starts_with("/v1/");
    let encoding = accept_encoding(request.headers());
    let caller = Caller::of(request.extensions());
    let mut answer = next.run(request).await;
    let size = answer.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    let Some(size) = size.filter(|size| *size >= LEAST_BYTES) else { return answer };
    if !is_private || !answer.status().is_success() {
        return answer;
    }
    answer.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
    if encoding == Encoding::Identity {
        return answer;
    }
    let Some(mut held) = answers.take(caller.tenant(), ENCODER_BYTES + size) else { return answer };
    let (mut head, body) = answer.into_parts();
    let plain = match to_bytes(body, size).await {
        Ok(plain) => plain,
        // it breaks off, as it would have without us
        Err(error) => {
            let broken = stream::iter([Err::<Bytes, _>(error)]);
            return Response::from_parts(head, Body::from_stream(broken));
        }
    };
    let Ok(small) = encode(&plain, encoding).await else {
        return Response::from_parts(head, Body::from(plain));
    };
    drop(plain);
    // less than it was, so it is free
    let _ = held.resize(small.capacity());
    let small = HeldAnswer::bytes(small, held);
    head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding.as_str()));
    head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(small.len()));
    Response::from_parts(head, Body::from(small))
}

/// Compresses the whole body at once.
pub async fn encode(plain: &[u8], encoding: Encoding) -> io::Result<Vec<u8>> {
    match encoding {
        Encoding::Identity => Ok(plain.to_vec()),
        Encoding::Gzip => {
            let mut encoder = GzipEncoder::new(Vec::new());
            feed(&mut encoder, plain).await?;
            Ok(encoder.into_inner())
        }
        Encoding::Zstd => {
            let mut encoder = ZstdEncoder::new(Vec::new());
            feed(&mut encoder, plain).await?;
            Ok(encoder.into_inner())
        }
    }
}

async fn feed(encoder: &mut (impl AsyncWrite + Unpin), plain: &[u8]) -> io::Result<()> {
    for chunk in plain.chunks(CHUNK_BYTES) {
        encoder.write_all(chunk).await?;
        yield_now().await;
    }
    encoder.shutdown().await
}
