//! The janitor task that expires groups: those without members and without commits for longer than
//! their tenant allows, each as a whole. It locks like a deletion and skips locked rows.

use super::{Task, Tenants, transaction};
use crate::{
    broker::Broker,
    model::{Name, TenantId, Timestamp, settings::Key},
    rules::{
        self,
        expiry::{ExpiryVerdict, GroupActivity, judge_group},
    },
    store::{self, Connection, janitor::Chunk},
    telemetry,
};

/// Maximum number of groups checked per round.
const GROUPS_PER_ROUND: i64 = 100;

/// Expires idle groups.
#[derive(Default)]
pub struct Groups {
    tenants: Tenants,
}

impl Task for Groups {
    const NAME: &'static str = "groups";
    type Item = (TenantId, Name);

    async fn due(&self, broker: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        let (tenants, now) = self.tenants.next(&broker.store).await?;
        let mut since = Vec::new();
        for (tenant, settings) in &tenants {
            let limit = rules::settings::in_force(Key::OffsetsExpiryMs, &[settings]).number();
            since.extend(limit.map(|limit_ms| (*tenant, Timestamp(now.0 - limit_ms))));
        }
        let idle = broker.store.run(async move |connection| {
            store::group::admin::idle(connection, &since, GROUPS_PER_ROUND).await
        });
        idle.await
    }

    async fn chunk(
        &self,
        broker: &Broker,
        (tenant, group): Self::Item,
        _: i64,
    ) -> Result<Chunk, store::Error> {
        let name = group.clone();
        let look = transaction(&broker.store, async move |c| look(c, tenant, &name).await);
        let Some(rows) = look.await? else { return Ok(Chunk::default()) };
        metrics::counter!(telemetry::EXPIRED_GROUPS_TOTAL).increment(1);
        tracing::info!(tenant_id = tenant.0, %group, "group expired with its offsets");
        Ok(Chunk { rows, more: false })
    }
}

/// Expires the group if it has been idle for too long, and returns the number of its rows;
/// otherwise records when it was active.
async fn look(
    connection: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<u64>, store::Error> {
    let Some(locked) = store::group::admin::lock(connection, tenant, group, false).await? else {
        return Ok(None);
    };
    let (settings, _) = store::catalog::tenants::settings(connection, tenant).await?;
    let limit_ms = rules::settings::in_force(Key::OffsetsExpiryMs, &[&settings]).number();
    let activity = GroupActivity {
        has_members: locked.has_members,
        is_pinned: locked.pinned.is_some(),
        noted_at: locked.active_at,
        last_committed_at: locked.last_committed_at,
    };
    let now = store::session::clock(connection).await?;
    if let ExpiryVerdict::ActiveAt(at) = judge_group(&activity, limit_ms, now) {
        store::group::admin::move_activity(connection, tenant, group, at).await?;
        return Ok(None);
    }
    store::group::admin::delete(connection, tenant, group).await.map(Some)
}
