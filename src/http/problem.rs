//! Writes every `application/problem+json` answer (RFC 9457).
//!
//! Every refusal, from a handler, an extractor or the router, is a [`broker::Error`](Error). It
//! travels to the outermost layer as an extension of an empty response and is written there, where
//! the request id is known. A response without one (unknown route, wrong method, panic) gets the
//! problem of its status.

use std::collections::BTreeMap;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, Version, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;
use utoipa::{
    ToSchema,
    openapi::{
        Ref, RefOr, Schema,
        schema::{ObjectBuilder, SchemaType, Type},
    },
};

use crate::{
    broker::Error,
    model::{Code, Retry, SideEffects, validation::shown},
};

pub const MEDIA_TYPE: &str = "application/problem+json";
/// Maximum size of a problem document.
pub const MAX_PROBLEM_BYTES: usize = 64 << 10;

/// An error (RFC 9457) with retry advice. The facts of the code follow as further members.
#[derive(Serialize, ToSchema)]
pub struct Problem<'a> {
    /// `urn:oncelog:problem:<code>`
    #[serde(rename = "type")]
    #[schema(example = "urn:oncelog:problem:producer_fenced")]
    kind: String,
    /// What kind of problem it is; the same for every problem with this code.
    title: &'a str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What is wrong, what was expected and what to do.
    detail: &'a str,
    /// `urn:oncelog:request:<X-Request-Id>`
    instance: String,
    #[schema(schema_with = error_code)]
    code: &'a str,
    #[schema(schema_with = retry)]
    retry: &'a str,
    #[schema(schema_with = side_effects)]
    side_effects: &'a str,
    #[serde(flatten)]
    facts: BTreeMap<String, Value>,
}

const ERROR_CODE: &str = "ErrorCode";
const RETRY: &str = "Retry";
const SIDE_EFFECTS: &str = "SideEffects";

/// The schemas of the words that clients decide by. They have names, because not every generator
/// makes a type of an enum without one.
pub fn words() -> [(String, RefOr<Schema>); 3] {
    let codes = Code::ALL.iter().map(|code| code.as_str()).collect();
    let retries = [Retry::Never, Retry::Same, Retry::Reopen, Retry::Later].map(Retry::as_str);
    let effects = [SideEffects::None, SideEffects::Unknown].map(SideEffects::as_str);
    let schema = |name: &str, words: Vec<&str>, description: &str| {
        let text = ObjectBuilder::new().schema_type(SchemaType::new(Type::String));
        let text = text.enum_values(Some(words)).description(Some(description));
        (name.to_owned(), Schema::from(text).into())
    };
    [
        schema(ERROR_CODE, codes, "The stable error code; the list is closed."),
        schema(
            RETRY,
            retries.to_vec(),
            "`never` (change the request), `same` (send the same again), `reopen` (open the \
             session again, then continue), `later` (send the same after `Retry-After`).",
        ),
        schema(
            SIDE_EFFECTS,
            effects.to_vec(),
            "`none` or `unknown`: whether the request may have changed something.",
        ),
    ]
}

fn error_code() -> Ref {
    Ref::from_schema_name(ERROR_CODE)
}

fn retry() -> Ref {
    Ref::from_schema_name(RETRY)
}

fn side_effects() -> Ref {
    Ref::from_schema_name(SIDE_EFFECTS)
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut answer = status(self.code).into_response();
        answer.extensions_mut().insert(self);
        answer
    }
}

/// Turns any 4xx or 5xx into a problem document; other headers (`Allow`) stay. Returns the error
/// for the log and the metrics.
pub fn finish(answer: Response, request_id: &str, version: Version) -> (Response, Option<Error>) {
    if !answer.status().is_client_error() && !answer.status().is_server_error() {
        return (answer, None);
    }
    let (mut head, _) = answer.into_parts();
    let error = head.extensions.remove::<Error>().unwrap_or_else(|| unexplained(head.status));
    let body = document(&error, request_id);
    head.status = status(error.code);
    let headers = &mut head.headers;
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    if let Some(seconds) = error.retry_after_s.or(retry_after_s(error.code)) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.code == Code::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // The rest of a body that comes too slowly is not waited for. (HTTP/2 resets the stream.)
    if error.code == Code::RequestTimeout && version <= Version::HTTP_11 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    (Response::from_parts(head, Body::from(body)), Some(error))
}

fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn document(error: &Error, request_id: &str) -> Vec<u8> {
    let full = written(error, request_id);
    if full.len() <= MAX_PROBLEM_BYTES {
        return full;
    }
    // Escapes may make a text six times as long.
    let cut = Error::new(error.code, shown(error.detail.clone()));
    written(&cut, request_id)
}

fn written(error: &Error, request_id: &str) -> Vec<u8> {
    let code = error.code;
    let retry = error.retry_after_s.map_or(code.retry(), |_| Retry::Later);
    let problem = Problem {
        kind: format!("urn:oncelog:problem:{}", code.as_str()),
        title: code.title(),
        status: code.status(),
        detail: &error.detail,
        instance: format!("urn:oncelog:request:{}", super::extract::query::escape(request_id)),
        code: code.as_str(),
        retry: retry.as_str(),
        side_effects: code.side_effects().as_str(),
        facts: error.facts.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
    };
    // Strings, numbers and values: nothing here can fail to serialise.
    serde_json::to_vec(&problem).unwrap_or_default()
}

/// Seconds until a repeat makes sense.
pub fn retry_after_s(code: Code) -> Option<u64> {
    (code.retry() == Retry::Later || code.status() == 503).then_some(1)
}

