//! The HTTP layer: routes, wire types, tokens, problems. It contains no SQL and no rules.
//!
//! A request passes `observe` (request id, metrics, problem documents), then the extractors of
//! `extract` (permission, parameters, body), and reaches one function of `topics`, `settings`,
//! `tenants`, `sessions`, `appends`, `transactions`, `reads`, `groups` or `service`, which calls
//! the broker once and writes the answer.

mod appends;
mod compress;
mod constant;
mod exposition;
pub mod extract;
mod groups;
mod observe;
pub mod openapi;
mod problem;
mod reads;
pub mod server;
mod service;
mod sessions;
mod settings;
mod tenants;
mod topics;
mod transactions;

use std::sync::{Arc, OnceLock};

use axum::{Router, http::StatusCode, middleware, routing::get};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

pub use openapi::openapi;

use self::{
    extract::{access::AppState, auth::Keys},
    groups::members,
    observe::Operations,
};
use crate::broker::{Broker, Budget};

/// Every route.
fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(openapi::Document::openapi())
        .routes(routes!(sessions::open_session, sessions::list_sessions))
        .routes(routes!(sessions::get_session, sessions::end::end_session))
        .routes(routes!(sessions::list_session_sequences))
        .routes(routes!(settings::get_settings, settings::patch_settings))
        .routes(routes!(tenants::list_tenants))
        .routes(routes!(
            tenants::put_tenant,
            tenants::get_tenant,
            tenants::patch_tenant,
            tenants::delete_tenant
        ))
        .routes(routes!(topics::list_topics))
        .routes(routes!(
            topics::put_topic,
            topics::get_topic,
            topics::patch_topic,
            topics::delete_topic
        ))
        .routes(routes!(appends::append_to_topic, reads::topic::read_topic))
        .routes(routes!(reads::topic::read_topic_by_body))
        .routes(routes!(
            appends::append_to_partition,
            reads::read_partition,
            topics::trim_partition
        ))
        .routes(routes!(groups::admin::list_groups))
        .routes(routes!(groups::admin::get_group, groups::admin::delete_group))
        .routes(routes!(groups::reset::reset_group_offsets))
        .routes(routes!(groups::commit_group_offsets, groups::list_group_offsets))
        .routes(routes!(members::join_group))
        .routes(routes!(members::heartbeat))
        .routes(routes!(members::leave_group))
        .routes(routes!(groups::fetch::fetch_group, groups::fetch::fetch_group_by_body))
        .routes(routes!(transactions::begin_transaction, transactions::list_transactions))
        .routes(routes!(transactions::get_transaction))
        .routes(routes!(transactions::append_to_transaction))
        .routes(routes!(transactions::add_offsets_to_transaction))
        .routes(routes!(transactions::prepare_transaction))
        .routes(routes!(transactions::commit_transaction))
        .routes(routes!(transactions::abort_transaction))
        .routes(routes!(service::livez))
        .routes(routes!(service::readyz))
        .routes(routes!(service::metrics))
        .routes(routes!(service::openapi_json))
        .routes(routes!(openapi::page::docs))
        .routes(routes!(openapi::page::docs_file))
        .routes(routes!(openapi::page::guides::docs_guide))
        .route("/docs/", get(openapi::page::docs_slash))
        .route("/", get(openapi::page::root))
}

/// Builds the HTTP router. `render_metrics` writes the Prometheus text.
pub fn router(
    broker: Arc<Broker>,
    keys: Keys,
    limits: Limits,
    render_metrics: impl Fn() -> String + Send + Sync + 'static,
) -> Router {
    let (routes, _) = routes().split_for_parts();
    let state = AppState::new(broker, keys, limits, Arc::new(render_metrics));
    let answers = state.answers();
    let routes = routes.with_state(state).fallback(|| async { StatusCode::NOT_FOUND });
    layered(routes, Operations::of(&openapi()), answers)
}

/// What answers: that the replica is starting, until there is a router that serves.
#[derive(Clone)]
pub struct Routers {
    starting: Router,
    serving: Arc<OnceLock<Router>>,
}

impl Routers {
    pub fn starting() -> Self {
        let routes = Router::new()
            .route("/livez", get(service::livez))
            .route("/readyz", get(service::starting));
        let routes = routes.fallback(service::starting);
        let starting = layered(routes, Operations::of(&openapi()), Budget::new(0));
        Self { starting, serving: Arc::default() }
    }

    /// From now on this router answers, also on open connections.
    pub fn serve(&self, router: Router) {
        let _ = self.serving.set(router);
    }

    fn current(&self) -> Router {
        self.serving.get().unwrap_or(&self.starting).clone()
    }
}

impl From<Router> for Routers {
    fn from(router: Router) -> Self {
        let routers = Self::starting();
        routers.serve(router);
        routers
    }
}

/// Layers, from the inside out: panics become responses, refusals become problems, responses are
/// compressed.
fn layered(routes: Router, operations: Operations, answers: Budget) -> Router {
    routes
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(middleware::from_fn_with_state(Arc::new(operations), observe::observe))
        .layer(middleware::from_fn_with_state(answers, compress::compress))
}

/// Per-replica limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body, decompressed.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout_ms: u64,
    /// Memory for all request bodies together.
    pub max_in_flight_bytes: usize,
    /// How long a request head may take to arrive.
    pub header_timeout_ms: u64,
    /// How long a connection may wait for its next request.
    pub keep_alive_timeout_ms: u64,
    /// The largest request head.
    pub max_header_bytes: usize,
    /// Maximum number of connections; more of them wait to be accepted.
    pub max_connections: usize,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 << 20,
            body_timeout_ms: 30_000,
            max_in_flight_bytes: 256 << 20,
            header_timeout_ms: 10_000,
            keep_alive_timeout_ms: 75_000,
            max_header_bytes: 64 << 10,
            max_connections: 20_000,
            drain_timeout_ms: 25_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{
        body::{Body, to_bytes},
        http::{HeaderMap, Request},
        routing::put,
    };
    use serde_json::{Value, json};
    use tower::ServiceExt;

    use super::*;
    use crate::{broker::Error, model::Code, telemetry};

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
            let all = answers.take(16 << 20).unwrap();
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
}
