//! The events of a random history, relative to the correct ones, and the requests that clients make
//! from what they know, or believe to know.

use proptest::{collection::vec, option, prelude::*, sample::select};
use uuid::Uuid;

use super::{
    ledger::{Appends, Begin, Call, Offsets, Request, Work},
    properties::Life,
};
use crate::{
    model::{
        Epoch, Name, Offset, Partition, ProducerId, Timestamp,
        transaction::{Caller, CommitRight, State},
    },
    rules::{
        group::offsets::OffsetPlace,
        tests::{log_of, name, random::distance, session::made_at},
    },
};

pub const NAMES: usize = 2;
pub const GROUPS: usize = 2;
pub const PARTITIONS: Partition = 3;
pub const START: Timestamp = Timestamp(1_000_000_000);

/// The content of a call, relative to the correct one.
#[derive(Clone, Debug)]
pub struct Load {
    pub appends: Appends,
    /// The place, offset and right.
    pub offsets: Vec<(usize, Offset, Right)>,
}

#[derive(Clone, Copy, Debug)]
pub enum Right {
    /// The correct one.
    Fitting,
    /// The owner's run, which began at the committed offset or this far from it; without an owner
    /// any that fits.
    Run(i64),
    /// The owner's run, which has found no records.
    Still,
    /// The owner, over the committed offset, or this far from it.
    Over(i64),
    /// The committed offset, or this far from it.
    Expected(i64),
    /// A member, with a generation this far from the newest.
    Member(usize, i64),
}

#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// Its current session, or none.
    Owner,
    /// Its session as it was when the transaction began.
    Beginner,
    Stranger,
    Bearer,
    Operator,
}

#[derive(Clone, Copy, Debug)]
pub enum Verb {
    /// With a sequence this far from the next one.
    Records(Option<i64>),
    Offsets,
    Prepare,
    /// With a count of appends this far from the true one.
    Commit(Option<i64>),
    Abort,
    Get,
}

#[derive(Clone, Debug)]
pub enum Op {
    /// Of this name; with a condition, on an epoch this far from the current one.
    Open(usize, Option<i64>),
    Close(usize),
    Expire(usize),
    /// An id of this age, or one that was used.
    Begin {
        age_ms: i64,
        used: Option<usize>,
        session: Option<(usize, i64)>,
        timeout_ms: Option<i64>,
        load: Load,
        commit: bool,
    },
    /// The transaction begun this many begins ago, of all or of the open ones.
    Call {
        back: usize,
        open: bool,
        who: Who,
        verb: Verb,
        load: Option<Load>,
    },
    /// The request sent this many requests ago.
    Again(usize),
    Tick(i64),
    Retain(i64),
    Limit(i64),
    Sweep,
    /// A group, with the new owner of each partition.
    Rebalance(usize, Vec<Option<usize>>),
}

fn load() -> impl Strategy<Value = Load> {
    let part = (0..PARTITIONS, 1..3_i64);
    let appends = vec(vec(part, 1..3), 0..3);
    let right = prop_oneof![
        8 => Just(Right::Fitting), 1 => distance(1).prop_map(Right::Expected),
        6 => distance(16).prop_map(Right::Run), 2 => distance(16).prop_map(Right::Over),
        2 => Just(Right::Still),
        1 => (0..2_usize, -2..2_i64).prop_map(|(member, by)| Right::Member(member, by)),
    ];
    let offset = (0..GROUPS * PARTITIONS as usize, 0..6_i64, right);
    (appends, prop_oneof![1 => vec(offset.clone(), 0), 1 => vec(offset, 1..3)])
        .prop_map(|(appends, offsets)| Load { appends, offsets })
}

fn begin() -> impl Strategy<Value = Op> {
    let age_ms = prop_oneof![20 => 0..30_i64, 4 => 0..4_000_i64, 1 => Just(-86_400_001_i64)];
    let session = option::weighted(0.6, (0..NAMES, distance(20)));
    let timeout_ms = option::weighted(0.3, prop_oneof![8 => 1..400_i64, 1 => Just(901_i64)]);
    let used = option::weighted(0.06, 0..20_usize);
    let commit = prop::bool::weighted(0.25);
    (age_ms, used, session, timeout_ms, load(), commit).prop_map(
        |(age_ms, used, session, timeout_ms, load, commit)| Op::Begin {
            age_ms,
            used,
            session,
            timeout_ms,
            load,
            commit,
        },
    )
}

