//! The assignor: histories of groups as text tables. Every assignment is compared with the
//! definition of the best: no better chain of moves, and by brute force where groups are small
//! enough.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*, test_runner::TestCaseError};

use crate::{
    model::{LogId, Name, Partition},
    rules::{
        group::assign::{Piece, Subscriber, assign},
        tests::{
            name,
            random::{self, Seen},
            text::{cells, rows},
        },
    },
};

/// A partition and its holder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    topic: Name,
    partition: Partition,
    holder: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    subscribers: Vec<Subscriber>,
    held: Vec<Held>,
}

impl Group {
    /// Assigns, and makes the assignees the holders; returns the former holders.
    fn rebalance(&mut self) -> Group {
        let before = self.clone();
        let owners = assigned(&before);
        for (held, owner) in self.held.iter_mut().zip(owners) {
            held.holder = owner.map(str::to_owned);
        }
        before
    }

    fn subscribes(&self, id: &str, topic: &Name) -> bool {
        let is_it = |one: &&Subscriber| one.member_id == id;
        self.subscribers.iter().find(is_it).is_some_and(|one| one.topics.contains(topic))
    }

    /// Each partition whose holder could keep it.
    fn keepable(&self) -> impl Iterator<Item = Option<&str>> {
        self.held.iter().map(|held| {
            let holder = held.holder.as_deref();
            holder.filter(|holder| self.subscribes(holder, &held.topic))
        })
    }

    /// How many partitions leave a holder that could keep them.
    fn moved(&self, owners: &[Option<&str>]) -> usize {
        self.keepable().zip(owners).filter(|(was, is)| was.is_some() && was != *is).count()
    }

    /// The count of each member, in order.
    fn counts(&self, owners: &[Option<&str>]) -> Vec<usize> {
        let is = |owner: &Option<&str>, one: &Subscriber| *owner == Some(one.member_id.as_str());
        let count = |one| owners.iter().filter(|owner| is(owner, one)).count();
        self.subscribers.iter().map(count).collect()
    }
}

fn assigned(group: &Group) -> Vec<Option<&str>> {
    let pieces = group.held.iter().enumerate().map(|(index, held)| Piece {
        log_id: LogId(index as i64),
        topic: &held.topic,
        partition: held.partition,
        holder: held.holder.as_deref(),
    });
    assign(&group.subscribers, &pieces.collect::<Vec<_>>())
}

fn subscriber(id: &str, topics: &[&str]) -> Subscriber {
    Subscriber { member_id: id.into(), topics: topics.iter().copied().map(name).collect() }
}

/// `has a 4` (the topic has that many partitions), `join m1 a b`, `leave m1`, `reads m1 a` (and
/// nothing else from now on).
fn happen(group: &mut Group, event: &str) {
    match event.split_whitespace().collect::<Vec<_>>()[..] {
        ["has", topic, count] => {
            let old = group.held.iter().filter(|held| held.topic == name(topic)).count();
            let new = (old as i32..count.parse().unwrap()).map(|partition| Held {
                topic: name(topic),
                partition,
                holder: None,
            });
            group.held.extend(new);
        }
        ["join", id, ref topics @ ..] => group.subscribers.push(subscriber(id, topics)),
        ["leave", id] => group.subscribers.retain(|one| one.member_id != id),
        ["reads", id, ref topics @ ..] => {
            group.subscribers.retain(|one| one.member_id != id);
            group.subscribers.push(subscriber(id, topics));
        }
        _ => panic!("{event}"),
    }
}

/// `m1: a0 a1; m2: b0, 1 moved`; partitions without subscribers follow `-`.
fn show(before: &Group, group: &Group) -> String {
    let owners: Vec<_> = group.held.iter().map(|held| held.holder.as_deref()).collect();
    let mut lists: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for one in &group.subscribers {
        lists.entry(&one.member_id).or_default();
    }
    for Held { topic, partition, holder } in &group.held {
        let list = lists.entry(holder.as_deref().unwrap_or("-")).or_default();
        list.insert(format!(" {topic}{partition}"));
    }
    let list = |(id, pieces): (&str, BTreeSet<String>)| {
        format!("{id}:{}", pieces.into_iter().collect::<String>())
    };
    let lists: Vec<String> = lists.into_iter().map(list).collect();
    format!("{}, {} moved", lists.join("; "), before.moved(&owners))
}

