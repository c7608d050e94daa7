//! A cache of whose sessions are. A producer keeps its name, or the subject that opened it first,
//! as long as it exists, and its id is never given to another one.

use moka::future::Cache;

use crate::{
    broker::Error,
    model::{ProducerId, Scopes, TenantId, scopes::SessionOwner},
    rules::{Refusal, access::check_session},
    store::{self, History, Store},
};

/// Maximum number of cached sessions.
const REMEMBERED_SESSIONS: u64 = 100_000;

pub struct SessionOwners {
    store: Store,
    known: Cache<(History, TenantId, ProducerId), SessionOwner>,
}

impl SessionOwners {
    pub fn new(store: Store) -> Self {
        Self { store, known: Cache::new(REMEMBERED_SESSIONS) }
    }

    /// Fails unless the token covers the session; most tokens cover all, or it is cached.
    pub async fn check(
        &self,
        tenant: TenantId,
        id: ProducerId,
        scopes: &Scopes,
    ) -> Result<(), Error> {
        if scopes.produces_everywhere() {
            return Ok(());
        }
        let key = (self.store.history(), tenant, id);
        if let Some(owner) = self.known.get(&key).await {
            return Ok(check_session(scopes, &owner)?);
        }
        let read = self
            .store
            .of(tenant)
            .run(async move |connection| store::session::read(connection, tenant, id).await);
        let row = read.await?.ok_or(Refusal::UnknownProducer { producer_id: id })?;
        let owner = row.owner();
        self.known.insert(key, owner.clone()).await;
        Ok(check_session(scopes, &owner)?)
    }
}
