//! Members of groups and what they fetch. Who owns what is asked of the rules.

use std::collections::BTreeSet;

use oncelog::{
    model::{
        Code, LogId, Timestamp,
        group::{self, AutoOffsetReset, Membership, Partitions, Subscription, TopicPattern},
    },
    rules::{Refusal, group::reset},
};
use serde_json::{Value, json};

use super::{
    call::{Join, Partition},
    want::{ANY, Judged, Reply, Want},
    world::{Group, World, name},
};

const SESSION_TIMEOUT_MS: i64 = 45_000;
/// No lease runs out here.
pub const NOW: Timestamp = Timestamp(0);

impl World {
    pub fn make_group(&mut self, group: &str) -> &mut Group {
        if !self.groups.contains_key(group) {
            self.lives += 1;
            let made = Group { life: self.lives, ..Group::default() };
            self.groups.insert(group.to_owned(), made);
        }
        self.groups.get_mut(group).unwrap()
    }

    /// The group of a member, or why there is none.
    pub fn member(&self, group: &str, member: &str) -> Result<&Group, Want> {
        let found = self.groups.get(group).ok_or(Want::code(Code::GroupNotFound))?;
        if !found.state.members.contains_key(member) {
            return Err(Refusal::UnknownMember.into());
        }
        Ok(found)
    }

    pub fn join(&mut self, join: &Join, reply: &Reply) -> Judged {
        let path = format!("/v1/groups/{}/members", join.group);
        let body = format!("{:?}", Join { key: None, ..join.clone() });
        if let Some(before) = self.replayed(&path, join.key.as_deref(), &body)? {
            return Ok(before);
        }
        let topics: BTreeSet<_> = join.topics.iter().map(|topic| name(topic)).collect();
        if topics.iter().any(|topic| !self.topics.contains_key(topic.as_str())) {
            return Err(Want::code(Code::TopicNotFound));
        }
        let member = reply.body["member_id"].as_str().unwrap_or("nobody").to_owned();
        let pattern = join.pattern.map(|text| TopicPattern::parse(text).unwrap());
        let wish = group::Join {
            subscription: Subscription { topics, pattern, ..Subscription::default() },
            instance_id: join.instance.map(|instance| format!("i{instance}")),
            session_timeout_ms: None,
            auto_offset_reset: join.auto_offset_reset.and_then(AutoOffsetReset::parse),
        };
        let all = self.all_topics();
        let state = &mut self.make_group(&join.group).state;
        state.refresh(&all, NOW);
        state.join(&member, &wish, SESSION_TIMEOUT_MS, &all, NOW)?;
        let Membership { generation, assignment, .. } = state.membership(&member);
        let want = Want::created(json!({"member_id": member, "generation": generation,
            "assignment": by_topic(&assignment), "heartbeat_interval_ms": SESSION_TIMEOUT_MS / 3,
            "lease_expires_at": ANY}));
        let mut kept = want.clone();
        kept.body["lease_expires_at"] = reply.body["lease_expires_at"].clone();
        self.keep(&path, join.key.as_deref(), body, &kept);
        Ok(want)
    }

    pub fn leave(&mut self, group: &str, member: &str) -> Judged {
        self.member(group, member)?;
        let all = self.all_topics();
        let state = &mut self.groups.get_mut(group).unwrap().state;
        state.refresh(&all, NOW);
        state.leave(member, &all, NOW)?;
        Ok(Want::no_content())
    }

    /// A sign of life. `shown`: the generation of an answer; what that told the member to let go
    /// of, it does.
    pub fn beat(
        &mut self,
        group: &str,
        member: &str,
        shown: Option<i64>,
        reply: &Reply,
    ) -> Result<Membership, Want> {
        self.learn_refresh(group, reply);
        let state = &self.member(group, member)?.state;
        let owned = state.places.values().filter(|place| place.is_owned_by(member));
        let is_news = owned.filter_map(|place| place.revoked).any(|revoked| {
            revoked.is_let_go(shown, state.generation) || revoked.let_go_by.is_none()
        });
        let all = self.all_topics();
        let state = &mut self.groups.get_mut(group).unwrap().state;
        if is_news {
            state.refresh(&all, NOW);
            state.beat(member, shown, NOW)?;
        }
        Ok(state.membership(member))
    }

    pub fn heartbeat(
        &mut self,
        group: &str,
        member: &str,
        shown: Option<i64>,
        reply: &Reply,
    ) -> Judged {
        let Membership { generation, assignment, revoked } =
            self.beat(group, member, shown, reply)?;
        let ghosts = self.groups[group].ghosts.get(member).cloned().unwrap_or_default();
        let assignment = self.with_ghosts(&ghosts, assignment, &reply.body["assignment"]);
        let revoked = self.with_ghosts(&ghosts, revoked, &reply.body["revoked"]);
        Ok(Want::ok(json!({"generation": generation, "assignment": by_topic(&assignment),
            "revoked": by_topic(&revoked)})))
    }

