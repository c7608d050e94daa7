//! Probes, metrics and the API description. None of them takes a token.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{extract::access::AppState, openapi};
use crate::{broker::Error, model::Code};

#[derive(Serialize, ToSchema)]
pub struct Health {
    /// `live` or `ready`.
    status: &'static str,
}

/// Check liveness
///
/// Answers as long as the process runs, even without its database. If there is no answer, restart
/// the process.
#[utoipa::path(get, path = "/livez", operation_id = "livez", tag = "service",
    responses((status = 200, description = "The process is alive", body = Health,
        example = json!({"status": "live"}))), security())]
pub async fn livez() -> Json<Health> {
    Json(Health { status: "live" })
}

/// Check readiness
///
/// Answers 503 while the replica starts or shuts down and without a database; then send requests to
/// another replica. `reason` says why: `starting`, `draining` or `database`.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "service",
    responses((status = 200, description = "This replica serves requests", body = Health,
        example = json!({"status": "ready"}))), security())]
pub async fn readyz(State(state): State<AppState>) -> Result<Json<Health>, Error> {
    state.ready().await?;
    Ok(Json(Health { status: "ready" }))
}

/// The answer to all other requests while the replica starts.
pub async fn starting() -> Error {
    let detail = "This replica is starting, and waits for its database; retry.";
    Error::new(Code::Unavailable, detail).fact("reason", "starting")
}

/// Get metrics
///
/// Returns the metrics of this replica in the Prometheus text format: requests by operation and
/// status, problems by code, appends, reads, transactions, groups, and resource usage. On the admin
/// listener, where there is one.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "service",
    responses((status = 200, description = "The metrics", body = String,
        content_type = "text/plain",
        example = json!("oncelog_errors_total{code=\"topic_not_found\"} 1\n"))), security())]
pub async fn metrics(State(state): State<AppState>) -> Response {
    let text = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (text, Body::new(state.metrics().await)).into_response()
}

/// Get this document
///
/// OpenAPI 3.1, generated from the code that serves it. `/docs` shows it as a page.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "service",
    responses(
        (status = 200, description = "The document", body = serde_json::Value,
            example = json!({"openapi": "3.1.0", "info": {"title": "oncelog", "version": "0.1.0"},
                "paths": {}})),
        (status = 304, description = "`If-None-Match` has the current ETag")),
    security())]
pub async fn openapi_json(headers: HeaderMap) -> Response {
    openapi::document().answer(&headers).await
}
