//! Offsets that the fast path commits: what it assumes, and that its statement, which verifies
//! exactly that, commits what the rules would commit.

use std::{cell::RefCell, collections::BTreeMap};

use proptest::{
    collection::vec,
    option,
    prelude::*,
    test_runner::{Config, TestRunner},
};
use uuid::Uuid;

use crate::{
    model::{
        Name, Offset, Partition, ProducerId, Timestamp,
        session::Sequencing,
        transaction::{CommitRight, State},
    },
    rules::{
        Refusal,
        append::sequence::SessionFacts,
        group::offsets::{
            Claimed, Committer, GroupFacts, OffsetPlace, OffsetRow, judge_in_transaction,
        },
        tests::{digest, group::offsets::a_claim, log_of, session::made_at},
        transaction::{
            self,
            one_request::{OffsetMove, OutcomeHorizon, SingleRequestTxn, Stopped, TxnContext},
        },
    },
};

fn a_place(group: &str, partition: Partition) -> OffsetPlace {
    OffsetPlace { group: Name::parse(group).unwrap(), log_id: log_of(partition) }
}

fn a_whole(offsets: Vec<Claimed>) -> SingleRequestTxn {
    SingleRequestTxn {
        transaction_id: Uuid::from_u128(1),
        chosen: false,
        session: None,
        append_count: 1,
        retention_ms: 1,
        journals: Vec::new(),
        topics: Vec::new(),
        offsets,
    }
}

/// What the statement of a batch with these would verify.
fn assumed(wholes: &[SingleRequestTxn]) -> Option<Vec<OffsetMove>> {
    if !wholes.iter().all(SingleRequestTxn::may_be_assumed) {
        return None;
    }
    let mut standing = TxnContext::optimistic(wholes.iter())?;
    for whole in wholes {
        standing.judge_offsets(whole).expect("it was assumed");
        standing.apply(whole);
    }
    Some(standing.moves())
}

/// `g/0 m1 g3 at 6`: a place, then a claim.
fn claimed(words: &str) -> Claimed {
    let (place, claim) = words.trim().split_once(' ').unwrap();
    let (group, partition) = place.split_once('/').unwrap();
    let (claim, offset) = a_claim(claim);
    let place = a_place(group, partition.parse().unwrap());
    Claimed { place, offset, claim: claim.claim().unwrap() }
}

/// `g/0 m1@3 g5 6..8`: the owner, since when at the latest, the minimum generation of the group;
/// from which offset (`<6`: from any below), to which.
fn show(moved: &OffsetMove) -> String {
    let owner = moved
        .owner
        .as_ref()
        .map(|(member, since)| format!("{member}@{since} g{} ", moved.generation));
    let (group, partition) = (&moved.place.group, moved.place.log_id.0 - 1);
    let (owner, from) = (owner.unwrap_or_default(), moved.from.unwrap());
    let from = if moved.from_below { format!("<{}", from + 1) } else { from.to_string() };
    let highest =
        if moved.highest > moved.to { format!(" ^{}", moved.highest) } else { String::new() };
    format!("{group}/{partition} {owner}{from}..{}{highest}", moved.to)
}

