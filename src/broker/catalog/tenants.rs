//! Tenants: those named by tokens, and their administration by operators.

use crate::{
    broker::{Broker, Error, Meter, NewTenants},
    model::{
        Name, TenantId,
        settings::{IfMatch, Maxima},
        tenant::{MaximaChanges, Tenant, TenantDescription, TenantPatch},
        topic::{Listed, Page},
    },
    rules,
    store::{self, Connection},
};

impl Broker {
    /// Returns a token's tenant by name if its requests are served; creates it at its first use.
    pub async fn tenant(&self, name: &Name) -> Result<TenantId, Error> {
        loop {
            let id = self.tenant_id(name).await?;
            let known = self.settings.known(id).await?;
            if let Some(known) = known.filter(|known| known.name == *name) {
                known.admitted.clone()?;
                return Ok(id);
            }
            // its row has gone, after all that it had, or with the history it was made in: from now
            // on its name, or its number, is another one's
            self.tenants.invalidate(name).await;
            self.settings.forget(id).await;
        }
    }

    /// The meter of an admitted tenant's rates, if it has some.
    pub async fn meter(&self, tenant: TenantId) -> Option<Meter> {
        let known = self.settings.last_known(tenant).await?;
        self.meters.of(tenant, known.rates).await
    }

    async fn tenant_id(&self, name: &Name) -> Result<TenantId, Error> {
        if let Some(tenant) = self.tenants.get(name).await {
            return Ok(tenant);
        }
        if let Some(refusal) = self.refused_tenants.get(name).await {
            return Err(refusal);
        }
        let (wanted, policy) = (name.clone(), self.new_tenants.clone());
        let find = self.store.transaction(async move |connection| {
            match store::catalog::tenants::find(connection, &wanted).await? {
                Some(tenant) => Ok(tenant),
                None => make_for_token(connection, &wanted, &policy).await,
            }
        });
        let found = find.await;
        match &found {
            Ok(tenant) => self.tenants.insert(name.clone(), *tenant).await,
            // every request with such a token would ask the database
            Err(error) if error.code.status() < 500 => {
                self.refused_tenants.insert(name.clone(), error.clone()).await;
            }
            Err(_) => {}
        }
        found
    }

    /// Returns `(description, created)`. `maxima` replaces all maxima.
    pub async fn put_tenant(
        &self,
        name: &Name,
        maxima: Option<MaximaChanges>,
    ) -> Result<(TenantDescription, bool), Error> {
        let (wanted, policy) = (name.clone(), self.new_tenants.clone());
        let put = self.store.transaction(async move |connection| {
            let defaults = &policy.default_maxima;
            let (id, tenant, created) = lock_or_make(connection, &wanted, defaults).await?;
            rules::tenant::is_there(&tenant)?;
            let maxima = maxima.map(|maxima| rules::tenant::patched(&Maxima::default(), &maxima));
            let after = match maxima {
                Some(maxima) => (maxima, tenant.suspended_at.is_some()),
                None => said(&tenant),
            };
            Ok::<_, Error>((operate(connection, id, tenant, after).await?, created))
        });
        let (change, created) = put.await?;
        if created {
            self.refused_tenants.invalidate(name).await;
            tracing::info!(tenant = %name, "tenant created by an operator");
        }
        Ok((self.operated(change).await, created))
    }

    pub async fn describe_tenant(&self, name: &Name) -> Result<TenantDescription, Error> {
        let wanted = name.clone();
        let describe = self.store.run(async move |connection| {
            match store::catalog::tenants::read_named(connection, &wanted).await? {
                Some((id, tenant)) => Ok(Some(described(connection, id, tenant).await?)),
                None => Ok::<_, store::Error>(None),
            }
        });
        describe.await?.ok_or_else(|| Error::no_tenant(name))
    }

    pub async fn list_tenants(&self, page: Page) -> Result<Listed<Tenant>, Error> {
        let Page { limit, after } = page;
        let list = self.store.run(async move |connection| {
            store::catalog::tenants::list(connection, &after.unwrap_or_default(), limit + 1).await
        });
        Ok(Listed::cut(list.await?, limit, |tenant| tenant.name.to_string()))
    }

    /// Returns the tenant after the patch, which takes effect at once here and within a second on
    /// other replicas.
    pub async fn patch_tenant(
        &self,
        name: &Name,
        patch: TenantPatch,
        if_match: Option<IfMatch>,
    ) -> Result<TenantDescription, Error> {
        let wanted = name.clone();
        let patched = self.store.transaction(async move |connection| {
            let locked = store::catalog::tenants::lock_named(connection, &wanted).await?;
            let (id, tenant) = locked.ok_or_else(|| Error::no_tenant(&wanted))?;
            let after = rules::tenant::patch(&tenant, &patch, if_match.as_ref())?;
            operate(connection, id, tenant, after).await
        });
        Ok(self.operated(patched.await?).await)
    }

