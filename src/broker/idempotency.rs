//! Calls with an `Idempotency-Key` that are no appends: done once, however often they are sent.
//!
//! A repeat is found before anything is locked. What is new is done under the lock that all calls
//! share which may have the same key (the group's row, or for opens the tenant's): there the key is
//! looked up once more, and remembered with its answer in the transaction of the work. So of many at
//! once one is done, and the others learn its answer; and what is refused leaves its key free.

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

/// What a call is answered: now, or again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// The call was done before, under the same key; this was its answer.
    pub is_replay: bool,
}

impl<T> Answer<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value, is_replay: false }
    }
}

/// Where keys of calls stand that append to no topic.
const NO_TOPIC: TopicId = TopicId(0);

/// A call that is to be done: once, if it has a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdempotentCall(Option<PendingKey>);

/// How a key will be remembered.
#[derive(Clone, Copy, Debug)]
struct PendingKey {
    request: RequestKey,
    window_ms: Option<i64>,
    lifetime_ms: Option<i64>,
    /// The tenant is known to have keys there.
    ring: Ring,
    /// When it was looked up last, and the partition of the ring that took new keys then.
    now: Timestamp,
    slot: i16,
}

/// What is known of a call.
pub(super) enum Begun<T> {
    /// It was done, and answered this.
    Before(T),
    New(IdempotentCall),
}

impl Broker {
    /// What a call with this key was answered, or the right to do it.
    pub(super) async fn look_once<T: DeserializeOwned + Send + 'static>(
        &self,
        tenant: TenantId,
        key: Option<RequestKey>,
    ) -> Result<Begun<T>, Error> {
        let Some(request) = key else { return Ok(Begun::New(IdempotentCall(None))) };
        let window_ms = in_force(Key::DedupWindowMs, &[&*self.settings.of(tenant).await?]).number();
        if window_ms == Some(0) {
            return Err(Error::invalid("Idempotency-Key", NO_WINDOW));
        }
        // (what it may write says where keys may lie, as often as it is said)
        let look = self.store.of(tenant).run(move |connection| {
            Box::pin(async move {
                let (rings, now) = store::dedup::call_rings(connection, tenant).await?;
                let lifetime_ms = request.lifetime_ms(window_ms, now);
                let ring = Ring::of(lifetime_ms);
                if rings & ring.bit() == 0 {
                    store::dedup::add_call_ring(connection, tenant, ring).await?;
                }
                let slot = ring.slots()[0];
                let claim = PendingKey { request, window_ms, lifetime_ms, ring, now, slot };
                IdempotentCall(Some(claim)).look(connection, tenant).await
            })
        });
        look.await
    }
}

impl IdempotentCall {
    /// Whether it has a key.
    pub fn is_keyed(self) -> bool {
        self.0.is_some()
    }

    /// To be asked again under the lock that all calls with its key share.
    pub async fn look<T: DeserializeOwned>(
        self,
        connection: &mut Connection,
        tenant: TenantId,
    ) -> Result<Begun<T>, Error> {
        let Some(claim) = self.0 else { return Ok(Begun::New(self)) };
        let (rings, _) = store::dedup::call_rings(connection, tenant).await?;
        let wanted = Ring::all().filter(|ring| *ring == claim.ring || rings & ring.bit() != 0);
        let wanted = wanted.map(|ring| ((NO_TOPIC, ring), vec![claim.request.key])).collect();
        let known = dedup::gather(connection, tenant, &wanted).await?;
        if let Some((answer, _)) = known.repeated(NO_TOPIC, &claim.request, claim.window_ms)? {
            return Ok(Begun::Before(read(answer)?));
        }
        Ok(Begun::New(IdempotentCall(Some(PendingKey {
            now: known.now,
            slot: known.slot(claim.ring),
            ..claim
        }))))
    }

    /// Remembers what it is answered, in the transaction in which that came true.
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

/// Replaces a remembered answer that was still to be completed. False: it is another one by now, or
/// forgotten.
pub(super) async fn complete<T: Serialize>(
    connection: &mut Connection,
    tenant: TenantId,
    request: &RequestKey,
    (answer, whole): (&T, &T),
) -> Result<bool, store::Error> {
    let (answer, whole) = (written(answer)?, written(whole)?);
    store::dedup::complete(connection, tenant, (NO_TOPIC, request.key), &answer, &whole).await
}

fn written(answer: &impl Serialize) -> Result<Vec<u8>, store::Error> {
    serde_json::to_vec(answer)
        .map_err(|error| store::Error::Unexpected(format!("an answer: {error}")))
}

fn read<T: DeserializeOwned>(answer: &[u8]) -> Result<T, store::Error> {
    let read = serde_json::from_slice(answer);
    read.map_err(|error| store::Error::Unexpected(format!("a remembered answer: {error}")))
}

/// One more call that was answered from memory.
pub(super) fn count_replay(call: &'static str) {
    let labels = [("kind", "idempotency_key"), ("call", call)];
    metrics::counter!(telemetry::DUPLICATES_TOTAL, &labels).increment(1);
}

const NO_WINDOW: &str = "the tenant's dedup_window_ms is 0, so no key is remembered: leave it out, or \
    set a window";
