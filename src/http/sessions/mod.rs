//! Sessions: open, describe, list, end.

pub mod end;

use std::sync::Arc;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::extract::{
    access::{Access, Produce, ProducerPath},
    body::KeyedBody,
    list::{self, ListQuery},
    media::AnswersJson,
    query::{self, NoParameters, Query, escape},
};
use crate::http::openapi::examples::sessions as examples;
use crate::{
    broker::{Answer, Error},
    model::{
        MAX_INTEGER, Name, ProducerId, Scopes, ValidationErrors,
        session::{self, Open, Opened},
        uuid_v7,
    },
};

/// How sequences follow each other: each is the last one plus 1 (`contiguous`, the default), or any
/// greater one (`monotonic`).
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sequencing {
    Contiguous,
    Monotonic,
}

/// Where the next sequences start: after the last ones (`continue`, the default), or at 0 in every
/// scope (`reset`).
#[derive(Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sequences {
    Continue,
    Reset,
}

/// All fields are optional; an omitted field gets its default, not its former value.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// The stable name of a logical producer. Without it and without `producer_id`, the producer is
    /// new.
    transactional_id: Option<String>,
    /// Requires `epoch`: open only if this is the producer and that its current epoch.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Requires `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// A new, recent UUIDv7 that makes this open safe to repeat; always send one.
    #[schema(value_type = Option<Uuid>)]
    open_id: Option<String>,
    /// The default timeout of transactions in this session: at most the tenant's
    /// `max_transaction_timeout_ms`; default: the tenant's `transaction_timeout_ms`.
    #[schema(minimum = 1)]
    transaction_timeout_ms: Option<i64>,
    sequencing: Option<Sequencing>,
    sequences: Option<Sequences>,
}

impl OpenSession {
    fn checked(self, scopes: &Arc<Scopes>) -> Result<Open, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let transactional_id = errors.name("/transactional_id", self.transactional_id.as_deref());
        let producer_id = errors.count("/producer_id", self.producer_id);
        let epoch = errors.count("/epoch", self.epoch);
        match (self.producer_id, self.epoch) {
            (Some(_), None) => errors.add("/epoch", "producer_id requires epoch"),
            (None, Some(_)) => errors.add("/producer_id", "epoch requires producer_id"),
            _ => {}
        }
        let open_id = self.open_id.as_deref().and_then(uuid_v7);
        if self.open_id.is_some() && open_id.is_none() {
            errors.add("/open_id", "expected a UUIDv7");
        }
        let transaction_timeout_ms = self.transaction_timeout_ms;
        errors.range("/transaction_timeout_ms", transaction_timeout_ms, 1..=MAX_INTEGER);
        errors.finish()?;
        Ok(Open {
            transactional_id,
            condition: producer_id.map(ProducerId).zip(epoch),
            open_id,
            transaction_timeout_ms,
            sequencing: match self.sequencing {
                None | Some(Sequencing::Contiguous) => session::Sequencing::Contiguous,
                Some(Sequencing::Monotonic) => session::Sequencing::Monotonic,
            },
            sequences: match self.sequences {
                None | Some(Sequences::Continue) => session::Sequences::Continue,
                Some(Sequences::Reset) => session::Sequences::Reset,
            },
            scopes: scopes.clone(),
        })
    }
}

/// The current state of a session.
#[derive(Serialize, ToSchema)]
pub struct Session {
    /// Send it with every append.
    producer_id: i64,
    /// Send it with every append; opening again raises it and fences this session.
    epoch: i64,
    /// The producer's stable name; null if it has none.
    #[schema(required = true)]
    transactional_id: Option<String>,
    sequencing: Sequencing,
    /// The default timeout of transactions in this session.
    transaction_timeout_ms: i64,
    /// True if the session was ended and not opened since.
    closed: bool,
    /// When this epoch was opened.
    #[schema(format = DateTime)]
    opened_at: String,
    /// By topic, then partition; at most 1000, all of them under `/sequences`.
    next_sequences: Vec<NextSequence>,
    /// The ongoing transaction of the previous epoch, which this open aborted.
    #[schema(required = true)]
    aborted_transaction: Option<Uuid>,
    /// Prepared transactions of this producer, which must still be committed or aborted.
    prepared_transactions: Vec<Uuid>,
    /// In the answer to an open: whether it repeats an earlier one, by `open_id` or
    /// `Idempotency-Key`.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicate: Option<bool>,
}

