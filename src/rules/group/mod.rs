//! Membership of a group, and ownership of its partitions.
//!
//! A partition has an owner, which alone can commit there, and the newest assignment gives it to a
//! member. If the two differ, the partition is revoked: every response says so to the owner, and
//! the owner releases it with a call that carries the generation of one of them (cooperative:
//! KIP-429). A call without one releases nothing, because the previous response may have been lost.
//! An owner that was told and does not confirm loses the partition after a while. A former member
//! owns nothing. Every assignment and every handover is a new generation, so a member and the
//! generation in which it got a partition identify one ownership.

pub mod assign;
pub mod offsets;
pub mod position;
pub mod reset;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use self::assign::{Piece, Subscriber, assign};
use super::{Refusal, settings::limit};
use crate::model::{
    LogId, Name, Partition, Timestamp,
    group::{
        AutoOffsetReset, DEFAULT_SESSION_TIMEOUT_MS, Join, MAX_MEMBERS, MAX_PATTERNS, Membership,
        Partitions, Subscription, TopicPattern,
    },
    settings::{Key, OwnSettings},
};

/// The minimum time that a member can keep a revoked partition, however short its lease is.
pub const MIN_LETTING_GO_MS: i64 = 30_000;

/// The complete state of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupState {
    pub generation: i64,
    pub auto_offset_reset: AutoOffsetReset,
    /// All subscriptions that members have ever had.
    pub patterns: Vec<TopicPattern>,
    /// The topics at the time of the newest assignment.
    pub topics_version: i64,
    pub members: BTreeMap<String, Member>,
    /// The partitions that it owns, has owned or has committed in, of existing topics.
    pub places: BTreeMap<LogId, GroupPartition>,
}

/// A member, which is a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub instance_id: Option<String>,
    pub subscription: Subscription,
    pub session_timeout_ms: i64,
    pub joined_at: Timestamp,
    pub lease_expires_at: Timestamp,
}

/// A partition in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPartition {
    pub topic: Name,
    pub partition: Partition,
    pub owner: Option<Owner>,
    /// The member of the newest assignment.
    pub assigned_to: Option<String>,
    /// Set while the owner must release it.
    pub revoked: Option<Revoked>,
    /// None: the group has not subscribed to it.
    pub starts: Option<Starts>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub member_id: String,
    /// The generation in which it became the owner.
    pub since: i64,
    /// When it became the owner.
    pub at: Timestamp,
}

/// The revocation of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revoked {
    /// The generation that revokes it: every response of that or a later one says so.
    pub since: i64,
    /// When the owner loses it, set by the first response that announces it. None: not announced.
    pub let_go_by: Option<Timestamp>,
}

/// Where a group starts in a partition without a committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Starts {
    /// The partition existed when the group first subscribed: `auto_offset_reset` decides.
    Reset,
    /// The partition was created later: the log's start, because all of its records came later.
    Earliest,
}

/// The topics of the tenant, with their partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topics {
    pub version: i64,
    pub partitions: Vec<(LogId, Name, Partition)>,
}

impl Revoked {
    /// Whether the owner releases it with a call that carries this generation. A future generation
    /// was never in a response.
    pub fn is_let_go(&self, shown: Option<i64>, newest: i64) -> bool {
        shown.is_some_and(|shown| (self.since..=newest).contains(&shown))
    }

    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.let_go_by.is_some_and(|let_go_by| let_go_by < now)
    }
}

impl Member {
    /// How long it can keep a revoked partition.
    fn letting_go_ms(&self) -> i64 {
        self.session_timeout_ms.max(MIN_LETTING_GO_MS)
    }

    /// A third of the lease.
    pub fn heartbeat_interval_ms(&self) -> i64 {
        self.session_timeout_ms / 3
    }
}

/// The length of a lease; an error states the allowed range.
pub fn session_timeout_ms(
    asked_ms: Option<i64>,
    tenant: &OwnSettings,
) -> Result<i64, RangeInclusive<i64>> {
    let least = limit(Key::SessionTimeoutMinMs, &[tenant]);
    let most = limit(Key::SessionTimeoutMaxMs, &[tenant]).max(least);
    match asked_ms {
        None => Ok(DEFAULT_SESSION_TIMEOUT_MS.clamp(least, most)),
        Some(asked) if (least..=most).contains(&asked) => Ok(asked),
        Some(_) => Err(least..=most),
    }
}

/// The end of a lease that is renewed now; None if less than a third of it has passed.
pub fn renewed(lease_expires_at: Timestamp, timeout_ms: i64, now: Timestamp) -> Option<Timestamp> {
    let renewed = Timestamp(now.0 + timeout_ms);
    (renewed.0 - lease_expires_at.0 >= timeout_ms / 3).then_some(renewed)
}

