//! Random histories of a group, with the responses that its clients have seen: no member loses a
//! partition without a revocation it was told of, and if two members believe to own one, only one
//! can commit.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{
    collection::{btree_set, vec},
    option,
    prelude::*,
    test_runner::TestCaseError,
};

use super::{
    checks,
    world::{World, a_join},
};
use crate::{
    model::{
        LogId, Name, Partition, Timestamp,
        group::{Membership, Partitions, TopicPattern},
    },
    rules::{
        group::{GroupPartition, GroupState, Revoked},
        tests::{
            name,
            random::{Seen, holds},
        },
    },
};

const CLIENTS: usize = 5;
/// How many of these join as an instance.
const INSTANCES: usize = 2;
const TOPICS: [&str; 4] = ["c", "cc", "d", "dd"];
const PATTERNS: [&str; 4] = ["/^c/", "/d$/", "/./", "/c|dd/"];

/// The generation that a call carries.
#[derive(Clone, Copy, Debug)]
enum Shown {
    Nothing,
    /// That of the newest response.
    Newest,
    /// That of an older response.
    Older(usize),
    /// One that was never in a response.
    ToCome,
}

#[derive(Clone, Debug)]
enum Op {
    /// A client that was a member before and has forgotten it.
    Join {
        client: usize,
        topics: BTreeSet<usize>,
        pattern: Option<usize>,
    },
    /// All members join with the same subscription.
    JoinAll(usize),
    /// Its response may be lost. It carries a generation that the client has seen.
    Beat {
        client: usize,
        lost: bool,
        shown: Shown,
    },
    /// Like a call, but without a response: a commit of a cursor.
    Settled(usize),
    /// Takes partitions that a member was told to release long ago.
    Overdue,
    Leave(usize),
    /// Among all members, whether their clients know it or not.
    Late(usize),
    /// A topic, and how many partitions come to it.
    Grow(usize, Partition),
    Delete(usize),
    Settle,
}

fn op() -> impl Strategy<Value = Op> {
    let client = || 0..CLIENTS;
    let topics = || btree_set(0..TOPICS.len(), 0..3);
    prop_oneof![
        4 => (client(), topics(), option::weighted(0.3, 0..PATTERNS.len()))
            .prop_map(|(client, topics, pattern)| Op::Join { client, topics, pattern }),
        4 => client().prop_map(Op::JoinAll),
        24 => (client(), prop::bool::weighted(0.2), shown())
            .prop_map(|(client, lost, shown)| Op::Beat { client, lost, shown }),
        2 => client().prop_map(Op::Settled),
        1 => Just(Op::Overdue),
        1 => client().prop_map(Op::Leave),
        2 => (0..CLIENTS * 2).prop_map(Op::Late),
        2 => (0..TOPICS.len(), 1..4).prop_map(|(topic, by)| Op::Grow(topic, by)),
        1 => (0..TOPICS.len()).prop_map(Op::Delete),
        2 => Just(Op::Settle),
    ]
}

fn shown() -> impl Strategy<Value = Shown> {
    prop_oneof![
        2 => Just(Shown::Nothing),
        6 => Just(Shown::Newest),
        1 => (1..5_usize).prop_map(Shown::Older),
        1 => Just(Shown::ToCome),
    ]
}

pub type Ownership = (LogId, String, i64);

/// A response that has arrived.
#[derive(Default)]
pub struct Told {
    pub generation: i64,
    pub has: BTreeSet<Ownership>,
    pub is_to_let_go: BTreeSet<Ownership>,
}

/// The caller, and the partitions that it may have released.
pub struct By {
    pub id: String,
    pub lets_go: BTreeSet<Ownership>,
}

