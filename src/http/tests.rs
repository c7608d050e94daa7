use std::time::Duration;

use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode},
    routing::put,
};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::telemetry;

/// The real layers around routes that need no broker.
fn small() -> Router {
    with(Budget::new(16 << 20))
}

fn with(answers: Budget) -> Router {
    async fn panic() -> &'static str {
        panic!("secret words")
    }
    let refuse = || async { Error::new(Code::TopicNotFound, "no topic t").fact("topic", "t") };
    let routes = Router::new()
        .route("/v1/topics", get(|| async { "x".repeat(1000) }))
        .route("/open", get(|| async { "x".repeat(1000) }))
        .route("/v1/topics/{topic}", put(panic).get(refuse))
        .fallback(|| async { StatusCode::NOT_FOUND });
    layered(routes, Operations::of(&openapi()), answers)
}

/// Whatever is asked, what comes is small, and the answer to others is the same.
#[tokio::test]
async fn what_compressing_takes_is_counted_and_done_before_anything_leaves() {
    let answers = Budget::new(16 << 20);
    let ask = async |path: &str, encoding: &str| {
        let request = Request::get(path).header("accept-encoding", encoding);
        let request = request.body(Body::empty()).unwrap();
        let (head, body) = with(answers.clone()).oneshot(request).await.unwrap().into_parts();
        let is_small = head.headers.contains_key("content-encoding");
        assert_eq!(head.headers.contains_key("vary"), path != "/open");
        let length: usize = head.headers["content-length"].to_str().unwrap().parse().unwrap();
        (is_small, length, body)
    };
    for encoding in ["gzip", "zstd"] {
        let (is_small, length, unread) = ask("/v1/topics", encoding).await;
        assert!(is_small && length < 100);
        assert!((length..1000).contains(&answers.held_bytes()), "{}", answers.held_bytes());
        assert_eq!(to_bytes(unread, 10_000).await.unwrap().len(), length);
        assert_eq!(answers.held_bytes(), 0);
        // where others hold too much it is answered as it is
        let all = answers.take(None, 16 << 20).unwrap();
        assert!(matches!(ask("/v1/topics", encoding).await, (false, 1000, _)));
        drop(all);
        // nor for those without a token
        assert!(matches!(ask("/open", encoding).await, (false, 1000, _)));
    }
}

async fn call(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, HeaderMap, Option<Value>) {
    let request = headers
        .iter()
        .fold(Request::builder().method(method).uri(path), |r, (k, v)| r.header(*k, *v));
    let request = request.body(Body::empty()).unwrap();
    let (head, body) = small().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, 10_000).await.unwrap();
    let length = head.headers.get("content-length").map(|n| n.to_str().unwrap().to_owned());
    if method != "HEAD"
        && let Some(length) = length
    {
        assert_eq!(length, body.len().to_string());
    }
    (head.status.as_u16(), head.headers, serde_json::from_slice(&body).ok())
}

#[tokio::test]
async fn everything_refused_is_a_problem() {
    let table = [
        ("GET", "/nowhere", 404, "route_not_found"),
        ("GET", "/v1/topics/", 404, "route_not_found"),
        ("DELETE", "/v1/topics", 405, "method_not_allowed"),
        ("GET", "/v1/topics/t", 404, "topic_not_found"),
        ("PUT", "/v1/topics/t", 500, "internal"),
    ];
    for (method, path, status, code) in table {
        let (got, headers, body) = call(method, path, &[("x-request-id", "r-1")]).await;
        let body = body.unwrap();
        assert_eq!((got, &body["code"]), (status, &json!(code)), "{method} {path}");
        assert_eq!(headers["content-type"], problem::MEDIA_TYPE);
        assert_eq!(headers["x-request-id"], "r-1");
        assert_eq!(body["instance"], "urn:oncelog:request:r-1");
        assert!(!body.to_string().contains("secret"), "{body}");
    }
    let (_, headers, _) = call("DELETE", "/v1/topics", &[]).await;
    assert_eq!(headers["allow"], "GET,HEAD");
    let (_, _, body) = call("GET", "/v1/topics/t", &[]).await;
    assert_eq!(body.unwrap()["topic"], "t");
}

#[tokio::test]
async fn request_ids_are_taken_or_made() {
    for (sent, taken) in [("abc", true), ("a b", false), (&*"x".repeat(129), false)] {
        let (status, headers, _) = call("GET", "/v1/topics", &[("x-request-id", sent)]).await;
        assert_eq!((status, headers["x-request-id"] == sent), (200, taken));
        assert!(!headers["x-request-id"].is_empty());
    }
}

