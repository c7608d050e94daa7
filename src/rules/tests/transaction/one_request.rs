//! Offsets that the fast path commits: what it assumes, and that its statement, which verifies
//! exactly that, commits what the rules would commit.

use std::collections::BTreeMap;

use proptest::{collection::vec, option, prelude::*};
use uuid::Uuid;

use crate::{
    model::{
        Name, Offset, Partition, ProducerId, Timestamp,
        dedup::RequestKey,
        transaction::{CommitRight, RepeatedBy, State},
    },
    rules::{
        Refusal,
        group::offsets::{
            Claimed, Committer, GroupFacts, OffsetPlace, OffsetRow, judge_in_transaction,
        },
        tests::{
            digest,
            group::offsets::a_claim,
            log_of, name, open_session,
            random::{Seen, holds},
            session::made_at,
            text::{cells, rows},
            transaction::begun,
        },
        transaction::{
            TransactionRow,
            one_request::{OffsetMove, OutcomeHorizon, SingleRequestTxn, Stopped, TxnContext},
        },
    },
};

fn a_place(group: &str, partition: Partition) -> OffsetPlace {
    OffsetPlace { group: name(group), log_id: log_of(partition) }
}

pub fn a_txn(offsets: Vec<Claimed>) -> SingleRequestTxn {
    SingleRequestTxn {
        transaction_id: Uuid::from_u128(1),
        repeated_by: RepeatedBy::Nothing,
        session: None,
        append_count: 1,
        retention_ms: 1,
        journals: Vec::new(),
        topics: Vec::new(),
        offsets,
    }
}

