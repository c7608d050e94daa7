//! Joining a group, staying in it, leaving it. All that changes who owns what goes one way: the
//! group's row is locked, all of the group loaded, the rule asked, and what differs written.

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

/// How often a change starts again when others were quicker at the same rows.
const CHANGE_ATTEMPTS: usize = 5;

/// What a change is decided on, beside the group.
pub(super) struct ChangeContext {
    pub topics: Topics,
    pub now: Timestamp,
}

/// A change that was made.
pub(super) struct Changed {
    pub group_id: GroupId,
    pub before: GroupState,
    pub after: GroupState,
    /// Partitions whose owners were told to let go of them, and had not in time.
    overdue: usize,
    /// What who has joined is answered.
    joined: Option<Joined>,
}

impl Changed {
    fn tell(&self, tenant: TenantId, group: &Name, cause: &'static str) {
        if self.after.generation != self.before.generation {
            metrics::counter!(telemetry::REBALANCES_TOTAL, "cause" => cause).increment(1);
        }
        if self.overdue > 0 {
            let partitions = self.overdue;
            tracing::info!(tenant_id = tenant.0, %group, partitions, "members did not let go in time of what they were told to");
        }
    }
}

/// Who joins.
struct Joining {
    subscription: Subscription,
    member_id: String,
    once: IdempotentCall,
}

impl Broker {
    /// The member's lease begins now. The group is made at its first join. `key`: under which the join
    /// is done once.
    pub async fn join_group(
        &self,
        tenant: TenantId,
        group: &Name,
        join: Join,
        key: Option<RequestKey>,
    ) -> Result<Answer<Joined>, Error> {
        let once = match self.look_once(tenant, key).await? {
            Begun::Before(joined) => return Ok(replayed(joined)),
            Begun::New(once) => once,
        };
        let settings = self.settings.of(tenant).await?;
        let timeout_ms = session_timeout_ms(join.session_timeout_ms, &settings)?;
        let member_id = Uuid::now_v7().to_string();
        let subscription = join.subscription.clone();
        let joining = Joining { subscription, member_id: member_id.clone(), once };
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
            Err(Stop::Before(joined)) => return Ok(replayed(joined)),
            Err(stop) => return Err(stop.into()),
        };
        let Joined { member_id, generation, .. } = &joined;
        tracing::debug!(tenant_id = tenant.0, %group, member_id, generation, "a member has joined");
        Ok(Answer::new(joined))
    }

    /// Renews the lease. `shown`: the generation of an answer that the member has.
    pub async fn heartbeat(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
        shown: Option<i64>,
    ) -> Result<Membership, Error> {
        let Some(beat) = self.beats.heartbeat(tenant, group, member_id).await? else {
            return Err(self.no_member(tenant, group).await);
        };
        self.membership(tenant, group, member_id, &beat, shown).await
    }

    /// The member has committed the cursor of an answer of this generation, and lets go of what that
    /// told it to. Where that fails it is for its next call, or its time runs out.
    pub(super) async fn let_go(&self, tenant: TenantId, group: &Name, member_id: &str, shown: i64) {
        let id = member_id.to_owned();
        let change = move |state: &mut GroupState, ground: &ChangeContext| {
            state.let_go(&id, Some(shown), ground.now);
            Ok(())
        };
        let _ = self.change_group(tenant, group, "handover", change).await;
    }

    /// What the member owns goes to others at once.
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
        tracing::debug!(tenant_id = tenant.0, %group, member_id, "a member has left");
        Ok(())
    }

    /// What the member is told. `shown`: the generation of an answer that it has.
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

    /// Why there is no such member.
    pub(super) async fn no_member(&self, tenant: TenantId, group: &Name) -> Error {
        match self.group_ids.find(tenant, group, |_, _| false).await {
            Ok(Some(_)) => Refusal::UnknownMember.into(),
            Ok(None) => Error::group_not_found(group),
            Err(error) => error,
        }
    }

    /// Members whose lease has run out go, partitions that were made meanwhile come in. A group that
    /// somebody is at is passed by: what it holds up does not hold up the others, and whoever changes
    /// it does the same.
    pub(super) async fn settle_group(&self, tenant: TenantId, group: &Name, cause: &'static str) {
        let Some(_turn) = self.turns.try_take(tenant, Some(group)) else { return };
        let rule = Arc::new(|_: &mut GroupState, _: &ChangeContext| Ok(()));
        // what failed was logged, and is due again; a group that was deleted needs nothing
        if let Ok(changed) = self.try_change(tenant, group, Arc::default(), rule, true).await {
            changed.tell(tenant, group, cause);
        }
    }

    /// Changes a group, and tells its members. Whatever is asked for, members whose lease has run
    /// out go first, and partitions that were made meanwhile come in.
    pub(super) async fn change_group(
        &self,
        tenant: TenantId,
        group: &Name,
        cause: &'static str,
        rule: impl Rule,
    ) -> Result<Changed, Error> {
        Ok(self.change(tenant, group, cause, None, rule).await?)
    }

    /// `joins`: makes the group if there is none.
    async fn change(
        &self,
        tenant: TenantId,
        group: &Name,
        cause: &'static str,
        joins: Option<Joining>,
        rule: impl Rule,
    ) -> Result<Changed, Stop> {
        let (rule, joins) = (Arc::new(rule), Arc::new(joins));
        let _turn = self.turns.take(tenant, Some(group)).await;
        let mut attempt = 1;
        let changed = loop {
            match self.try_change(tenant, group, joins.clone(), rule.clone(), false).await {
                Ok(changed) => break changed,
                Err(Stop::Again(_)) if attempt < CHANGE_ATTEMPTS => attempt += 1,
                Err(stop) => return Err(stop),
            }
        };
        changed.tell(tenant, group, cause);
        Ok(changed)
    }

    /// `hurries`: waits for no lock for longer than a few milliseconds.
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
            let work = store.transaction(move |connection| {
                Box::pin(async move {
                    if hurries {
                        store::janitor::hurry(connection).await?;
                    }
                    decide(connection, tenant, &group, (*joins).as_ref(), &*rule).await
                })
            });
            let changed = work.await?;
            let generation = changed.after.generation;
            if generation != changed.before.generation {
                notifier.group_changed(tenant, changed.group_id, generation);
            }
            Ok(changed)
        });
        change.await.unwrap_or_else(|_| Err(Error::internal().into()))
    }
}