pub struct Life {
    pub world: World,
    /// The member id that each client believes to have.
    clients: [Option<String>; CLIENTS],
    joins: usize,
    pub told: BTreeMap<String, Vec<Told>>,
    /// What members were told that they own, in which generation.
    pub tickets: Vec<(Ownership, i64)>,
    pub ended: BTreeSet<Ownership>,
    /// All patterns ever used, and the expected `starts` of every partition.
    patterns: Vec<TopicPattern>,
    pub earliest: BTreeSet<LogId>,
    pub seen: Seen,
}

impl Life {
    fn new() -> Self {
        let mut world = World::new();
        TOPICS[..2].iter().zip([3, 2]).for_each(|(topic, count)| world.grow(&name(topic), count));
        Self {
            world,
            clients: Default::default(),
            joins: 0,
            told: BTreeMap::new(),
            tickets: Vec::new(),
            ended: BTreeSet::new(),
            patterns: Vec::new(),
            earliest: BTreeSet::new(),
            seen: Seen::default(),
        }
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        // one assignment after the other, so that what each of them moves can be told
        let is_of_topics = matches!(op, Op::Grow(..) | Op::Delete(_) | Op::Settle);
        if !is_of_topics && self.world.state.topics_version < self.world.topics.version {
            self.step(&Op::Settle)?;
        }
        let mut before = self.world.state.clone();
        let by = self.act(op, &mut before)?;
        let after = self.world.state.clone();
        self.check_ownerships(&before, &after, by.as_ref())?;
        self.check_told(&after, by.as_ref())?;
        self.check_tickets(&after)?;
        self.check_assignment(&before, &after)?;
        self.check_starts(&after)
    }

    /// The caller. `before` omits deleted partitions, and uses the new id of an instance.
    fn act(&mut self, op: &Op, before: &mut GroupState) -> Result<Option<By>, TestCaseError> {
        match op {
            Op::Join { client, topics, pattern } => {
                let there = self.world.names();
                let topics = topics.iter().map(|topic| TOPICS[*topic]);
                let mut words: Vec<&str> = topics.filter(|t| there.contains(&name(t))).collect();
                words.extend(pattern.map(|pattern| PATTERNS[pattern]));
                return self.join(*client, words, before);
            }
            Op::JoinAll(client) => return self.join(*client, vec!["/./"], before),
            Op::Beat { client, lost, shown } => return Ok(self.beat(*client, *lost, *shown)),
            Op::Settled(client) => {
                let Some(id) = self.clients[*client].clone() else { return Ok(None) };
                let Some(shown) = self.shown(&id, Shown::Newest) else { return Ok(None) };
                let lets_go = self.lets_go(&id, shown);
                self.world.let_go(&id, shown);
                return Ok(Some(By { id, lets_go }));
            }
            Op::Overdue => return Ok(self.overdue()),
            Op::Leave(client) => {
                if let Some(id) = self.clients[*client].take() {
                    let _ = self.world.leave(&id);
                }
            }
            Op::Late(member) => {
                if let Some(id) = self.world.state.members.keys().nth(*member).cloned() {
                    self.world.late(&id);
                }
            }
            Op::Grow(topic, by) => self.grow(&name(TOPICS[*topic]), *by),
            Op::Delete(topic) => {
                let topic = name(TOPICS[*topic]);
                self.world.delete(&topic);
                before.places.retain(|_, place| place.topic != topic);
            }
            Op::Settle => self.world.settle(),
        }
        Ok(None)
    }

    fn beat(&mut self, client: usize, lost: bool, shown: Shown) -> Option<By> {
        let id = self.clients[client].clone()?;
        let shown = self.shown(&id, shown);
        let lets_go = shown.map(|shown| self.lets_go(&id, shown)).unwrap_or_default();
        match self.world.beat(&id, shown) {
            Ok(membership) => self.tell(&id, &membership, lost),
            Err(_) => self.clients[client] = None,
        }
        Some(By { id, lets_go })
    }

