//! Request bodies: their type checked, decompressed and counted as they arrive.
//!
//! The order of checks is the documented one: media type, size, shape. Three limits apply to a
//! body: its decompressed size, a deadline for its next piece, and a memory budget that all bodies
//! share until their handlers are done. An incomplete body is never processed.

mod intake;
mod paced;

use std::{
    collections::BTreeMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use async_compression::{
    tokio::bufread::{GzipDecoder, ZstdDecoder},
    zstd::DParameter,
};
use axum::{
    extract::{FromRef, FromRequest, Request},
    http::{HeaderMap, Method, header::CONTENT_LENGTH},
};
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::io::AsyncBufRead;
use tokio_util::io::StreamReader;

use self::{
    intake::{BodyFailure, Intake},
    paced::Paced,
};
use super::{
    access::Admission,
    caller::Caller,
    json,
    media::{self, Encoding, Media},
    query::{self, NoParameters},
};
use crate::{
    broker::{Error, Taken},
    model::{
        Code, ValidationErrors,
        dedup::{IdempotencyKey, RequestKey},
    },
    telemetry,
};

/// RFC 9659: a zstd stream over HTTP needs a window of at most 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 23;

/// A JSON object (an empty body counts as `{}`), without query parameters.
pub struct JsonBody<T, const KEYED: bool = false> {
    pub body: T,
    /// Only of a `KEYED` body.
    pub idempotency_key: Option<IdempotencyKey>,
    /// The memory reservation, held until the handler is done with what it parsed.
    _held: Taken,
}

/// A JSON object of a call that may carry an `Idempotency-Key`.
pub type KeyedBody<T> = JsonBody<T, true>;

impl<T, S, const KEYED: bool> FromRequest<S> for JsonBody<T, KEYED>
where
    T: DeserializeOwned,
    S: Send + Sync,
    Arc<Admission>: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let query = request.uri().query().map(str::to_owned);
        let key = if KEYED { KeyPolicy::Taken } else { KeyPolicy::Refused(NOT_NEEDED) };
        let admission = Arc::from_ref(state);
        let (received, held) = receive(&admission, request, &[Media::Json], key).await?;
        let body = received.object(query.as_deref())?;
        Ok(Self { body, idempotency_key: received.idempotency_key, _held: held })
    }
}

impl<T: Serialize> KeyedBody<T> {
    /// The stored form of the key, for a POST to `path` with this request. (Null counts as absent.)
    pub fn request_key(&self, path: &str) -> Result<Option<RequestKey>, Error> {
        let Some(key) = &self.idempotency_key else { return Ok(None) };
        let payload = serde_json::to_value(&self.body).and_then(|body| {
            let mut fields: BTreeMap<String, Value> = serde_json::from_value(body)?;
            fields.retain(|_, value| !value.is_null());
            serde_json::to_vec(&fields)
        });
        let payload = payload.map_err(|_| Error::internal())?;
        Ok(Some(key.of_request("POST", path, &[&payload])))
    }
}

/// A body that may contain records; it is parsed in place.
pub struct Sent {
    received: Received,
    query: Option<String>,
    pub traceparent: Option<String>,
}

impl Sent {
    async fn receive(
        admission: &Admission,
        request: Request,
        taken: &[Media],
        key: KeyPolicy,
    ) -> Result<(Self, Taken), Error> {
        let query = request.uri().query().map(str::to_owned);
        let traceparent = parse_traceparent(request.headers());
        let (received, held) = receive(admission, request, taken, key).await?;
        Ok((Self { received, query, traceparent }, held))
    }

    pub fn idempotency_key(&self) -> Option<&IdempotencyKey> {
        self.received.idempotency_key.as_ref()
    }

    pub fn media(&self) -> Media {
        self.received.media
    }

    pub fn bytes(&self) -> &[u8] {
        &self.received.bytes
    }

    pub fn text(&self) -> Result<&str, Error> {
        self.received.text()
    }

    /// Parses a JSON object; an empty body counts as `{}`.
    pub fn object<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        let text = self.text()?;
        Ok(json::parse(if text.is_empty() { "{}" } else { text })?)
    }

    pub fn query<Q: DeserializeOwned>(&self) -> Result<Q, ValidationErrors> {
        query::parse(self.query.as_deref())
    }
}

/// The body of an append, which the model parses, with its memory reservation.
pub struct Records(pub Sent, pub Taken);

impl<S> FromRequest<S> for Records
where
    S: Send + Sync,
    Arc<Admission>: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let taken = [Media::Json, Media::Ndjson];
        let admission = Arc::from_ref(state);
        let (sent, held) = Sent::receive(&admission, request, &taken, KeyPolicy::Taken).await?;
        Ok(Self(sent, held))
    }
}

/// The body of a transaction call, with its memory reservation.
pub struct TransactionBody<const KEYED: bool = false>(pub Sent, pub Taken);

/// The body of a begin, which may carry an `Idempotency-Key`.
pub type BeginBody = TransactionBody<true>;

impl<S, const KEYED: bool> FromRequest<S> for TransactionBody<KEYED>
where
    S: Send + Sync,
    Arc<Admission>: FromRef<S>,
{
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let admission = Arc::from_ref(state);
        let key = if KEYED { KeyPolicy::Taken } else { KeyPolicy::Refused(NO_KEY) };
        let (sent, held) = Sent::receive(&admission, request, &[Media::Json], key).await?;
        Ok(Self(sent, held))
    }
}

/// W3C Trace Context, version 00 and compatible ones; anything else is ignored.
fn parse_traceparent(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all("traceparent").iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let text = value.to_str().ok()?;
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, parent, flags] = parts[..] else { return None };
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let some = |part: &str| part.bytes().any(|b| b != b'0');
    let shaped = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
    (shaped && version != "ff" && some(trace) && some(parent)).then(|| text.to_owned())
}

