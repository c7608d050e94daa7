//! Permission is an extractor: the only way to the broker leads through one, so a handler that
//! forgot to ask cannot be written.
//!
//! Checks come in the documented order: token, scope, the names in the path, their patterns.

mod paths;
mod transaction_end;

use std::{marker::PhantomData, sync::Arc};

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};
use bytes::Bytes;
use metrics::{Counter, Histogram};

pub use paths::{MemberPath, PartitionPath, ProducerPath, TenantPath, TransactionPath};
pub use transaction_end::{EndAccess, EndQuery};

use super::auth::{Grant, Keys, Word};
use crate::{
    broker::{Broker, Budget, Error, Taken},
    http::{
        Limits,
        exposition::{Exposition, MetricsText},
    },
    model::{Code, Invalid, Name, TenantId},
    telemetry,
};

/// The state of all routes. Its broker is private to this file.
#[derive(Clone)]
pub struct AppState {
    broker: Arc<Broker>,
    gate: Arc<Admission>,
    render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
    metrics: Arc<Exposition>,
}

/// What is judged before the broker is asked.
pub struct Admission {
    pub keys: Keys,
    pub limits: Limits,
    /// What requests hold in memory, until their work is done.
    pub requests: Budget,
    /// What answers hold in memory, until the client has taken them.
    pub answers: Budget,
    pub request_bytes: Counter,
    pub body_duration: Histogram,
}

/// An answer that counts until the last of its bytes has left.
pub struct HeldAnswer {
    body: Vec<u8>,
    _held: Taken,
}

impl HeldAnswer {
    pub fn bytes(body: Vec<u8>, held: Taken) -> Bytes {
        Bytes::from_owner(Self { body, _held: held })
    }
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Admission {
    pub fn new(keys: Keys, limits: Limits) -> Self {
        let [requests, answers] = [0; 2].map(|_| Budget::new(limits.max_in_flight_bytes));
        let request_bytes = metrics::counter!(telemetry::HTTP_REQUEST_BYTES_TOTAL);
        let body_duration = metrics::histogram!(telemetry::HTTP_BODY_DURATION_SECONDS);
        Self { keys, limits, requests, answers, request_bytes, body_duration }
    }

    /// Sets the gauges that are read, not counted.
    fn measure(&self) {
        for (held, budget) in [("requests", &self.requests), ("answers", &self.answers)] {
            let bytes = budget.held_bytes() as f64;
            metrics::gauge!(telemetry::HTTP_HELD_BYTES, "held" => held).set(bytes);
        }
    }

    /// Writes an answer of about `size_bytes`, if clients are not behind with too many already.
    pub fn answer(
        &self,
        size_bytes: usize,
        body: impl FnOnce() -> Vec<u8>,
    ) -> Result<Bytes, Error> {
        let held = self.answers.take(size_bytes).ok_or_else(|| {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "answer_bytes")
                .increment(1);
            Error::new(Code::Unavailable, "Too many answers are on their way to slow clients.")
        })?;
        Ok(HeldAnswer::bytes(body(), held))
    }
}

impl FromRef<AppState> for Arc<Admission> {
    fn from_ref(door: &AppState) -> Self {
        door.gate.clone()
    }
}

impl AppState {
    pub fn new(
        broker: Arc<Broker>,
        keys: Keys,
        limits: Limits,
        render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Self {
        let gate = Arc::new(Admission::new(keys, limits));
        Self { broker, gate, render_metrics, metrics: Arc::default() }
    }

    /// What answers take is counted outside of all routes.
    pub fn answers(&self) -> Budget {
        self.gate.answers.clone()
    }

    /// For probes, which carry no token.
    pub async fn ready(&self) -> Result<(), Error> {
        self.accept()?;
        self.broker.ready().await
    }

    pub async fn metrics(&self) -> MetricsText {
        let render = || {
            self.gate.measure();
            self.broker.measure();
            (self.render_metrics)()
        };
        self.metrics.page(render).await
    }

    /// The tenant of an admitted request, if it is served.
    async fn enter(&self, grant: &Grant) -> Result<TenantId, Error> {
        self.accept()?;
        self.broker.tenant(&grant.tenant).await
    }

    /// A draining replica takes no more requests.
    fn accept(&self) -> Result<(), Error> {
        if self.broker.draining() { Err(draining()) } else { Ok(()) }
    }
}

fn draining() -> Error {
    Error::new(Code::Draining, "This replica is shutting down; send the same request again.")
}

/// Which words of a token's scope open an operation; one is enough.
pub trait Permission: Send + Sync + 'static {
    const ANY_OF: &'static [Word];
}

pub struct Admin;
pub struct Produce;
pub struct Consume;
pub struct Group;
/// Seeing that a topic exists: whoever may do anything with it.
pub struct See;
/// Seeing how transactions stand: whoever may begin or end one.
pub struct SeeTransactions;