/// A session in a list.
#[derive(Serialize, ToSchema)]
pub struct SessionItem {
    /// The producer.
    producer_id: i64,
    /// Its current epoch.
    epoch: i64,
    /// The producer's stable name; null if it has none.
    #[schema(required = true)]
    transactional_id: Option<String>,
    sequencing: Sequencing,
    /// The default timeout of transactions in this session.
    transaction_timeout_ms: i64,
    /// True if the session was ended and not opened since.
    closed: bool,
    /// When this epoch was opened.
    #[schema(format = DateTime)]
    opened_at: String,
}

/// The next sequence of a scope: a topic, or one partition of it.
#[derive(Serialize, ToSchema)]
pub struct NextSequence {
    /// The topic.
    topic: String,
    /// The partition, if records are appended to it directly; absent for the topic as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<i32>,
    /// The sequence of the next append in this scope.
    next_sequence: i64,
}

/// A page of sessions, by producer id.
#[derive(Serialize, ToSchema)]
pub struct SessionList {
    /// At most `limit` sessions.
    sessions: Vec<SessionItem>,
    /// The `after` of the next page; null on the last page.
    #[schema(required = true)]
    next_after: Option<String>,
}

/// A page of scopes, by topic, then partition.
#[derive(Serialize, ToSchema)]
pub struct SequenceList {
    /// At most `limit` scopes.
    sequences: Vec<NextSequence>,
    /// The `after` of the next page; null on the last page.
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
            aborted_transaction: opened.aborted_transaction,
            prepared_transactions: opened.prepared_transactions,
            duplicate: None,
        }
    }
}

/// Open a session
///
/// Fences every older session of the producer and returns the next sequence of every scope, so that
/// a restarted producer knows what arrived before it stopped. Without `transactional_id` the
/// producer is new and its sequences start at 0. With `producer_id` and `epoch` it is opened only
/// if that is its current epoch. `produce` must cover the `transactional_id`; a session without one
/// belongs to the `sub` of the token that opened it.
#[utoipa::path(post, path = "/v1/sessions", operation_id = "open_session", tag = "sessions",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes this safe to repeat")),
    request_body(content = OpenSession, description = "The producer, and how to open it", examples(
        ("by_name" = (summary = "A producer with a stable name",
            value = json!({"transactional_id": "payment-service"}))),
        ("repeatable" = (summary = "The same, safe to repeat: a new UUIDv7 for every open",
            value = json!({"transactional_id": "payment-service",
                "open_id": "019aa5b6-5c00-7000-8000-000000000001"}))))),
    responses(
        (status = 201, description = "The session is open, by this request or an earlier one with \
            its Idempotency-Key", body = Session,
            example = json!(examples::session(Some(false)))),
        (status = 200, description = "Already opened with this open_id", body = Session,
            example = json!(examples::session(Some(true))))),
    security(("bearer" = ["produce"])))]
pub async fn open_session(
    access: Access<Produce>,
    _: AnswersJson,
    sent: KeyedBody<OpenSession>,
) -> Result<Response, Error> {
    let key = sent.request_key("/v1/sessions")?;
    let open = sent.body.checked(access.scopes())?;
    let Answer { value: opened, is_replay } =
        access.broker.open_session(access.tenant, open, key).await?;
    let (was_known, id) = (opened.duplicate, opened.session.producer_id.0);
    let is_fencing = !was_known && !is_replay && opened.session.epoch > 0;
    let session = Session { duplicate: Some(was_known || is_replay), ..Session::from(opened) };
    let mut answer = Json(session).into_response();
    if is_fencing {
        super::observe::fenced(answer.extensions_mut());
    }
    if !was_known {
        *answer.status_mut() = StatusCode::CREATED;
        if let Ok(location) = HeaderValue::from_str(&format!("/v1/sessions/{id}")) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
    }
    Ok(answer)
}

