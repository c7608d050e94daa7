use std::{
    convert::Infallible,
    io::{self, Write},
};

use axum::{Router, body::Body, extract::State, http::request::Builder, routing::post};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use tower::ServiceExt;

use super::{intake::LEAST_SHARED_BYTES, *};
use crate::http::{Limits, extract::auth::Keys};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    name: Option<String>,
}

async fn told(sent: JsonBody<Told>) -> String {
    sent.body.name.unwrap_or_else(|| "nobody".into())
}

async fn keyed(sent: KeyedBody<Told>) -> String {
    let KeyedBody { body, idempotency_key, .. } = sent;
    format!("{:?} {idempotency_key:?}", body.name)
}

async fn records(
    State(admission): State<Arc<Admission>>,
    Records(sent, _held): Records,
) -> Result<String, Error> {
    let free = admission.limits.max_in_flight_bytes - admission.requests.held_bytes();
    Ok(format!("{:?} {} {free}", sent.media(), sent.text()?.len()))
}

async fn echo(Records(sent, _held): Records) -> Result<String, Error> {
    Ok(sent.text()?.to_owned())
}

fn test_admission() -> Arc<Admission> {
    let limits = Limits {
        max_body_bytes: 1000,
        body_timeout_ms: 50,
        max_in_flight_bytes: 1500,
        ..Limits::default()
    };
    Arc::new(Admission::new(Keys::open().unwrap(), limits))
}