/// One group, one row per event, with everybody's partitions after it.
fn check(table: &str) {
    let mut group = Group::default();
    for line in rows(table) {
        let [events, want] = cells(line);
        events.split(';').for_each(|event| happen(&mut group, event));
        let before = group.rebalance();
        assert_eq!(show(&before, &group), want, "{line}");
        let settled = group.rebalance();
        assert_eq!(settled.held, group.held, "again: {line}");
    }
}

#[test]
fn members_come_and_go() {
    check(
        "has a 5        -> -: a0 a1 a2 a3 a4, 0 moved
         join m1 a      -> m1: a0 a1 a2 a3 a4, 0 moved
         join m2 a      -> m1: a0 a1 a2; m2: a3 a4, 2 moved
         join m3 a      -> m1: a0 a1; m2: a3 a4; m3: a2, 1 moved
         leave m1       -> m2: a0 a3 a4; m3: a1 a2, 0 moved
         join m0 a      -> m0: a4; m2: a0 a3; m3: a1 a2, 1 moved
         join m4 a; join m5 a; join m6 a -> m0: a4; m2: a0; m3: a1; m4: a2; m5: a3; m6:, 2 moved
         leave m0       -> m2: a0; m3: a1; m4: a2; m5: a3; m6: a4, 0 moved
         leave m2; leave m3; leave m4; leave m5; leave m6 -> -: a0 a1 a2 a3 a4, 0 moved",
    );
}

#[test]
fn partitions_and_topics_appear() {
    check(
        "join m1 a b; join m2 a b -> m1:; m2:, 0 moved
         has a 1        -> m1: a0; m2:, 0 moved
         has a 2        -> m1: a0; m2: a1, 0 moved
         has a 3        -> m1: a0 a2; m2: a1, 0 moved
         has b 2        -> m1: a0 a2 b0; m2: a1 b1, 0 moved
         has a 6        -> m1: a0 a2 a3 b0; m2: a1 a4 a5 b1, 0 moved",
    );
}

#[test]
fn a_topic_is_spread_where_that_costs_nothing() {
    check(
        "join m1 a b; has a 4; has b 4 -> m1: a0 a1 a2 a3 b0 b1 b2 b3, 0 moved
         join m2 a b    -> m1: a0 a1 b0 b1; m2: a2 a3 b2 b3, 4 moved
         leave m1       -> m2: a0 a1 a2 a3 b0 b1 b2 b3, 0 moved
         leave m2; join m3 a b; join m4 a b -> m3: a0 a2 b0 b2; m4: a1 a3 b1 b3, 0 moved",
    );
}

#[test]
fn members_read_different_topics() {
    check(
        "has a 2; has b 2; has c 1; join m1 a b -> -: c0; m1: a0 a1 b0 b1, 0 moved
         join m2 b c    -> m1: a0 a1 b0; m2: b1 c0, 1 moved
         join m3 c      -> m1: a0 a1; m2: b0 b1; m3: c0, 2 moved
         leave m3       -> m1: a0 a1; m2: b0 b1 c0, 0 moved
         reads m2 c     -> m1: a0 a1 b0 b1; m2: c0, 0 moved
         reads m1 b     -> -: a0 a1; m1: b0 b1; m2: c0, 0 moved
         has a 3; join m0 -> -: a0 a1 a2; m0:; m1: b0 b1; m2: c0, 0 moved",
    );
}

/// A member is relieved through others where possible.
#[test]
fn a_chain_of_moves_reaches_who_has_least() {
    check(
        "has a 2; has b 2; has c 2; join m1 a -> -: b0 b1 c0 c1; m1: a0 a1, 0 moved
         join m2 a b    -> -: c0 c1; m1: a0 a1; m2: b0 b1, 0 moved
         join m3 b c    -> m1: a0 a1; m2: b0 b1; m3: c0 c1, 0 moved
         has a 4        -> m1: a0 a1 a2; m2: a3 b0 b1; m3: c0 c1, 0 moved
         has a 6        -> m1: a0 a1 a2 a4; m2: a3 a5 b0; m3: b1 c0 c1, 1 moved
         has a 8        -> m1: a0 a1 a2 a4; m2: a3 a5 a6 a7; m3: b0 b1 c0 c1, 1 moved",
    );
}