/// Transactions in order, each with its offsets; the assumption on their places.
#[test]
fn what_a_quick_pass_assumes() {
    let table = "
        g/0 over 5 at 6                             | g/0 5..6
        g/0 over 5 at 6; g/0 over 6 at 9            | g/0 5..9
        g/0 over 5 at 9; g/0 over 9 at 2            | g/0 5..2 ^9
        g/0 over 5 at 6; g/0 over 5 at 9            | -
        g/0 over none at 6                          | -

        g/0 m1 g3 at 6                              | g/0 m1@3 g3 <6..6
        g/0 m1 g3 at 6; g/0 m1 g3 at 9              | g/0 m1@3 g3 <6..9
        g/0 m1 g3 at 0                              | g/0 m1@3 g3 <0..0
        g/0 m1 g3 at 6; g/0 m1 g3 at 6              | -
        g/0 m1 g3 at 6; g/0 m1 g3 at 5              | -
        g/0 m1 g4 at 6; g/0 m1 g3 at 7              | g/0 m1@3 g4 <6..7
        g/0 m1 g3 at 6; g/0 m1 g5 at 7; g/0 m1 g4 at 8 | g/0 m1@3 g5 <6..8
        g/0 m1 g3 at 6; g/0 m2 g3 at 7              | -
        g/0 m1 g3 at 6; g/0 m2 g4 at 6              | -
        g/0 m1 g3 at 6 + g/1 m1 g3 at 2             | g/0 m1@3 g3 <6..6, g/1 m1@3 g3 <2..2
        g/0 m1 g3 at 6; g/1 m2 g4 at 2              | g/0 m1@3 g4 <6..6, g/1 m2@4 g4 <2..2
        g/0 m1 g3 at 6; h/0 m1 g9 at 2              | g/0 m1@3 g3 <6..6, h/0 m1@9 g9 <2..2

        g/0 m1 g3 at 6; h/0 over 2 at 3             | g/0 m1@3 g3 <6..6, h/0 2..3
        g/0 m1 g3 at 6; g/1 over 2 at 3             | -
        g/1 over 2 at 3; g/0 m1 g3 at 6             | -
        g/0 m1 g3 at 6; g/0 over 6 at 7             | -
        g/0 over 5 at 6; g/0 m1 g3 at 7             | -

        g/0 m1 g3 from 4 at 6                       | g/0 m1@3 g3 4..6
        g/0 m1 g3 over 4 at 6                       | g/0 m1@3 g3 4..6
        g/0 m1 g3 from none at 6                    | -
        g/0 m1 g3 over none at 6                    | -
        g/0 m1 g3 from 4 at 6; g/0 m1 g3 from 4 at 6 | -
        g/0 m1 g3 from 4 at 6; g/0 m1 g3 from 4 at 9 | -
        g/0 m1 g3 from 4 at 6; g/0 m1 g3 from 6 at 9 | g/0 m1@3 g3 4..9
        g/0 m1 g3 from 4 at 6; g/0 m1 g3 at 9       | g/0 m1@3 g3 4..9
        g/0 m1 g3 at 6; g/0 m1 g3 from 6 at 9       | g/0 m1@3 g3 <6..9
        g/0 m1 g3 at 6; g/0 m1 g3 from 5 at 9       | -
        g/0 m1 g3 over 6 at 4; g/0 m1 g3 from 4 at 5 | g/0 m1@3 g3 6..5
        g/0 m1 g3 from 6 at 6                       | -
        g/0 m1 g3 from 6 at 6 + g/1 m1 g3 from 1 at 2 | g/0 m1@3 g3 6..6, g/1 m1@3 g3 1..2";
    for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (wholes, wanted) = line.split_once('|').unwrap();
        let whole = |words: &str| a_whole(words.split('+').map(claimed).collect());
        let wholes: Vec<SingleRequestTxn> = wholes.split(';').map(whole).collect();
        let got =
            assumed(&wholes).map(|moves| moves.iter().map(show).collect::<Vec<_>>().join(", "));
        assert_eq!(got.as_deref().unwrap_or("-"), wanted.trim(), "{line}");
    }
}

