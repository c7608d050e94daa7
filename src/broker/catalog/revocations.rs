//! Revocations of tokens: made and removed by operators, asked for by every request.

use chrono::Utc;
use uuid::Uuid;

use crate::{
    broker::{Broker, Error},
    model::{
        Code, Name, TenantId, Timestamp,
        tenant::{
            Tenant,
            revocation::{IssuedToken, Revocation, Revocations, Revoked},
        },
    },
    rules, store,
};

fn now() -> Timestamp {
    Utc::now().into()
}

impl Broker {
    /// Refuses a revoked token of an admitted tenant.
    pub async fn judge_token(&self, tenant: TenantId, token: IssuedToken<'_>) -> Result<(), Error> {
        match self.settings.last_known(tenant).await {
            Some(known) => judge(&known.revocations, token),
            None => Ok(()),
        }
    }

    /// Refuses a revoked token of an operator, whose tenant may be suspended, or not exist.
    pub async fn judge_operators_token(
        &self,
        tenant: &Name,
        token: IssuedToken<'_>,
    ) -> Result<(), Error> {
        let wanted = tenant.clone();
        let find = self
            .store
            .run(async move |connection| store::catalog::tenants::find(connection, &wanted).await);
        let id = match self.tenants.get(tenant).await {
            Some(id) => Some(id),
            None => find.await?,
        };
        let Some(id) = id else { return Ok(()) };
        match self.settings.known(id).await? {
            Some(known) if known.name == *tenant => judge(&known.revocations, token),
            _ => Ok(()),
        }
    }

    pub async fn list_revocations(&self, tenant: &Name) -> Result<Vec<Revocation>, Error> {
        let described = self.describe_tenant(tenant).await?;
        Ok(rules::revocation::in_force(&described.tenant.revocations, now()).cloned().collect())
    }

    /// Takes effect at once here and within a second on other replicas.
    pub async fn revoke_tokens(
        &self,
        tenant: &Name,
        revoked: Revoked,
        expires_at: Option<Timestamp>,
    ) -> Result<Revocation, Error> {
        let now = now();
        let new = Revocation { id: Uuid::now_v7(), revoked, created_at: now, expires_at };
        let made = new.clone();
        self.change_revocations(tenant, move |tenant| {
            rules::tenant::is_there(tenant)?;
            Ok(rules::revocation::with(&tenant.revocations, new.clone(), now)?)
        })
        .await?;
        tracing::info!(%tenant, revocation_id = %made.id, "tokens revoked");
        Ok(made)
    }

    pub async fn remove_revocation(&self, tenant: &Name, id: Uuid) -> Result<(), Error> {
        self.change_revocations(tenant, move |tenant| {
            Ok(rules::revocation::without(&tenant.revocations, id))
        })
        .await?;
        tracing::info!(%tenant, revocation_id = %id, "revocation removed");
        Ok(())
    }

    async fn change_revocations(
        &self,
        name: &Name,
        change: impl Fn(&Tenant) -> Result<Revocations, Error> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let wanted = name.clone();
        let changed = self.store.transaction(async move |connection| {
            let locked = store::catalog::tenants::lock_named(connection, &wanted).await?;
            let (id, mut tenant) = locked.ok_or_else(|| Error::no_tenant(&wanted))?;
            let revocations = change(&tenant)?;
            if revocations != tenant.revocations {
                store::catalog::tenants::revoke(connection, id, &revocations).await?;
                tenant.version += 1;
                tenant.revocations = revocations;
            }
            Ok::<_, Error>((id, tenant))
        });
        let (id, tenant) = changed.await?;
        self.settings.changed(id, &tenant).await;
        Ok(())
    }
}

fn judge(revocations: &Revocations, token: IssuedToken<'_>) -> Result<(), Error> {
    if rules::revocation::is_revoked(revocations, token, now()) {
        return Err(Error::new(Code::Unauthenticated, "The token was revoked."));
    }
    Ok(())
}