/// Resizes the memory reservation of a request.
pub fn count(held: &mut Taken, bytes: usize) -> Result<(), Error> {
    if held.resize(bytes) { Ok(()) } else { Err(busy()) }
}

/// Whether a call takes an `Idempotency-Key`. Idempotent methods need none and ignore it; a POST
/// that takes none says why.
#[derive(Clone, Copy)]
enum KeyPolicy {
    Taken,
    Refused(&'static str),
}

impl KeyPolicy {
    fn of(
        self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<Option<IdempotencyKey>, ValidationErrors> {
        let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(value) = values.next().filter(|_| method == Method::POST) else {
            return Ok(None);
        };
        let invalid = |why: &str| ValidationErrors::at("Idempotency-Key", why);
        match self {
            KeyPolicy::Refused(why) => Err(invalid(why)),
            KeyPolicy::Taken if values.next().is_some() => Err(invalid("give it only once")),
            KeyPolicy::Taken => IdempotencyKey::parse(value.as_bytes()).map(Some).map_err(invalid),
        }
    }
}

struct Received {
    bytes: Bytes,
    media: Media,
    idempotency_key: Option<IdempotencyKey>,
}

impl Received {
    fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.bytes).map_err(|error| {
            let at = error.valid_up_to();
            ValidationErrors::at("", format!("invalid UTF-8 at byte {at}")).into()
        })
    }

    /// Parses a JSON object (an empty body counts as `{}`), without query parameters.
    fn object<T: DeserializeOwned>(&self, query: Option<&str>) -> Result<T, Error> {
        let NoParameters {} = query::parse(query)?;
        let text = self.text()?;
        Ok(json::parse(if text.is_empty() { "{}" } else { text })?)
    }
}

async fn receive(
    admission: &Admission,
    request: Request,
    taken: &[Media],
    key: KeyPolicy,
) -> Result<(Received, Taken), Error> {
    let (parts, body) = request.into_parts();
    let caller = Caller::of(&parts.extensions);
    let owner = caller.tenant();
    let named = media::content_type(&parts.headers, taken)?;
    let encoding = media::content_encoding(&parts.headers)?;
    // Without a media type only an empty body is taken: the first byte is one too many.
    let limit = if named.is_some() { admission.limits.max_body_bytes } else { 0 };
    let refuse = || if named.is_some() { too_large(limit) } else { media::untaken(taken) };
    if encoding == Encoding::Identity && announced(&parts.headers).is_some_and(|n| n > limit) {
        return Err(refuse());
    }
    let held = admission.requests.take(owner, 0).ok_or_else(busy)?;
    let mut intake = Intake::new(limit, held);
    let deadline = Duration::from_millis(admission.limits.body_timeout_ms);
    let stream = Paced::new(body.into_data_stream(), deadline);
    let reading: std::pin::Pin<Box<dyn Future<Output = Result<(), BodyFailure>> + Send + '_>> =
        match encoding {
            Encoding::Identity => Box::pin(intake.take_all(stream)),
            Encoding::Gzip => {
                let mut gzip = GzipDecoder::new(reader(stream));
                gzip.multiple_members(true);
                Box::pin(intake.decode_all(gzip))
            }
            Encoding::Zstd => {
                let window = [DParameter::window_log_max(ZSTD_WINDOW_LOG)];
                let mut zstd = ZstdDecoder::with_params(reader(stream), &window);
                zstd.multiple_members(true);
                Box::pin(intake.decode_all(zstd))
            }
        };
    let begun = Instant::now();
    let read = reading.await;
    let waited = begun.elapsed();
    telemetry::waited(waited);
    admission.body_duration.record(waited.as_secs_f64());
    admission.request_bytes.increment(intake.len() as u64);
    caller.meter().into_iter().for_each(|meter| meter.received(intake.len() as u64));
    match read {
        Ok(()) => {}
        Err(BodyFailure::TooLarge) => return Err(refuse()),
        Err(BodyFailure::Busy) => return Err(busy()),
        Err(BodyFailure::TooSlow) => return Err(too_slow(admission.limits.body_timeout_ms)),
        Err(BodyFailure::Broken) if encoding == Encoding::Identity => {
            return Err(ValidationErrors::at("", "the body is incomplete").into());
        }
        Err(BodyFailure::Broken) => {
            let why = "the body is incomplete or does not match its Content-Encoding";
            return Err(ValidationErrors::at("", why).into());
        }
    }
    let idempotency_key = key.of(&parts.method, &parts.headers)?;
    let media = named.unwrap_or(Media::Json);
    let (bytes, held) = intake.finish();
    Ok((Received { bytes, media, idempotency_key }, held))
}

fn reader(stream: Paced) -> impl AsyncBufRead + Send {
    StreamReader::new(stream)
}

fn announced(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(limit: usize) -> Error {
    let detail = format!("The request body exceeds {limit} bytes (decompressed).");
    Error::new(Code::PayloadTooLarge, detail).fact("limit", limit)
}

fn too_slow(timeout_ms: u64) -> Error {
    let detail = format!(
        "The request body came too slowly: it, or its next 30 KiB, took more than {timeout_ms} ms."
    );
    Error::new(Code::RequestTimeout, detail)
}

fn busy() -> Error {
    metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "request_bytes").increment(1);
    Error::new(Code::Unavailable, "The memory limit for request bodies is reached; retry.")
}

const IDEMPOTENCY_KEY: &str = "idempotency-key";

const NOT_NEEDED: &str = "not supported here: this call is safe to repeat without a key";
const NO_KEY: &str = "not supported here: a later call is repeated by its transaction's id (and \
    sequence); only a one-request transaction takes a key";

#[cfg(test)]
mod tests;
