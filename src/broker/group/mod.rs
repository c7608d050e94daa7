//! Joining a group, staying in it, and leaving it. Every change of ownership works the same way:
//! lock the group's row, load the whole group, apply the rule, and write the differences.

pub mod admin;
pub mod cursors;
pub mod fetch;
pub mod ids;
pub mod leases;
pub mod offsets;

use std::{collections::BTreeSet, sync::Arc};

use uuid::Uuid;

use super::{
    Answer, Broker, Error,
    idempotency::{Begun, IdempotentCall, count_replay},
    quotas::{self, Quota},
    retry,
    wakeup::watch::Change,
};
use crate::{
    model::{
        GroupId, Name, TenantId, Timestamp,
        dedup::RequestKey,
        group::{Join, Joined, Membership, Subscription},
        settings::OwnSettings,
    },
    rules::{
        self, Refusal,
        group::{GroupState, Revoked, Topics},
    },
    store::{self, Connection, group::leases::MemberStatus},
    telemetry,
};

/// How often a change starts again after a conflict on the same rows.
const CHANGE_ATTEMPTS: usize = 5;

type Stop = retry::Stop<Joined>;

/// The context of a change, beside the group.
pub(super) struct ChangeContext {
    pub topics: Topics,
    pub now: Timestamp,
}

/// The result of a change.
pub(super) struct Changed {
    pub group_id: GroupId,
    pub before: GroupState,
    pub after: GroupState,
    /// The number of partitions whose owners did not release them in time.
    overdue: usize,
    /// The answer to a join.
    joined: Option<Joined>,
}

impl Changed {
    fn tell(&self, tenant: TenantId, group: &Name, cause: &'static str) {
        if self.after.generation != self.before.generation {
            metrics::counter!(telemetry::REBALANCES_TOTAL, "cause" => cause).increment(1);
        }
        if self.overdue > 0 {
            let partitions = self.overdue;
            tracing::info!(tenant_id = tenant.0, %group, partitions, "partitions not released in time were reassigned");
        }
    }
}

/// A joining member.
struct Joining {
    subscription: Subscription,
    member_id: String,
    /// Of groups.
    quota: Option<Quota>,
    once: IdempotentCall,
}

impl Broker {
    /// Starts the member's lease. The first join creates the group. `key` makes the join
    /// idempotent.
    pub async fn join_group(
        &self,
        tenant: TenantId,
        group: &Name,
        join: Join,
        key: Option<RequestKey>,
    ) -> Result<Answer<Joined>, Error> {
        let once = match self.begin_once(tenant, key).await? {
            Begun::Replay(joined) => return Ok(replayed(joined)),
            Begun::Fresh(once) => once,
        };
        let settings = self.settings.of(tenant).await?;
        let timeout_ms = session_timeout_ms(join.session_timeout_ms, &settings)?;
        let member_id = Uuid::now_v7().to_string();
        let subscription = join.subscription.clone();
        let quota = self.group_quota(tenant, &settings, group).await?;
        let joining = Joining { subscription, member_id: member_id.clone(), quota, once };
        let change = move |state: &mut GroupState, ground: &ChangeContext| {
            let known: BTreeSet<&Name> =
                ground.topics.partitions.iter().map(|(_, name, _)| name).collect();
            if let Some(topic) = join.subscription.topics.iter().find(|t| !known.contains(t)) {
                return Err(Error::topic_not_found(topic));
            }
            Ok(state.join(&member_id, &join, timeout_ms, &ground.topics, ground.now)?)
        };
        let joined = match self.change(tenant, group, "join", Some(joining), change).await {
            Ok(Changed { joined: Some(joined), .. }) => joined,
            Ok(Changed { joined: None, .. }) => return Err(Error::internal()),
            Err(Stop::Done(joined)) => return Ok(replayed(*joined)),
            Err(stop) => return Err(stop.into()),
        };
        let Joined { member_id, generation, .. } = &joined;
        tracing::debug!(tenant_id = tenant.0, %group, member_id, generation, "member joined");
        Ok(Answer::new(joined))
    }

    /// Renews the lease. `shown` is the generation of an answer that the member acknowledges.
    pub async fn heartbeat(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
        shown: Option<i64>,
    ) -> Result<Membership, Error> {
        let Some(beat) = self.leases.heartbeat(tenant, group, member_id).await? else {
            return Err(self.no_member(tenant, group).await);
        };
        self.membership(tenant, group, member_id, &beat, shown).await
    }

