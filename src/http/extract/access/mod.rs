//! Permission is an extractor: a handler reaches the broker only through one, so a handler that
//! forgets to ask cannot be written.
//!
//! Checks run in the documented order: token, scope, names in the path, name patterns.

mod paths;
mod transaction_end;

use std::{marker::PhantomData, sync::Arc};

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
};
use bytes::Bytes;
use metrics::{Counter, Histogram};

pub use paths::{
    MemberPath, PartitionPath, ProducerPath, RevocationPath, TenantPath, TransactionPath,
};
pub use transaction_end::{EndAccess, EndQuery};

use super::{
    auth::{Grant, Keys},
    caller::Caller,
};
use crate::{
    broker::{Broker, Budget, Error, Taken},
    http::{
        Limits,
        exposition::{Exposition, MetricsText},
    },
    model::{Code, Name, Scopes, TenantId, ValidationErrors, Word},
    telemetry,
};

/// The state of all routes. Its broker is private to this file.
#[derive(Clone)]
pub struct AppState {
    broker: Arc<Broker>,
    admission: Arc<Admission>,
    render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
    metrics: Arc<Exposition>,
}

/// Everything that is checked before the broker is called.
pub struct Admission {
    pub keys: Keys,
    pub limits: Limits,
    /// Memory held by requests until their work is done.
    pub requests: Budget,
    /// Memory held by responses until the client has read them.
    pub answers: Budget,
    pub request_bytes: Counter,
    pub body_duration: Histogram,
}

/// A response body that holds its memory reservation until its last byte is sent.
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

    /// Sets the gauges that are sampled at scrape time.
    fn measure(&self) {
        for (held, budget) in [("requests", &self.requests), ("answers", &self.answers)] {
            let bytes = budget.held_bytes() as f64;
            metrics::gauge!(telemetry::HTTP_HELD_BYTES, "held" => held).set(bytes);
        }
    }

    /// Writes a response of about `size_bytes`, unless responses to slow clients already take all
    /// the memory.
    pub fn answer(
        &self,
        tenant: TenantId,
        size_bytes: usize,
        body: impl FnOnce() -> Vec<u8>,
    ) -> Result<Bytes, Error> {
        let held = self.answers.take(Some(tenant), size_bytes).ok_or_else(|| {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "answer_bytes")
                .increment(1);
            Error::new(Code::Unavailable, "Too many responses are waiting for slow clients; retry.")
        })?;
        Ok(HeldAnswer::bytes(body(), held))
    }
}

impl FromRef<AppState> for Arc<Admission> {
    fn from_ref(state: &AppState) -> Self {
        state.admission.clone()
    }
}

impl AppState {
    /// `render_metrics` writes the Prometheus text.
    pub fn new(
        broker: Arc<Broker>,
        keys: Keys,
        limits: Limits,
        render_metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> Self {
        let admission = Arc::new(Admission::new(keys, limits));
        let render_metrics = Arc::new(render_metrics);
        Self { broker, admission, render_metrics, metrics: Arc::default() }
    }

    /// The memory budget of responses, which layers outside of all routes also use.
    pub fn answers(&self) -> Budget {
        self.admission.answers.clone()
    }

    /// Whether every request is permitted everything.
    pub fn needs_no_token(&self) -> bool {
        self.admission.keys.open_tenant().is_some()
    }

    /// Access for probes, which carry no token.
    pub async fn ready(&self) -> Result<(), Error> {
        self.broker.ready().await
    }

    pub async fn metrics(&self) -> MetricsText {
        let render = || {
            self.admission.measure();
            self.broker.measure();
            (self.render_metrics)()
        };
        self.metrics.page(render).await
    }

    /// The tenant of an admitted request, unless it is suspended, deleted, or exceeds its rates.
    async fn enter(&self, parts: &Parts, grant: &Grant) -> Result<TenantId, Error> {
        self.accept()?;
        let tenant = self.broker.tenant(&grant.tenant).await?;
        if let Some(token) = grant.token() {
            self.broker.judge_token(tenant, token).await?;
        }
        let meter = self.broker.meter(tenant).await;
        Caller::of(&parts.extensions).is(tenant, meter.clone());
        meter.map_or(Ok(()), |meter| meter.admit())?;
        Ok(tenant)
    }

    /// Refuses requests while this replica drains.
    fn accept(&self) -> Result<(), Error> {
        if self.broker.draining() { Err(draining()) } else { Ok(()) }
    }
}

fn draining() -> Error {
    Error::new(Code::Draining, "This replica is shutting down; send the same request again.")
}

/// The scope words that permit an operation; one of them is enough.
pub trait Permission: Send + Sync + 'static {
    const ANY_OF: &'static [Word];
}