/// Independent of its session and of ids: a remembered outcome comes first.
#[test]
fn what_is_remembered_is_told_before_anything_is_judged() {
    let producer = ProducerId(7);
    let (chosen, transaction_id) = (true, made_at(100));
    let session = Some((producer, 0));
    let whole = SingleRequestTxn { transaction_id, chosen, session, ..a_whole(Vec::new()) };
    let facts = |epoch| SessionFacts {
        epoch,
        closed: false,
        reset_epoch: 0,
        sequencing: Sequencing::Contiguous,
    };
    let row = transaction::TransactionRow {
        transaction_id: whole.transaction_id,
        state: State::Committed,
        session: whole.session,
        digest: digest("pay"),
        created_at: Timestamp(0),
        expires_at: Timestamp(0),
        prepared_at: None,
        ended_at: Some(Timestamp(0)),
        reason: None,
        append_count: 1,
        batch_count: 0,
        next_sequence: 0,
        appends: None,
    };
    let fenced = Refusal::ProducerFenced { current_epoch: 1 };
    let other = Uuid::from_u128(2);
    let ongoing = Refusal::ConcurrentTransactions { transaction_id: other };
    let unknown = Refusal::UnknownProducer { producer_id: producer };
    let now = Timestamp(9_000_000);
    let caches = Some(OutcomeHorizon { horizon: now, now });
    for (session, busy, caches, refusal) in [
        (None, false, None, unknown),
        (Some(facts(1)), false, None, fenced.clone()),
        (Some(facts(1)), true, caches, fenced),
        (Some(facts(0)), false, caches, Refusal::TransactionExpired),
        (Some(facts(0)), true, None, ongoing),
    ] {
        let mut standing = TxnContext::default();
        standing.caches = caches;
        standing.sessions.extend(session.map(|facts| (producer, facts)));
        standing.ongoing.extend(busy.then_some((producer, other)));
        assert_eq!(standing.judge(&whole, &digest("pay")), Err(Stopped::Refused(refusal)));
        standing.rows.insert(row.transaction_id, row.clone());
        let before = Stopped::AlreadyCommitted(Box::new(row.clone()));
        assert_eq!(standing.judge(&whole, &digest("pay")), Err(before));
        let reused = Stopped::Refused(Refusal::TransactionReused);
        assert_eq!(standing.judge(&whole, &digest("other")), Err(reused));
    }
}

/// The current places and groups.
#[derive(Clone, Debug)]
struct World {
    rows: BTreeMap<OffsetPlace, OffsetRow>,
    groups: BTreeMap<Name, GroupFacts>,
}

impl World {
    /// The comparison of the statement.
    fn confirms(&self, moved: &OffsetMove) -> bool {
        let (row, group) = (&self.rows[&moved.place], &self.groups[&moved.place.group]);
        let is_owned = match (&row.owner, &moved.owner) {
            (Some((owner, since)), Some((member, at_latest))) => {
                owner == member && since <= at_latest
            }
            (None, None) => group.members.is_empty(),
            _ => false,
        };
        let is_below = moved.from_below && row.committed_offset < moved.from;
        let is_from = row.committed_offset == moved.from || is_below;
        let is_committed = row.committed_offset.is_some() && row.pinned_by.is_none();
        is_owned && is_from && is_committed && moved.generation <= group.generation
    }

    /// All of them one by one, according to the rules.
    fn commit(&mut self, wholes: &[SingleRequestTxn]) -> bool {
        wholes.iter().all(|whole| {
            let asked = whole.offsets.iter().map(|claimed| {
                let place = &claimed.place;
                (&self.rows[place], &self.groups[&place.group], claimed)
            });
            let by = Committer { transaction_id: Uuid::from_u128(1), appends: true };
            let is_lawful = judge_in_transaction(&asked.collect::<Vec<_>>(), by).is_ok();
            for Claimed { place, offset, .. } in &whole.offsets {
                self.rows.get_mut(place).unwrap().committed_offset = Some(*offset);
            }
            is_lawful
        })
    }
}

const GENERATIONS: i64 = 4;

fn member() -> impl Strategy<Value = String> {
    (0..2_usize).prop_map(|member| format!("m{member}"))
}

/// Two groups with two places each; all owners are members.
fn world() -> impl Strategy<Value = World> {
    let owner = option::weighted(0.8, (member(), 0..GENERATIONS));
    let committed = option::weighted(0.9, 0..4_i64);
    let row = (committed, owner, prop::bool::weighted(0.05));
    let rows = vec(row, 2);
    let group = (rows, prop::bool::weighted(0.7), 0..GENERATIONS);
    vec(group, 2).prop_map(|groups| {
        let (mut rows, mut facts) = (BTreeMap::new(), BTreeMap::new());
        for (name, (places, has_members, generation)) in ["g", "h"].into_iter().zip(groups) {
            let mut group = GroupFacts { generation, members: Vec::new() };
            for (partition, (committed_offset, owner, pinned)) in (0..).zip(places) {
                let owner = owner.filter(|_| has_members);
                let owner = owner.map(|(member, since)| (member, since.min(generation)));
                group.members.extend(owner.iter().map(|(member, _)| member.clone()));
                let pinned_by = pinned.then_some(Uuid::from_u128(2));
                let row = OffsetRow { committed_offset, metadata: None, owner, pinned_by };
                rows.insert(a_place(name, partition), row);
            }
            facts.insert(Name::parse(name).unwrap(), group);
        }
        World { rows, groups: facts }
    })
}