/// What is to become of a group.
pub(super) trait Rule:
    Fn(&mut GroupState, &ChangeContext) -> Result<(), Error> + Send + Sync + 'static
{
}
impl<F> Rule for F where
    F: Fn(&mut GroupState, &ChangeContext) -> Result<(), Error> + Send + Sync + 'static
{
}

/// Why one attempt of a change ended without a result.
enum Stop {
    Failed(Error),
    /// Others were quicker at the same rows.
    Again(store::Error),
    /// The join was done before, under the same key.
    Before(Joined),
}

impl From<store::Error> for Stop {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Contended(_) => Stop::Again(error),
            error => Stop::Failed(error.into()),
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Failed(error) => error,
            Stop::Again(error) => error.into(),
            Stop::Before(_) => Error::internal(),
        }
    }
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
    if joins.is_some() {
        store::group::make(connection, tenant, group).await?;
    }
    let Some(locked) = store::group::lock(connection, tenant, group).await? else {
        // deleted since it was made
        if joins.is_some() {
            return Err(store::Error::overtaken().into());
        }
        return Err(Error::group_not_found(group).into());
    };
    let before = locked.state;
    let once = match joins {
        Some(joining) => match joining.once.look(connection, tenant).await? {
            Begun::Before(joined) => return Err(Stop::Before(joined)),
            Begun::New(once) => Some(once),
        },
        None => None,
    };
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

/// What a member of this id is told of its join.
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

/// How long a lease is to be, if the tenant permits it.
fn session_timeout_ms(asked_ms: Option<i64>, settings: &OwnSettings) -> Result<i64, Error> {
    rules::group::session_timeout_ms(asked_ms, settings).map_err(|range| {
        let (least, most) = (range.start(), range.end());
        let detail = format!(
            "{least} to {most} is expected: session_timeout_min_ms and session_timeout_max_ms say so"
        );
        Error::invalid("/session_timeout_ms", &detail)
    })
}