async fn send_to(
    admission: &Arc<Admission>,
    request: Builder,
    body: Body,
) -> Result<String, Error> {
    let router = Router::new()
        .route("/told", post(told).put(told))
        .route("/keyed", post(keyed).put(keyed))
        .route("/records", post(records))
        .route("/echo", post(echo))
        .with_state(admission.clone());
    let request = request.body(body).unwrap();
    let mut answer = router.oneshot(request).await.unwrap();
    if let Some(error) = answer.extensions_mut().remove::<Error>() {
        return Err(error);
    }
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

async fn send(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<String, Error> {
    let request =
        headers.iter().fold(Request::post(path), |request, (k, v)| request.header(*k, *v));
    send_to(&test_admission(), request, Body::from(body.to_vec())).await
}

async fn code(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Code {
    send(path, headers, body).await.unwrap_err().code
}

const JSON: (&str, &str) = ("content-type", "application/json");
const NDJSON: (&str, &str) = ("content-type", "application/x-ndjson");

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

#[tokio::test]
async fn empty_bodies_are_empty_objects() {
    assert_eq!(send("/told", &[], b"").await.unwrap(), "nobody");
    assert_eq!(send("/told", &[JSON], b"").await.unwrap(), "nobody");
    assert_eq!(send("/told", &[JSON], br#"{"name": "x"}"#).await.unwrap(), "x");
    let nothing = Body::from_stream(stream::empty::<Result<Bytes, Infallible>>());
    let sent = send_to(&test_admission(), Request::post("/told"), nothing).await;
    assert_eq!(sent.unwrap(), "nobody");
}

#[tokio::test]
async fn media_type_then_size_then_shape() {
    let huge = vec![b'x'; 1001];
    let none: &[(&str, &str)] = &[];
    assert_eq!(code("/told", none, b"{}").await, Code::UnsupportedMediaType);
    assert_eq!(code("/told?a=b", none, &huge).await, Code::UnsupportedMediaType);
    assert_eq!(code("/told", &[NDJSON], b"{}").await, Code::UnsupportedMediaType);
    let brotli = ("content-encoding", "br");
    assert_eq!(code("/told", &[JSON, brotli], b"{}").await, Code::UnsupportedMediaType);
    let key = ("idempotency-key", "k");
    assert_eq!(code("/told?a=b", &[JSON, key], &huge).await, Code::PayloadTooLarge);
    for (path, headers, body) in [
        ("/told?a=b", &[JSON] as &[_], b"{}" as &[u8]),
        ("/told", &[JSON], b"{\"nome\": 1}"),
        ("/told", &[JSON], b"{\"name\": \"\xff\"}"),
        ("/told", &[JSON], b"[]"),
        ("/told", &[JSON, key], b"{}"),
        ("/told", &[key], b""),
    ] {
        assert_eq!(code(path, headers, body).await, Code::InvalidRequest, "{path}");
    }
}

/// Sends it with these `Idempotency-Key` headers, each as it is.
async fn with_keys(method: Method, path: &str, keys: &[&[u8]]) -> Result<String, String> {
    let request = Request::builder().uri(path).method(method);
    let request = keys.iter().fold(request, |request, key| request.header("idempotency-key", *key));
    let answer = send_to(&test_admission(), request, Body::empty()).await;
    answer.map_err(|error| error.facts[0].1.to_string())
}

#[tokio::test]
async fn a_key_is_taken_where_the_call_remembers_it() {
    let longest = "k".repeat(255);
    for good in ["k", "a b", longest.as_str()] {
        let sent = with_keys(Method::POST, "/keyed", &[good.as_bytes()]).await.unwrap();
        assert_eq!(sent, format!("None Some(IdempotencyKey({good:?}))"));
    }
    assert_eq!(with_keys(Method::POST, "/keyed", &[]).await.unwrap(), "None None");
    let too_long = "k".repeat(256);
    let bad: [&[&[u8]]; 5] =
        [&[b""], &[b"\xe4"], &[b"a\tb"], &[b"k", b"k"], &[too_long.as_bytes()]];
    for keys in bad {
        let error = with_keys(Method::POST, "/keyed", keys).await.unwrap_err();
        assert!(error.contains("\"pointer\":\"Idempotency-Key\""), "{error}");
    }
}

#[tokio::test]
async fn elsewhere_a_post_refuses_a_key_and_other_methods_ignore_it() {
    assert!(
        with_keys(Method::POST, "/told", &[b"k"]).await.unwrap_err().contains("safe to repeat")
    );
    for path in ["/told", "/keyed"] {
        assert!(with_keys(Method::PUT, path, &[b"\xe4"]).await.is_ok());
    }
}

#[tokio::test]
async fn sizes_count_decompressed_bytes() {
    let [fits, exceeds] = [1000, 1001].map(|length| vec![b' '; length]);
    assert_eq!(send("/records", &[NDJSON], &fits).await.unwrap(), "Ndjson 1000 500");
    let error = send("/records", &[NDJSON], &exceeds).await.unwrap_err();
    assert_eq!((error.code, &error.facts[0].1), (Code::PayloadTooLarge, &1000.into()));
    for (name, fits, exceeds) in [
        ("gzip", gzip(&fits), gzip(&exceeds)),
        (
            "zstd",
            zstd::encode_all(&fits[..], 3).unwrap(),
            zstd::encode_all(&exceeds[..], 3).unwrap(),
        ),
    ] {
        let headers = [JSON, ("content-encoding", name)];
        assert_eq!(send("/records", &headers, &fits).await.unwrap(), "Json 1000 500");
        assert_eq!(code("/records", &headers, &exceeds).await, Code::PayloadTooLarge);
        // Cut short, or something else altogether.
        let cut = &fits[..fits.len() - 3];
        assert_eq!(code("/records", &headers, cut).await, Code::InvalidRequest, "{name}");
        assert_eq!(code("/records", &headers, b"rubbish").await, Code::InvalidRequest);
    }
}

#[tokio::test]
async fn a_zstd_window_above_8_mib_is_refused() {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(25).unwrap();
    encoder.write_all(b"{}").unwrap();
    let body = encoder.finish().unwrap();
    let headers = [JSON, ("content-encoding", "zstd")];
    assert_eq!(code("/records", &headers, &body).await, Code::InvalidRequest);
}

#[tokio::test]
async fn an_announced_size_is_refused_unread() {
    let never = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let request = Request::post("/told").header("content-type", "application/json");
    let request = request.header("content-length", "1001");
    let error = send_to(&test_admission(), request, never).await.unwrap_err();
    assert_eq!(error.code, Code::PayloadTooLarge);
}

#[tokio::test]
async fn slow_and_broken_bodies_do_nothing() {
    let json = || Request::post("/told").header("content-type", "application/json");
    let never = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let error = send_to(&test_admission(), json(), never).await.unwrap_err();
    assert_eq!(error.code, Code::RequestTimeout);
    let frames = [Ok(Bytes::from("{}")), Err(io::Error::other("reset"))];
    let broken = Body::from_stream(stream::iter(frames));
    let error = send_to(&test_admission(), json(), broken).await.unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest);
}

/// A body of these pieces, each a while after the one before.
fn paced(pieces: Vec<Vec<u8>>, pause: Duration) -> Body {
    Body::from_stream(stream::iter(pieces).then(move |piece| async move {
        tokio::time::sleep(pause).await;
        Ok::<_, Infallible>(Bytes::from(piece))
    }))
}

/// What counts is how long the next piece takes: many that take long altogether are taken, few
/// bytes that keep coming are not, nor what expands to much.
#[tokio::test]
async fn a_body_must_go_on() {
    let limits = Limits { body_timeout_ms: 500, ..Limits::default() };
    let admission = Arc::new(Admission::new(Keys::open().unwrap(), limits));
    let pause = Duration::from_millis(50);
    let plain = || Request::post("/records").header(NDJSON.0, NDJSON.1);
    let large = paced(vec![vec![b' '; 30 << 10]; 20], pause);
    let taken = send_to(&admission, plain(), large).await.unwrap();
    assert!(taken.starts_with(&format!("Ndjson {}", 20 * (30 << 10))), "{taken}");
    let trickle = |bytes: Vec<u8>| bytes.chunks(1_000).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let error = send_to(&admission, plain(), paced(trickle(vec![b' '; 60_000]), pause)).await;
    assert_eq!(error.unwrap_err().code, Code::RequestTimeout);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&vec![b' '; 8 << 20]).unwrap();
    let zstd = zstd::encode_all(&vec![b' '; 8 << 20][..], 1).unwrap();
    for (name, bytes) in [("gzip", gzip.finish().unwrap()), ("zstd", zstd)] {
        let request = plain().header("content-encoding", name);
        let begun =
            stream::iter([Ok::<_, Infallible>(Bytes::from(bytes[..bytes.len() / 2].to_vec()))]);
        let body = Body::from_stream(begun.chain(stream::pending()));
        let error = send_to(&admission, request, body).await.unwrap_err();
        assert_eq!(error.code, Code::RequestTimeout, "{name}");
        assert!(error.detail.contains("30 KiB"), "{}", error.detail);
    }
    assert_eq!(admission.requests.held_bytes(), 0);
}

#[tokio::test]
async fn the_budget_is_shared_and_given_back() {
    let admission = test_admission();
    let ndjson = || Request::post("/records").header(NDJSON.0, NDJSON.1);
    let other = admission.requests.take(None, 1000).unwrap();
    let body = || Body::from(vec![b' '; 600]);
    let error = send_to(&admission, ndjson(), body()).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
    assert_eq!(admission.requests.held_bytes(), 1000);
    drop(other);
    assert_eq!(send_to(&admission, ndjson(), body()).await.unwrap(), "Ndjson 600 900");
    assert_eq!(admission.requests.held_bytes(), 0);
}

#[test]
fn traceparents() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let of = |text: &str| {
        let headers = [("traceparent".parse().unwrap(), text.parse().unwrap())];
        parse_traceparent(&headers.into_iter().collect())
    };
    assert_eq!(of(good).as_deref(), Some(good));
    for bad in [
        "",
        &good[1..],
        &good.replace("00-4b", "ff-4b"),
        &good.replace("4bf9", "4BF9"),
        &good.replace("00f067aa0ba902b7", "0000000000000000"),
        &format!("{good}-x"),
    ] {
        assert_eq!(of(bad), None, "{bad}");
    }
}

/// Whatever the sizes of its chunks, a body is what was sent.
#[tokio::test]
async fn chunks_come_in_all_sizes() {
    let limits = Limits { max_body_bytes: 1 << 20, ..Limits::default() };
    let admission = Arc::new(Admission::new(Keys::open().unwrap(), limits));
    let (small, large) = (LEAST_SHARED_BYTES - 1, LEAST_SHARED_BYTES);
    let sizes = [0, 1, small, large, large + 1];
    for (first, second, third) in
        sizes.iter().flat_map(|a| sizes.iter().flat_map(move |b| sizes.map(|c| (*a, *b, c))))
    {
        let mut next = (0..).map(|byte: u32| byte.to_le_bytes()[0] % 10 + b'0');
        let chunks = [first, second, third].map(|size| next.by_ref().take(size).collect::<Bytes>());
        let whole = format!("\"{}\"", String::from_utf8(chunks.concat()).unwrap());
        let quote = || Bytes::from("\"");
        let [a, b, c] = chunks;
        for chunks in [
            vec![quote(), a.clone(), b.clone(), c.clone(), quote()],
            vec![[quote(), a].concat().into(), b, [c, quote()].concat().into()],
        ] {
            let body = Body::from_stream(stream::iter(chunks.into_iter().map(Ok::<_, Infallible>)));
            let request = Request::post("/echo").header(JSON.0, JSON.1);
            assert_eq!(send_to(&admission, request, body).await.unwrap(), whole);
        }
    }
}
