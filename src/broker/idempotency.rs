//! Idempotency of calls other than appends: with an `Idempotency-Key` they are done once, however
//! often they are sent.
//!
//! A repeat is detected before anything is locked. A new call is done under the lock that all calls
//! with the same key share (the group's row or, for opens, the tenant's): there the key is looked
//! up again, and stored with its answer in the transaction of the work. So of concurrent calls one
//! is done and the others get its answer; a refused call leaves its key free.

use serde::{Serialize, de::DeserializeOwned};

use super::{Broker, Error, append::dedup};
use crate::{
    model::{
        TenantId, Timestamp, TopicId,
        dedup::{RequestKey, Ring},
        settings::Key,
    },
    rules::settings::in_force,
    store::{self, Connection, dedup::NewKey},
    telemetry,
};

/// The answer to a call: new, or repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// The call was already done, with the same key; this was its answer.
    pub is_replay: bool,
}

impl<T> Answer<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value, is_replay: false }
    }
}

/// The key's owner for calls that append to no topic.
const NO_TOPIC: TopicId = TopicId(0);

/// A call to do: once, if it has a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdempotentCall(Option<PendingKey>);

/// How the key will be stored.
#[derive(Clone, Copy, Debug)]
struct PendingKey {
    request: RequestKey,
    window_ms: Option<i64>,
    lifetime_ms: Option<i64>,
    /// The ring of the key; the tenant is recorded as having keys there.
    ring: Ring,
    /// When the key was last looked up, and the partition of the ring that took new keys then.
    now: Timestamp,
    slot: i16,
}

/// The result of a lookup.
pub(super) enum Begun<T> {
    /// The call was already done, with this answer.
    Replay(T),
    Fresh(IdempotentCall),
}

impl Broker {
    /// Returns the answer of an earlier call with this key, or the permission to do it.
    pub(super) async fn begin_once<T: DeserializeOwned + Send + 'static>(
        &self,
        tenant: TenantId,
        key: Option<RequestKey>,
    ) -> Result<Begun<T>, Error> {
        let Some(request) = key else { return Ok(Begun::Fresh(IdempotentCall(None))) };
        let window_ms = in_force(Key::DedupWindowMs, &[&*self.settings.of(tenant).await?]).number();
        if window_ms == Some(0) {
            return Err(Error::invalid("Idempotency-Key", NO_WINDOW));
        }
        // (what it may write says where keys may lie, as often as it is said)
        let look = self.store.of(tenant).run(async move |connection| {
            let (rings, now) = store::dedup::call_rings(connection, tenant).await?;
            let lifetime_ms = request.lifetime_ms(window_ms, now);
            let ring = Ring::of(lifetime_ms);
            if rings & ring.bit() == 0 {
                store::dedup::add_call_ring(connection, tenant, ring).await?;
            }
            let slot = ring.slots()[0];
            let key = PendingKey { request, window_ms, lifetime_ms, ring, now, slot };
            IdempotentCall(Some(key)).look_up(connection, tenant).await
        });
        look.await
    }
}

impl IdempotentCall {
    /// Whether the call has a key.
    pub fn is_keyed(self) -> bool {
        self.0.is_some()
    }

    /// Looks up the key again under the lock that all calls with it share.
    pub async fn look_up<T: DeserializeOwned>(
        self,
        connection: &mut Connection,
        tenant: TenantId,
    ) -> Result<Begun<T>, Error> {
        let Some(claim) = self.0 else { return Ok(Begun::Fresh(self)) };
        let (rings, _) = store::dedup::call_rings(connection, tenant).await?;
        let wanted = Ring::all().filter(|ring| *ring == claim.ring || rings & ring.bit() != 0);
        let wanted = wanted.map(|ring| ((NO_TOPIC, ring), vec![claim.request.key])).collect();
        let known = dedup::fetch(connection, tenant, &wanted).await?;
        if let Some((answer, _)) = known.repeated(NO_TOPIC, &claim.request, claim.window_ms)? {
            return Ok(Begun::Replay(read(answer)?));
        }
        Ok(Begun::Fresh(IdempotentCall(Some(PendingKey {
            now: known.now,
            slot: known.slot(claim.ring),
            ..claim
        }))))
    }

    /// Stores the answer under the key, in the transaction of the work.
    pub async fn remember<T: Serialize>(
        self,
        connection: &mut Connection,
        tenant: TenantId,
        answer: &T,
    ) -> Result<(), store::Error> {
        let Some(claim) = self.0 else { return Ok(()) };
        let key = NewKey {
            slot: claim.slot,
            topic_id: NO_TOPIC,
            key: claim.request.key,
            digest: claim.request.digest,
            lifetime_ms: claim.lifetime_ms,
            record: None,
            answer: Some(written(answer)?),
        };
        store::dedup::remember(connection, tenant, &[key], claim.now).await
    }
}

/// Completes a stored preliminary answer. False: it has changed, or has expired.
pub(super) async fn complete<T: Serialize>(
    connection: &mut Connection,
    tenant: TenantId,
    request: &RequestKey,
    (preliminary, complete): (&T, &T),
) -> Result<bool, store::Error> {
    let (preliminary, complete) = (written(preliminary)?, written(complete)?);
    store::dedup::complete(connection, tenant, (NO_TOPIC, request.key), &preliminary, &complete)
        .await
}

fn written(answer: &impl Serialize) -> Result<Vec<u8>, store::Error> {
    serde_json::to_vec(answer)
        .map_err(|error| store::Error::Unexpected(format!("cannot encode an answer: {error}")))
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, store::Error> {
    let read = serde_json::from_slice(answer);
    read.map_err(|error| {
        store::Error::Unexpected(format!("cannot decode a stored answer: {error}"))
    })
}

/// Counts a call that was answered from its stored answer.
pub(super) fn count_replay(call: &'static str) {
    let labels = [("kind", "idempotency_key"), ("call", call)];
    metrics::counter!(telemetry::DUPLICATES_TOTAL, &labels).increment(1);
}

const NO_WINDOW: &str = "the tenant remembers no keys, as its dedup_window_ms is 0; omit the key, \
    or set a window";
