//! The janitor's part that removes what deleted tenants have, and them.
//!
//! Chunk by chunk, each a database transaction of its own, by any number of replicas at once: each
//! asks what is left and does the first of it. So nothing is lost with a replica that dies, and what
//! requests in flight have made behind it is found as well. Prepared transactions are aborted first,
//! for they hold their topics. Then the topics go, as a topic is deleted, and nothing can be appended
//! any more; their logs are left to the task that removes such logs. Only without topics the rest goes.
//! The tenant's row is the last, and stays for longer than any request lives that knew the tenant
//! before it was deleted: none makes a row for a tenant that is gone.

use std::sync::atomic::{AtomicI64, Ordering};

use super::{Task, transaction};
use crate::{
    broker::{Broker, wakeup::watch::Change},
    model::{
        LogId, Partition, TenantId,
        transaction::{Call, Caller},
    },
    store::{
        self, Connection, Store,
        janitor::{
            Chunk,
            deleted_tenants::{SWEPT, Swept},
        },
    },
};

/// Tenants looked at in one round; the next round goes on behind them.
const TENANTS_PER_ROUND: i64 = 1_000;
/// Each in a database transaction of its own.
const PREPARED_PER_CHUNK: i64 = 10;
/// A quarter of an hour: a body may take ten minutes to arrive, and all else takes less than one.
const KNOWN_FOR_MS: i64 = 900_000;

/// What deleted tenants have, and they.
#[derive(Default)]
pub struct DeletedTenants {
    /// Where the next round begins.
    after_tenant: AtomicI64,
}

impl Task for DeletedTenants {
    const NAME: &'static str = "tenants";
    type Item = TenantId;

    async fn due(&self, broker: &Broker) -> Result<Vec<TenantId>, store::Error> {
        let after = TenantId(self.after_tenant.load(Ordering::Relaxed));
        let deleted = broker.store.run(move |c| {
            Box::pin(store::janitor::deleted_tenants::deleted(c, after, TENANTS_PER_ROUND))
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

/// Removes about so many rows of what a deleted tenant has.
async fn remove(broker: &Broker, tenant: TenantId, rows: i64) -> Result<Chunk, store::Error> {
    let store = &broker.store;
    let left =
        transaction(store, move |c| Box::pin(store::janitor::deleted_tenants::left(c, tenant)))
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
        let sweep = transaction(store, move |c| {
            Box::pin(store::janitor::deleted_tenants::sweep(c, tenant, swept, rows))
        });
        let rows = sweep.await?;
        if rows > 0 {
            return Ok(Chunk { rows, more: true });
        }
    }
    end(store, tenant).await
}

/// How many. One that somebody is at holds its topics until the next round.
async fn abort_prepared(broker: &Broker, tenant: TenantId) -> Result<u64, store::Error> {
    let prepared = broker.store.run(move |c| {
        Box::pin(store::janitor::deleted_tenants::prepared(c, tenant, PREPARED_PER_CHUNK))
    });
    let mut aborted = 0;
    for id in prepared.await? {
        match broker.call_transaction(tenant, id, Caller::Operator, Call::Abort, None).await {
            Ok(_) => aborted += 1,
            Err(error) => {
                let code = error.code.as_str();
                tracing::debug!(tenant_id = tenant.0, transaction_id = %id, code, "not aborted yet");
            }
        }
    }
    Ok(aborted)
}

/// Removes the last partitions of a topic, or all of it if it has no more.
async fn remove_partitions(
    broker: &Broker,
    tenant: TenantId,
    rows: i64,
) -> Result<Chunk, store::Error> {
    // a head each, and a note that its rows are to go
    let partitions = Partition::try_from(rows / 2).unwrap_or(Partition::MAX).max(1);
    let shrink = transaction(&broker.store, move |c| Box::pin(shrink(c, tenant, partitions)));
    let Some(gone) = shrink.await? else { return Ok(Chunk::default()) };
    let news: Vec<_> = gone.iter().map(|log| (*log, Change::Gone)).collect();
    broker.notifier.logs_changed(tenant, &news);
    Ok(Chunk { rows: gone.len() as u64, more: true })
}

/// The logs that are gone. None: there is no topic that nobody is at.
///
/// Each step leaves a whole topic, with fewer partitions. Who knows more of them finds their heads
/// gone, or the journal's fence moved, and resolves the name again.
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

/// Removes the tenant's row, if it is time and nothing else is left.
async fn end(store: &Store, tenant: TenantId) -> Result<Chunk, store::Error> {
    let end = store.transaction(move |connection| {
        Box::pin(async move {
            let locked =
                store::janitor::deleted_tenants::lock_tenant(connection, tenant, KNOWN_FOR_MS)
                    .await?;
            let Some(name) = locked else { return Ok::<_, store::Error>(None) };
            let left = store::janitor::deleted_tenants::left(connection, tenant).await?;
            if !left.is_empty() {
                tracing::debug!(
                    tenant_id = tenant.0,
                    ?left,
                    "a deleted tenant has something still"
                );
                return Ok(None);
            }
            store::janitor::deleted_tenants::drop_tenant(connection, tenant).await?;
            Ok(Some(name))
        })
    });
    let Some(name) = end.await? else { return Ok(Chunk::default()) };
    tracing::info!(
        tenant_id = tenant.0,
        tenant = name,
        "a deleted tenant is gone, with all it had"
    );
    Ok(Chunk { rows: 1, more: false })
}
