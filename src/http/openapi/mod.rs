//! The OpenAPI 3.1 document: the descriptions of all handlers, the problems that each operation can
//! answer, and examples.
//!
//! The examples form one sequence: on a new server each can be sent unchanged, in the order of
//! `tests/it/openapi.rs`, and gets the answer shown.

pub mod examples;
pub mod page;
mod plain;
mod problems;
pub mod schemas;
pub mod settings;
mod strict;

use std::sync::LazyLock;

use utoipa::{
    OpenApi, PartialSchema, ToSchema,
    openapi::{
        Content, HeaderBuilder, Ref, RefOr, Required, Response, Schema,
        path::{Operation, Parameter, ParameterBuilder},
        schema::{ObjectBuilder, SchemaType, Type},
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use super::{Listener, constant::Constant, problem};
use crate::model::{Code, dedup::MAX_IDEMPOTENCY_KEY_BYTES};

const DESCRIPTION: &str = "\
An exactly-once event log behind plain HTTP and JSON, stored in Postgres.

**In short.** Create a topic (`PUT /v1/topics/orders`), open a session (`POST /v1/sessions`), \
append with its `producer_id`, its `epoch` and a `sequence` that you count from 0 \
(`POST /v1/topics/orders/records`), and read \
(`GET /v1/topics/orders/partitions/0/records?offset=0&wait_ms=20000`).

**Conventions.** Names are 1 to 249 of `A-Z a-z 0-9 . _ -`, but not `.` or `..`. Durations end in \
`_ms`, sizes in `_bytes`. Instants are RFC 3339; answers have them in UTC with milliseconds. \
Offsets, sequences, epochs and ids are integers below 2^53. Unknown fields and parameters are \
refused, not ignored. Lists take `limit` and `after`, and return `next_after` (null on the last \
page) and a `Link` header. Request bodies can have `Content-Encoding: gzip` or `zstd`; answers are \
compressed if `Accept-Encoding` allows it. Every answer has an `X-Request-Id`: the client's, or a \
new one.

**Errors.** Every error is `application/problem+json` (RFC 9457). Its `code` is stable, `detail` \
is for people, `side_effects` says whether something may have changed, and `retry` what to do: \
`never` (change the request), `same` (send the same again), `reopen` (open the session again, \
then continue), `later` (send the same after `Retry-After` seconds).

**Limits.** A tenant may have rates (429 `rate_limited`) and quotas (429 `quota_exceeded`), which \
are settings. Answers of a tenant with rates have the headers `RateLimit` and `RateLimit-Policy`.

**Retries.** After a timeout, a broken connection or a 503, send the same request again, to any \
replica. An append with a sequence, an open with an `open_id`, and an append, an open, a join of \
a group or a commit of offsets with an `Idempotency-Key` are done once, however often they are \
sent: a repeat returns the first answer, with `\"duplicate\": true`. A transaction is repeated \
by its `transaction_id`, and its outcome can be queried. Without any of these, an append is \
stored every time it arrives (except records with a known `id`), an open raises the epoch every \
time, and a join creates another member. All other requests are safe to repeat.";

/// The document, as served and as committed to the repository.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut api = Listener::Whole.routes().into_openapi();
    api.info.version = env!("CARGO_PKG_VERSION").into();
    let components = api.components.get_or_insert_default();
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.bearer_format = Some("JWT".into());
    bearer.description = Some(
        "A JWT with `aud`, `iss`, `exp`, `tenant` and `scope`. The scope is a list of the words \
         `produce`, `consume`, `group` and `admin`, separated by spaces, each optionally \
         restricted to a pattern of topic names (`produce:orders.*`) or group names \
         (`group:billing`), and `operator`. `oncelog token mint` creates one. A server without a \
         token key (embedded mode) needs none: leave this empty."
            .into(),
    );
    components.security_schemes.insert("bearer".into(), SecurityScheme::Http(bearer).into());
    components.schemas.insert(problem::Problem::name().into(), problem::Problem::schema());
    components.schemas.extend(problem::words());
    components.schemas.extend(settings::changes());
    plain::schemas(components);
    strict::schemas(components);
    for item in api.paths.paths.values_mut() {
        for operation in
            [&mut item.get, &mut item.put, &mut item.post, &mut item.patch, &mut item.delete]
                .into_iter()
                .flatten()
        {
            let codes = describe_problems(operation);
            let named = |code: Code| (code.as_str().to_owned(), examples::problem(code));
            components.examples.extend(codes.into_iter().map(named));
            describe_parameters(operation);
            plain::body(operation, components);
            plain::answers(operation);
        }
    }
    api
}

/// The serialized document.
pub fn document() -> &'static Constant {
    static DOCUMENT: LazyLock<Constant> = LazyLock::new(|| {
        Constant::new("application/json", openapi().to_json().unwrap_or_default())
    });
    &DOCUMENT
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "oncelog",
        description = DESCRIPTION,
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers(
        (url = "/", description = "This server: its public listener, or one that carries all"),
        (url = "http://127.0.0.1:8081", description = "Its admin listener, where that is another \
            (by default the next port, on its own machine): tenants and metrics")
    ),
    tags(
        (name = "topics", description = "Named sets of partitions. A partition is a log: its \
            records have the offsets 0, 1, 2 and so on, without gaps, and never change."),
        (name = "sessions", description = "Producers. A session names a producer, and opening it \
            again raises its `epoch`: writes of the older session are refused. An open also \
            returns the next `sequence` of every scope, so that a restarted producer knows what \
            arrived."),
        (name = "appends", description = "Write records exactly once: a `sequence` numbers the \
            requests of a producer in one scope (the URL appended to) from 0. A repeat is stored \
            once and returns the first answer."),
        (name = "transactions", description = "Records for many topics and offsets of groups, \
            committed atomically, in one request or in many. Before the commit they are invisible \
            and block nobody. A transaction has an id, a UUIDv7 that the client may choose: with \
            it every call can be repeated, and the outcome queried."),
        (name = "reads", description = "Read records from an offset or an instant on, with long \
            polling for new ones."),
        (name = "groups", description = "Consumers that share partitions. Each member holds a \
            lease on its partitions, which every call renews on any replica. A restarted group \
            continues at its committed offsets."),
        (name = "settings", description = "Settings of the tenant: limits of appends and topics, \
            retention, deduplication, and how long idle producers are kept."),
        (name = "tenants", description = "For operators: the tenants, the maxima of their \
            settings, and whether their requests are served. Where there is an admin listener, \
            they are there."),
        (name = "service", description = "Probes, metrics, this document and its page. They take \
            no token. Where there is an admin listener, metrics are there.")
    )
)]
pub struct Document;