    /// Releases partitions after the member has committed the cursor of an answer of this
    /// generation. If this fails, its next call does it, or its time expires.
    pub(super) async fn let_go(&self, tenant: TenantId, group: &Name, member_id: &str, shown: i64) {
        let id = member_id.to_owned();
        let change = move |state: &mut GroupState, ground: &ChangeContext| {
            state.let_go(&id, Some(shown), ground.now);
            Ok(())
        };
        let _ = self.change_group(tenant, group, "handover", change).await;
    }

    /// Reassigns the member's partitions at once.
    pub async fn leave_group(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
    ) -> Result<(), Error> {
        let id = member_id.to_owned();
        let change = move |state: &mut GroupState, ground: &ChangeContext| {
            Ok(state.leave(&id, &ground.topics, ground.now)?)
        };
        self.change_group(tenant, group, "leave", change).await?;
        tracing::debug!(tenant_id = tenant.0, %group, member_id, "member left");
        Ok(())
    }

    /// The state of the member for its answer. `shown` is the generation of an answer that it
    /// acknowledges.
    pub(super) async fn membership(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
        beat: &MemberStatus,
        shown: Option<i64>,
    ) -> Result<Membership, Error> {
        let is_news = |revoked: Revoked| {
            let is_let_go = revoked.is_let_go(shown, beat.generation);
            is_let_go || revoked.let_go_by.is_none() || revoked.is_overdue(beat.now)
        };
        if beat.owned.iter().filter_map(|owned| owned.revoked).any(is_news) {
            let id = member_id.to_owned();
            let change = move |state: &mut GroupState, ground: &ChangeContext| {
                Ok(state.beat(&id, shown, ground.now)?)
            };
            let changed = self.change_group(tenant, group, "handover", change).await?;
            return Ok(changed.after.membership(member_id));
        }
        let logs = beat.owned.iter().map(|owned| owned.log_id).collect();
        let names = self.names.of(tenant, logs).await?;
        let mut membership = Membership { generation: beat.generation, ..Membership::default() };
        for owned in &beat.owned {
            let Some((topic, partition)) = names.get(&owned.log_id) else { continue };
            let told = match owned.revoked {
                Some(_) => &mut membership.revoked,
                None => &mut membership.assignment,
            };
            told.entry(topic.clone()).or_default().insert(*partition);
        }
        Ok(membership)
    }

    /// Returns the error for a missing member.
    pub(super) async fn no_member(&self, tenant: TenantId, group: &Name) -> Error {
        match self.group_ids.find(tenant, group, |_, _| false).await {
            Ok(Some(_)) => Refusal::UnknownMember.into(),
            Ok(None) => Error::group_not_found(group),
            Err(error) => error,
        }
    }

    /// Removes members whose lease has expired, and adds newly created partitions. A group that is
    /// locked is skipped, so that it does not delay others; the call that changes it does the same.
    pub(super) async fn settle_group(&self, tenant: TenantId, group: &Name, cause: &'static str) {
        let Some(_lock) = self.row_locks.try_take(tenant, Some(group)) else { return };
        let rule = Arc::new(|_: &mut GroupState, _: &ChangeContext| Ok(()));
        // what failed was logged, and is due again; a group that was deleted needs nothing
        if let Ok(changed) = self.try_change(tenant, group, Arc::default(), rule, true).await {
            changed.tell(tenant, group, cause);
        }
    }

    /// Changes a group, and notifies its members. Every change first removes members whose lease
    /// has expired and adds newly created partitions.
    pub(super) async fn change_group(
        &self,
        tenant: TenantId,
        group: &Name,
        cause: &'static str,
        rule: impl Rule,
    ) -> Result<Changed, Error> {
        Ok(self.change(tenant, group, cause, None, rule).await?)
    }

    /// `joins` creates the group if it does not exist.
    async fn change(
        &self,
        tenant: TenantId,
        group: &Name,
        cause: &'static str,
        joins: Option<Joining>,
        rule: impl Rule,
    ) -> Result<Changed, Stop> {
        let (rule, joins) = (Arc::new(rule), Arc::new(joins));
        let _lock = self.row_locks.take(tenant, Some(group)).await;
        let mut attempt = 1;
        let changed = loop {
            match self.try_change(tenant, group, joins.clone(), rule.clone(), false).await {
                Ok(changed) => break changed,
                Err(Stop::Contended(_)) if attempt < CHANGE_ATTEMPTS => attempt += 1,
                Err(stop) => return Err(stop),
            }
        };
        changed.tell(tenant, group, cause);
        Ok(changed)
    }