#[tokio::test]
async fn answers_are_compressed_when_asked() {
    for encoding in ["gzip", "zstd"] {
        let (_, headers, _) = call("GET", "/v1/topics", &[("accept-encoding", encoding)]).await;
        assert_eq!(headers["content-encoding"], encoding);
    }
    let (_, headers, _) = call("GET", "/v1/topics", &[]).await;
    assert!(!headers.contains_key("content-encoding"));
}

/// What a request waited for its client, or for others, is no part of its duration.
#[test]
fn waits_do_not_spoil_durations() {
    let wait = async || telemetry::waited(Duration::from_secs(1_000));
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let routes = Router::new().route("/v1/topics", get(wait));
            let layered = layered(routes, Operations::of(&openapi()), Budget::new(0));
            let request = Request::get("/v1/topics").body(Body::empty()).unwrap();
            assert_eq!(layered.oneshot(request).await.unwrap().status(), 200);
        });
    });
    let text = recorder.handle().render();
    for line in [
        "oncelog_http_request_duration_seconds_sum{operation=\"list_topics\"} 0\n",
        "oncelog_http_request_duration_seconds_count{operation=\"list_topics\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn requests_are_counted_by_operation_status_and_code() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            call("GET", "/v1/topics", &[]).await;
            call("HEAD", "/v1/topics", &[]).await;
            call("GET", "/v1/topics/t", &[]).await;
            call("POST", "/v1/topics/t", &[]).await;
            call("GET", "/elsewhere/t", &[]).await;
        });
    });
    let text = recorder.handle().render();
    for line in [
        "oncelog_http_requests_total{operation=\"list_topics\",status=\"200\"} 2",
        "oncelog_http_requests_total{operation=\"get_topic\",status=\"404\"} 1",
        "oncelog_http_requests_total{operation=\"unmatched\",status=\"405\"} 1",
        "oncelog_http_requests_total{operation=\"unmatched\",status=\"404\"} 1",
        "oncelog_errors_total{code=\"route_not_found\"} 1",
        "oncelog_http_request_duration_seconds_count{operation=\"list_topics\"} 2",
        "oncelog_http_requests_in_flight{operation=\"list_topics\"} 0",
        "oncelog_http_requests_abandoned_total{operation=\"list_topics\"} 0",
        "oncelog_http_answer_bytes_total{operation=\"list_topics\"} 2000",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

const LISTENERS: [Listener; 4] = [
    Listener::Whole,
    Listener::Public { has_docs: true },
    Listener::Public { has_docs: false },
    Listener::Admin,
];

/// Every operation of the document is where it belongs, by its path.
#[test]
fn each_operation_is_on_its_listeners() {
    let all: Vec<String> =
        Listener::Whole.routes().into_openapi().paths.paths.into_keys().collect();
    assert!(all.len() > 30, "{all:?}");
    for listener in LISTENERS {
        let carried = listener.routes().into_openapi().paths.paths;
        let (public, admin) = (listener != Listener::Admin, listener.has_operators());
        for path in &all {
            let expected = match path.as_str() {
                "/livez" | "/readyz" => true,
                "/metrics" => admin,
                path if path.starts_with("/v1/tenants") => admin,
                path if path.starts_with("/v1/") => public,
                // what is left describes the API
                _ => listener != Listener::Public { has_docs: false },
            };
            assert_eq!(carried.contains_key(path), expected, "{listener:?} {path}");
        }
    }
}

#[test]
fn what_is_elsewhere_is_said_to_be_there() {
    let [_, public, bare, admin] = LISTENERS;
    for (listener, path, words) in [
        (public, "/metrics", "is on the admin listener"),
        (bare, "/v1/tenants", "is on the admin listener"),
        (public, "/v1/tenants/acme", "is on the admin listener"),
        (public, "/v1/tenantsx", "does not exist; see /docs"),
        (bare, "/docs", "`oncelog openapi`"),
        (admin, "/v1/topics", "is on the public listener"),
        (admin, "/v1/tenants/a/b", "does not exist; see /docs"),
        (Listener::Whole, "/v1/x", "does not exist; see /docs"),
    ] {
        let problem = listener.nothing_at(path);
        assert!(problem.detail.contains(words), "{listener:?} {path}: {}", problem.detail);
        assert_eq!(problem.code, Code::RouteNotFound);
    }
}
