//! Names of logs. A log belongs to one partition of one incarnation of a topic, so a cached name
//! stays valid while the history lasts; it may be the name of a deleted log.

use std::collections::BTreeMap;

use moka::future::Cache;

use crate::{
    broker::Error,
    model::{LogId, Name, Partition, TenantId},
    store::{self, History, Store},
};

/// Maximum number of cached names.
const REMEMBERED_NAMES: u64 = 100_000;

pub struct LogNames {
    store: Store,
    known: Cache<(History, TenantId, LogId), (Name, Partition)>,
}

impl LogNames {
    pub fn new(store: Store) -> Self {
        Self { store, known: Cache::new(REMEMBERED_NAMES) }
    }

    /// Returns the names of logs; deleted logs may be missing.
    pub async fn of(
        &self,
        tenant: TenantId,
        logs: Vec<LogId>,
    ) -> Result<BTreeMap<LogId, (Name, Partition)>, Error> {
        let history = self.store.history();
        let (mut names, mut unknown) = (BTreeMap::new(), Vec::new());
        for log in logs {
            match self.known.get(&(history, tenant, log)).await {
                Some(name) => {
                    names.insert(log, name);
                }
                None => unknown.push(log),
            }
        }
        if !unknown.is_empty() {
            let find = self.store.of(tenant).run(async move |connection| {
                store::group::leases::names(connection, tenant, &unknown).await
            });
            for (log, topic, partition) in find.await? {
                let name = (topic.clone(), partition);
                self.known.insert((history, tenant, log), name).await;
                names.insert(log, (topic, partition));
            }
        }
        Ok(names)
    }
}