/// The problem of a response that carries none: from the router, or after a panic.
fn unexplained(status: StatusCode) -> Error {
    let (code, detail) = match status.as_u16() {
        401 => (Code::Unauthenticated, "A bearer token is required."),
        403 => (Code::Forbidden, "The token does not permit this."),
        404 => (Code::RouteNotFound, "This path does not exist; see /docs, or /openapi.json."),
        405 => (Code::MethodNotAllowed, "This path does not support the method; see Allow."),
        406 => (Code::NotAcceptable, "No representation matches the Accept header."),
        408 => (Code::RequestTimeout, "The request timed out."),
        413 => (Code::PayloadTooLarge, "The request body is too large."),
        415 => (Code::UnsupportedMediaType, "This media type is not supported."),
        429 => (Code::QuotaExceeded, "Too many requests."),
        503 => (Code::Unavailable, "The service is unavailable."),
        400..=499 => (Code::InvalidRequest, "The request is malformed."),
        _ => (Code::Internal, "Internal error. The server log has details under this request id."),
    };
    Error::new(code, detail)
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::json;

    use super::*;
    use crate::model::{ValidationError, ValidationErrors};

    async fn finished(answer: Response) -> (Response, Value) {
        let (answer, _) = finish(answer, "r<1>", Version::HTTP_11);
        let (head, body) = answer.into_parts();
        let body = to_bytes(body, MAX_PROBLEM_BYTES).await.unwrap();
        (Response::from_parts(head, Body::empty()), serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn an_error_becomes_a_problem_with_its_facts() {
        let error = Error::new(Code::ProducerFenced, "epoch 3 is over").fact("current_epoch", 4);
        let (answer, body) = finished(error.into_response()).await;
        assert_eq!(answer.status(), 409);
        assert_eq!(answer.headers()["content-type"], MEDIA_TYPE);
        assert!(!answer.headers().contains_key("retry-after"));
        assert_eq!(
            body,
            json!({"type": "urn:oncelog:problem:producer_fenced", "code": "producer_fenced",
                "title": "Producer fenced by a newer session", "status": 409,
                "detail": "epoch 3 is over", "instance": "urn:oncelog:request:r%3C1%3E",
                "retry": "never", "side_effects": "none", "current_epoch": 4})
        );
    }

    #[tokio::test]
    async fn mistakes_are_listed_by_pointer() {
        let mut invalid = ValidationErrors::at("/a", "no");
        invalid.add("/b", "neither");
        let (_, body) = finished(Error::from(invalid).into_response()).await;
        assert_eq!(body["detail"], "/a: no (and 1 more, see errors)");
        assert_eq!(body["errors"][1], json!({"pointer": "/b", "detail": "neither"}));
    }

    #[tokio::test]
    async fn a_few_mistakes_are_listed_and_the_others_counted() {
        let invalid = ValidationErrors::of(
            (0..50).map(|index| ValidationError::new(format!("/{index}"), "no")),
        );
        let (_, body) = finished(Error::from(invalid).into_response()).await;
        assert_eq!(body["detail"], "/0: no (see errors, and 30 more)");
        assert_eq!(body["errors"].as_array().unwrap().len(), 20);
        let large = ValidationErrors::too_large("/list", "too many", Code::PayloadTooLarge, 7);
        let (answer, body) = finished(Error::from(large).into_response()).await;
        assert_eq!((answer.status().as_u16(), &body["limit"]), (413, &json!(7)));
        assert_eq!((&body["detail"], body.get("errors")), (&json!("/list: too many"), None));
    }

    /// The longest texts of characters that JSON writes in six bytes.
    #[tokio::test]
    async fn a_document_is_bounded_whatever_was_sent() {
        let text = "\u{1}".repeat(1 << 20);
        let errors = || (0..50).map(|_| ValidationError::new(text.clone(), text.clone()));
        for error in [
            Error::from(ValidationErrors::of(errors())),
            Error::new(Code::Forbidden, text.clone()),
            Error::new(Code::Forbidden, "x").fact("required_scope", text.clone()),
        ] {
            let code = error.code;
            let (_, body) = finished(error.into_response()).await;
            assert_eq!(body["code"], code.as_str());
        }
    }

    #[tokio::test]
    async fn every_code_has_its_status_and_headers() {
        for code in Code::ALL {
            let (answer, body) = finished(Error::new(*code, "x").into_response()).await;
            assert_eq!(answer.status().as_u16(), code.status());
            assert_eq!(body["code"], code.as_str());
            // a limit of the tenant does not pass by itself
            let patient = code.retry() == Retry::Later || code.status() == 503;
            assert_eq!(answer.headers().contains_key("retry-after"), patient, "{code:?}");
            let asks = answer.headers().contains_key("www-authenticate");
            assert_eq!(asks, code.status() == 401, "{code:?}");
            let closes = answer.headers().contains_key("connection");
            assert_eq!(closes, code.status() == 408, "{code:?}");
        }
    }

    #[tokio::test]
    async fn an_unexplained_status_gets_its_code() {
        let table = [
            (404, "route_not_found"),
            (418, "invalid_request"),
            (500, "internal"),
            (502, "internal"),
        ];
        for (status, code) in table {
            let status = StatusCode::from_u16(status).unwrap();
            let (_, body) = finished((status, "secret text").into_response()).await;
            assert_eq!(body["code"], code);
            assert!(!body.to_string().contains("secret"));
        }
    }
}
