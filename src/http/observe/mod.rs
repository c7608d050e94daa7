//! The outermost layer: it gives a request its id, span, log line and metrics, and turns refusals
//! into problem documents.

mod audit;

use std::{
    any::Any,
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    body::HttpBody,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method},
    middleware::Next,
    response::{IntoResponse, Response},
};
use metrics::{Counter, Gauge, Histogram};
use tracing::{Instrument, Level, Span};
use utoipa::openapi::{OpenApi, path::Operation};
use uuid::Uuid;

pub use self::audit::fenced;
use super::{extract::caller::Caller, problem};
use crate::{
    broker::Error,
    model::Code,
    telemetry::{self, ByCode, Counted, LineLimit},
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID_BYTES: usize = 128;
/// The operation of requests that match no route.
const UNMATCHED: &str = "unmatched";

/// Operations by path and method: the bounded label of spans and metrics.
pub struct Operations {
    by_path: HashMap<String, Vec<(Method, Measured)>>,
    unmatched: Measured,
    errors: ByCode,
}

/// One operation. Its series are shown from its first call on: there are dozens of operations, and
/// few servers are asked for all of them.
struct Measured {
    operation: Arc<str>,
    is_audited: bool,
    /// The statuses in the OpenAPI document.
    statuses: Vec<u16>,
    series: OnceLock<Series>,
}

/// The metrics of one operation.
struct Series {
    in_flight: Gauge,
    abandoned: Counter,
    duration: Histogram,
    answer_bytes: Counter,
    /// By status.
    answered: Vec<(u16, Counter)>,
}

impl Measured {
    fn new(id: &str, statuses: impl Iterator<Item = u16>) -> Self {
        let is_audited = audit::is_audited(id);
        let statuses = statuses.collect();
        Self { operation: id.into(), is_audited, statuses, series: OnceLock::new() }
    }

    fn series(&self) -> &Series {
        self.series.get_or_init(|| Series::new(&self.operation, &self.statuses))
    }

    fn answered(&self, answer: &Response, seconds: f64) {
        let (series, status) = (self.series(), answer.status().as_u16());
        match series.answered.iter().find(|(known, _)| *known == status) {
            Some((_, counter)) => counter.increment(1),
            None => answered(&self.operation, status).increment(1),
        }
        series.duration.record(seconds);
        series.answer_bytes.increment(answer.body().size_hint().lower());
    }
}

impl Series {
    fn new(operation: &Arc<str>, statuses: &[u16]) -> Self {
        let label = || operation.clone();
        Self {
            in_flight: metrics::gauge!(telemetry::HTTP_REQUESTS_IN_FLIGHT, "operation" => label()),
            abandoned: metrics::counter!(telemetry::HTTP_REQUESTS_ABANDONED_TOTAL,
                "operation" => label()),
            duration: metrics::histogram!(telemetry::HTTP_REQUEST_DURATION_SECONDS,
                "operation" => label()),
            answer_bytes: metrics::counter!(telemetry::HTTP_ANSWER_BYTES_TOTAL,
                "operation" => label()),
            answered: statuses
                .iter()
                .map(|status| (*status, answered(operation, *status)))
                .collect(),
        }
    }
}

fn answered(operation: &Arc<str>, status: u16) -> Counter {
    metrics::counter!(telemetry::HTTP_REQUESTS_TOTAL,
        "operation" => operation.clone(), "status" => status.to_string())
}

/// A request without an answer yet; if it is dropped first, the request was abandoned.
struct InFlight<'a> {
    abandoned: Option<&'a Counter>,
    _counted: Counted,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(abandoned) = self.abandoned {
            abandoned.increment(1);
        }
    }
}

