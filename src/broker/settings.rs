//! Tenants' settings: read fresh by who asks for them, remembered for a second by who obeys them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use moka::{Entry, future::Cache, ops::compute::Op};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Broker, Error, REMEMBERED_TENANTS};
use crate::{
    model::{
        TenantId,
        settings::{Changes, IfMatch, Key, OwnSettings, TenantSettings},
    },
    rules,
    store::{self, Store, tenants::Stored},
};

/// How long a change of settings may take to be in force on other replicas.
pub const SETTINGS_LAG: Duration = Duration::from_millis(1_000);
/// What is in use and older is read again in the background, so that no append waits for it.
const REFRESH_AFTER: Duration = Duration::from_millis(500);

/// Settings read lately, by tenant.
#[derive(Clone)]
pub struct TenantsSettings {
    store: Store,
    known: Cache<TenantId, Arc<Known>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

struct Known {
    settings: Arc<OwnSettings>,
    version: i64,
    /// They held then, or later.
    read_at: Instant,
    refreshing: AtomicBool,
}

impl Known {
    fn new((settings, version): Stored, read_at: Instant) -> Arc<Self> {
        let settings = Arc::new(settings);
        Arc::new(Self { settings, version, read_at, refreshing: AtomicBool::new(false) })
    }
}

impl TenantsSettings {
    pub fn new(store: Store, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { store, known: Cache::new(REMEMBERED_TENANTS), tasks, stop }
    }

    /// What the tenant's own settings were a second ago, or later.
    pub async fn of(&self, tenant: TenantId) -> Result<Arc<OwnSettings>, Error> {
        let Some(known) = self.known.get(&tenant).await else {
            return self.younger_than(SETTINGS_LAG, tenant).await;
        };
        let age = known.read_at.elapsed();
        if age >= SETTINGS_LAG {
            return self.younger_than(SETTINGS_LAG, tenant).await;
        }
        if age >= REFRESH_AFTER && !known.refreshing.swap(true, Ordering::Relaxed) {
            let refresh = self.clone();
            let refresh = async move {
                // in vain: the next that finds nothing young enough tells why
                let _ = refresh.younger_than(REFRESH_AFTER, tenant).await;
            };
            self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(refresh));
        }
        Ok(known.settings.clone())
    }

    /// Reads of one tenant follow each other, so that a later one never gives way to an earlier one
    /// and those that waited find what they waited for.
    async fn younger_than(
        &self,
        age: Duration,
        tenant: TenantId,
    ) -> Result<Arc<OwnSettings>, Error> {
        let read = self.known.entry(tenant).and_try_compute_with(|known| async move {
            if known.is_some_and(|known| known.value().read_at.elapsed() < age) {
                return Ok::<_, Error>(Op::Nop);
            }
            let read_at = Instant::now();
            Ok(Op::Put(Known::new(stored(&self.store, tenant).await?, read_at)))
        });
        let known = read.await?.into_entry().ok_or_else(Error::internal)?;
        Ok(known.into_value().settings.clone())
    }

    /// These have just been committed.
    async fn changed(&self, tenant: TenantId, stored: Stored) {
        let new = Known::new(stored, Instant::now());
        let put = |known: Option<Entry<_, Arc<Known>>>| async move {
            let is_later = known.is_none_or(|known| known.value().version < new.version);
            if is_later { Op::Put(new) } else { Op::Nop }
        };
        self.known.entry(tenant).and_compute_with(put).await;
    }
}

async fn stored(store: &Store, tenant: TenantId) -> Result<Stored, Error> {
    let read = store.run(move |connection| Box::pin(store::tenants::settings(connection, tenant)));
    Ok(read.await?)
}

impl Broker {
    pub async fn settings(&self, tenant: TenantId) -> Result<TenantSettings, Error> {
        let (own, version) = stored(&self.store, tenant).await?;
        Ok(rules::settings::of_tenant(&own, version))
    }

    /// The settings after the patch, which is in force at once here, and within a second on other
    /// replicas.
    pub async fn patch_settings(
        &self,
        tenant: TenantId,
        changes: Changes,
        if_match: Option<IfMatch>,
    ) -> Result<TenantSettings, Error> {
        let patch = self.store.transaction(move |connection| {
            Box::pin(async move {
                let (former, version) = store::tenants::lock(connection, tenant).await?;
                let own =
                    rules::settings::patch_tenant(&former, version, &changes, if_match.as_ref())?;
                if own == former {
                    return Ok::<_, Error>((former, own, version));
                }
                store::tenants::update(connection, tenant, &own).await?;
                Ok((former, own, version + 1))
            })
        });
        let (former, own, version) = patch.await?;
        tell_changes(tenant, &former, &own);
        let settings = rules::settings::of_tenant(&own, version);
        self.settings.changed(tenant, (own, version)).await;
        Ok(settings)
    }
}

fn tell_changes(tenant: TenantId, former: &OwnSettings, own: &OwnSettings) {
    for key in Key::ALL.iter().filter(|key| former.values.get(key) != own.values.get(key)) {
        let old = rules::settings::in_force(*key, &[former]);
        let new = rules::settings::in_force(*key, &[own]);
        tracing::info!(tenant_id = tenant.0, setting = key.name(), %old, %new, "a setting was changed");
    }
}
