//! Checks the leases of group members, one statement for all calls of a tenant that arrived before
//! it. It returns whether each is a member and what it owns; another statement renews those leases
//! of which a third has passed.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    broker::{
        Error,
        coalesce::{Batch, Coalescer, SharedLookup, When},
    },
    model::{Name, TenantId},
    rules::group::renewed,
    store::{self, Connection, Store, group::leases::MemberStatus},
};

/// A member: its group and its id.
type MemberKey = (Name, String);

#[derive(Clone)]
struct LeaseCheck {
    store: Store,
}

impl SharedLookup for LeaseCheck {
    /// Their order is the one in which leases are locked.
    type Key = MemberKey;
    type Found = Arc<MemberStatus>;
    /// Heartbeats are not urgent.
    const WINDOW: Duration = Duration::from_millis(50);

    async fn run(
        &self,
        Batch { tenant, when, keys, .. }: Batch<MemberKey>,
    ) -> Result<HashMap<MemberKey, Arc<MemberStatus>>, store::Error> {
        // a heartbeat reads nothing
        let with_watermarks = when == When::Now;
        let check = self.store.of(tenant).write(async move |connection| {
            let found = check(connection, tenant, &keys, with_watermarks).await?;
            Ok::<_, store::Error>(keys.into_iter().zip(found))
        });
        let found = check.await?.filter_map(|(key, status)| Some((key, Arc::new(status?))));
        let found: HashMap<_, _> = found.collect();
        if let Some(status) = found.values().next() {
            self.store.saw(status.server);
        }
        Ok(found)
    }
}

/// None, where leases are checked, means that there is no such member.
#[derive(Clone)]
pub struct Leases {
    members: Coalescer<LeaseCheck>,
}

impl Leases {
    pub fn new(store: Store) -> Self {
        Self { members: Coalescer::new(LeaseCheck { store }) }
    }

    /// Returns the member's state as of now or later, and renews its lease.
    pub async fn check(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
    ) -> Result<Option<Arc<MemberStatus>>, Error> {
        self.members.find(tenant, (group.clone(), member_id.to_owned()), When::Now).await
    }

    /// Like [`Leases::check`], but without watermarks, and together with all calls of its window.
    pub async fn heartbeat(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
    ) -> Result<Option<Arc<MemberStatus>>, Error> {
        self.members.find(tenant, (group.clone(), member_id.to_owned()), When::AfterWindow).await
    }
}

/// `keys`: each once.
async fn check(
    connection: &mut Connection,
    tenant: TenantId,
    keys: &[MemberKey],
    with_watermarks: bool,
) -> Result<Vec<Option<MemberStatus>>, store::Error> {
    let members: Vec<(&Name, &str)> = keys.iter().map(|(g, id)| (g, id.as_str())).collect();
    let found = store::group::leases::beats(connection, tenant, &members, with_watermarks).await?;
    let mut due = Vec::new();
    for ((group, member_id), status) in members.into_iter().zip(&found) {
        let until = status
            .as_ref()
            .and_then(|found| renewed(found.lease_expires_at, found.session_timeout_ms, found.now));
        due.extend(until.map(|until| (group, member_id, until)));
    }
    if !due.is_empty() {
        store::group::leases::renew(connection, tenant, &due).await?;
    }
    Ok(found)
}