    /// With `hurries` it waits for a lock only a few milliseconds.
    async fn try_change(
        &self,
        tenant: TenantId,
        group: &Name,
        joins: Arc<Option<Joining>>,
        rule: Arc<impl Rule>,
        hurries: bool,
    ) -> Result<Changed, Stop> {
        let (group, store, notifier) =
            (group.clone(), self.store.of(tenant), self.notifier.clone());
        // goes with the work: a client that hangs up keeps no member waiting
        let change = self.tasks.spawn(async move {
            let work = store.transaction(async move |connection| {
                if hurries {
                    store::janitor::hurry(connection).await?;
                }
                decide(connection, tenant, &group, (*joins).as_ref(), &*rule).await
            });
            let changed = work.await?;
            let generation = changed.after.generation;
            if generation != changed.before.generation {
                notifier.changed(tenant, [(changed.group_id, Change::HighWatermark(generation))]);
            }
            Ok(changed)
        });
        change.await.unwrap_or_else(|_| Err(Error::internal().into()))
    }
}

/// The kind of change.
pub(super) trait Rule:
    Fn(&mut GroupState, &ChangeContext) -> Result<(), Error> + Send + Sync + 'static
{
}
impl<F> Rule for F where
    F: Fn(&mut GroupState, &ChangeContext) -> Result<(), Error> + Send + Sync + 'static
{
}

fn replayed(joined: Joined) -> Answer<Joined> {
    count_replay("join");
    Answer { value: joined, is_replay: true }
}

async fn decide(
    connection: &mut Connection,
    tenant: TenantId,
    group: &Name,
    joins: Option<&Joining>,
    rule: &impl Rule,
) -> Result<Changed, Stop> {
    let quota = joins.and_then(|joining| joining.quota);
    let held = quotas::hold(quota, connection, tenant).await?;
    let is_new = joins.is_some() && store::group::make(connection, tenant, group).await?;
    let Some(locked) = store::group::lock(connection, tenant, group).await? else {
        // deleted since it was made
        if joins.is_some() {
            return Err(store::Error::overtaken().into());
        }
        return Err(Error::group_not_found(group).into());
    };
    let before = locked.state;
    let once = match joins {
        Some(joining) => match joining.once.look_up(connection, tenant).await? {
            Begun::Replay(joined) => return Err(Stop::Done(Box::new(joined))),
            Begun::Fresh(once) => Some(once),
        },
        None => None,
    };
    if let Some(held) = held.filter(|_| is_new) {
        held.check(connection, tenant).await?;
    }
    let joining = joins.map(|joining| &joining.subscription);
    let subscriptions = || before.members.values().map(|m| &m.subscription).chain(joining);
    let names: BTreeSet<&Name> = subscriptions().flat_map(|s| &s.topics).collect();
    let all = subscriptions().any(|subscription| subscription.pattern.is_some());
    let topics = store::group::topics(connection, tenant, &names, all).await?;
    let ground = ChangeContext { topics, now: store::session::clock(connection).await? };
    let is_overdue = |revoked: Revoked| revoked.is_overdue(ground.now);
    let revoked = before.places.values().filter_map(|place| place.revoked);
    let overdue = revoked.filter(|revoked| is_overdue(*revoked)).count();
    let mut after = before.clone();
    after.expire(&ground.topics, ground.now);
    after.refresh(&ground.topics, ground.now);
    rule(&mut after, &ground)?;
    store::group::write(connection, tenant, group, (&before, &after), ground.now).await?;
    let joined = joins.and_then(|joining| joined(&after, &joining.member_id));
    if let Some((once, joined)) = once.zip(joined.as_ref()) {
        once.remember(connection, tenant, joined).await?;
    }
    Ok(Changed { group_id: locked.group_id, before, after, overdue, joined })
}

/// The answer to a join of this member.
fn joined(state: &GroupState, member_id: &str) -> Option<Joined> {
    let member = state.members.get(member_id)?;
    let Membership { generation, assignment, .. } = state.membership(member_id);
    Some(Joined {
        generation,
        assignment,
        heartbeat_interval_ms: member.heartbeat_interval_ms(),
        lease_expires_at: member.lease_expires_at,
        member_id: member_id.to_owned(),
    })
}

/// Checks the requested lease against the tenant's limits.
fn session_timeout_ms(asked_ms: Option<i64>, settings: &OwnSettings) -> Result<i64, Error> {
    rules::group::session_timeout_ms(asked_ms, settings).map_err(|range| {
        let (least, most) = (range.start(), range.end());
        let detail = format!(
            "expected {least} to {most} (session_timeout_min_ms to session_timeout_max_ms)"
        );
        Error::invalid("/session_timeout_ms", &detail)
    })
}