    /// What a member owned in topics that are gone may still have to be released: then each of its
    /// calls refreshes the group. Whether it does, is learnt.
    fn learn_refresh(&mut self, group: &str, reply: &Reply) {
        let all = self.all_topics();
        let Some(found) = self.groups.get_mut(group) else { return };
        let said = reply.body["generation"].as_i64();
        if !found.ghosts.is_empty() && said.is_some_and(|said| said > found.state.generation) {
            found.state.refresh(&all, NOW);
        }
    }

    pub fn get_group(&mut self, group: &str, reply: &Reply) -> Judged {
        self.learn_refresh(group, reply);
        let found = self.groups.get(group).ok_or(Want::code(Code::GroupNotFound))?;
        let state = &found.state;
        let member = |(id, member): (&String, &oncelog::rules::group::Member)| {
            let mut owned = Partitions::new();
            for place in state.places.values().filter(|place| place.is_owned_by(id)) {
                owned.entry(place.topic.clone()).or_default().insert(place.partition);
            }
            let pattern = member.subscription.pattern.as_ref().map(TopicPattern::as_str);
            json!({"member_id": id, "instance_id": member.instance_id,
                "topics": member.subscription.topics, "topic_pattern": pattern,
                "session_timeout_ms": SESSION_TIMEOUT_MS, "joined_at": ANY,
                "lease_expires_at": ANY, "assignment": by_topic(&owned)})
        };
        let members: Vec<Value> = state.members.iter().map(member).collect();
        let mut partitions = Vec::new();
        let mut all = self.all_topics().partitions;
        all.sort_by(|one, other| (&one.1, one.2).cmp(&(&other.1, other.2)));
        for (log_id, topic, partition) in all {
            partitions.extend(self.describe_place(group, log_id, topic.as_str(), partition));
        }
        Ok(Want::ok(json!({"group": group, "generation": state.generation,
            "auto_offset_reset": state.auto_offset_reset.as_str(), "created_at": ANY,
            "members": members, "partitions": partitions})))
    }

    fn describe_place(
        &self,
        group: &str,
        log_id: LogId,
        topic: &str,
        partition: Partition,
    ) -> Option<Value> {
        let found = &self.groups[group];
        let context = self.reset_context(group, log_id);
        let place = found.state.places.get(&log_id);
        let owner = place.and_then(|place| place.owner.as_ref());
        let pin = self.pin(group, log_id);
        let committed = context.committed_offset;
        if committed.is_none() && context.starts.is_none() && owner.is_none() && pin.is_none() {
            return None;
        }
        let at = |is_known: bool| if is_known { json!(ANY) } else { Value::Null };
        Some(json!({"topic": topic, "partition": partition, "committed_offset": committed,
            "metadata": null, "committed_at": at(committed.is_some()),
            "log_start_offset": context.log.0, "high_watermark": context.log.1,
            "lag": reset::lag(&context), "member_id": owner.map(|owner| &owner.member_id),
            "owned_since": owner.map(|owner| owner.since), "owned_at": at(owner.is_some()),
            "assigned_to": place.filter(|place| place.is_to_move())
                .and_then(|place| place.assigned_to.clone()),
            "pinned_by": pin.map(|(id, _)| id.to_string()), "pinned_at": at(pin.is_some())}))
    }

    /// Members whose leases have run out would go now; topics that were made meanwhile come in.
    pub fn check_empty(&mut self, group: &str) -> Result<(), Want> {
        let all = self.all_topics();
        let state = &mut self.groups.get_mut(group).unwrap().state;
        if !state.members.is_empty() {
            state.refresh(&all, NOW);
            return Err(Refusal::GroupNotEmpty.into());
        }
        Ok(())
    }

    /// A member may be told for a while of what it owned in topics that are gone. Whether it is, is
    /// learnt.
    pub fn with_ghosts(
        &self,
        logs: &BTreeSet<LogId>,
        mut told: Partitions,
        said: &Value,
    ) -> Partitions {
        for (topic, partition) in logs.iter().filter_map(|log_id| self.former.get(log_id)) {
            let topics = said.as_array().into_iter().flatten();
            let mut its = topics.filter(|at| at["topic"] == json!(topic));
            let is_said = its.any(|at| {
                at["partitions"].as_array().is_some_and(|all| all.contains(&json!(partition)))
            });
            if is_said {
                told.entry(topic.clone()).or_default().insert(*partition);
            }
        }
        told
    }

    pub fn delete_group(&mut self, group: &str) -> Judged {
        self.groups.get(group).ok_or(Want::code(Code::GroupNotFound))?;
        self.check_empty(group)?;
        let found = &self.groups[group];
        let pinned = found.state.places.keys().find_map(|log_id| {
            let (id, _) = self.pin(group, *log_id)?;
            Some((self.reset_context(group, *log_id).committed_offset, id))
        });
        reset::check(false, pinned)?;
        self.groups.remove(group);
        Ok(Want::no_content())
    }
}

pub fn by_topic(partitions: &Partitions) -> Value {
    let partitions = partitions.iter();
    partitions.map(|(topic, numbers)| json!({"topic": topic, "partitions": numbers})).collect()
}