/// `equally`: all have the same subscription. Holders may have left, or changed theirs.
fn a_group(members: usize, partitions: usize, equally: bool) -> impl Strategy<Value = Group> {
    let topics = ["a", "b", "c", "d"];
    let sizes = (1..=members, 0..=partitions, prop::bool::weighted(0.1));
    sizes.prop_flat_map(move |(members, partitions, is_new)| {
        let reads = vec(vec(prop::bool::weighted(0.6), topics.len()), members);
        // the first one often holds more than its part
        let holder = prop_oneof![Just(0), 0..=members];
        let holder = holder.prop_map(move |holder| if is_new { members } else { holder });
        let held = vec((0..topics.len(), holder), partitions);
        (reads, held).prop_map(move |(reads, held)| {
            let id = |index: usize| format!("m{index:02}");
            let one = |index: usize| {
                let reads = if equally { &vec![true; topics.len()] } else { &reads[index] };
                let reads = topics.iter().zip(reads).filter(|(_, reads)| **reads);
                subscriber(&id(index), &reads.map(|(topic, _)| *topic).collect::<Vec<_>>())
            };
            let held = held.into_iter().enumerate().map(|(index, (topic, holder))| Held {
                topic: name(topics[topic]),
                partition: index as Partition,
                holder: Some(id(holder)),
            });
            Group { held: held.collect(), subscribers: (0..members).map(one).collect() }
        })
    })
}

/// Checks every case, and that at least this many cases are relevant.
fn holds<S: Strategy>(
    strategy: S,
    at_least: usize,
    property: impl Fn(S::Value) -> Result<bool, TestCaseError>,
) {
    random::holds(400, strategy, (at_least, "relevant"), |value| {
        Ok(Seen::of("relevant", usize::from(property(value)?)))
    });
}

/// Each partition has one owner if anybody subscribes, and only a subscriber.
fn check_owners(group: &Group, owners: &[Option<&str>]) -> Result<(), TestCaseError> {
    prop_assert_eq!(owners.len(), group.held.len());
    for (held, owner) in group.held.iter().zip(owners) {
        let has_readers = group.subscribers.iter().any(|one| one.topics.contains(&held.topic));
        prop_assert_eq!(owner.is_some(), has_readers, "{:?}", held);
        let may_own = owner.is_none_or(|owner| group.subscribes(owner, &held.topic));
        prop_assert!(may_own, "{:?} is {:?}'s", held, owner);
    }
    Ok(())
}

const NO_WAY: i64 = i64::MAX / 4;

/// The additional moves of passing one partition from each member to each, along the best chain
/// (Floyd, Warshall).
fn chains(group: &Group, owners: &[Option<&str>]) -> Vec<Vec<i64>> {
    let ids: Vec<&str> = group.subscribers.iter().map(|one| one.member_id.as_str()).collect();
    let all = 0..ids.len();
    let one_move = |from: usize, to: usize| {
        let pieces = group.held.iter().zip(group.keepable()).zip(owners);
        let moves = pieces.map(|((held, holder), owner)| {
            let is_moved = |to: usize| i64::from(holder.is_some() && holder != Some(ids[to]));
            let may_go = *owner == Some(ids[from]) && group.subscribes(ids[to], &held.topic);
            if may_go { is_moved(to) - is_moved(from) } else { NO_WAY }
        });
        moves.min().unwrap_or(NO_WAY)
    };
    let row = |from: usize| all.clone().map(|to| one_move(from, to)).collect();
    let mut best: Vec<Vec<i64>> = all.clone().map(row).collect();
    for via in all.clone() {
        for from in all.clone() {
            for to in all.clone() {
                if best[from][via] < NO_WAY && best[via][to] < NO_WAY {
                    best[from][to] = best[from][to].min(best[from][via] + best[via][to]);
                }
            }
        }
    }
    best
}

/// An assignment is the best one if and only if no chain of moves improves it: to a member with at
/// least two less; with fewer moves, to one with one less, or in a circle.
#[test]
fn no_chain_of_moves_makes_it_better() {
    holds(a_group(10, 30, false), 100, |group| {
        let owners = assigned(&group);
        check_owners(&group, &owners)?;
        let counts: Vec<usize> = group.counts(&owners);
        for (from, row) in chains(&group, &owners).into_iter().enumerate() {
            for (to, moves) in row.into_iter().enumerate().filter(|(_, moves)| *moves < NO_WAY) {
                let less = counts[from] as i64 - counts[to] as i64;
                prop_assert!(less < 2, "{} to {}, {:?}: {:?}", from, to, counts, owners);
                let is_better = moves < 0 && (less == 1 || from == to);
                prop_assert!(!is_better, "{} to {} by {}: {:?}", from, to, moves, owners);
            }
        }
        Ok(group.moved(&owners) > 0)
    });
}

