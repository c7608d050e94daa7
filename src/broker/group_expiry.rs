//! The janitor's part that forgets groups: those without members that have committed nothing for
//! longer than their tenant allows, each as a whole. It locks as a deletion does, and passes by what
//! somebody is at.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::{
    model::{Name, TenantId, Timestamp, settings::Key},
    rules::{
        self,
        expiry::{GroupActivity, Verdict, judge_group},
    },
    store::{self, Connection, Store, janitor::Chunk},
    telemetry,
};

/// Tenants whose groups are looked at in one round; the next round goes on behind them.
const TENANTS_PER_ROUND: i64 = 1_000;
/// Groups looked at in one round.
const GROUPS_PER_ROUND: i64 = 100;

/// Where the next round begins.
#[derive(Default)]
pub struct Rounds {
    after_tenant: AtomicI64,
}

impl Rounds {
    /// Groups that may have been idle too long.
    pub async fn idle(&self, store: &Store) -> Result<Vec<(TenantId, Name)>, store::Error> {
        let after = TenantId(self.after_tenant.load(Ordering::Relaxed));
        let (idle, last) = store.run(move |c| Box::pin(idle_groups(c, after))).await?;
        self.after_tenant.store(last.map_or(0, |tenant| tenant.0), Ordering::Relaxed);
        Ok(idle)
    }
}

/// Groups of the next tenants that are to be looked at, and the last of these tenants if there may be
/// more behind it.
async fn idle_groups(
    connection: &mut Connection,
    after: TenantId,
) -> Result<(Vec<(TenantId, Name)>, Option<TenantId>), store::Error> {
    let tenants = store::tenants::page(connection, after, TENANTS_PER_ROUND).await?;
    let now = store::sessions::clock(connection).await?;
    let mut since = Vec::new();
    for (tenant, settings) in &tenants {
        let limit = rules::settings::in_force(Key::OffsetsExpiryMs, &[settings]).number();
        since.extend(limit.map(|limit_ms| (*tenant, Timestamp(now.0 - limit_ms))));
    }
    let idle = store::groups::idle(connection, &since, GROUPS_PER_ROUND).await?;
    let is_full = tenants.len() as i64 == TENANTS_PER_ROUND;
    Ok((idle, tenants.last().filter(|_| is_full).map(|(tenant, _)| *tenant)))
}

/// Forgets the group, if it has been idle too long.
pub async fn look_at(store: &Store, tenant: TenantId, group: Name) -> Result<Chunk, store::Error> {
    let name = group.clone();
    let look =
        store.transaction(move |c| Box::pin(async move { look(c, tenant, &name).await })).await;
    match look {
        Ok(Some(rows)) => {
            metrics::counter!(telemetry::EXPIRED_GROUPS_TOTAL).increment(1);
            tracing::info!(tenant_id = tenant.0, %group, "a group has expired, with its offsets");
            Ok(Chunk { rows, more: false })
        }
        // one that is held for long must not hold up the others
        Ok(None) | Err(store::Error::Contended(_)) => Ok(Chunk { rows: 0, more: false }),
        Err(error) => Err(error),
    }
}

/// Forgets the group if it has been idle too long, and answers how many rows it had; else notes when
/// it was active.
async fn look(
    connection: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<u64>, store::Error> {
    let Some(locked) = store::groups::lock(connection, tenant, group, false).await? else {
        return Ok(None);
    };
    let (settings, _) = store::tenants::settings(connection, tenant).await?;
    let limit_ms = rules::settings::in_force(Key::OffsetsExpiryMs, &[&settings]).number();
    let activity = GroupActivity {
        has_members: locked.has_members,
        is_pinned: locked.pinned.is_some(),
        noted_at: locked.active_at,
        last_committed_at: locked.last_committed_at,
    };
    let now = store::sessions::clock(connection).await?;
    if let Verdict::ActiveAt(at) = judge_group(&activity, limit_ms, now) {
        store::groups::move_activity(connection, tenant, group, at).await?;
        return Ok(None);
    }
    store::groups::delete(connection, tenant, group).await.map(Some)
}
