//! The janitor task that expires producers: those idle for longer than their tenant allows, each as
//! a whole and in one transaction.
//!
//! An expiry locks like an open: the session row, then the heads of every log in which the producer
//! is registered. These cover everything that can make the producer active: a first append and any
//! transaction call need the session row, any other append needs a head. A request in flight holds
//! one of them, so the expiry waits for it and sees its effect; a later one finds the fence moved,
//! reads the session row again, and finds none. All heads are held at once, however many, but only
//! for producers that a check without locks found idle.

use uuid::Uuid;

use super::{Task, Tenants, transaction};
use crate::{
    broker::Broker,
    model::{LogId, ProducerId, TenantId, Timestamp, session::OPEN_ID_MEMORY_MS},
    rules::{
        self,
        expiry::{Activity, ExpiryVerdict, judge, limited_by},
        session::SessionRow,
    },
    store::{
        self, Connection,
        janitor::{Chunk, producers::IdleSince},
    },
    telemetry,
};

/// Maximum number of producers checked, and of open ids removed, per round.
const PRODUCERS_PER_ROUND: i64 = 1_000;

/// Expires idle producers.
#[derive(Default)]
pub struct Producers {
    tenants: Tenants,
}

impl Task for Producers {
    const NAME: &'static str = "expiry";
    type Item = (TenantId, ProducerId);

    async fn due(&self, broker: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        let (tenants, now) = self.tenants.next(&broker.store).await?;
        let mut wanted = Vec::new();
        for (tenant, settings) in &tenants {
            for named in [false, true] {
                let limit = rules::settings::in_force(limited_by(named), &[settings]).number();
                let since = |limit_ms| Timestamp(now.0 - limit_ms);
                let idle_since = |ms| IdleSince { tenant: *tenant, named, instant: since(ms) };
                wanted.extend(limit.map(idle_since));
            }
        }
        let idle = broker.store.run(async move |connection| {
            store::janitor::producers::idle(connection, &wanted, PRODUCERS_PER_ROUND).await
        });
        idle.await
    }

    async fn chunk(
        &self,
        broker: &Broker,
        (tenant, producer): Self::Item,
        _: i64,
    ) -> Result<Chunk, store::Error> {
        let look = transaction(&broker.store, async move |c| look(c, tenant, producer).await);
        let Some((expired, chunk)) = look.await? else { return Ok(Chunk::default()) };
        tell(tenant, &expired);
        Ok(chunk)
    }
}

/// Removes the open ids of expired producers once no open accepts them any more.
pub struct OpenIds;

impl Task for OpenIds {
    const NAME: &'static str = "open_ids";
    type Item = (TenantId, Uuid);

    async fn due(&self, broker: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        let orphaned = broker.store.run(async move |connection| {
            let now = store::session::clock(connection).await?;
            let made_before = Timestamp(now.0 - OPEN_ID_MEMORY_MS);
            store::janitor::producers::orphaned_opens(connection, made_before, PRODUCERS_PER_ROUND)
                .await
        });
        orphaned.await
    }

    async fn chunk(
        &self,
        broker: &Broker,
        (tenant, open_id): Self::Item,
        _: i64,
    ) -> Result<Chunk, store::Error> {
        let drop = broker.store.run(async move |c| {
            store::janitor::producers::drop_orphaned_open(c, tenant, open_id).await
        });
        drop.await
    }
}

/// Expires the producer if it has been idle for too long, and returns its kind; otherwise records
/// when it was active.
async fn look(
    connection: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<(SessionRow, Chunk)>, store::Error> {
    let Some(session) = store::janitor::producers::lock(connection, tenant, producer).await? else {
        return Ok(None);
    };
    let (settings, _) = store::catalog::tenants::settings(connection, tenant).await?;
    let limit_ms = rules::expiry::limit_ms(&session, &settings);
    let since = since(store::session::clock(connection).await?, limit_ms);
    let activity =
        store::janitor::producers::transacted(connection, tenant, producer, since).await?;
    let locked = LockedSession { session, limit_ms, activity };
    let logs = store::session::registered_logs(connection, tenant, producer).await?;
    let mut verdict = verdict(connection, tenant, &locked, &logs).await?;
    if verdict == ExpiryVerdict::Expired {
        store::catalog::logs::lock(connection, tenant, &logs).await?;
        verdict = self::verdict(connection, tenant, &locked, &logs).await?;
    }
    if let ExpiryVerdict::ActiveAt(at) = verdict {
        store::janitor::producers::move_activity(connection, tenant, producer, at).await?;
        return Ok(None);
    }
    store::catalog::logs::raise_fences(connection, tenant, &logs).await?;
    let chunk = store::janitor::producers::forget(connection, tenant, producer).await?;
    Ok(Some((locked.session, chunk)))
}

/// State that cannot change while the session is locked.
struct LockedSession {
    session: SessionRow,
    limit_ms: Option<i64>,
    /// Ignores its rows. Beginning a transaction locks the session, too; a transaction that ends
    /// meanwhile was open.
    activity: Activity,
}

async fn verdict(
    connection: &mut Connection,
    tenant: TenantId,
    locked: &LockedSession,
    logs: &[LogId],
) -> Result<ExpiryVerdict, store::Error> {
    let LockedSession { session, limit_ms, activity } = locked;
    let now = store::session::clock(connection).await?;
    let (id, since) = (session.producer_id, since(now, *limit_ms));
    let last_appended_at =
        store::janitor::producers::last_appended_at(connection, tenant, id, logs, since).await?;
    Ok(judge(session, &Activity { last_appended_at, ..*activity }, *limit_ms, now))
}

/// Activity before this time does not matter.
fn since(now: Timestamp, limit_ms: Option<i64>) -> Timestamp {
    Timestamp(now.0 - limit_ms.unwrap_or(0))
}

fn tell(tenant: TenantId, expired: &SessionRow) {
    let kind = if expired.transactional_id.is_some() { "named" } else { "unnamed" };
    metrics::counter!(telemetry::EXPIRED_PRODUCERS_TOTAL, "kind" => kind).increment(1);
    let transactional_id = expired.transactional_id.as_ref().map(ToString::to_string);
    tracing::debug!(
        tenant_id = tenant.0,
        producer_id = expired.producer_id.0,
        transactional_id,
        "producer expired"
    );
}