fn call() -> impl Strategy<Value = Op> {
    let who = prop_oneof![
        40 => Just(Who::Owner), 2 => Just(Who::Beginner), 1 => Just(Who::Stranger),
        1 => Just(Who::Bearer), 4 => Just(Who::Operator)
    ];
    let number = prop_oneof![6 => Just(0), 3 => -3..0_i64, 1 => 1..7_i64];
    let expect = option::weighted(0.3, distance(25));
    let verb = prop_oneof![
        8 => option::weighted(0.7, number).prop_map(Verb::Records),
        2 => Just(Verb::Offsets), 3 => Just(Verb::Prepare), 2 => Just(Verb::Abort),
        8 => expect.prop_map(Verb::Commit), 2 => Just(Verb::Get),
    ];
    let back = prop_oneof![3 => 0..3_usize, 1 => 0..30_usize];
    (back, prop::bool::weighted(0.8), who, verb, option::weighted(0.3, load()))
        .prop_map(|(back, open, who, verb, load)| Op::Call { back, open, who, verb, load })
}

pub fn op() -> impl Strategy<Value = Op> {
    let name = || 0..NAMES;
    let condition = option::weighted(0.4, distance(1));
    let owner = option::weighted(0.8, prop_oneof![3 => Just(0), 1 => Just(1_usize)]);
    let owners = prop_oneof![vec(Just(None), 3), vec(owner, 3)];
    prop_oneof![
        30 => begin(),
        60 => call(),
        20 => prop_oneof![3 => 0..5_usize, 1 => 0..60_usize].prop_map(Op::Again),
        10 => (name(), condition).prop_map(|(name, condition)| Op::Open(name, condition)),
        1 => name().prop_map(Op::Close),
        3 => name().prop_map(Op::Expire),
        20 => prop_oneof![4 => 0..60_i64, 2 => 60..400_i64, 1 => 400..3_000_i64].prop_map(Op::Tick),
        4 => select(&[300_i64, 1_000, 3_000, 9_000][..]).prop_map(Op::Retain),
        2 => select(&[2_i64, 4, 10_000][..]).prop_map(Op::Limit),
        6 => Just(Op::Sweep),
        3 => (0..GROUPS, owners).prop_map(|(group, owners)| Op::Rebalance(group, owners)),
    ]
}

pub fn group_name(index: usize) -> Name {
    name(&format!("group{index}"))
}

pub fn places() -> Vec<OffsetPlace> {
    let of = |group: usize| {
        (0..PARTITIONS).map(move |p| OffsetPlace { group: group_name(group), log_id: log_of(p) })
    };
    (0..GROUPS).flat_map(of).collect()
}

fn producer_name(index: usize) -> Name {
    name(&format!("name{index}"))
}

impl Life {
    pub fn session(&self, name: usize) -> Option<(ProducerId, Epoch)> {
        let row = self.ledger.session_of(&producer_name(name))?;
        Some((row.producer_id, row.facts.epoch))
    }

    /// With an epoch this far from the current one.
    fn near_session(&self, name: usize, by: i64) -> Option<(ProducerId, Epoch)> {
        self.session(name).map(|(id, epoch)| (id, (epoch + by).max(0)))
    }

    pub fn request(&self, op: &Op) -> Option<Request> {
        Some(match op {
            Op::Open(name, condition) => {
                let condition = condition.and_then(|by| self.near_session(*name, by));
                Request::Open { name: producer_name(*name), condition }
            }
            Op::Close(name) => Request::Close(self.session(*name)?.0),
            Op::Begin { age_ms, used, session, timeout_ms, load, commit } => {
                let used = used.and_then(|back| self.back(back));
                // (ids differ in their last bits)
                let new = Uuid::from_u128(
                    made_at(self.ledger.now.0 - age_ms).as_u128()
                        + 0x10_000
                        + self.sent.len() as u128,
                );
                let session = session.and_then(|(name, by)| self.near_session(name, by));
                Request::Begin(Begin {
                    id: used.unwrap_or(new),
                    session,
                    timeout_ms: *timeout_ms,
                    work: self.work(load),
                    commit: *commit,
                })
            }
            Op::Call { back, open, who, verb, load } => {
                let id = if *open { self.open(*back) } else { self.back(*back) };
                self.call(id.or(self.back(0))?, *who, *verb, load)
            }
            _ => return None,
        })
    }