impl GroupState {
    /// A member joins, and replaces one with the same `instance_id`. If the subscription is
    /// unchanged, nothing moves except pending handovers.
    pub fn join(
        &mut self,
        member_id: &str,
        join: &Join,
        session_timeout_ms: i64,
        topics: &Topics,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let is_former = |(_, member): &(&String, &Member)| member.instance_id == join.instance_id;
        let former = self.members.iter().filter(|_| join.instance_id.is_some()).find(is_former);
        let former = former.map(|(id, _)| id.clone());
        if former.is_none() && self.members.len() >= MAX_MEMBERS {
            return Err(too_many("members of a group", MAX_MEMBERS));
        }
        let mut pattern =
            join.subscription.pattern.iter().filter(|new| !self.patterns.contains(new));
        let new_pattern = pattern.next().cloned();
        if new_pattern.is_some() && self.patterns.len() >= MAX_PATTERNS {
            return Err(too_many("patterns of a group", MAX_PATTERNS));
        }
        let known = self.subscribed(topics);
        self.patterns.extend(new_pattern);
        self.auto_offset_reset = join.auto_offset_reset.unwrap_or(self.auto_offset_reset);
        let subscription = join.subscription.clone();
        let same = former.and_then(|former| self.replace(&former, member_id));
        let is_same = same.is_some_and(|same| same == subscription);
        let member = Member {
            instance_id: join.instance_id.clone(),
            subscription,
            session_timeout_ms,
            joined_at: now,
            lease_expires_at: Timestamp(now.0 + session_timeout_ms),
        };
        self.members.insert(member_id.to_owned(), member);
        if !is_same {
            self.rebalance(topics, Some(&known), now);
        }
        // what its answer does not give it, it never had
        self.hand_over(now, |place| place.is_owned_by(member_id));
        Ok(())
    }

    /// Transfers everything from the former member to the new one. Returns the former subscription.
    fn replace(&mut self, former: &str, by: &str) -> Option<Subscription> {
        for place in self.places.values_mut() {
            let owner = place.owner.as_mut().map(|owner| &mut owner.member_id);
            for holder in owner.into_iter().chain(&mut place.assigned_to) {
                if holder == former {
                    by.clone_into(holder);
                }
            }
        }
        self.members.remove(former).map(|member| member.subscription)
    }

    pub fn leave(
        &mut self,
        member_id: &str,
        topics: &Topics,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.members.remove(member_id).ok_or(Refusal::UnknownMember)?;
        self.rebalance(topics, None, now);
        Ok(())
    }

    /// Removes members whose lease has expired, and returns how many; reassigns revoked partitions
    /// that were not released in time.
    pub fn expire(&mut self, topics: &Topics, now: Timestamp) -> usize {
        let before = self.members.len();
        self.members.retain(|_, member| member.lease_expires_at >= now);
        let expired = before - self.members.len();
        if expired > 0 {
            self.rebalance(topics, None, now);
        }
        self.hand_over(now, |place| place.revoked.is_some_and(|revoked| revoked.is_overdue(now)));
        expired
    }

    /// Applies changes of topics.
    pub fn refresh(&mut self, topics: &Topics, now: Timestamp) {
        if self.topics_version == topics.version {
            return;
        }
        let (generation, places) = (self.generation, self.places.clone());
        self.rebalance(topics, None, now);
        if self.places == places {
            self.generation = generation;
        }
    }

    /// A call of a member. `shown`: the generation of a response that it has.
    pub fn beat(
        &mut self,
        member_id: &str,
        shown: Option<i64>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let member = self.members.get_mut(member_id).ok_or(Refusal::UnknownMember)?;
        let renewed = renewed(member.lease_expires_at, member.session_timeout_ms, now);
        member.lease_expires_at = renewed.unwrap_or(member.lease_expires_at);
        let let_go_by = Timestamp(now.0 + member.letting_go_ms());
        self.let_go(member_id, shown, now);
        // the answer says the rest
        let owned = self.places.values_mut().filter(|place| place.is_owned_by(member_id));
        for revoked in owned.filter_map(|place| place.revoked.as_mut()) {
            revoked.let_go_by.get_or_insert(let_go_by);
        }
        Ok(())
    }

    /// Releases the partitions whose revocation was in a response of this generation.
    pub fn let_go(&mut self, member_id: &str, shown: Option<i64>, now: Timestamp) {
        let newest = self.generation;
        let is_told = |revoked: Revoked| revoked.is_let_go(shown, newest);
        self.hand_over(now, |place| {
            place.is_owned_by(member_id) && place.revoked.is_some_and(is_told)
        });
    }

    /// Hands released partitions over to the members they are assigned to.
    fn hand_over(&mut self, now: Timestamp, is_let_go: impl Fn(&GroupPartition) -> bool) {
        let since = self.generation + 1;
        let mut moved = false;
        let revoked = self.places.values_mut().filter(|place| place.revoked.is_some());
        for place in revoked.filter(|place| is_let_go(place)) {
            place.owner = None;
            place.settle(since, now);
            moved = true;
        }
        self.generation += i64::from(moved);
    }

