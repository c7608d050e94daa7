//! Sessions: open, see, find, end.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use uuid::{Uuid, Version};

use super::{
    access::{Access, Produce, ProducerPath},
    body::JsonBody,
    json::Faults,
    list::{self, ListQuery},
    media::AnswersJson,
    query::{self, NoParameters, Query, escape},
};
use crate::{
    broker::Error,
    model::{
        Invalid, MAX_INTEGER, Name, ProducerId,
        session::{self, DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS, Open, Opened},
    },
};

/// How sequences follow each other: every one the last plus one, or any greater one.
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sequencing {
    Contiguous,
    Monotonic,
}

/// Where the next sequences start.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sequences {
    Continue,
    Reset,
}

/// All fields are optional; those left out are defaults, not the former values.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// The stable name of a logical producer. Without it, or `producer_id`, the producer is new.
    transactional_id: Option<String>,
    /// With `epoch`: open only if this is the producer and that its current epoch.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// A UUIDv7 that makes the open repeatable; always send one.
    #[schema(value_type = Option<Uuid>)]
    open_id: Option<String>,
    #[schema(minimum = 1, maximum = 900000, default = 60000)]
    transaction_timeout_ms: Option<i64>,
    sequencing: Option<Sequencing>,
    sequences: Option<Sequences>,
}

impl OpenSession {
    fn checked(self) -> Result<Open, Invalid> {
        let mut faults = Faults::default();
        let transactional_id = faults.name("/transactional_id", self.transactional_id.as_deref());
        let producer_id = faults.count("/producer_id", self.producer_id);
        let epoch = faults.count("/epoch", self.epoch);
        match (self.producer_id, self.epoch) {
            (Some(_), None) => faults.add("/epoch", "producer_id comes with epoch"),
            (None, Some(_)) => faults.add("/producer_id", "epoch comes with producer_id"),
            _ => {}
        }
        let open_id = self.open_id.as_deref().and_then(uuid_v7);
        if self.open_id.is_some() && open_id.is_none() {
            faults.add("/open_id", "a UUIDv7 is expected");
        }
        let timeout = self.transaction_timeout_ms;
        let range = 1..=MAX_TRANSACTION_TIMEOUT_MS;
        faults.range("/transaction_timeout_ms", timeout, range);
        faults.finish()?;
        Ok(Open {
            transactional_id,
            condition: producer_id.map(ProducerId).zip(epoch),
            open_id,
            transaction_timeout_ms: timeout.unwrap_or(DEFAULT_TRANSACTION_TIMEOUT_MS),
            sequencing: match self.sequencing {
                None | Some(Sequencing::Contiguous) => session::Sequencing::Contiguous,
                Some(Sequencing::Monotonic) => session::Sequencing::Monotonic,
            },
            sequences: match self.sequences {
                None | Some(Sequences::Continue) => session::Sequences::Continue,
                Some(Sequences::Reset) => session::Sequences::Reset,
            },
        })
    }
}

/// In its hyphenated form, upper or lower case.
fn uuid_v7(text: &str) -> Option<Uuid> {
    let uuid = Uuid::try_parse(text).ok().filter(|_| text.len() == 36)?;
    (uuid.get_version() == Some(Version::SortRand)).then_some(uuid)
}