impl Permission for Admin {
    const ANY_OF: &'static [Word] = &[Word::Admin];
}
impl Permission for Produce {
    const ANY_OF: &'static [Word] = &[Word::Produce];
}
impl Permission for Consume {
    const ANY_OF: &'static [Word] = &[Word::Consume];
}
impl Permission for Group {
    const ANY_OF: &'static [Word] = &[Word::Group];
}
impl Permission for See {
    const ANY_OF: &'static [Word] = &[Word::Admin, Word::Produce, Word::Consume];
}

impl Permission for SeeTransactions {
    const ANY_OF: &'static [Word] = &[Word::Produce, Word::Operator];
}

impl Grant {
    /// Permission for a name that is not the path's.
    pub fn demand(&self, word: Word, name: &Name) -> Result<(), Error> {
        let any_of = &[word];
        if self.covers(any_of, name) { Ok(()) } else { Err(forbidden(any_of, Some(name))) }
    }
}

/// Access to the tenant; patterns of scopes narrow topics, or groups, only.
pub struct Access<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub grant: Arc<Grant>,
    permission: PhantomData<P>,
}

impl<P: Permission> Access<P> {
    /// Whether the permission reaches this topic, or group.
    pub fn covers(&self, name: &Name) -> bool {
        self.grant.covers(P::ANY_OF, name)
    }
}

impl<P: Permission> FromRequestParts<AppState> for Access<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &AppState) -> Result<Self, Error> {
        let grant = admit(&door.gate, parts, P::ANY_OF).await?;
        let tenant = door.enter(&grant).await?;
        Ok(Self { broker: door.broker.clone(), tenant, grant, permission: PhantomData })
    }
}

/// Access to what concerns the whole tenant: a scope narrowed to some topics does not open it.
pub struct TenantAccess<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    permission: PhantomData<P>,
}

impl<P: Permission> FromRequestParts<AppState> for TenantAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &AppState) -> Result<Self, Error> {
        let grant = admit(&door.gate, parts, P::ANY_OF).await?;
        if !grant.has_whole(P::ANY_OF) {
            return Err(forbidden(P::ANY_OF, None));
        }
        let tenant = door.enter(&grant).await?;
        Ok(Self { broker: door.broker.clone(), tenant, permission: PhantomData })
    }
}

/// Access to all tenants. Whatever tenant the token names, be it suspended or unknown: operators do
/// not lock themselves out.
pub struct OperatorAccess {
    pub broker: Arc<Broker>,
}

impl FromRequestParts<AppState> for OperatorAccess {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &AppState) -> Result<Self, Error> {
        let any_of = &[Word::Operator];
        let grant = admit(&door.gate, parts, any_of).await?;
        if !grant.has_whole(any_of) {
            return Err(forbidden(any_of, None));
        }
        door.accept()?;
        Ok(Self { broker: door.broker.clone() })
    }
}

/// Access to the topic in the path.
pub struct TopicAccess<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub topic: Name,
    permission: PhantomData<P>,
}

impl<P: Permission> FromRequestParts<AppState> for TopicAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &AppState) -> Result<Self, Error> {
        let (grant, topic) = admit_to(&door.gate, parts, P::ANY_OF, "topic").await?;
        let tenant = door.enter(&grant).await?;
        Ok(Self { broker: door.broker.clone(), tenant, topic, permission: PhantomData })
    }
}

/// Access to the group in the path.
pub struct GroupAccess<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub grant: Arc<Grant>,
    pub group: Name,
    permission: PhantomData<P>,
}

impl<P: Permission> FromRequestParts<AppState> for GroupAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &AppState) -> Result<Self, Error> {
        let (grant, group) = admit_to(&door.gate, parts, P::ANY_OF, "group").await?;
        let tenant = door.enter(&grant).await?;
        Ok(Self { broker: door.broker.clone(), tenant, grant, group, permission: PhantomData })
    }
}

async fn admit(gate: &Admission, parts: &Parts, any_of: &[Word]) -> Result<Arc<Grant>, Error> {
    let grant = gate.keys.grant(&parts.headers).await?;
    if grant.has(any_of) { Ok(grant) } else { Err(forbidden(any_of, None)) }
}

/// The name is that of the topic or group in the path.
async fn admit_to(
    gate: &Admission,
    parts: &mut Parts,
    any_of: &[Word],
    kind: &str,
) -> Result<(Arc<Grant>, Name), Error> {
    let grant = admit(gate, parts, any_of).await?;
    let text = paths::segment(parts, kind).await?;
    let name = Name::parse(&text).map_err(|why| Invalid::at(format!("/path/{kind}"), why))?;
    if !grant.covers(any_of, &name) {
        return Err(forbidden(any_of, Some(&name)));
    }
    Ok((grant, name))
}

/// `required_scope` names the narrowest scopes that would do; any of them.
fn forbidden(any_of: &[Word], name: Option<&Name>) -> Error {
    let scope = |word: &Word| match name {
        Some(name) => format!("{}:{name}", word.as_str()),
        None => word.as_str().to_owned(),
    };
    let scopes = any_of.iter().map(scope).collect::<Vec<_>>().join(" | ");
    let detail = format!("The token's scope lacks {scopes}.");
    Error::new(Code::Forbidden, detail).fact("required_scope", scopes)
}

#[cfg(test)]
mod tests;
