//! Coalesces the calls of group members: all calls that arrived before a lease check share its one
//! statement, which returns whether each is a member and what it owns, and another statement that
//! renews those leases of which a third has passed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::sleep};

use crate::{
    broker::{Error, read::watermarks::When},
    model::{Name, TenantId},
    rules::group::renewed,
    store::{self, Connection, Store, group::leases::MemberStatus},
};

/// Maximum number of members per statement.
const MEMBERS_PER_BEAT: usize = 1_000;
/// Heartbeats are not urgent: those within this time of the first share a statement.
const HEARTBEAT_WINDOW: Duration = Duration::from_millis(50);

/// None: there is no such member.
pub type SeenMember = Option<Arc<MemberStatus>>;

struct LeaseCall {
    group: Name,
    member_id: String,
    answer: oneshot::Sender<Result<SeenMember, Error>>,
}

type Queue = (TenantId, When);

#[derive(Clone)]
pub struct Leases {
    store: Store,
    /// Calls waiting for the next lease check; an entry means that a task will make it.
    waiting: Arc<Mutex<HashMap<Queue, Vec<LeaseCall>>>>,
}

impl Leases {
    pub fn new(store: Store) -> Self {
        Self { store, waiting: Arc::default() }
    }

    /// Like [`Beats::beat`], together with all calls of its window.
    pub async fn heartbeat(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
    ) -> Result<SeenMember, Error> {
        self.ask((tenant, When::Later), group, member_id).await
    }

    /// Returns the member's state as of now or later, and renews its lease.
    pub async fn beat(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
    ) -> Result<SeenMember, Error> {
        self.ask((tenant, When::AtOnce), group, member_id).await
    }

    async fn ask(&self, queue: Queue, group: &Name, member_id: &str) -> Result<SeenMember, Error> {
        let (answer, answered) = oneshot::channel();
        let call = LeaseCall { group: group.clone(), member_id: member_id.to_owned(), answer };
        let idle = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = !waiting.contains_key(&queue);
            waiting.entry(queue).or_default().push(call);
            idle
        };
        if idle {
            // not owned by this call: others wait for it as well
            tokio::spawn(self.clone().serve(queue));
        }
        answered.await.unwrap_or_else(|_| Err(Error::internal()))
    }

    async fn serve(self, queue: Queue) {
        let (tenant, begins) = queue;
        let mut is_behind = false;
        loop {
            if begins == When::Later && !is_behind {
                sleep(HEARTBEAT_WINDOW).await;
            }
            let mut lot = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                match waiting.get_mut(&queue) {
                    Some(lot) if !lot.is_empty() => {
                        let rest = lot.split_off(lot.len().min(MEMBERS_PER_BEAT));
                        std::mem::replace(lot, rest)
                    }
                    _ => {
                        waiting.remove(&queue);
                        return;
                    }
                }
            };
            is_behind = lot.len() == MEMBERS_PER_BEAT;
            // in the order in which leases are locked
            lot.sort_by(|one, other| {
                (&one.group, &one.member_id).cmp(&(&other.group, &other.member_id))
            });
            let members: Vec<(Name, String)> =
                lot.iter().map(|call| (call.group.clone(), call.member_id.clone())).collect();
            // a heartbeat reads nothing
            let with_watermarks = begins == When::AtOnce;
            let look = self.store.of(tenant).write(async move |connection| {
                look(connection, tenant, &members, with_watermarks).await
            });
            match look.await {
                Ok(seen) => {
                    if let Some(beat) = seen.iter().flatten().next() {
                        self.store.saw(beat.server);
                    }
                    lot.into_iter().zip(seen).for_each(|(call, seen)| {
                        let _ = call.answer.send(Ok(seen.map(Arc::new)));
                    });
                }
                Err(error) => {
                    let error = Error::from(error);
                    lot.into_iter().for_each(|call| {
                        let _ = call.answer.send(Err(error.clone()));
                    });
                }
            }
        }
    }
}

async fn look(
    connection: &mut Connection,
    tenant: TenantId,
    members: &[(Name, String)],
    with_watermarks: bool,
) -> Result<Vec<Option<MemberStatus>>, store::Error> {
    let asked: Vec<(&Name, &str)> = members.iter().map(|(g, id)| (g, id.as_str())).collect();
    let beats = store::group::leases::beats(connection, tenant, &asked, with_watermarks).await?;
    let mut leases = Vec::new();
    for ((group, member_id), beat) in asked.into_iter().zip(&beats) {
        let due = beat
            .as_ref()
            .and_then(|beat| renewed(beat.lease_expires_at, beat.session_timeout_ms, beat.now));
        leases.extend(due.map(|until| (group, member_id, until)));
    }
    leases.dedup_by(|one, other| (one.0, one.1) == (other.0, other.1));
    if !leases.is_empty() {
        store::group::leases::renew(connection, tenant, &leases).await?;
    }
    Ok(beats)
}