/// A session as it stands.
#[derive(Serialize, ToSchema)]
pub struct Session {
    producer_id: i64,
    epoch: i64,
    #[schema(required = true)]
    transactional_id: Option<String>,
    sequencing: Sequencing,
    transaction_timeout_ms: i64,
    /// True when the session was ended and not opened since.
    closed: bool,
    #[schema(format = DateTime)]
    opened_at: String,
    /// By topic, then partition; at most 1000, the rest under `/sequences`.
    next_sequences: Vec<NextSequence>,
    /// The transaction of the epoch before that this open aborted.
    #[schema(required = true)]
    aborted_transaction: Option<String>,
    /// Prepared transactions of this producer.
    prepared_transactions: Vec<String>,
    /// In the answer to an open: whether it repeats the one that made this session.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

/// A session as lists show it.
#[derive(Serialize, ToSchema)]
pub struct SessionItem {
    producer_id: i64,
    epoch: i64,
    #[schema(required = true)]
    transactional_id: Option<String>,
    sequencing: Sequencing,
    transaction_timeout_ms: i64,
    closed: bool,
    #[schema(format = DateTime)]
    opened_at: String,
}

/// The next sequence of a scope: a topic, or one partition of it.
#[derive(Serialize, ToSchema)]
pub struct NextSequence {
    topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    next_sequence: i64,
}

#[derive(Serialize, ToSchema)]
pub struct SessionList {
    sessions: Vec<SessionItem>,
    /// Where the next page starts; null at the end.
    #[schema(required = true)]
    next_after: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct SequenceList {
    sequences: Vec<NextSequence>,
    /// Where the next page starts; null at the end.
    #[schema(required = true)]
    next_after: Option<String>,
}

impl From<session::Session> for SessionItem {
    fn from(session: session::Session) -> Self {
        Self {
            producer_id: session.producer_id.0,
            epoch: session.epoch,
            transactional_id: session.transactional_id.map(|name| name.to_string()),
            sequencing: match session.sequencing {
                session::Sequencing::Contiguous => Sequencing::Contiguous,
                session::Sequencing::Monotonic => Sequencing::Monotonic,
            },
            transaction_timeout_ms: session.transaction_timeout_ms,
            closed: session.closed,
            opened_at: session.opened_at.to_string(),
        }
    }
}

impl From<session::NextSequence> for NextSequence {
    fn from(next: session::NextSequence) -> Self {
        let topic = next.topic.to_string();
        Self { topic, partition: next.partition, next_sequence: next.next_sequence }
    }
}

impl From<Opened> for Session {
    fn from(opened: Opened) -> Self {
        let item = SessionItem::from(opened.session);
        Self {
            producer_id: item.producer_id,
            epoch: item.epoch,
            transactional_id: item.transactional_id,
            sequencing: item.sequencing,
            transaction_timeout_ms: item.transaction_timeout_ms,
            closed: item.closed,
            opened_at: item.opened_at,
            next_sequences: opened.next_sequences.into_iter().map(NextSequence::from).collect(),
            aborted_transaction: None,
            prepared_transactions: Vec::new(),
            duplicate: None,
        }
    }
}

fn example(duplicate: Option<bool>) -> serde_json::Value {
    let mut example = json!({"producer_id": 17, "epoch": 4, "transactional_id": "payment-service",
        "sequencing": "contiguous", "transaction_timeout_ms": 60000, "closed": false,
        "opened_at": "2026-11-21T08:00:00.000Z", "next_sequences": [
            {"topic": "orders", "next_sequence": 12},
            {"topic": "audit", "partition": 3, "next_sequence": 2}],
        "aborted_transaction": null, "prepared_transactions": []});
    if let Some(duplicate) = duplicate {
        example["duplicate"] = duplicate.into();
    }
    example
}

/// Open a session
///
/// Fences every older session of the producer and answers the next sequence of every scope, so
/// that a restarted producer knows what arrived before it died.
#[utoipa::path(post, path = "/v1/sessions", operation_id = "open_session", tag = "sessions",
    request_body(content = OpenSession, description = "Who opens, and how",
        example = json!({"transactional_id": "payment-service",
            "open_id": "019aa5b6-5c00-7000-8000-000000000001"})),
    responses(
        (status = 201, description = "The session is open", body = Session,
            example = json!(example(Some(false)))),
        (status = 200, description = "This open_id had opened it already", body = Session,
            example = json!(example(Some(true))))),
    security(("bearer" = ["produce"])))]
pub async fn open_session(
    access: Access<Produce>,
    _: AnswersJson,
    sent: JsonBody<OpenSession>,
) -> Result<Response, Error> {
    let open = sent.body.checked()?;
    let opened = access.broker.open_session(access.tenant, open).await?;
    let (duplicate, id) = (opened.duplicate, opened.session.producer_id.0);
    let session = Session { duplicate: Some(duplicate), ..Session::from(opened) };
    let mut answer = Json(session).into_response();
    if !duplicate {
        *answer.status_mut() = StatusCode::CREATED;
        if let Ok(location) = HeaderValue::from_str(&format!("/v1/sessions/{id}")) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
    }
    Ok(answer)
}

/// Describe a session
///
/// As it stands, with its next sequences as of now.
#[utoipa::path(get, path = "/v1/sessions/{producer_id}", operation_id = "get_session",
    tag = "sessions",
    params(("producer_id" = i64, Path, description = "The producer's id")),
    responses((status = 200, description = "The session", body = Session,
        example = json!(example(None)))),
    security(("bearer" = ["produce"])))]