    fn shown(&self, id: &str, shown: Shown) -> Option<i64> {
        let answers = self.told.get(id)?;
        let nth = |back: usize| answers.iter().rev().nth(back).map(|told| told.generation);
        match shown {
            Shown::Nothing => None,
            Shown::Newest => nth(0),
            Shown::Older(back) => nth(back),
            Shown::ToCome => Some(self.world.state.generation + 100),
        }
    }

    /// The revocations that a member has seen in responses of a generation.
    fn lets_go(&self, id: &str, shown: i64) -> BTreeSet<Ownership> {
        let answers = self.told.get(id).into_iter().flatten();
        let answers = answers.filter(|told| told.generation == shown);
        answers.flat_map(|told| told.is_to_let_go.clone()).collect()
    }

    fn overdue(&mut self) -> Option<By> {
        let mut places = self.world.state.places.iter_mut();
        let (log_id, place) = places
            .find(|(_, place)| place.revoked.is_some_and(|revoked| revoked.let_go_by.is_some()))?;
        let owner = place.owner.clone()?;
        let let_go_by = Some(Timestamp(self.world.now.0 - 1));
        place.revoked = place.revoked.map(|revoked| Revoked { let_go_by, ..revoked });
        let ownership = (*log_id, owner.member_id.clone(), owner.since);
        self.seen.saw("overdue");
        self.told.values_mut().flatten().for_each(|told| {
            told.has.remove(&ownership);
            told.is_to_let_go.remove(&ownership);
        });
        self.world.settle();
        Some(By { id: owner.member_id, lets_go: [ownership].into() })
    }

    fn join(
        &mut self,
        client: usize,
        words: Vec<&str>,
        before: &mut GroupState,
    ) -> Result<Option<By>, TestCaseError> {
        if words.is_empty() {
            return Ok(None);
        }
        let pod = format!("pod{client}");
        let mut words: Vec<&str> = words;
        if client < INSTANCES {
            words.extend(["as", &pod]);
        }
        let join = a_join(&words);
        self.joins += 1;
        let id = format!("m{}", self.joins);
        self.patterns.extend(join.subscription.pattern.clone());
        let instance = join.instance_id.as_ref();
        let mut lets_go = BTreeSet::new();
        let is_former = |former: &String| {
            instance.is_some() && before.members[former].instance_id.as_ref() == instance
        };
        if let Some(former) = before.members.keys().find(|id| is_former(id)).cloned() {
            self.seen.saw("replaced");
            rename(before, &former, &id);
            // nobody knows of it any more
            lets_go = checks::ownerships(before).into_iter().filter(|own| own.1 == id).collect();
            let to_move = |place: &&GroupPartition| place.is_owned_by(&id) && place.is_to_move();
            let moves = before.places.values().filter(to_move).count();
            let is_same = before.members[&id].subscription == join.subscription;
            let generation = self.world.state.generation;
            self.world.join(&id, &join).unwrap();
            if is_same && moves == 0 {
                prop_assert_eq!(self.world.state.generation, generation, "no rebalance");
                self.seen.saw("came back");
            }
        } else {
            self.world.join(&id, &join).unwrap();
        }
        let membership = self.world.state.membership(&id);
        prop_assert!(membership.revoked.is_empty(), "a join has nothing to let go of");
        self.tell(&id, &membership, false);
        self.clients[client] = Some(id.clone());
        Ok(Some(By { id, lets_go }))
    }

    fn grow(&mut self, topic: &Name, by: Partition) {
        let here = |(_, name, _): &&(LogId, Name, Partition)| name == topic;
        let old: Vec<LogId> =
            self.world.topics.partitions.iter().filter(here).map(|(log_id, ..)| *log_id).collect();
        let mut subscribed = old.iter().any(|log_id| {
            self.world.state.places.get(log_id).is_some_and(|place| place.starts.is_some())
        });
        subscribed |= self.patterns.iter().any(|pattern| pattern.matches(topic));
        let mut members = self.world.state.members.values();
        subscribed |= members.any(|member| member.subscription.covers(topic));
        self.world.grow(topic, old.len() as Partition + by);
        let made = self.world.topics.partitions.iter().filter(here).map(|(log_id, ..)| *log_id);
        if subscribed {
            self.earliest.extend(made.filter(|log_id| !old.contains(log_id)));
        }
    }