/// The smallest sum of squared counts, and the fewest moves with that.
fn brute_force<'a>(group: &'a Group, owners: &mut Vec<Option<&'a str>>) -> (usize, usize) {
    let Some(held) = group.held.get(owners.len()) else { return cost(group, owners) };
    let readers = group.subscribers.iter().filter(|one| one.topics.contains(&held.topic));
    let mut ways: Vec<_> = readers.map(|one| Some(one.member_id.as_str())).collect();
    if ways.is_empty() {
        ways.push(None);
    }
    let costs = ways.into_iter().map(|way| {
        owners.push(way);
        let cost = brute_force(group, owners);
        owners.pop();
        cost
    });
    costs.min().unwrap()
}

fn cost(group: &Group, owners: &[Option<&str>]) -> (usize, usize) {
    let squares = group.counts(owners).into_iter().map(|count| count * count);
    (squares.sum(), group.moved(owners))
}

#[test]
fn brute_force_finds_nothing_better() {
    let groups = || prop_oneof![3 => a_group(4, 7, false), 1 => a_group(4, 7, true)];
    holds(groups(), 30, |group| {
        let owners = assigned(&group);
        check_owners(&group, &owners)?;
        let best = brute_force(&group, &mut Vec::new());
        prop_assert_eq!(cost(&group, &owners), best, "{:?}", owners);
        Ok(best.1 > 0)
    });
}

/// With equal subscriptions every member keeps its partitions up to the lower count, and one more
/// for as many members as there are partitions left.
#[test]
fn equal_members_differ_by_one_and_keep_what_they_can() {
    holds(a_group(40, 200, true), 100, |group| {
        let owners = assigned(&group);
        check_owners(&group, &owners)?;
        let (pieces, members) = (group.held.len(), group.subscribers.len());
        let (low, over) = (pieces / members, pieces % members);
        let mut counts = group.counts(&owners);
        counts.sort_unstable();
        let (at_low, above) = counts.split_at(members - over);
        prop_assert!(at_low.iter().all(|count| *count == low), "{:?}", counts);
        prop_assert!(above.iter().all(|count| *count == low + 1), "{:?}", counts);
        let held = group.counts(&group.keepable().collect::<Vec<_>>());
        let kept: usize = held.iter().map(|held| *held.min(&low)).sum();
        let more = held.iter().filter(|held| **held > low).count().min(over);
        let moved = held.iter().sum::<usize>() - kept - more;
        prop_assert_eq!(group.moved(&owners), moved);
        Ok(moved > 0)
    });
}

/// The result does not depend on the order, and is a fixed point.
#[test]
fn order_does_not_matter_and_what_is_settled_stays() {
    let shuffled = a_group(8, 24, false).prop_flat_map(|group| {
        let Group { subscribers, held } = group.clone();
        (Just(group), Just(subscribers).prop_shuffle(), Just(held).prop_shuffle())
    });
    holds(shuffled, 200, |(mut group, subscribers, held)| {
        let is_shuffled = held != group.held;
        let mut other = Group { subscribers, held };
        group.rebalance();
        other.rebalance();
        other.held.sort_by_key(|held| held.partition);
        prop_assert_eq!(&group.held, &other.held);
        let settled = group.rebalance();
        prop_assert_eq!(&group.held, &settled.held, "again");
        Ok(is_shuffled)
    });
}

/// When a member joins, only it receives partitions; when one leaves, no other loses any.
#[test]
fn equal_members_barely_notice_who_comes_and_goes() {
    holds((a_group(12, 60, true), any::<prop::sample::Index>()), 200, |(mut group, who)| {
        group.rebalance();
        group.subscribers.push(subscriber("m", &["a", "b", "c", "d"]));
        let before = group.rebalance();
        let changed = before.held.iter().zip(&group.held).filter(|(was, is)| was != is);
        let mut received = 0;
        for (was, is) in changed {
            prop_assert_eq!(is.holder.as_deref(), Some("m"), "{:?}", was);
            received += 1;
        }
        let count = group.held.len() / group.subscribers.len();
        prop_assert_eq!(received, count, "no more than its part, rounded down");
        let left = group.subscribers.remove(who.index(group.subscribers.len()));
        let before = group.rebalance();
        for (was, is) in before.held.iter().zip(&group.held) {
            let is_orphan = was.holder.as_ref() == Some(&left.member_id);
            prop_assert!(is_orphan || was == is, "{:?} went to {:?}", was, is.holder);
        }
        Ok(received > 0)
    });
}
