//! The outermost layer: a request gets its id, its span, its line in the log and its numbers, and
//! whatever refuses it becomes a problem document.

use std::{any::Any, collections::HashMap, sync::Arc, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tracing::{Instrument, Level, Span, field};
use utoipa::openapi::{OpenApi, path::Operation};
use uuid::Uuid;

use super::problem;
use crate::{broker::Error, model::Code, telemetry};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID_BYTES: usize = 128;
/// The operation of requests that no route takes.
const UNMATCHED: &str = "unmatched";

/// Operation ids by path and method: the bounded label of spans and metrics.
pub struct Operations(HashMap<String, Vec<(Method, Arc<str>)>>);

impl Operations {
    pub fn of(api: &OpenApi) -> Self {
        let mut operations: HashMap<_, Vec<_>> = HashMap::new();
        for (path, item) in &api.paths.paths {
            let methods = [
                (Method::GET, &item.get),
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in methods {
                let id = operation
                    .as_ref()
                    .and_then(|Operation { operation_id, .. }| operation_id.as_deref());
                if let Some(id) = id {
                    operations.entry(path.clone()).or_default().push((method, id.into()));
                }
            }
        }
        Self(operations)
    }

    fn find(&self, request: &Request) -> Arc<str> {
        let get = &Method::GET;
        let method = if request.method() == Method::HEAD { get } else { request.method() };
        request
            .extensions()
            .get::<MatchedPath>()
            .and_then(|path| self.0.get(path.as_str()))
            .and_then(|methods| methods.iter().find(|(known, _)| known == method))
            .map_or_else(|| UNMATCHED.into(), |(_, id)| id.clone())
    }
}

pub async fn observe(
    State(operations): State<Arc<Operations>>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let operation = operations.find(&request);
    let (id, id_header) = request_id(request.headers());
    let version = request.version();
    let span = tracing::info_span!(
        "http_request",
        method = %request.method(),
        operation = &*operation,
        request_id = &*id,
        status = field::Empty,
        duration_ms = field::Empty,
    );
    let answer = next.run(request).instrument(span.clone()).await;
    let (mut answer, error) = problem::finish(answer, &id, version);
    answer.headers_mut().insert(REQUEST_ID, id_header);
    let seconds = begun.elapsed().as_secs_f64();
    let status = answer.status().as_u16();
    span.record("status", status).record("duration_ms", seconds * 1000.0);
    log(&span, status, error.as_ref());
    metrics::counter!(telemetry::HTTP_REQUESTS_TOTAL,
        "operation" => operation.clone(), "status" => status.to_string())
    .increment(1);
    metrics::histogram!(telemetry::HTTP_REQUEST_DURATION_SECONDS, "operation" => operation)
        .record(seconds);
    if let Some(error) = error {
        metrics::counter!(telemetry::ERRORS_TOTAL, "code" => error.code.as_str()).increment(1);
    }
    answer
}

/// One line a request; its other facts are the span's.
fn log(span: &Span, status: u16, error: Option<&Error>) {
    let code = error.map(|error| error.code.as_str());
    let detail = error.map(|error| error.detail.as_str());
    let level = match status {
        500 => Level::ERROR,
        501.. => Level::WARN,
        _ => Level::DEBUG,
    };
    span.in_scope(|| match level {
        Level::ERROR => tracing::error!(status, code, detail, "request failed"),
        Level::WARN => tracing::warn!(status, code, detail, "request not served"),
        _ => tracing::debug!(status, code, detail, "request answered"),
    });
}

/// The client's id if it is 1 to 128 visible ASCII characters, else a new one.
fn request_id(headers: &HeaderMap) -> (String, HeaderValue) {
    if let Some(value) = headers.get(REQUEST_ID)
        && let Ok(text) = value.to_str()
        && (1..=MAX_REQUEST_ID_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return (text.to_owned(), value.clone());
    }
    let id = Uuid::now_v7().to_string();
    let value = HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("none"));
    (id, value)
}

/// A panic is a bug: the log has it, the client gets 500.
pub fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of an unknown kind");
    tracing::error!(panic = text, "a handler panicked");
    let detail = "Something went wrong in the server; its log has the request id.";
    Error::new(Code::Internal, detail).into_response()
}