pub struct Admin;
pub struct Produce;
pub struct Consume;
pub struct Group;
/// Permits seeing a topic: any word that allows work with it.
pub struct See;
/// Permits seeing transactions: any word that allows beginning or ending one.
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
    /// Permission for a name that is not in the path.
    pub fn demand(&self, word: Word, name: &Name) -> Result<(), Error> {
        let any_of = &[word];
        if self.scopes.covers(any_of, name) { Ok(()) } else { Err(forbidden(any_of, Some(name))) }
    }
}

/// Access to the tenant; scope patterns restrict topics or groups only.
pub struct Access<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub grant: Arc<Grant>,
    permission: PhantomData<P>,
}

impl<P: Permission> Access<P> {
    pub fn scopes(&self) -> &Arc<Scopes> {
        &self.grant.scopes
    }

    /// Whether the permission covers this topic or group.
    pub fn covers(&self, name: &Name) -> bool {
        self.grant.scopes.covers(P::ANY_OF, name)
    }
}

impl<P: Permission> FromRequestParts<AppState> for Access<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let grant = admit(&state.admission, parts, P::ANY_OF).await?;
        let tenant = state.enter(parts, &grant).await?;
        Ok(Self { broker: state.broker.clone(), tenant, grant, permission: PhantomData })
    }
}

/// Access to the whole tenant: a scope restricted to some topics is not enough.
pub struct TenantAccess<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    permission: PhantomData<P>,
}

impl<P: Permission> FromRequestParts<AppState> for TenantAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let grant = admit(&state.admission, parts, P::ANY_OF).await?;
        if !grant.scopes.has_whole(P::ANY_OF) {
            return Err(forbidden(P::ANY_OF, None));
        }
        let tenant = state.enter(parts, &grant).await?;
        Ok(Self { broker: state.broker.clone(), tenant, permission: PhantomData })
    }
}

/// Access to all tenants. The tenant in the token may be suspended or unknown, so operators cannot
/// lock themselves out.
pub struct OperatorAccess {
    pub broker: Arc<Broker>,
    open_tenant: Option<Name>,
}

impl OperatorAccess {
    /// A server without a token key has one tenant, and keeps it.
    pub fn may_delete(&self, tenant: &Name) -> Result<(), Error> {
        if self.open_tenant.as_ref() != Some(tenant) {
            return Ok(());
        }
        let detail = format!(
            "Without a token key every request is of the tenant {tenant}, which therefore cannot \
             be deleted. Delete its topics, or set a token key."
        );
        Err(Error::new(Code::Forbidden, detail))
    }
}

impl FromRequestParts<AppState> for OperatorAccess {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let any_of = &[Word::Operator];
        let grant = admit(&state.admission, parts, any_of).await?;
        if !grant.scopes.has_whole(any_of) {
            return Err(forbidden(any_of, None));
        }
        state.accept()?;
        if let Some(token) = grant.token() {
            state.broker.judge_operators_token(&grant.tenant, token).await?;
        }
        let open_tenant = state.admission.keys.open_tenant().cloned();
        Ok(Self { broker: state.broker.clone(), open_tenant })
    }
}

/// Access to the topic in the path.
pub struct TopicAccess<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub topic: Name,
    grant: Arc<Grant>,
    permission: PhantomData<P>,
}

impl<P> TopicAccess<P> {
    pub fn scopes(&self) -> &Scopes {
        &self.grant.scopes
    }
}

impl<P: Permission> FromRequestParts<AppState> for TopicAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let (grant, topic) = admit_to(&state.admission, parts, P::ANY_OF, "topic").await?;
        let tenant = state.enter(parts, &grant).await?;
        Ok(Self { broker: state.broker.clone(), tenant, topic, grant, permission: PhantomData })
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

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Error> {
        let (grant, group) = admit_to(&state.admission, parts, P::ANY_OF, "group").await?;
        let tenant = state.enter(parts, &grant).await?;
        Ok(Self { broker: state.broker.clone(), tenant, grant, group, permission: PhantomData })
    }
}

async fn admit(admission: &Admission, parts: &Parts, any_of: &[Word]) -> Result<Arc<Grant>, Error> {
    let grant = admission.keys.grant(&parts.headers).await?;
    Caller::of(&parts.extensions).shows(grant.clone());
    if grant.scopes.has(any_of) { Ok(grant) } else { Err(forbidden(any_of, None)) }
}

/// Parses the name of the topic or group in the path.
async fn admit_to(
    admission: &Admission,
    parts: &mut Parts,
    any_of: &[Word],
    kind: &str,
) -> Result<(Arc<Grant>, Name), Error> {
    let grant = admit(admission, parts, any_of).await?;
    let text = paths::segment(parts, kind).await?;
    let name =
        Name::parse(&text).map_err(|why| ValidationErrors::at(format!("/path/{kind}"), why))?;
    if !grant.scopes.covers(any_of, &name) {
        return Err(forbidden(any_of, Some(&name)));
    }
    Ok((grant, name))
}

/// `required_scope` lists the narrowest scopes that would suffice; any one of them is enough.
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