    /// Delivers the response to the member, unless it is lost.
    fn tell(&mut self, id: &str, membership: &Membership, lost: bool) {
        let owned = |log_id: LogId| {
            let owner = self.world.state.places[&log_id].owner.as_ref().unwrap();
            (log_id, owner.member_id.clone(), owner.since)
        };
        let has: BTreeSet<Ownership> =
            self.logs(&membership.assignment).into_iter().map(owned).collect();
        let is_to_let_go: BTreeSet<Ownership> =
            self.logs(&membership.revoked).into_iter().map(owned).collect();
        self.seen.add("told to let go", is_to_let_go.len());
        if lost {
            self.seen.add("lost", is_to_let_go.len());
            return;
        }
        let generation = membership.generation;
        let tickets = has.union(&is_to_let_go).map(|ownership| (ownership.clone(), generation));
        self.tickets.extend(tickets);
        let told = Told { generation, has, is_to_let_go };
        self.told.entry(id.to_owned()).or_default().push(told);
    }

    fn logs(&self, partitions: &Partitions) -> BTreeSet<LogId> {
        let is_there = |(_, topic, number): &&(LogId, Name, Partition)| {
            partitions.get(topic).is_some_and(|numbers| numbers.contains(number))
        };
        let partitions = self.world.topics.partitions.iter().filter(is_there);
        partitions.map(|(log_id, ..)| *log_id).collect()
    }

    /// Silent members expire, and the others call twice: then every partition is with its assignee.
    /// After one more call all know it.
    fn check_end(&mut self) -> Result<(), TestCaseError> {
        let of_nobody = |id: &&String| !self.clients.contains(&Some((*id).clone()));
        let gone: Vec<String> =
            self.world.state.members.keys().filter(of_nobody).cloned().collect();
        gone.iter().for_each(|id| self.world.late(id));
        self.world.settle();
        self.told.retain(|id, _| !gone.contains(id));
        for _ in 0..2 {
            for client in 0..CLIENTS {
                self.step(&Op::Beat { client, lost: false, shown: Shown::Newest })?;
            }
        }
        let settled = self.world.state.clone();
        let moving = settled.places.values().find(|place| place.is_to_move());
        prop_assert!(moving.is_none(), "{:?}", moving);
        for id in self.clients.clone().into_iter().flatten() {
            let Membership { assignment, .. } = self.world.beat(&id, None).unwrap();
            let owned = settled.places.iter().filter(|(_, place)| place.is_owned_by(&id));
            let owned: BTreeSet<LogId> = owned.map(|(log_id, _)| *log_id).collect();
            prop_assert_eq!(self.logs(&assignment), owned);
        }
        prop_assert_eq!(&self.world.state, &settled);
        Ok(())
    }
}

fn rename(state: &mut GroupState, former: &str, by: &str) {
    for place in state.places.values_mut() {
        let owner = place.owner.as_mut().map(|owner| &mut owner.member_id);
        owner.into_iter().chain(&mut place.assigned_to).filter(|id| *id == former).for_each(|id| {
            by.clone_into(id);
        });
    }
    let member = state.members.remove(former).unwrap();
    state.members.insert(by.to_owned(), member);
}

/// What must have happened.
const EVENTS: &str = "told to let go, lost, overdue, handed over, got, replaced, came back, fenced, \
    counted, earliest";

#[test]
fn nobody_loses_what_it_was_not_told_to_let_go_of() {
    holds(300, vec(op(), 1..60), (20, EVENTS), |ops| {
        let mut life = Life::new();
        for op in &ops {
            life.step(op)?;
        }
        life.check_end()?;
        Ok(life.seen)
    });
}