/// Describe a session
///
/// Returns the session with the next sequence of each of its scopes, as of now.
#[utoipa::path(get, path = "/v1/sessions/{producer_id}", operation_id = "get_session",
    tag = "sessions",
    params(("producer_id" = i64, Path, description = "The `producer_id` of the session")),
    responses((status = 200, description = "The session", body = Session,
        example = json!(examples::session(None)))),
    security(("bearer" = ["produce"])))]
pub async fn get_session(
    access: Access<Produce>,
    ProducerPath(id): ProducerPath,
    _: AnswersJson,
    _: Query<NoParameters>,
) -> Result<Json<Session>, Error> {
    Ok(Json(access.broker.session(access.tenant, id, access.scopes()).await?.into()))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionsQuery {
    /// Only the session with this transactional id.
    transactional_id: Option<String>,
    /// Maximum number of items to return.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<i64>,
    /// The `next_after` of the previous page; omit it to start at the beginning.
    after: Option<String>,
}

impl SessionsQuery {
    fn name(&self) -> Result<Option<Name>, ValidationErrors> {
        let mut errors = ValidationErrors::default();
        let name = errors.name("?transactional_id", self.transactional_id.as_deref());
        let id = self.after.as_deref().map(query::integer);
        if id.is_some_and(|id| !id.is_ok_and(|id| (0..=MAX_INTEGER).contains(&id))) {
            errors.add("?after", "expected a producer id");
        }
        errors.finish()?;
        Ok(name)
    }
}

/// List sessions
///
/// Returns sessions by producer id, page by page, or the one with a transactional id; only those
/// that the token covers.
#[utoipa::path(get, path = "/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    params(SessionsQuery),
    responses((status = 200, description = "A page of sessions", body = SessionList,
        example = json!({"sessions": [{"producer_id": 1, "epoch": 0,
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
    let look = |page| access.broker.sessions(access.tenant, name.as_ref(), page);
    let after = |session: &session::Session| session.producer_id.0.to_string();
    let covers = |session: &session::Session| access.scopes().covers_session(&session.owner());
    let listed = list::covered(&page, look, after, covers).await?;
    let base = match &name {
        Some(name) => format!("/v1/sessions?transactional_id={}&", escape(name.as_str())),
        None => "/v1/sessions?".to_owned(),
    };
    Ok(list::answer(listed, &base, limit, |sessions, next_after| SessionList {
        sessions,
        next_after,
    }))
}

/// List a session's sequences
///
/// Returns the next sequence of every scope the producer has appended to, by topic, then partition.
#[utoipa::path(get, path = "/v1/sessions/{producer_id}/sequences",
    operation_id = "list_session_sequences", tag = "sessions",
    params(("producer_id" = i64, Path, description = "The `producer_id` of the session"), ListQuery),
    responses((status = 200, description = "A page of scopes", body = SequenceList,
        example = json!({"sequences": examples::sequences(), "next_after": null}))),
    security(("bearer" = ["produce"])))]
pub async fn list_session_sequences(
    access: Access<Produce>,
    ProducerPath(id): ProducerPath,
    _: AnswersJson,
    Query(query): Query<ListQuery>,
) -> Result<Response, Error> {
    let page = query.page()?;
    let limit = page.limit;
    let listed = access.broker.session_sequences(access.tenant, id, page, access.scopes()).await?;
    let base = format!("/v1/sessions/{}/sequences?", id.0);
    Ok(list::answer(listed, &base, limit, |sequences, next_after| SequenceList {
        sequences,
        next_after,
    }))
}

#[cfg(test)]
mod tests;
