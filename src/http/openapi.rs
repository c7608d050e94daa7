//! The OpenAPI 3.1 document: what the handlers say of themselves, and which problems each may
//! answer.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::json;
use utoipa::{
    OpenApi, PartialSchema, ToSchema,
    openapi::{
        Content, Ref, RefOr, Response,
        path::Operation,
        schema::{ObjectBuilder, SchemaType, Type},
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use super::{problem, routes};
use crate::model::{Code, name::MAX_NAME_BYTES};

/// The document, served and committed.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut api = routes().into_openapi();
    api.info.version = env!("CARGO_PKG_VERSION").into();
    let components = api.components.get_or_insert_default();
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.bearer_format = Some("JWT".into());
    bearer.description = Some(
        "Claims: `tenant`, and `scope` with words such as `produce`, each perhaps narrowed to \
         a pattern of topic names (`produce:orders.*`). Not asked for in embedded mode."
            .into(),
    );
    components.security_schemes.insert("bearer".into(), SecurityScheme::Http(bearer).into());
    components.schemas.insert(problem::Problem::name().into(), problem::Problem::schema());
    for item in api.paths.paths.values_mut() {
        for operation in
            [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete]
                .into_iter()
                .flatten()
        {
            describe_problems(operation);
            describe_names(operation);
        }
    }
    api
}

/// The serialised document.
pub fn document() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> =
        LazyLock::new(|| openapi().to_json().unwrap_or_default().into());
    DOCUMENT.clone()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "oncelog",
        description = "An exactly-once event log behind plain HTTP/JSON, stored in Postgres.\n\n\
            Every error is a problem document (RFC 9457) with a stable `code`, what to do \
            about it (`retry`) and whether something may have changed (`side_effects`). \
            Unknown fields and parameters are refused. Every answer carries `X-Request-Id`.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "/", description = "This server")),
    tags(
        (name = "sessions", description = "Who appends: producers, their epochs and sequences"),
        (name = "appends", description = "Records in"),
        (name = "reads", description = "Records out"),
        (name = "topics", description = "Named sets of partitions"),
        (name = "settings", description = "What holds for the tenant"),
        (name = "service", description = "Probes, metrics and this document"))
)]
pub struct Document;

/// Problems of every operation that takes a token.
const EVERY: &[Code] = &[
    Code::InvalidRequest,
    Code::Unauthenticated,
    Code::Forbidden,
    Code::Internal,
    Code::Unavailable,
    Code::Draining,
];
/// Of those that answer a document.
const ANSWERING: &[Code] = &[Code::NotAcceptable];
/// Of those that take a body.
const TAKING: &[Code] = &[Code::RequestTimeout, Code::PayloadTooLarge, Code::UnsupportedMediaType];
/// Of an append, in the order they are judged.
const APPENDING: &[Code] = &[
    Code::TopicNotFound,
    Code::UnknownProducer,
    Code::ProducerFenced,
    Code::InvalidProducerEpoch,
    Code::UnknownProducerState,
    Code::OutOfOrderSequence,
    Code::SequenceReused,
    Code::BatchTooLarge,
    Code::OutcomeUnknown,
];

/// The problems of an operation; a test holds that every operation has its row.
fn problems(operation_id: &str) -> Option<Vec<&'static [Code]>> {
    let append_to_partition: &[Code] = &[Code::PartitionNotFound, Code::OffsetMismatch];
    let open: &[Code] = &[
        Code::UnknownProducer,
        Code::ProducerFenced,
        Code::InvalidProducerEpoch,
        Code::IdempotencyKeyReused,
        Code::OutcomeUnknown,
    ];
    let topic: &[Code] = &[Code::TopicNotFound];
    let topic_write: &[Code] = &[Code::TopicNotFound, Code::OutcomeUnknown];
    let put: &[Code] = &[Code::TopicExists, Code::QuotaExceeded, Code::OutcomeUnknown];
    let patch: &[Code] =
        &[Code::TopicNotFound, Code::TopicExists, Code::QuotaExceeded, Code::OutcomeUnknown];
    let read: &[Code] = &[Code::TopicNotFound, Code::PartitionNotFound, Code::OffsetOutOfRange];
    let producer: &[Code] = &[Code::UnknownProducer];
    let end: &[Code] = &[Code::UnknownProducer, Code::OutcomeUnknown];
    let settings: &[Code] = &[Code::PreconditionFailed, Code::OutcomeUnknown];
    Some(match operation_id {
        "put_topic" => vec![EVERY, ANSWERING, TAKING, put],
        "get_topic" => vec![EVERY, ANSWERING, topic],
        "list_topics" | "list_sessions" | "get_settings" => vec![EVERY, ANSWERING],
        "patch_settings" => vec![EVERY, ANSWERING, TAKING, settings],
        "patch_topic" => vec![EVERY, ANSWERING, TAKING, patch],
        "delete_topic" => vec![EVERY, topic_write],
        "trim_partition" => vec![EVERY, read, &[Code::OutcomeUnknown]],
        "open_session" => vec![EVERY, ANSWERING, TAKING, open],
        "get_session" | "list_session_sequences" => vec![EVERY, ANSWERING, producer],
        "end_session" => vec![EVERY, end],
        "append_to_topic" => vec![EVERY, ANSWERING, TAKING, APPENDING],
        "append_to_partition" => {
            vec![EVERY, ANSWERING, TAKING, APPENDING, append_to_partition]
        }
        "read_partition" => vec![EVERY, ANSWERING, read],
        "readyz" => vec![&[Code::Draining, Code::Unavailable]],
        "livez" | "metrics" | "openapi" => vec![],
        _ => return None,
    })
}