    /// Named in a begin, successful or not.
    fn back(&self, back: usize) -> Option<Uuid> {
        let mut named = self.sent.iter().rev().filter_map(|request| match request {
            Request::Begin(begin) => Some(begin.id),
            _ => None,
        });
        named.nth(back)
    }

    fn open(&self, back: usize) -> Option<Uuid> {
        let is_open = |id: &&Uuid| {
            let stored = self.ledger.transactions.get(*id);
            stored.is_some_and(|stored| {
                stored.row.state <= State::Prepared && !stored.row.has_expired(self.ledger.now)
            })
        };
        let open: Vec<&Uuid> = self.ran.iter().rev().filter(is_open).collect();
        (!open.is_empty()).then(|| *open[back % open.len()])
    }

    fn call(&self, id: Uuid, who: Who, verb: Verb, load: &Option<Load>) -> Request {
        let stored = self.ledger.transactions.get(&id);
        let session = self.told.get(&id).and_then(|told| told.session);
        let caller = match (who, session) {
            (Who::Operator, _) => Caller::Operator,
            (Who::Stranger, _) => {
                let of = |name| self.session(name).map(|(id, e)| Caller::Session(id, e));
                let name = usize::from(session.is_some_and(|(id, _)| id == ProducerId(0)));
                of(name).unwrap_or(Caller::Bearer)
            }
            (Who::Bearer, _) | (_, None) => Caller::Bearer,
            (Who::Beginner, Some((producer, epoch))) => Caller::Session(producer, epoch),
            (Who::Owner, Some((producer, epoch))) => {
                Caller::Session(producer, self.epochs.get(&producer).copied().unwrap_or(epoch))
            }
        };
        let work = load.as_ref().map_or(Work::default(), |load| self.work(load));
        let next = stored.map_or(0, |stored| stored.row.next_sequence);
        let call = match verb {
            Verb::Get => return Request::Get(id),
            Verb::Records(number) => {
                // what a sequence numbers is always the same, but now and then
                let sequence = number.map(|by| (next + by).max(0));
                let same = sequence.filter(|_| work.offsets.is_empty());
                let appends = same.map_or(work.appends, |s| vec![vec![(s as Partition % 3, 1)]]);
                Call::Add { sequence, work: Work { appends, offsets: Vec::new() } }
            }
            Verb::Offsets => {
                Call::Add { sequence: None, work: Work { appends: Vec::new(), ..work } }
            }
            Verb::Prepare => Call::Prepare,
            Verb::Abort => Call::Abort,
            Verb::Commit(expect) => {
                let count = stored.map_or(0, |stored| stored.row.append_count);
                let right = count + work.appends.len() as i64;
                let expected_appends = expect.map(|by| (right + by).max(0));
                Call::Commit { expected_appends, work }
            }
        };
        Request::Call(id, caller, call)
    }

    fn work(&self, load: &Load) -> Work {
        let places = places();
        let claim = |(index, offset, right): &(usize, Offset, Right)| {
            let place = places[*index].clone();
            let row = self.ledger.offset(&place);
            let near = |by: i64| row.committed_offset.map(|offset| offset + by);
            let (expected, began) = match right {
                Right::Run(by) => (None, Some(near(*by))),
                Right::Still => (None, Some(near(0))),
                Right::Over(by) => (Some(near(*by)), None),
                _ => (None, None),
            };
            let claim = match (right, row.owner.clone()) {
                (Right::Expected(by), _) => CommitRight::Expected(near(*by)),
                (Right::Member(member, by), _) => {
                    let generation = self.ledger.group(&place.group).generation + by;
                    CommitRight::Member {
                        member_id: format!("m{member}"),
                        generation,
                        expected,
                        began,
                    }
                }
                (_, Some((member_id, generation))) => {
                    CommitRight::Member { member_id, generation, expected, began }
                }
                (_, None) => CommitRight::Expected(near(0)),
            };
            let still = row.committed_offset.filter(|_| matches!(right, Right::Still));
            (place, still.unwrap_or(*offset), claim)
        };
        let offsets: Offsets = load.offsets.iter().map(claim).collect();
        Work { appends: load.appends.clone(), offsets }
    }
}