/// Relative to the correct one: an offset this far ahead; mostly with the correct owner and
/// expected offset; and how a member states it.
type Step = (usize, Offset, Option<(String, i64)>, Option<i64>, usize);

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let by = option::weighted(0.1, (member(), 0..GENERATIONS + 1));
    let beside = option::weighted(0.05, -1..2_i64);
    vec(vec((0..4_usize, -1..4_i64, by, beside, 0..3_usize), 1..3), 1..4)
}

fn wholes(world: &World, steps: Vec<Vec<Step>>) -> Vec<SingleRequestTxn> {
    let mut then = world.clone();
    let whole = |steps: Vec<Step>| {
        let mut offsets = BTreeMap::new();
        for (place, further, by, beside, form) in steps {
            let place = then.rows.keys().nth(place).unwrap().clone();
            let generation = then.groups[&place.group].generation;
            let row = then.rows.get_mut(&place).unwrap();
            let offset = (row.committed_offset.unwrap_or(0) + further.max(-1)).max(0);
            let base = row.committed_offset.map(|at| at + beside.unwrap_or(0));
            let claim = match by.or(row.owner.clone().map(|(owner, _)| (owner, generation))) {
                Some((member_id, generation)) => {
                    let [expected, began] = [1, 2].map(|of| Some(base).filter(|_| form == of));
                    CommitRight::Member { member_id, generation, expected, began }
                }
                None => CommitRight::Expected(base),
            };
            row.committed_offset = Some(offset);
            offsets.insert(place.clone(), Claimed { place, offset, claim });
        }
        a_whole(offsets.into_values().collect())
    };
    steps.into_iter().map(whole).collect()
}

/// And where every place has a committed offset, everything that the rules allow takes the fast
/// path, except members' offsets that change nothing.
#[test]
fn a_quick_pass_commits_what_the_law_would() {
    let seen = RefCell::new([0; 3]);
    let cases = Config { cases: 4_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(cases).run(&(world(), steps()), |(world, steps)| {
        let wholes = wholes(&world, steps);
        let moves = assumed(&wholes);
        let is_assumed = moves.is_some();
        let quick = moves.filter(|moves| moves.iter().all(|moved| world.confirms(moved)));
        let mut lawful = world.clone();
        let is_lawful = lawful.commit(&wholes);
        if let Some(moves) = &quick {
            prop_assert!(is_lawful, "{wholes:?}");
            for OffsetMove { place, to, highest, .. } in moves {
                let offsets = wholes.iter().flat_map(|whole| &whole.offsets);
                let here = offsets.filter(|claimed| claimed.place == *place);
                prop_assert_eq!(here.map(|claimed| claimed.offset).max(), Some(*highest));
                prop_assert_eq!(lawful.rows[place].committed_offset, Some(*to));
            }
        }
        let is_first = |claimed: &Claimed| world.rows[&claimed.place].committed_offset.is_none();
        let has_first = wholes.iter().flat_map(|whole| &whole.offsets).any(is_first);
        let is_idle = |claimed: &Claimed| {
            let is_bare =
                matches!(claimed.claim, CommitRight::Member { expected: None, began: None, .. });
            is_bare && world.rows[&claimed.place].committed_offset == Some(claimed.offset)
        };
        let has_idle = wholes.iter().flat_map(|whole| &whole.offsets).any(is_idle);
        if !has_idle {
            prop_assert_eq!(quick.is_some(), is_lawful && !has_first, "{:?}", wholes);
        }
        seen.borrow_mut()[usize::from(is_assumed) + usize::from(quick.is_some())] += 1;
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = seen.into_inner();
    assert!(seen.iter().all(|count| *count > 300), "not assumed, not confirmed, quick: {seen:?}");
}
