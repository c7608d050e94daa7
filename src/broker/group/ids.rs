//! A cache of group ids by name.

use moka::future::Cache;

use crate::{
    broker::Error,
    model::{GroupId, Name, TenantId},
    store::{self, History, Store},
};

/// Maximum number of cached groups.
const REMEMBERED_GROUPS: u64 = 100_000;

pub struct GroupIds {
    store: Store,
    /// The id with a generation that the group has had.
    known: Cache<(History, TenantId, Name), (GroupId, i64)>,
}

impl GroupIds {
    pub fn new(store: Store) -> Self {
        Self { store, known: Cache::new(REMEMBERED_GROUPS) }
    }

    /// Returns the group's id and a generation that it has had: from the cache if that suffices,
    /// else fresh. None: the group does not exist.
    pub async fn find(
        &self,
        tenant: TenantId,
        group: &Name,
        will_do: impl Fn(GroupId, i64) -> bool,
    ) -> Result<Option<(GroupId, i64)>, Error> {
        let key = (self.store.history(), tenant, group.clone());
        let known = self.known.get(&key).await;
        if let Some(known) = known.filter(|(id, generation)| will_do(*id, *generation)) {
            return Ok(Some(known));
        }
        let name = group.clone();
        let find = self.store.of(tenant).run(async move |connection| {
            store::group::leases::group_id(connection, tenant, &name).await
        });
        let found = find.await?;
        match found {
            Some(found) => self.known.insert(key, found).await,
            None => self.known.invalidate(&key).await,
        }
        Ok(found)
    }
}
