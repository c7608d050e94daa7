//! A group over changing topics, driven as the broker drives it: first leases expire, then topics
//! are refreshed, then the rule is called.

use std::collections::BTreeSet;

use crate::{
    model::{
        LogId, Name, Partition, Scopes, Timestamp, Word,
        group::{AutoOffsetReset, Join, Membership, Subscription, TopicPattern},
    },
    rules::{
        Refusal,
        group::{
            GroupState, Owner, Topics,
            offsets::{GroupFacts, OffsetRow, check_member},
        },
        tests::name,
    },
};

pub const TIMEOUT_MS: i64 = 300;

pub struct World {
    pub state: GroupState,
    pub topics: Topics,
    pub now: Timestamp,
    next_log: i64,
}

impl World {
    pub fn new() -> Self {
        Self {
            state: GroupState::default(),
            topics: Topics::default(),
            now: Timestamp(1_000),
            next_log: 1,
        }
    }

    /// Creates a topic, or grows it to this partition count.
    pub fn grow(&mut self, topic: &Name, count: Partition) {
        let here = self.topics.partitions.iter().filter(|(_, name, _)| name == topic).count();
        for partition in here as Partition..count {
            self.topics.partitions.push((LogId(self.next_log), topic.clone(), partition));
            self.next_log += 1;
            self.topics.version += 1;
        }
    }

    pub fn delete(&mut self, topic: &Name) {
        self.topics.partitions.retain(|(_, name, _)| name != topic);
        self.topics.version += 1;
        // what is stored of it is not loaded any more
        self.state.places.retain(|_, place| place.topic != *topic);
    }

    pub fn names(&self) -> BTreeSet<Name> {
        self.topics.partitions.iter().map(|(_, name, _)| name.clone()).collect()
    }

    pub fn change<T>(
        &mut self,
        rule: impl FnOnce(&mut GroupState, &Topics, Timestamp) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut after = self.state.clone();
        after.expire(&self.topics, self.now);
        after.refresh(&self.topics, self.now);
        let done = rule(&mut after, &self.topics, self.now)?;
        self.state = after;
        Ok(done)
    }

    pub fn settle(&mut self) {
        let _ = self.change(|_, _, _| Ok(()));
    }

    pub fn join(&mut self, id: &str, join: &Join) -> Result<Membership, Refusal> {
        let timeout_ms = join.session_timeout_ms.unwrap_or(TIMEOUT_MS);
        self.change(|state, topics, now| state.join(id, join, timeout_ms, topics, now))?;
        Ok(self.state.membership(id))
    }

    /// A heartbeat or a fetch with the generation of a response, or without one.
    pub fn beat(&mut self, id: &str, shown: Option<i64>) -> Result<Membership, Refusal> {
        self.change(|state, _, now| state.beat(id, shown, now))?;
        Ok(self.state.membership(id))
    }

    /// A commit of the cursor of a response.
    pub fn let_go(&mut self, id: &str, shown: i64) {
        let _ = self.change(|state, _, now| {
            state.let_go(id, Some(shown), now);
            Ok(())
        });
    }

    pub fn leave(&mut self, id: &str) -> Result<(), Refusal> {
        self.change(|state, topics, now| state.leave(id, topics, now))
    }

    /// Lets the member's lease expire, and runs the expiry.
    pub fn late(&mut self, id: &str) {
        if let Some(member) = self.state.members.get_mut(id) {
            member.lease_expires_at = Timestamp(self.now.0 - 1);
        }
        self.settle();
    }

    pub fn commit(&self, id: &str, generation: i64, log_id: LogId) -> Result<(), Refusal> {
        let place = self.state.places.get(&log_id);
        let owner = place.and_then(|place| place.owner.clone());
        let owner = owner.map(|Owner { member_id, since, .. }| (member_id, since));
        let members = self.state.members.keys().cloned().collect();
        let group = GroupFacts { generation: self.state.generation, members };
        check_member(&OffsetRow { owner, ..OffsetRow::default() }, &group, id, generation)
    }
}

/// `as pod c d /^e/ latest for 30 reads c*`
pub fn a_join(words: &[&str]) -> Join {
    let mut join = Join {
        subscription: Subscription::default(),
        instance_id: None,
        session_timeout_ms: None,
        auto_offset_reset: None,
    };
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        match word {
            "reads" => {
                let scope = format!("consume:{}", words.next().unwrap());
                join.subscription.readable = Scopes::parse(&scope, None).coverage(Word::Consume);
            }
            "as" => join.instance_id = words.next().map(str::to_owned),
            "for" => join.session_timeout_ms = words.next().map(|ms| ms.parse().unwrap()),
            _ if AutoOffsetReset::parse(word).is_some() => {
                join.auto_offset_reset = AutoOffsetReset::parse(word);
            }
            _ if word.starts_with('/') => {
                let pattern = TopicPattern::parse(word.trim_matches('/')).unwrap();
                join.subscription.pattern = Some(pattern);
            }
            _ => {
                join.subscription.topics.insert(name(word));
            }
        }
    }
    join
}
