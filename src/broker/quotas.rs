//! Quotas: what a tenant may have at once, judged for what is new.
//!
//! A count is exact where it matters: near its limit, a call that makes one more holds the tenant's
//! row from before to after it, and counts under that lock. Further below it nothing is counted but
//! once in a while. Bytes are judged by what was there half a second ago.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use moka::future::Cache;
use uuid::Uuid;

use super::{Broker, Error, catalog::settings::lock_tenant};
use crate::{
    model::{
        Name, TenantId,
        settings::{Key, OwnSettings},
    },
    rules::{Refusal, settings::in_force},
    store::{self, Connection, Store},
};

/// Below a limit by more than this, one more is made without counting: more than are made while
/// what was seen is remembered.
const FAR: i64 = 1_000;
const REMEMBERED_FOR: Duration = Duration::from_millis(500);
/// Maximum number of remembered tenants, each with a few values.
const REMEMBERED_VALUES: u64 = 50_000;

/// What tenants had of that which is limited, half a second ago or later.
#[derive(Clone)]
pub struct Quotas {
    store: Store,
    used: Cache<(TenantId, Key), i64>,
}

/// A limited count that is near its limit, so that the next one has to be counted.
#[derive(Clone, Copy, Debug)]
pub struct Quota(Key);

/// The same while the tenant's row is locked.
#[derive(Clone, Copy, Debug)]
pub struct HeldQuota {
    key: Key,
    limit: Option<i64>,
}

impl Quotas {
    pub fn new(store: Store) -> Self {
        let used =
            Cache::builder().max_capacity(REMEMBERED_VALUES).time_to_live(REMEMBERED_FOR).build();
        Self { store, used }
    }

    /// None: one more may be made as if there were no limit.
    pub async fn near(
        &self,
        tenant: TenantId,
        settings: &OwnSettings,
        key: Key,
    ) -> Result<Option<Quota>, Error> {
        let Some(limit) = in_force(key, &[settings]).number() else { return Ok(None) };
        let near = limit.saturating_sub(FAR);
        let is_far = near > 0 && self.used(tenant, key, near).await? < near;
        Ok((!is_far).then_some(Quota(key)))
    }

    /// The refusal of that many new bytes, if there is no room for them.
    pub async fn full(
        &self,
        tenant: TenantId,
        settings: &OwnSettings,
        key: Key,
        bytes: i64,
    ) -> Result<Option<Refusal>, Error> {
        let Some(limit) = in_force(key, &[settings]).number() else { return Ok(None) };
        let used = self.used(tenant, key, i64::MAX).await?;
        Ok((used.saturating_add(bytes) > limit).then_some(Refusal::QuotaReached { key, limit }))
    }

    async fn used(&self, tenant: TenantId, key: Key, most: i64) -> Result<i64, Error> {
        let count = async {
            let count = self.store.run(async move |connection| {
                store::quotas::used(connection, tenant, key, most).await
            });
            count.await.map_err(Error::from)
        };
        self.used.try_get_with((tenant, key), count).await.map_err(Arc::unwrap_or_clone)
    }
}

impl Quota {
    /// Serializes those who make one more. The tenant's row is the first to be locked.
    pub async fn hold(
        self,
        connection: &mut Connection,
        tenant: TenantId,
    ) -> Result<HeldQuota, Error> {
        let settings = lock_tenant(connection, tenant).await?.settings;
        Ok(HeldQuota { key: self.0, limit: in_force(self.0, &[&settings]).number() })
    }
}

impl HeldQuota {
    /// Checks what was just made; with the error it is to be undone.
    pub async fn check(self, connection: &mut Connection, tenant: TenantId) -> Result<(), Error> {
        let Self { key, limit: Some(limit) } = self else { return Ok(()) };
        let used = store::quotas::used(connection, tenant, key, limit.saturating_add(1)).await?;
        if used > limit { Err(Refusal::QuotaReached { key, limit }.into()) } else { Ok(()) }
    }
}

impl Broker {
    /// The quota of groups for a call that creates the group if it does not exist.
    pub(super) async fn group_quota(
        &self,
        tenant: TenantId,
        settings: &OwnSettings,
        group: &Name,
    ) -> Result<Option<Quota>, Error> {
        let key = Key::MaxGroups;
        if in_force(key, &[settings]).number().is_none()
            || self.group_ids.find(tenant, group, |_, _| true).await?.is_some()
        {
            return Ok(None);
        }
        self.quotas.near(tenant, settings, key).await
    }

    /// `check_groups` for a transaction that a lane commits, without a connection where there is no
    /// limit.
    pub(super) async fn check_groups(
        &self,
        tenant: TenantId,
        transaction: Uuid,
        groups: BTreeSet<&Name>,
        settings: &OwnSettings,
    ) -> Result<(), Error> {
        if groups.is_empty() || in_force(Key::MaxGroups, &[settings]).number().is_none() {
            return Ok(());
        }
        let groups: BTreeSet<Name> = groups.into_iter().cloned().collect();
        let settings = settings.clone();
        let check = self.store.of(tenant).run(async move |connection| {
            let groups = groups.iter().collect();
            check_groups(connection, tenant, transaction, groups, &settings).await
        });
        check.await
    }
}

/// Holds the quota, if it is near its limit.
pub async fn hold(
    quota: Option<Quota>,
    connection: &mut Connection,
    tenant: TenantId,
) -> Result<Option<HeldQuota>, Error> {
    match quota {
        Some(quota) => Ok(Some(quota.hold(connection, tenant).await?)),
        None => Ok(None),
    }
}

/// Checks the groups that a commit of the transaction will create. They are not counted under the
/// tenant's row: what is staged is committed whatever there is by then.
pub async fn check_groups(
    connection: &mut Connection,
    tenant: TenantId,
    transaction: Uuid,
    groups: BTreeSet<&Name>,
    settings: &OwnSettings,
) -> Result<(), Error> {
    let key = Key::MaxGroups;
    let Some(limit) = in_force(key, &[settings]).number() else { return Ok(()) };
    let groups: Vec<&Name> = groups.into_iter().collect();
    let new = store::quotas::new_groups(connection, tenant, transaction, &groups).await?;
    if new == 0 {
        return Ok(());
    }
    let used = store::quotas::used(connection, tenant, key, limit.saturating_add(1)).await?;
    if used + new > limit { Err(Refusal::QuotaReached { key, limit }.into()) } else { Ok(()) }
}