/// One response a status, with its codes in words and the first as example.
fn describe_problems(operation: &mut Operation) {
    let id = operation.operation_id.as_deref().unwrap_or_default();
    let mut codes: Vec<Code> = problems(id).unwrap_or_default().concat();
    codes.sort_by_key(|code| code.status());
    for same in codes.chunk_by(|a, b| a.status() == b.status()) {
        let Some(first) = same.first() else { continue };
        let words: Vec<_> = same
            .iter()
            .map(|code| {
                let retry = code.retry().as_str();
                format!("`{}`: {} (retry: {retry})", code.as_str(), code.title())
            })
            .collect();
        let mut content = Content::new(Some(Ref::from_schema_name(problem::Problem::name())));
        content.example = Some(example(*first));
        let mut response = Response::new(words.join("; "));
        response.content.insert(problem::MEDIA_TYPE.into(), content.into());
        let status = first.status().to_string();
        operation.responses.responses.insert(status, response.into());
    }
}

/// What `Name::parse` takes.
fn describe_names(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        if let RefOr::T(parameter) = parameter
            && parameter.name == "topic"
        {
            let name = ObjectBuilder::new()
                .schema_type(SchemaType::new(Type::String))
                .min_length(Some(1))
                .max_length(Some(MAX_NAME_BYTES))
                .pattern(Some("^[A-Za-z0-9._-]+$"));
            parameter.schema = Some(name.into());
        }
    }
}

fn example(code: Code) -> serde_json::Value {
    let mut example = json!({
        "type": format!("urn:oncelog:problem:{}", code.as_str()),
        "title": code.title(),
        "status": code.status(),
        "detail": "What was wrong here, what was expected, what to do.",
        "instance": "urn:oncelog:request:019aa5b6-5c00-7000-8000-000000000001",
        "code": code.as_str(),
        "retry": code.retry().as_str(),
        "side_effects": code.side_effects().as_str(),
    });
    match code {
        Code::InvalidRequest => {
            example["errors"] = json!([{"pointer": "/records/7/value",
                "detail": "exactly one of value and value_base64 is expected"}]);
        }
        Code::Forbidden => example["required_scope"] = json!("produce:orders"),
        Code::PayloadTooLarge | Code::BatchTooLarge => example["limit"] = json!(1_048_576),
        _ => {}
    }
    example
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_described() {
        let api = serde_json::to_value(openapi()).unwrap();
        assert!(api["openapi"].as_str().unwrap().starts_with("3.1"));
        let mut ids = Vec::new();
        for (path, item) in api["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                let at = format!("{method} {path} ({id})");
                for text in ["summary", "description"] {
                    assert!(
                        !operation[text].as_str().unwrap_or_default().is_empty(),
                        "{at} {text}"
                    );
                }
                assert!(problems(&id).is_some(), "{at} has no row of problems");
                assert!(operation["security"].is_array(), "{at} security");
                let open = !path.starts_with("/v1/");
                assert_eq!(operation["responses"].get("401").is_none(), open, "{at}");
                let body = operation.get("requestBody");
                assert_eq!(body.is_some(), matches!(method.as_str(), "post" | "put" | "patch"));
                let responses = operation["responses"].as_object().unwrap();
                for part in responses.values().chain(body) {
                    let described = part["description"].as_str().unwrap_or_default();
                    assert!(!described.is_empty(), "{at}: {part}");
                    for content in part["content"].as_object().into_iter().flatten() {
                        assert!(content.1.get("example").is_some(), "{at}: {}", content.0);
                    }
                }
                assert!(!ids.contains(&id), "{id} twice");
                ids.push(id);
            }
        }
        assert_eq!(ids.len(), 20);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = openapi().to_json().unwrap();
        let api: serde_json::Value = serde_json::from_str(&text).unwrap();
        for part in text.split("\"#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(api["components"]["schemas"].get(name).is_some(), "{name}");
        }
    }
}
