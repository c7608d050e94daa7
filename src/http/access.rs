//! Permission is an extractor: the only way to the broker leads through one, so a handler that
//! forgot to ask cannot be written.
//!
//! Checks come in the documented order: token, scope, the names in the path, their patterns.

use std::{marker::PhantomData, str::FromStr, sync::Arc};

use axum::{
    extract::{FromRef, FromRequestParts, RawPathParams},
    http::request::Parts,
};
use bytes::Bytes;
use metrics::{Counter, Histogram};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    Limits,
    auth::{Grant, Keys, Word},
    query,
};
use crate::{
    broker::{Broker, Error},
    model::{Code, Invalid, MAX_INTEGER, Name, Partition, ProducerId, TenantId},
    telemetry,
};

/// The state of all routes. Its broker is private to this file.
#[derive(Clone)]
pub struct Door {
    broker: Arc<Broker>,
    gate: Arc<Gate>,
    render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What is judged before the broker is asked.
pub struct Gate {
    pub keys: Keys,
    pub limits: Limits,
    /// Bytes that request bodies may still hold in memory.
    pub budget: Arc<Semaphore>,
    /// Bytes that answered records may still hold in memory, until the client has taken them.
    answers: Arc<Semaphore>,
    pub request_bytes: Counter,
    pub body_duration: Histogram,
}

/// An answer that counts until the last of its bytes has left.
struct HeldAnswer {
    body: Vec<u8>,
    _held: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Gate {
    pub fn new(keys: Keys, limits: Limits) -> Self {
        let [budget, answers] = [0; 2].map(|_| Arc::new(Semaphore::new(permits(&limits))));
        let request_bytes = metrics::counter!(telemetry::HTTP_REQUEST_BYTES_TOTAL);
        let body_duration = metrics::histogram!(telemetry::HTTP_BODY_DURATION_SECONDS);
        Self { keys, limits, budget, answers, request_bytes, body_duration }
    }

    /// Sets the gauges that are read, not counted.
    fn measure(&self) {
        for (held, free) in [("requests", &self.budget), ("answers", &self.answers)] {
            let bytes = permits(&self.limits) - free.available_permits();
            metrics::gauge!(telemetry::HTTP_HELD_BYTES, "held" => held).set(bytes as f64);
        }
    }

    /// Writes an answer of about `size_bytes`, if clients are not behind with too many already.
    pub fn answer(
        &self,
        size_bytes: usize,
        body: impl FnOnce() -> Vec<u8>,
    ) -> Result<Bytes, Error> {
        let permits = u32::try_from(size_bytes).unwrap_or(u32::MAX);
        let held = self.answers.clone().try_acquire_many_owned(permits);
        let held = held.map_err(|_| {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "answer_bytes")
                .increment(1);
            Error::new(Code::Unavailable, "Too many answers are on their way to slow clients.")
        })?;
        Ok(Bytes::from_owner(HeldAnswer { body: body(), _held: held }))
    }
}

/// Bytes that requests, and again answers, may hold.
fn permits(limits: &Limits) -> usize {
    limits.max_in_flight_bytes.min(Semaphore::MAX_PERMITS)
}

impl FromRef<Door> for Arc<Gate> {
    fn from_ref(door: &Door) -> Self {
        door.gate.clone()
    }
}

impl Door {
    pub fn new(
        broker: Arc<Broker>,
        keys: Keys,
        limits: Limits,
        render_metrics: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Self {
        Self { broker, gate: Arc::new(Gate::new(keys, limits)), render_metrics }
    }

    /// For probes, which carry no token.
    pub async fn ready(&self) -> Result<(), Error> {
        if self.broker.draining() {
            return Err(draining());
        }
        self.broker.ready().await
    }

    pub fn metrics(&self) -> String {
        self.gate.measure();
        self.broker.measure();
        (self.render_metrics)()
    }

    /// The tenant of an admitted request; a draining replica takes no more of them.
    async fn enter(&self, grant: &Grant) -> Result<TenantId, Error> {
        if self.broker.draining() {
            return Err(draining());
        }
        self.broker.tenant(&grant.tenant).await
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

/// Access to the tenant; patterns of scopes narrow topics only.
pub struct Access<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    grant: Arc<Grant>,
    permission: PhantomData<P>,
}

impl<P: Permission> Access<P> {
    /// Whether the permission reaches this topic.
    pub fn covers(&self, topic: &Name) -> bool {
        self.grant.covers(P::ANY_OF, topic)
    }
}

impl<P: Permission> FromRequestParts<Door> for Access<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Error> {
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

impl<P: Permission> FromRequestParts<Door> for TenantAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Error> {
        let grant = admit(&door.gate, parts, P::ANY_OF).await?;
        if !grant.has_whole(P::ANY_OF) {
            return Err(forbidden(P::ANY_OF, None));
        }
        let tenant = door.enter(&grant).await?;
        Ok(Self { broker: door.broker.clone(), tenant, permission: PhantomData })
    }
}

/// Access to the topic in the path.
pub struct TopicAccess<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub topic: Name,
    permission: PhantomData<P>,
}

impl<P: Permission> FromRequestParts<Door> for TopicAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Error> {
        let (grant, topic) = admit_to(&door.gate, parts, P::ANY_OF, "topic").await?;
        let tenant = door.enter(&grant).await?;
        Ok(Self { broker: door.broker.clone(), tenant, topic, permission: PhantomData })
    }
}

/// Access to the group in the path.
pub struct GroupAccess<P> {
    pub broker: Arc<Broker>,
    pub tenant: TenantId,
    pub group: Name,
    permission: PhantomData<P>,
}

impl<P: Permission> FromRequestParts<Door> for GroupAccess<P> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Error> {
        let (grant, group) = admit_to(&door.gate, parts, P::ANY_OF, "group").await?;
        let tenant = door.enter(&grant).await?;
        Ok(Self { broker: door.broker.clone(), tenant, group, permission: PhantomData })
    }
}