impl Operations {
    pub fn of(api: &OpenApi) -> Self {
        let mut by_path: HashMap<_, Vec<_>> = HashMap::new();
        for (path, item) in &api.paths.paths {
            let methods = [
                (Method::GET, &item.get),
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in methods {
                if let Some(Operation { operation_id: Some(id), responses, .. }) = operation {
                    let statuses = responses.responses.keys().filter_map(|s| s.parse().ok());
                    let measured = Measured::new(id, statuses);
                    by_path.entry(path.clone()).or_default().push((method, measured));
                }
            }
        }
        let unmatched = Measured::new(UNMATCHED, [404, 405].into_iter());
        let error =
            |code: Code| metrics::counter!(telemetry::ERRORS_TOTAL, "code" => code.as_str());
        Self { by_path, unmatched, errors: ByCode::new(error) }
    }

    fn find(&self, request: &Request) -> &Measured {
        let get = &Method::GET;
        let method = if request.method() == Method::HEAD { get } else { request.method() };
        request
            .extensions()
            .get::<MatchedPath>()
            .and_then(|path| self.by_path.get(path.as_str()))
            .and_then(|methods| methods.iter().find(|(known, _)| known == method))
            .map_or(&self.unmatched, |(_, measured)| measured)
    }
}

pub async fn observe(
    State(operations): State<Arc<Operations>>,
    request: Request,
    next: Next,
) -> Response {
    let begun = Instant::now();
    let measured = operations.find(&request);
    let series = measured.series();
    let mut in_flight =
        InFlight { abandoned: Some(&series.abandoned), _counted: Counted::new(&series.in_flight) };
    let (id, id_header) = request_id(request.headers());
    let version = request.version();
    let caller = Caller::of(request.extensions());
    let uri = request.uri().clone();
    let span = tracing::info_span!(
        "http_request",
        method = request.method().as_str(),
        operation = &*measured.operation,
        request_id = &*id,
    );
    let work = next.run(request).instrument(span.clone());
    let (answer, waited) = telemetry::counting_waits(work).await;
    let (mut answer, error) = problem::finish(answer, &id, version);
    answer.headers_mut().insert(REQUEST_ID, id_header);
    caller.answered(&mut answer, error.as_ref());
    let answered = audit::Answered {
        operation: &measured.operation,
        is_audited: measured.is_audited,
        uri: &uri,
        caller: &caller,
        request_id: &id,
        error: error.as_ref(),
    };
    span.in_scope(|| answered.write(&answer));
    let duration = begun.elapsed();
    let status = answer.status().as_u16();
    log(&span, status, duration.as_secs_f64() * 1000.0, error.as_ref());
    measured.answered(&answer, duration.saturating_sub(waited).as_secs_f64());
    if let Some(error) = error {
        operations.errors.count(error.code);
    }
    in_flight.abandoned = None;
    answer
}

/// Writes one log line per request, of those that were not served only some a second; the span has
/// its other facts.
fn log(span: &Span, status: u16, duration_ms: f64, error: Option<&Error>) {
    let code = error.map(|error| error.code.as_str());
    let detail = error.map(|error| error.detail.as_str());
    let level = match status {
        500 => Level::ERROR,
        501.. => Level::WARN,
        _ => Level::DEBUG,
    };
    static FAILED: LineLimit = LineLimit::new();
    static NOT_SERVED: LineLimit = LineLimit::new();
    let admitted = match level {
        Level::ERROR => FAILED.admit(),
        Level::WARN => NOT_SERVED.admit(),
        _ => Some(0),
    };
    let Some(left_out) = admitted else { return };
    span.in_scope(|| match level {
        Level::ERROR => {
            tracing::error!(status, duration_ms, code, detail, left_out, "request failed");
        }
        Level::WARN => {
            tracing::warn!(status, duration_ms, code, detail, left_out, "request not served");
        }
        _ => tracing::debug!(status, duration_ms, code, detail, "request answered"),
    });
}

/// Returns the client's id if it is 1 to 128 visible ASCII characters, else a new one.
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

/// A panic is a bug: it is logged, and the client gets 500.
pub fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown panic payload");
    tracing::error!(panic = text, "a handler panicked");
    let detail = "Internal error. The server log has details under this request id.";
    Error::new(Code::Internal, detail).into_response()
}