/// Adds one response per status, with its codes and an example of each; returns the codes.
fn describe_problems(operation: &mut Operation) -> Vec<Code> {
    let id = operation.operation_id.as_deref().unwrap_or_default();
    let codes = problems::of(id).unwrap_or_default();
    for same in codes.chunk_by(|a, b| a.status() == b.status()) {
        let Some(first) = same.first() else { continue };
        let words: Vec<_> = same
            .iter()
            .map(|code| {
                let retry = match code {
                    Code::QuotaExceeded => "never, or later with Retry-After",
                    _ => code.retry().as_str(),
                };
                format!("`{}`: {} (retry: {retry})", code.as_str(), code.title())
            })
            .collect();
        let mut content = Content::new(Some(Ref::from_schema_name(problem::Problem::name())));
        let shared = |code: &Code| {
            let name = code.as_str();
            let at = Ref::new(format!("#/components/examples/{name}"));
            (name.to_owned(), RefOr::Ref(at))
        };
        content.examples = same.iter().map(shared).collect();
        let mut response = Response::new(words.join("; "));
        response.content.insert(problem::MEDIA_TYPE.into(), content.into());
        if same.iter().any(|code| problem::retry_after_s(*code).is_some()) {
            let seconds = ObjectBuilder::new().schema_type(SchemaType::new(Type::Integer));
            let header = HeaderBuilder::new()
                .schema(Some(Schema::from(seconds.minimum(Some(0)))))
                .description(Some("Seconds after which to send the request again"));
            response.headers.insert("Retry-After".into(), header.build().into());
        }
        let status = first.status().to_string();
        operation.responses.responses.insert(status, response.into());
    }
    codes
}

const IDEMPOTENCY_KEY: &str = "\
Makes the call safe to repeat: calls with the same key, path and payload are done once, and a \
repeat returns the first answer with `\"duplicate\": true`, for `dedup_window_ms` (0: keys are \
refused). 1 to 255 printable ASCII characters; use a new one for every call. A UUIDv7 older than \
the deduplication window is refused, not done again.";

const TRANSACTION_KEY: &str = "\
Makes a one-request transaction (`\"commit\": true`) safe to repeat, instead of a \
`transaction_id`: a repeat with the same key and body returns the outcome with \
`\"duplicate\": true`, for `transaction_retention_ms`. 1 to 255 printable ASCII characters; use a \
new one for every transaction. A UUIDv7 older than the retention is refused, not done again.";

/// The schema and description of parameters with a well-known name, and an example of each.
fn describe_parameters(operation: &mut Operation) {
    let id = operation.operation_id.clone().unwrap_or_default();
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let of = |kind| ObjectBuilder::new().schema_type(SchemaType::new(kind));
        match parameter.name.as_str() {
            "Idempotency-Key" => {
                let is_of_transaction = id == "begin_transaction";
                let words = if is_of_transaction { TRANSACTION_KEY } else { IDEMPOTENCY_KEY };
                parameter.description = Some(words.into());
                let longest = MAX_IDEMPOTENCY_KEY_BYTES;
                let key = of(Type::String).min_length(Some(1)).max_length(Some(longest));
                parameter.schema = Some(key.into());
            }
            _ => strict::parameter(parameter),
        }
        plain::parameter(parameter);
        if let Some(example) = examples::parameter(&id, &parameter.name) {
            show(parameter, example);
        }
    }
}

/// Pages that send requests fill in parameter examples, so only required parameters have one:
/// `offset` and `timestamp`, for instance, exclude each other. Optional ones have theirs in the
/// schema.
fn show(parameter: &mut Parameter, example: serde_json::Value) {
    if parameter.required == Required::True {
        let built = ParameterBuilder::from(std::mem::take(parameter));
        *parameter = built.example(Some(example)).build();
    } else if let Some(RefOr::T(Schema::Object(schema))) = &mut parameter.schema {
        schema.examples = vec![example];
    }
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
                assert!(problems::of(&id).is_some(), "{at} has no row of problems");
                assert!(operation["security"].is_array(), "{at} security");
                let open = !path.starts_with("/v1/");
                assert_eq!(operation["responses"].get("401").is_none(), open, "{at}");
                let body = operation.get("requestBody");
                assert_eq!(body.is_some(), matches!(method.as_str(), "post" | "put" | "patch"));
                let responses = operation["responses"].as_object().unwrap();
                for part in responses.values().chain(body) {
                    let described = part["description"].as_str().unwrap_or_default();
                    assert!(!described.is_empty(), "{at}: {part}");
                }
                assert!(!ids.contains(&id), "{id} twice");
                ids.push(id);
            }
        }
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
