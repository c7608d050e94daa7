//! The janitor task that removes deleted tenants and their data.
//!
//! It works in chunks, each a database transaction of its own, on any number of replicas at once:
//! each looks up what is left and removes the first of it. So a dying replica loses nothing, and
//! rows that requests in flight have created are found as well. Prepared transactions are aborted
//! first, because they hold topics. Then the topics are deleted like any topic, after which nothing
//! can be appended; their logs are left to the task for deleted logs. Everything else follows. The
//! tenant's row is last, and is kept longer than any request that found the tenant can run, so that
//! no request creates rows for a removed tenant.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use super::{Task, transaction};
use crate::{
    broker::{Broker, wakeup::watch::Change},
    model::{
        LogId, Partition, TenantId,
        transaction::{Actor, Call, Caller},
    },
    store::{
        self, Connection, Store,
        janitor::{
            Chunk,
            deleted_tenants::{SWEPT, Swept},
        },
    },
};

/// Maximum number of tenants checked per round; the next round continues after them.
const TENANTS_PER_ROUND: i64 = 1_000;
/// Maximum number of transactions aborted per chunk, each in its own database transaction.
const PREPARED_PER_CHUNK: i64 = 10;
/// A quarter of an hour: a body may take ten minutes to arrive, everything else less than one.
const KNOWN_FOR_MS: i64 = 900_000;

/// Removes deleted tenants and their data.
#[derive(Default)]
pub struct DeletedTenants {
    /// Where the next round starts.
    after_tenant: AtomicI64,
}

impl Task for DeletedTenants {
    const NAME: &'static str = "tenants";
    type Item = TenantId;

    async fn due(&self, broker: &Broker) -> Result<Vec<TenantId>, store::Error> {
        let after = TenantId(self.after_tenant.load(Ordering::Relaxed));
        let deleted = broker.store.run(async move |c| {
            store::janitor::deleted_tenants::deleted(c, after, TENANTS_PER_ROUND).await
        });
        let deleted = deleted.await?;
        let is_full = deleted.len() as i64 == TENANTS_PER_ROUND;
        let last = deleted.last().filter(|_| is_full).map_or(0, |tenant| tenant.0);
        self.after_tenant.store(last, Ordering::Relaxed);
        Ok(deleted)
    }

    async fn chunk(
        &self,
        broker: &Broker,
        tenant: TenantId,
        rows: i64,
    ) -> Result<Chunk, store::Error> {
        remove(broker, tenant, rows).await
    }
}

/// Removes about this many rows of a deleted tenant.
async fn remove(broker: &Broker, tenant: TenantId, rows: i64) -> Result<Chunk, store::Error> {
    let store = &broker.store;
    let left =
        transaction(store, async move |c| store::janitor::deleted_tenants::left(c, tenant).await)
            .await?;
    let has = |table: &str| left.iter().any(|left| left == table);
    if has("transactions") {
        let aborted = abort_prepared(broker, tenant).await?;
        if aborted > 0 {
            return Ok(Chunk { rows: aborted, more: true });
        }
    }
    if has("topics") {
        return remove_partitions(broker, tenant, rows).await;
    }
    let waits = |swept: &Swept| swept.with_logs && has("doomed_logs");
    for swept in SWEPT.into_iter().filter(|swept| has(swept.table) && !waits(swept)) {
        let sweep = transaction(store, async move |c| {
            store::janitor::deleted_tenants::sweep(c, tenant, swept, rows).await
        });
        let rows = sweep.await?;
        if rows > 0 {
            return Ok(Chunk { rows, more: true });
        }
    }
    end(store, tenant).await
}

/// Returns the number of aborted transactions. A locked one holds its topics until the next round.
async fn abort_prepared(broker: &Broker, tenant: TenantId) -> Result<u64, store::Error> {
    let prepared = broker.store.run(async move |c| {
        store::janitor::deleted_tenants::prepared(c, tenant, PREPARED_PER_CHUNK).await
    });
    let mut aborted = 0;
    let actor = Actor { caller: Caller::Operator, scopes: Arc::default() };
    for id in prepared.await? {
        match broker.call_transaction(tenant, id, actor.clone(), Call::Abort, None).await {
            Ok(_) => aborted += 1,
            Err(error) => {
                let code = error.code.as_str();
                tracing::debug!(tenant_id = tenant.0, transaction_id = %id, code, "not aborted yet");
            }
        }
    }
    Ok(aborted)
}

/// Removes the last partitions of a topic, or the whole topic if it has no others.
async fn remove_partitions(
    broker: &Broker,
    tenant: TenantId,
    rows: i64,
) -> Result<Chunk, store::Error> {
    // a head each, and a note that its rows are to go
    let partitions = Partition::try_from(rows / 2).unwrap_or(Partition::MAX).max(1);
    let shrink = transaction(&broker.store, async move |c| shrink(c, tenant, partitions).await);
    let Some(gone) = shrink.await? else { return Ok(Chunk::default()) };
    broker.notifier.changed(tenant, gone.iter().map(|log| (*log, Change::Gone)));
    Ok(Chunk { rows: gone.len() as u64, more: true })
}

/// Returns the removed logs. None: no unlocked topic is left.
///
/// Each step leaves a consistent topic with fewer partitions. A request that knows more of them
/// finds their heads gone, or the journal's fence moved, and resolves the name again.
async fn shrink(
    connection: &mut Connection,
    tenant: TenantId,
    partitions: Partition,
) -> Result<Option<Vec<LogId>>, store::Error> {
    let Some((topic, count)) =
        store::janitor::deleted_tenants::lock_topic(connection, tenant).await?
    else {
        return Ok(None);
    };
    let rest = (count - partitions).max(0);
    // an append in flight comes before this or finds its head gone
    let (journal, mut last) =
        store::janitor::deleted_tenants::lock_last_logs(connection, tenant, topic, rest).await?;
    if rest == 0 {
        last.extend(&journal);
    }
    if store::catalog::topics::pinned_by(connection, tenant, &last).await?.is_some() {
        // prepared meanwhile
        return Ok(None);
    }
    if rest == 0 {
        store::catalog::topics::delete(connection, tenant, topic, &last).await?;
    } else {
        store::catalog::logs::raise_fences(connection, tenant, &journal).await?;
        store::janitor::deleted_tenants::shrink(connection, tenant, topic, rest, &last).await?;
    }
    Ok(Some(last))
}

/// Removes the tenant's row if it is old enough and nothing else is left.
async fn end(store: &Store, tenant: TenantId) -> Result<Chunk, store::Error> {
    let end = store.transaction(async move |connection| {
        let locked =
            store::janitor::deleted_tenants::lock_tenant(connection, tenant, KNOWN_FOR_MS).await?;
        let Some(name) = locked else { return Ok::<_, store::Error>(None) };
        let left = store::janitor::deleted_tenants::left(connection, tenant).await?;
        if !left.is_empty() {
            tracing::debug!(tenant_id = tenant.0, ?left, "a deleted tenant still has data");
            return Ok(None);
        }
        store::janitor::deleted_tenants::drop_tenant(connection, tenant).await?;
        Ok(Some(name))
    });
    let Some(name) = end.await? else { return Ok(Chunk::default()) };
    tracing::info!(tenant_id = tenant.0, tenant = name, "deleted tenant removed with all its data");
    Ok(Chunk { rows: 1, more: false })
}