    /// Refuses the tenant's requests from now on; its data is removed in the background.
    pub async fn delete_tenant(&self, name: &Name) -> Result<(), Error> {
        let wanted = name.clone();
        let delete = self.store.transaction(async move |connection| {
            let locked = store::catalog::tenants::lock_named(connection, &wanted).await?;
            let (id, tenant) = locked.ok_or_else(|| Error::no_tenant(&wanted))?;
            if tenant.deleted_at.is_some() {
                return Ok::<_, Error>(None);
            }
            store::catalog::tenants::delete(connection, id).await?;
            Ok(store::catalog::tenants::read(connection, id).await?.map(|tenant| (id, tenant)))
        });
        if let Some((id, tenant)) = delete.await? {
            tracing::info!(tenant = %name, "tenant deleted; its data is being removed");
            self.settings.changed(id, &tenant).await;
        }
        Ok(())
    }

    async fn operated(&self, change: TenantChange) -> TenantDescription {
        let TenantChange { id, former, described } = change;
        let now = &described.tenant;
        tell(&former, now);
        self.settings.changed(id, now).await;
        described
    }
}

/// The result of an operator's change.
struct TenantChange {
    id: TenantId,
    former: Tenant,
    described: TenantDescription,
}

/// Creates the tenant of a token, unless operators have to do that.
async fn make_for_token(
    connection: &mut Connection,
    name: &Name,
    policy: &NewTenants,
) -> Result<TenantId, Error> {
    let NewTenants { by_operators_only, max_tenants, default_maxima } = policy;
    if store::catalog::tenants::has_tombstone(connection, name).await? {
        return Err(Error::tenant_was_deleted(name));
    }
    if *by_operators_only {
        return Err(Error::tenant_is_unknown(name));
    }
    if let Some(limit) = *max_tenants
        && store::catalog::tenants::count_up_to(connection, limit).await? >= limit
    {
        // another request may have made it while this one waited to count
        let made = store::catalog::tenants::find(connection, name).await?;
        return made.ok_or_else(|| Error::too_many_tenants(limit));
    }
    loop {
        store::catalog::tenants::make(connection, name, default_maxima).await?;
        // unless another has made it, and it is gone again
        if let Some(tenant) = store::catalog::tenants::find(connection, name).await? {
            return Ok(tenant);
        }
    }
}

/// `maxima`: of a new tenant.
async fn lock_or_make(
    connection: &mut Connection,
    name: &Name,
    maxima: &Maxima,
) -> Result<(TenantId, Tenant, bool), Error> {
    let mut created = false;
    loop {
        if let Some((id, tenant)) = store::catalog::tenants::lock_named(connection, name).await? {
            return Ok((id, tenant, created));
        }
        store::catalog::tenants::drop_tombstone(connection, name).await?;
        created = store::catalog::tenants::make(connection, name, maxima).await?;
    }
}

/// The values that operators set on a tenant.
fn said(tenant: &Tenant) -> (Maxima, bool) {
    (tenant.settings.maxima.clone(), tenant.suspended_at.is_some())
}

async fn operate(
    connection: &mut Connection,
    id: TenantId,
    former: Tenant,
    after: (Maxima, bool),
) -> Result<TenantChange, Error> {
    let mut tenant = former.clone();
    if after != said(&former) {
        let (maxima, suspended) = after;
        store::catalog::tenants::operate(connection, id, &maxima, suspended).await?;
        let read = store::catalog::tenants::read(connection, id).await?;
        tenant = read.ok_or_else(Error::internal)?;
    }
    Ok(TenantChange { id, former, described: described(connection, id, tenant).await? })
}

async fn described(
    connection: &mut Connection,
    id: TenantId,
    tenant: Tenant,
) -> Result<TenantDescription, store::Error> {
    let (topic_count, partition_count) = store::catalog::topics::counts(connection, id).await?;
    Ok(TenantDescription { tenant, topic_count, partition_count })
}

fn tell(former: &Tenant, now: &Tenant) {
    let name = &now.name;
    match (former.suspended_at, now.suspended_at) {
        (None, Some(_)) => tracing::info!(tenant = %name, "tenant suspended"),
        (Some(_), None) => tracing::info!(tenant = %name, "tenant resumed"),
        (None, None) | (Some(_), Some(_)) => {}
    }
    let (old, new) = (&former.settings.maxima.0, &now.settings.maxima.0);
    let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(key)));
    for key in keys.filter(|key| old.get(key) != new.get(key)) {
        let [old, new] = [old.get(key), new.get(key)].map(|most| most.copied());
        tracing::info!(
            tenant = %name, setting = key.name(), ?old, ?new, "maximum of a setting changed"
        );
    }
}