async fn admit(gate: &Gate, parts: &Parts, any_of: &[Word]) -> Result<Arc<Grant>, Error> {
    let grant = gate.keys.grant(&parts.headers).await?;
    if grant.has(any_of) { Ok(grant) } else { Err(forbidden(any_of, None)) }
}

/// The name is that of the topic or group in the path.
async fn admit_to(
    gate: &Gate,
    parts: &mut Parts,
    any_of: &[Word],
    kind: &str,
) -> Result<(Arc<Grant>, Name), Error> {
    let grant = admit(gate, parts, any_of).await?;
    let text = segment(parts, kind).await?;
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

async fn segment(parts: &mut Parts, name: &str) -> Result<String, Error> {
    let pointer = || format!("/path/{name}");
    let segments = RawPathParams::from_request_parts(parts, &())
        .await
        .map_err(|_| Invalid::at(pointer(), "malformed percent-encoding or not UTF-8"))?;
    let found = segments.iter().find(|(key, _)| *key == name);
    Ok(found.ok_or_else(|| Invalid::at(pointer(), "missing"))?.1.to_owned())
}

/// `{partition}` of the path.
pub struct PartitionPath(pub Partition);

impl<S: Sync> FromRequestParts<S> for PartitionPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "partition").await?;
        let partition = canonical(&text).and_then(|_| Partition::from_str(&text).ok());
        let why = "a partition is a number from 0, without leading zeros";
        Ok(Self(partition.ok_or_else(|| Invalid::at("/path/partition", why))?))
    }
}

/// `{producer_id}` of the path.
pub struct ProducerPath(pub ProducerId);

impl<S: Sync> FromRequestParts<S> for ProducerPath {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        let text = segment(parts, "producer_id").await?;
        let why = "a producer id is an integer below 2^53";
        let id = canonical(&text).ok_or_else(|| Invalid::at("/path/producer_id", why))?;
        Ok(Self(ProducerId(id)))
    }
}

fn canonical(text: &str) -> Option<i64> {
    query::integer(text).ok().filter(|number| (0..=MAX_INTEGER).contains(number))
}

#[cfg(test)]
mod tests {
    use axum::{Router, extract::State, http::Request, routing::get};
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    /// A route that admits as the real ones do, but needs no broker behind it.
    fn router() -> Router {
        async fn probe(
            State(gate): State<Arc<Gate>>,
            request: axum::extract::Request,
        ) -> Result<String, Error> {
            let (mut parts, _) = request.into_parts();
            let (_, topic) = admit_to(&gate, &mut parts, See::ANY_OF, "topic").await?;
            let PartitionPath(partition) =
                PartitionPath::from_request_parts(&mut parts, &()).await?;
            Ok(format!("{topic} {partition}"))
        }
        let keys = Keys::hs256(&SECRET.into(), "oncelog", "issuer").unwrap();
        Router::new()
            .route("/v1/topics/{topic}/partitions/{partition}", get(probe))
            .with_state(Arc::new(Gate::new(keys, Limits::default())))
    }

    async fn call(scope: Option<&str>, topic: &str, partition: &str) -> Result<(), Error> {
        let mut request =
            Request::builder().uri(format!("/v1/topics/{topic}/partitions/{partition}"));
        if let Some(scope) = scope {
            let claims = json!({"aud": "oncelog", "iss": "issuer", "exp": 4_102_444_800_u64,
                "tenant": "t", "scope": scope});
            let key = EncodingKey::from_secret(SECRET.as_bytes());
            let token = encode(&Header::default(), &claims, &key).unwrap();
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        let mut answer = router().oneshot(request).await.unwrap();
        answer.extensions_mut().remove::<Error>().map_or(Ok(()), Err)
    }

    #[tokio::test]
    async fn checks_come_in_order() {
        // token, scope, name, pattern, partition
        let table = [
            (None, "a%20b", "x", Code::Unauthenticated, ""),
            (Some("group operator"), "a%20b", "x", Code::Forbidden, ""),
            (Some("produce:o.*"), "a%20b", "x", Code::InvalidRequest, "/path/topic"),
            (Some("produce:o.*"), "%ff", "x", Code::InvalidRequest, "/path/topic"),
            (Some("produce:o.*"), "p", "x", Code::Forbidden, ""),
            (Some("produce:o.*"), "o.1", "x", Code::InvalidRequest, "/path/partition"),
            (Some("consume"), "o.1", "-1", Code::InvalidRequest, "/path/partition"),
            (Some("admin"), "o.1", "01", Code::InvalidRequest, "/path/partition"),
            (Some("admin"), "o.1", "2147483648", Code::InvalidRequest, "/path/partition"),
        ];
        for (scope, topic, partition, code, pointer) in table {
            let error = call(scope, topic, partition).await.unwrap_err();
            assert_eq!(error.code, code, "{scope:?} {topic} {partition}");
            if !pointer.is_empty() {
                assert_eq!(error.facts[0].1[0]["pointer"], pointer);
            }
        }
        call(Some("consume:o.1"), "o.1", "0").await.unwrap();
    }

    #[tokio::test]
    async fn the_missing_scope_is_named() {
        let required = |error: Error| error.facts[0].1.clone();
        let error = call(Some(""), "o", "0").await.unwrap_err();
        assert_eq!(required(error), "admin | produce | consume");
        let error = call(Some("admin:x"), "o", "0").await.unwrap_err();
        assert_eq!(required(error), "admin:o | produce:o | consume:o");
    }
}