    /// The response to a member.
    pub fn membership(&self, member_id: &str) -> Membership {
        let (mut assignment, mut revoked) = (Partitions::new(), Partitions::new());
        for place in self.places.values().filter(|place| place.is_owned_by(member_id)) {
            let told = if place.is_to_move() { &mut revoked } else { &mut assignment };
            told.entry(place.topic.clone()).or_default().insert(place.partition);
        }
        Membership { generation: self.generation, assignment, revoked }
    }

    /// The topics that the group already subscribes to.
    fn subscribed(&self, topics: &Topics) -> BTreeSet<Name> {
        let begun = self.places.values().filter(|place| place.starts.is_some());
        let mut subscribed: BTreeSet<Name> = begun.map(|place| place.topic.clone()).collect();
        let names: BTreeSet<&Name> = topics.partitions.iter().map(|(_, name, _)| name).collect();
        subscribed.extend(names.into_iter().filter(|name| self.covers(name)).cloned());
        subscribed
    }

    fn covers(&self, topic: &Name) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(topic))
            || self.members.values().any(|member| member.subscription.topics.contains(topic))
    }

    /// Reassigns the partitions. `known`: the former subscription of the group; None: the current
    /// one.
    fn rebalance(&mut self, topics: &Topics, known: Option<&BTreeSet<Name>>, now: Timestamp) {
        let names: BTreeSet<&Name> = topics.partitions.iter().map(|(_, name, _)| name).collect();
        // also those that no member may read, which then stay unassigned
        let mut wanted: BTreeSet<&Name> = BTreeSet::new();
        let subscriber = |(member_id, Member { subscription, .. }): (&String, &Member)| {
            let own: Vec<&Name> =
                names.iter().copied().filter(|name| subscription.wants(name)).collect();
            wanted.extend(&own);
            let readable = own.into_iter().filter(|name| subscription.readable.covers(name));
            Subscriber { member_id: member_id.clone(), topics: readable.cloned().collect() }
        };
        let subscribers: Vec<Subscriber> = self.members.iter().map(subscriber).collect();
        for (log_id, topic, partition) in &topics.partitions {
            if wanted.contains(topic) {
                let place = self
                    .places
                    .entry(*log_id)
                    .or_insert_with(|| GroupPartition::new(topic, *partition));
                let is_known = known.is_none_or(|known| known.contains(topic));
                let starts = if is_known { Starts::Earliest } else { Starts::Reset };
                place.starts.get_or_insert(starts);
            }
        }
        let pieces: Vec<Piece<'_>> =
            self.places.iter().map(|(log_id, place)| self.piece(*log_id, place)).collect();
        let assigned = assign(&subscribers, &pieces);
        let generation = self.generation + 1;
        for (place, assigned_to) in self.places.values_mut().zip(assigned) {
            let is_gone = |owner: &Owner| !self.members.contains_key(&owner.member_id);
            place.owner.take_if(|owner| is_gone(owner));
            place.assigned_to = assigned_to.map(str::to_owned);
            place.settle(generation, now);
        }
        self.generation = generation;
        self.topics_version = topics.version;
    }
}

impl GroupState {
    /// A partition, with the member that holds it by assignment, or else still owns it.
    fn piece<'a>(&self, log_id: LogId, place: &'a GroupPartition) -> Piece<'a> {
        let owner = place.owner.as_ref().map(|owner| owner.member_id.as_str());
        let may_hold = |holder: &&str| {
            self.members.get(*holder).is_some_and(|m| m.subscription.covers(&place.topic))
        };
        let holder = [place.assigned_to.as_deref(), owner].into_iter().flatten().find(may_hold);
        Piece { log_id, topic: &place.topic, partition: place.partition, holder }
    }
}

impl GroupPartition {
    pub fn new(topic: &Name, partition: Partition) -> Self {
        let topic = topic.clone();
        Self { topic, partition, owner: None, assigned_to: None, revoked: None, starts: None }
    }

    pub fn is_owned_by(&self, member_id: &str) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.member_id == member_id)
    }

    /// Whether its owner must release it.
    pub fn is_to_move(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| self.assigned_to.as_ref() != Some(&owner.member_id))
    }

    /// Gives unowned partitions to the members they are assigned to, and revokes those that others
    /// own.
    fn settle(&mut self, since: i64, at: Timestamp) {
        if self.owner.is_none() {
            let owner = |member_id: &String| Owner { member_id: member_id.clone(), since, at };
            self.owner = self.assigned_to.as_ref().map(owner);
        }
        let revoked = self.revoked.unwrap_or(Revoked { since, let_go_by: None });
        self.revoked = self.is_to_move().then_some(revoked);
    }
}

fn too_many(what: &'static str, limit: usize) -> Refusal {
    Refusal::TooMany { what, limit: i64::try_from(limit).unwrap_or(i64::MAX) }
}