/// What the statement of a batch with these would verify.
fn assumed(txns: &[SingleRequestTxn]) -> Option<Vec<OffsetMove>> {
    if !txns.iter().all(SingleRequestTxn::may_be_assumed) {
        return None;
    }
    let mut context = TxnContext::optimistic(txns.iter())?;
    for txn in txns {
        context.judge_offsets(txn).expect("it was assumed");
        context.apply(txn);
    }
    Some(context.moves())
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
fn what_the_fast_path_assumes() {
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
    for row in rows(table) {
        let [txns, wanted] = cells(row);
        let txn = |words: &str| a_txn(words.split('+').map(claimed).collect());
        let txns: Vec<SingleRequestTxn> = txns.split(';').map(txn).collect();
        let got = assumed(&txns).map(|moves| moves.iter().map(show).collect::<Vec<_>>().join(", "));
        assert_eq!(got.as_deref().unwrap_or("-"), wanted, "{row}");
    }
}

/// Independent of its session and of ids: a remembered outcome comes first.
#[test]
fn a_remembered_outcome_is_answered_before_anything_is_judged() {
    let producer = ProducerId(7);
    let (transaction_id, session) = (made_at(100), Some((producer, 0)));
    let key = RequestKey::new(&made_at(100).to_string(), "POST", "/v1/transactions", &[]);
    let txn = |repeated_by| SingleRequestTxn {
        transaction_id,
        repeated_by,
        session,
        ..a_txn(Vec::new())
    };
    let by_id = (txn(RepeatedBy::Id), Refusal::TransactionExpired, Refusal::TransactionReused);
    let (expired, reused) = (Refusal::IdempotencyKeyExpired, Refusal::IdempotencyKeyReused);
    let by_key = (txn(RepeatedBy::Key(key)), expired, reused);
    let row = TransactionRow {
        state: State::Committed,
        ended_at: Some(Timestamp(0)),
        append_count: 1,
        ..begun(transaction_id, session, digest("pay"), (Timestamp(0), Timestamp(0)))
    };
    let fenced = Refusal::ProducerFenced { current_epoch: 1 };
    let other = Uuid::from_u128(2);
    let ongoing = Refusal::ConcurrentTransactions { transaction_id: other };
    let unknown = Refusal::UnknownProducer { producer_id: producer };
    let now = Timestamp(9_000_000);
    let caches = Some(OutcomeHorizon { horizon: now, now });
    for (txn, expired, reused) in [by_id, by_key] {
        for (session, busy, caches, refusal) in [
            (None, false, None, unknown.clone()),
            (Some(open_session(1)), false, None, fenced.clone()),
            (Some(open_session(1)), true, caches, fenced.clone()),
            (Some(open_session(0)), false, caches, expired.clone()),
            (Some(open_session(0)), true, None, ongoing.clone()),
        ] {
            let mut context = TxnContext::default();
            context.caches = caches;
            context.sessions.extend(session.map(|facts| (producer, facts)));
            context.ongoing.extend(busy.then_some((producer, other)));
            assert_eq!(context.judge(&txn, &digest("pay")), Err(Stopped::Refused(refusal)));
            context.rows.insert(row.transaction_id, row.clone());
            let before = Stopped::AlreadyCommitted(Box::new(row.clone()));
            assert_eq!(context.judge(&txn, &digest("pay")), Err(before));
            let reused = Stopped::Refused(reused.clone());
            assert_eq!(context.judge(&txn, &digest("other")), Err(reused));
        }
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
    fn commit(&mut self, txns: &[SingleRequestTxn]) -> bool {
        txns.iter().all(|txn| {
            let asked = txn.offsets.iter().map(|claimed| {
                let place = &claimed.place;
                (&self.rows[place], &self.groups[&place.group], claimed)
            });
            let by = Committer { transaction_id: Uuid::from_u128(1), appends: true };
            let is_lawful = judge_in_transaction(&asked.collect::<Vec<_>>(), by).is_ok();
            for Claimed { place, offset, .. } in &txn.offsets {
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
        for (text, (places, has_members, generation)) in ["g", "h"].into_iter().zip(groups) {
            let mut group = GroupFacts { generation, members: Vec::new() };
            for (partition, (committed_offset, owner, pinned)) in (0..).zip(places) {
                let owner = owner.filter(|_| has_members);
                let owner = owner.map(|(member, since)| (member, since.min(generation)));
                group.members.extend(owner.iter().map(|(member, _)| member.clone()));
                let pinned_by = pinned.then_some(Uuid::from_u128(2));
                let row = OffsetRow { committed_offset, metadata: None, owner, pinned_by };
                rows.insert(a_place(text, partition), row);
            }
            facts.insert(name(text), group);
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

fn some_txns(world: &World, steps: Vec<Vec<Step>>) -> Vec<SingleRequestTxn> {
    let mut then = world.clone();
    let txn = |steps: Vec<Step>| {
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
        a_txn(offsets.into_values().collect())
    };
    steps.into_iter().map(txn).collect()
}

/// And where every place has a committed offset, everything that the rules allow takes the fast
/// path, except members' offsets that change nothing.
#[test]
fn the_fast_path_commits_what_the_rules_would() {
    let events = "not assumed, not confirmed, committed";
    holds(4_000, (world(), steps()), (300, events), |(world, steps)| {
        let txns = some_txns(&world, steps);
        let moves = assumed(&txns);
        let is_assumed = moves.is_some();
        let fast = moves.filter(|moves| moves.iter().all(|moved| world.confirms(moved)));
        let mut lawful = world.clone();
        let is_lawful = lawful.commit(&txns);
        if let Some(moves) = &fast {
            prop_assert!(is_lawful, "{txns:?}");
            for OffsetMove { place, to, highest, .. } in moves {
                let offsets = txns.iter().flat_map(|txn| &txn.offsets);
                let here = offsets.filter(|claimed| claimed.place == *place);
                prop_assert_eq!(here.map(|claimed| claimed.offset).max(), Some(*highest));
                prop_assert_eq!(lawful.rows[place].committed_offset, Some(*to));
            }
        }
        let is_first = |claimed: &Claimed| world.rows[&claimed.place].committed_offset.is_none();
        let has_first = txns.iter().flat_map(|txn| &txn.offsets).any(is_first);
        let is_idle = |claimed: &Claimed| {
            let is_bare =
                matches!(claimed.claim, CommitRight::Member { expected: None, began: None, .. });
            is_bare && world.rows[&claimed.place].committed_offset == Some(claimed.offset)
        };
        let has_idle = txns.iter().flat_map(|txn| &txn.offsets).any(is_idle);
        if !has_idle {
            prop_assert_eq!(fast.is_some(), is_lawful && !has_first, "{:?}", txns);
        }
        Ok(Seen::of(
            match (is_assumed, fast) {
                (false, _) => "not assumed",
                (true, None) => "not confirmed",
                (true, Some(_)) => "committed",
            },
            1,
        ))
    });
}
