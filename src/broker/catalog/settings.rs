//! Tenants' settings, and whether their requests are served: read fresh for those who display or
//! change them, cached for a second for those who apply them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use moka::{
    Entry,
    future::Cache,
    ops::compute::{CompResult, Op},
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    broker::{Broker, Error, REMEMBERED_TENANTS},
    model::{
        Name, TenantId,
        settings::{Changes, IfMatch, Key, OwnSettings, TenantSettings},
        tenant::{Tenant, revocation::Revocations},
    },
    rules::{self, Refusal, rates::Rates},
    store::{self, Connection, History, Store},
};

/// How long a change of settings may take to reach other replicas.
pub const SETTINGS_LAG: Duration = Duration::from_millis(1_000);
/// An entry in use that is older is refreshed in the background, so that no append waits for it.
const REFRESH_AFTER: Duration = Duration::from_millis(500);

/// Recently read tenants.
#[derive(Clone)]
pub struct TenantsSettings {
    store: Store,
    known: Cache<TenantId, Arc<Known>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A tenant as of a second ago or later.
pub struct Known {
    pub name: Name,
    pub settings: Arc<OwnSettings>,
    pub rates: Rates,
    /// Whether its requests are served.
    pub admitted: Result<(), Refusal>,
    pub revocations: Revocations,
    version: i64,
    /// The entry's state is from this time or later.
    read_at: Instant,
    history: History,
    refreshing: AtomicBool,
}

impl Known {
    fn new(tenant: Tenant, (history, read_at): (History, Instant)) -> Arc<Self> {
        let admitted = rules::tenant::admit(&tenant);
        let (name, version, revocations) = (tenant.name, tenant.version, tenant.revocations);
        let settings = Arc::new(tenant.settings);
        let rates = Rates::of(&settings);
        let refreshing = AtomicBool::new(false);
        Arc::new(Self {
            name,
            settings,
            rates,
            admitted,
            revocations,
            version,
            read_at,
            history,
            refreshing,
        })
    }

    fn is_younger(&self, than: Duration, history: History) -> bool {
        self.history == history && self.read_at.elapsed() < than
    }
}

impl TenantsSettings {
    pub fn new(store: Store, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { store, known: Cache::new(REMEMBERED_TENANTS), tasks, stop }
    }

    /// Returns the tenant's own settings as of a second ago or later.
    pub async fn of(&self, tenant: TenantId) -> Result<Arc<OwnSettings>, Error> {
        let known = self.known(tenant).await?.ok_or_else(Error::tenant_is_gone)?;
        Ok(known.settings.clone())
    }

    /// Returns none if the tenant is deleted with all its data.
    pub async fn known(&self, tenant: TenantId) -> Result<Option<Arc<Known>>, Error> {
        let Some(known) = self.known.get(&tenant).await else {
            return self.younger_than(SETTINGS_LAG, tenant).await;
        };
        if !known.is_younger(SETTINGS_LAG, self.store.history()) {
            return self.younger_than(SETTINGS_LAG, tenant).await;
        }
        if known.read_at.elapsed() >= REFRESH_AFTER
            && !known.refreshing.swap(true, Ordering::Relaxed)
        {
            let refresh = self.clone();
            let refresh = async move {
                // in vain: the next one that finds nothing recent enough reports why
                let _ = refresh.younger_than(REFRESH_AFTER, tenant).await;
            };
            self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(refresh));
        }
        Ok(Some(known))
    }

    /// Returns what was read last, however long ago.
    pub async fn last_known(&self, tenant: TenantId) -> Option<Arc<Known>> {
        self.known.get(&tenant).await
    }

    /// Reads of one tenant are serialized, so that an older result never replaces a newer one, and
    /// waiting reads find what they wait for.
    async fn younger_than(
        &self,
        age: Duration,
        tenant: TenantId,
    ) -> Result<Option<Arc<Known>>, Error> {
        let found = self.known.entry(tenant).and_try_compute_with(|known| async move {
            let read_in = (self.store.history(), Instant::now());
            if known.is_some_and(|known| known.value().is_younger(age, read_in.0)) {
                return Ok::<_, Error>(Op::Nop);
            }
            Ok(match read(&self.store, tenant).await? {
                Some(tenant) => Op::Put(Known::new(tenant, read_in)),
                None => Op::Remove,
            })
        });
        Ok(match found.await? {
            CompResult::Inserted(known)
            | CompResult::ReplacedWith(known)
            | CompResult::Unchanged(known) => Some(known.into_value()),
            CompResult::Removed(_) | CompResult::StillNone(_) => None,
        })
    }

    pub async fn forget(&self, tenant: TenantId) {
        self.known.invalidate(&tenant).await;
    }

    /// Stores a state that was just committed.
    pub async fn changed(&self, id: TenantId, tenant: &Tenant) {
        let history = self.store.history();
        let new = Known::new(tenant.clone(), (history, Instant::now()));
        let put = |known: Option<Entry<_, Arc<Known>>>| async move {
            let is_later = known.is_none_or(|known| {
                known.value().history != history || known.value().version < new.version
            });
            if is_later { Op::Put(new) } else { Op::Nop }
        };
        self.known.entry(id).and_compute_with(put).await;
    }
}

async fn read(store: &Store, tenant: TenantId) -> Result<Option<Tenant>, Error> {
    let read =
        store.run(async move |connection| store::catalog::tenants::read(connection, tenant).await);
    Ok(read.await?)
}

impl Broker {
    pub async fn settings(&self, tenant: TenantId) -> Result<TenantSettings, Error> {
        let read = read(&self.store, tenant).await?.ok_or_else(Error::tenant_is_gone)?;
        Ok(rules::settings::of_tenant(&read.settings, read.version))
    }

    /// Returns the settings after the patch, which takes effect at once here and within a second on
    /// other replicas.
    pub async fn patch_settings(
        &self,
        tenant: TenantId,
        changes: Changes,
        if_match: Option<IfMatch>,
    ) -> Result<TenantSettings, Error> {
        let patch = self.store.of(tenant).transaction(async move |connection| {
            let former = lock_tenant(connection, tenant).await?;
            let (own, version) = (&former.settings, former.version);
            let own = rules::settings::patch_tenant(own, version, &changes, if_match.as_ref())?;
            let mut patched = former.clone();
            if own != former.settings {
                store::catalog::tenants::update(connection, tenant, &own).await?;
                patched.version += 1;
                patched.settings = own;
            }
            Ok::<_, Error>((former, patched))
        });
        let (former, patched) = patch.await?;
        tell_changes(tenant, &former.settings, &patched.settings);
        self.settings.changed(tenant, &patched).await;
        Ok(rules::settings::of_tenant(&patched.settings, patched.version))
    }
}

/// Locks the row of a tenant to create something in it.
pub async fn lock_tenant(connection: &mut Connection, id: TenantId) -> Result<Tenant, Error> {
    let tenant =
        store::catalog::tenants::lock(connection, id).await?.ok_or_else(Error::tenant_is_gone)?;
    rules::tenant::is_there(&tenant)?;
    Ok(tenant)
}

fn tell_changes(tenant: TenantId, former: &OwnSettings, own: &OwnSettings) {
    for key in Key::ALL.iter().filter(|key| former.values.get(key) != own.values.get(key)) {
        let old = rules::settings::in_force(*key, &[former]);
        let new = rules::settings::in_force(*key, &[own]);
        tracing::info!(tenant_id = tenant.0, setting = key.name(), %old, %new, "setting changed");
    }
}