pub async fn get_session(
    access: Access<Produce>,
    ProducerPath(id): ProducerPath,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Json<Session>, Error> {
    Ok(Json(access.broker.session(access.tenant, id).await?.into()))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionsQuery {
    /// Only the session of this transactional id.
    transactional_id: Option<String>,
    /// Most items of the page.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<i64>,
    /// `next_after` of the page before.
    after: Option<String>,
}

impl SessionsQuery {
    fn name(&self) -> Result<Option<Name>, Invalid> {
        let mut faults = Faults::default();
        let name = faults.name("?transactional_id", self.transactional_id.as_deref());
        let id = self.after.as_deref().map(query::integer);
        if id.is_some_and(|id| !id.is_ok_and(|id| (0..=MAX_INTEGER).contains(&id))) {
            faults.add("?after", "a producer id is expected");
        }
        faults.finish()?;
        Ok(name)
    }
}

/// List sessions
///
/// All of the tenant by producer id, or the one of a transactional id.
#[utoipa::path(get, path = "/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    params(SessionsQuery),
    responses((status = 200, description = "A page of sessions", body = SessionList,
        example = json!({"sessions": [{"producer_id": 17, "epoch": 4,
            "transactional_id": "payment-service", "sequencing": "contiguous",
            "transaction_timeout_ms": 60000, "closed": false,
            "opened_at": "2026-11-21T08:00:00.000Z"}], "next_after": null}))),
    security(("bearer" = ["produce"])))]
pub async fn list_sessions(
    access: Access<Produce>,
    _: AnswersJson,
    Query(query): Query<SessionsQuery>,
) -> Result<Response, Error> {
    let name = query.name()?;
    let page = list::page(query.limit, query.after)?;
    let limit = page.limit;
    let listed = access.broker.sessions(access.tenant, name.as_ref(), page).await?;
    let base = match &name {
        Some(name) => format!("/v1/sessions?transactional_id={}&", escape(name.as_str())),
        None => "/v1/sessions?".to_owned(),
    };
    let next = listed.next_after.clone();
    let sessions = listed.items.into_iter().map(SessionItem::from).collect();
    let list = SessionList { sessions, next_after: listed.next_after };
    Ok(list::answer(list, &base, limit, next.as_deref()))
}

/// List a session's sequences
///
/// The next sequence of every scope the producer has appended to, by topic, then partition.
#[utoipa::path(get, path = "/v1/sessions/{producer_id}/sequences",
    operation_id = "list_session_sequences", tag = "sessions",
    params(("producer_id" = i64, Path, description = "The producer's id"), ListQuery),
    responses((status = 200, description = "A page of scopes", body = SequenceList,
        example = json!({"sequences": [{"topic": "orders", "next_sequence": 12},
            {"topic": "audit", "partition": 3, "next_sequence": 2}], "next_after": null}))),
    security(("bearer" = ["produce"])))]
pub async fn list_session_sequences(
    access: Access<Produce>,
    ProducerPath(id): ProducerPath,
    _: AnswersJson,
    Query(query): Query<ListQuery>,
) -> Result<Response, Error> {
    let page = query.page()?;
    let limit = page.limit;
    let listed = access.broker.session_sequences(access.tenant, id, page).await?;
    let base = format!("/v1/sessions/{}/sequences?", id.0);
    let next = listed.next_after.clone();
    let sequences = listed.items.into_iter().map(NextSequence::from).collect();
    let list = SequenceList { sequences, next_after: listed.next_after };
    Ok(list::answer(list, &base, limit, next.as_deref()))
}

/// End a session
///
/// Its epoch is fenced; the transactional id keeps its producer id. Ending it again changes
/// nothing.
#[utoipa::path(delete, path = "/v1/sessions/{producer_id}", operation_id = "end_session",
    tag = "sessions",
    params(("producer_id" = i64, Path, description = "The producer's id")),
    responses((status = 204, description = "The session has ended")),
    security(("bearer" = ["produce"])))]
pub async fn end_session(
    access: Access<Produce>,
    ProducerPath(id): ProducerPath,
    _: Query<NoParameters>,
) -> Result<StatusCode, Error> {
    access.broker.end_session(access.tenant, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests;
