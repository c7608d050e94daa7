//! Random histories of a tenant: sessions opened, closed and expired, zombies, transactions of all
//! shapes, any request sent again at any time, rebalances, time, settings and a janitor. Every
//! answer must be the oracle's; and the promises of the contract are checked against the answers
//! and the logs, without any rule in between.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*, test_runner::TestCaseError};
use uuid::Uuid;

use super::{
    ledger::{Answer, Appends, Batch, Begin, Call, Ledger, Limits, Request, Work},
    ops::{NAMES, Op, PARTITIONS, START, group_name, op, places},
    oracle::Oracle,
};
use crate::{
    model::{
        Epoch, Partition, ProducerId,
        transaction::{Answered, Caller, CommitRight, Reason, State, Transaction},
    },
    rules::{
        Refusal,
        group::offsets::{Claimed, OffsetPlace},
        tests::{
            random::{Seen, holds},
            session::made_at,
            settings::own,
        },
    },
};

pub struct Life {
    pub ledger: Ledger,
    oracle: Oracle,
    limits: Limits,
    pub sent: Vec<Request>,
    /// Every id ever begun, with its content, in order.
    pub ran: Vec<Uuid>,
    parts: BTreeMap<Uuid, Vec<(Partition, i64)>>,
    /// The last answer.
    pub told: BTreeMap<Uuid, Transaction>,
    commits: Vec<Uuid>,
    /// The last answer.
    pub epochs: BTreeMap<ProducerId, Epoch>,
    /// Which transaction has moved which offset.
    moves: BTreeSet<(Uuid, OffsetPlace)>,
    seen: Seen,
}

impl Life {
    fn new() -> Self {
        let mut life = Self {
            ledger: Ledger::new(START, own("")),
            oracle: Oracle::new(START),
            limits: Limits {
                retention_ms: 1_000,
                timeout_ms: 200,
                max_timeout_ms: 900,
                max_batches: 10_000,
            },
            sent: Vec::new(),
            ran: Vec::new(),
            parts: BTreeMap::new(),
            told: BTreeMap::new(),
            commits: Vec::new(),
            epochs: BTreeMap::new(),
            moves: BTreeSet::new(),
            seen: Seen::default(),
        };
        life.set();
        life
    }

    fn set(&mut self) {
        let Limits { retention_ms, timeout_ms, max_timeout_ms, max_batches } = self.limits;
        self.ledger.tenant = own(&format!(
            "transaction_retention_ms={retention_ms} transaction_timeout_ms={timeout_ms} \
             max_transaction_timeout_ms={max_timeout_ms} max_transaction_batches={max_batches}"
        ));
    }

    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Tick(ms) => {
                self.ledger.now.0 += ms;
                self.oracle.now = self.ledger.now;
            }
            Op::Retain(ms) => {
                self.limits.retention_ms = *ms;
                self.set();
            }
            Op::Limit(batches) => {
                self.limits.max_batches = *batches;
                self.set();
            }
            Op::Sweep => {
                let count = self.ledger.transactions.len();
                self.ledger.sweep();
                self.oracle.sweep(self.limits);
                if self.ledger.transactions.len() < count {
                    self.seen.saw("forgotten");
                }
            }
            Op::Expire(name) => {
                if let Some((producer, _)) = self.session(*name) {
                    let may_go = self.oracle.expire(producer);
                    prop_assert_eq!(self.ledger.expire(producer), may_go);
                    self.seen.saw(if may_go { "producer gone" } else { "producer kept" });
                }
            }
            Op::Rebalance(group, owners) => {
                let group = &group_name(*group);
                let places = places().into_iter().filter(|place| place.group == *group);
                let owners = owners.iter().map(|owner| owner.map(|index| format!("m{index}")));
                let owners: Vec<_> = places.zip(owners).collect();
                self.ledger.rebalance(group, &owners);
                self.oracle.rebalance(group, &owners);
            }
            Op::Again(back) => {
                let index = self.sent.len().checked_sub(back + 1);
                if let Some(request) = index.map(|index| self.sent[index].clone()) {
                    self.send(&request)?;
                }
            }
            _ => {
                if let Some(request) = self.request(op) {
                    self.sent.push(request.clone());
                    self.send(&request)?;
                }
            }
        }
        self.check_prepared()?;
        self.check_logs()
    }

    fn send(&mut self, request: &Request) -> Result<(), TestCaseError> {
        let before = self.ledger.clone();
        let got = self.ledger.handle(request);
        let want = self.oracle.answer(request, self.limits);
        prop_assert_eq!(&got, &want, "{:?} at {:?}", request, self.ledger.now);
        self.check_fence(request, &got)?;
        match got {
            Ok(Answer::Transaction(answered)) => self.answered(request, answered, &before)?,
            Ok(Answer::Opened(producer, epoch, aborted)) => {
                self.epochs.insert(producer, epoch);
                self.seen.saw(if aborted.is_some() { "opened and aborted" } else { "opened" });
            }
            Ok(Answer::Closed) => {
                let Request::Close(producer) = request else { panic!() };
                self.epochs.insert(*producer, self.ledger.sessions[producer].facts.epoch);
                self.seen.saw("closed");
            }
            Err(refusal) => {
                let has_run =
                    matches!(request, Request::Begin(begin) if self.ran.contains(&begin.id));
                match &refusal {
                    Refusal::TransactionExpired if has_run => {
                        self.seen.saw("expired though it ran")
                    }
                    Refusal::OffsetCommitConflict { pinned_by: Some(_), .. } => {
                        self.seen.saw("pinned");
                    }
                    refusal => self.seen.refused(refusal),
                }
            }
        }
        Ok(())
    }

    /// After a response with a later epoch, nothing of an earlier one is accepted; and nothing that
    /// was begun in an earlier one is committed by anybody, unless it was prepared. (The outcome of
    /// a begin is returned to every retry.)
    fn check_fence(
        &self,
        request: &Request,
        got: &Result<Answer, Refusal>,
    ) -> Result<(), TestCaseError> {
        let by = match request {
            Request::Begin(_) if matches!(got, Ok(Answer::Transaction(told)) if told.duplicate) => {
                None
            }
            Request::Begin(begin) => begin.session,
            Request::Call(_, Caller::Session(producer, epoch), _) => Some((*producer, *epoch)),
            Request::Open { condition, .. } => *condition,
            _ => None,
        };
        if got.is_ok()
            && let Some((producer, epoch)) = by
        {
            prop_assert_eq!(epoch, self.epochs[&producer], "{:?}", request);
        }
        if let Ok(Answer::Transaction(Answered { transaction, duplicate: false })) = got
            && let Transaction { state: State::Committed, session: Some(session), .. } = transaction
            && !matches!(request, Request::Get(_))
            && transaction.prepared_at.is_none()
        {
            prop_assert_eq!(session.1, self.epochs[&session.0], "{:?}", request);
        }
        Ok(())
    }

    fn answered(
        &mut self,
        request: &Request,
        answered: Answered,
        before: &Ledger,
    ) -> Result<(), TestCaseError> {
        let Answered { transaction, duplicate } = answered;
        let id = transaction.transaction_id;
        let is_new = !duplicate && !matches!(request, Request::Get(_));
        match request {
            Request::Begin(begin) if is_new => {
                prop_assert!(!self.ran.contains(&id), "{id} runs twice");
                self.ran.push(id);
                self.put(id, &begin.work.appends);
            }
            Request::Call(_, _, Call::Add { work, .. } | Call::Commit { work, .. }) if is_new => {
                self.put(id, &work.appends);
            }
            _ => {}
        }
        let ends_now = is_new && transaction.state == State::Committed;
        if ends_now {
            self.commits.push(id);
            self.check_moves(id, before)?;
        }
        self.seen.saw(kind(request, &transaction, duplicate));
        if ends_now && transaction.session.is_some_and(|(id, epoch)| epoch < self.epochs[&id]) {
            self.seen.saw("committed by a newer session");
        }
        // an outcome once told never changes, nor is what was prepared ever ongoing again
        if let Some(told) = self.told.insert(id, transaction.clone()) {
            let has_ended = told.ended_at.is_some();
            prop_assert!(!has_ended || told == transaction, "{told:?} {transaction:?}");
            prop_assert!(
                told.state <= transaction.state && told.created_at == transaction.created_at
            );
        }
        Ok(())
    }

    fn put(&mut self, id: Uuid, appends: &Appends) {
        self.parts.entry(id).or_default().extend(appends.iter().flatten());
    }

    /// A transaction moves an offset once; by compare-and-set only from where it expected it.
    fn check_moves(&mut self, id: Uuid, before: &Ledger) -> Result<(), TestCaseError> {
        let offsets = &self.ledger.transactions[&id].offsets;
        let appends = self.ledger.transactions[&id].row.append_count > 0;
        let (mut is_still, mut is_moved) = (false, false);
        for place in places() {
            let at = |ledger: &Ledger| ledger.offsets.get(&place).and_then(|r| r.committed_offset);
            let (from, to) = (at(before), at(&self.ledger));
            let Some(Claimed { offset, claim, .. }) = offsets.get(&place) else {
                prop_assert_eq!(from, to, "not its own: {:?}", place);
                continue;
            };
            prop_assert_eq!(to, Some(*offset));
            prop_assert!(self.moves.insert((id, place.clone())), "{id} moves {place:?} again");
            match claim {
                CommitRight::Expected(expected) => prop_assert_eq!(*expected, from),
                CommitRight::Member { expected, began, .. } => {
                    prop_assert!(from <= to || expected.is_some());
                    prop_assert!(expected.is_none_or(|expected| expected == from));
                    let began = began.filter(|_| appends);
                    prop_assert!(began.is_none_or(|began| began == from));
                    is_still |= from == to;
                    is_moved |= from != to;
                }
            }
        }
        prop_assert!(!appends || is_moved || !is_still, "{id} has processed nothing");
        Ok(())
    }

    /// A prepared transaction can be committed, by its session, unless that is closed, and by an
    /// operator.
    fn check_prepared(&mut self) -> Result<(), TestCaseError> {
        let rows = self.ledger.transactions.values().map(|stored| &stored.row);
        let prepared: Vec<_> = rows.filter(|row| row.state == State::Prepared).cloned().collect();
        for row in prepared {
            let facts = row.session.map(|(producer, _)| self.ledger.sessions[&producer].facts);
            let owner = match row.session.zip(facts) {
                Some((_, facts)) if facts.closed => None,
                Some(((producer, _), facts)) => Some(Caller::Session(producer, facts.epoch)),
                None => Some(Caller::Bearer),
            };
            for caller in owner.into_iter().chain([Caller::Operator]) {
                let mut then = self.ledger.clone();
                let commit = Call::Commit { expected_appends: None, work: Work::default() };
                let got = then.handle(&Request::Call(row.transaction_id, caller, commit));
                prop_assert!(got.is_ok(), "{caller:?} {got:?}");
                self.seen.saw("could be committed");
            }
        }
        Ok(())
    }

    /// Every log holds the parts of the committed transactions, and of no other, once, contiguous
    /// and in the order of the commits.
    fn check_logs(&self) -> Result<(), TestCaseError> {
        for partition in 0..PARTITIONS {
            let mut next = 0;
            let mut want = Vec::new();
            for id in &self.commits {
                for (_, record_count) in self.parts[id].iter().filter(|(p, _)| *p == partition) {
                    let (base_offset, record_count) = (next, *record_count);
                    want.push(Batch { base_offset, record_count, transaction_id: *id });
                    next += record_count;
                }
            }
            let log = self.ledger.logs.get(&partition).cloned().unwrap_or_default();
            prop_assert_eq!(log, want, "partition {}", partition);
        }
        Ok(())
    }
}

fn kind(request: &Request, transaction: &Transaction, duplicate: bool) -> &'static str {
    let prepared = transaction.prepared_at.is_some();
    match (request, transaction.state, transaction.reason) {
        (Request::Get(_), State::Aborted, Some(Reason::Timeout)) => "timeout",
        (Request::Get(_), State::Aborted, Some(Reason::Fenced)) => "aborted by a newer session",
        (Request::Get(_), ..) => "got",
        (Request::Begin(_), ..) if duplicate => "begin repeated",
        (Request::Begin(_), State::Committed, _) => "committed in one request",
        (Request::Begin(_), ..) => "begun",
        (_, State::Ongoing, _) if duplicate => "records repeated",
        (_, State::Ongoing, _) => "added",
        (_, State::Prepared, _) if duplicate => "prepare repeated",
        (_, State::Prepared, _) => "prepared",
        (_, State::Committed, _) if duplicate => "commit repeated",
        (_, State::Committed, _) if prepared => "committed what was prepared",
        (_, State::Committed, _) => "committed",
        (_, State::Aborted, _) if duplicate => "abort repeated",
        (_, State::Aborted, _) if prepared => "aborted what was prepared",
        (_, State::Aborted, Some(Reason::Operator)) => "aborted by an operator",
        (_, State::Aborted, _) => "aborted",
    }
}

/// What must have happened.
const EVENTS: &str = "UnknownProducer, ProducerFenced, InvalidProducerEpoch, OutOfOrderSequence, \
    SequenceReused, InvalidTransactionId, TransactionExpired, TransactionNotFound, \
    TransactionReused, InvalidTransactionState, ConcurrentTransactions, TransactionTooLarge, \
    AppendsMissing, ProducerMismatch, SessionMissing, OperatorMayNotCommit, TimeoutTooLong, \
    pinned, OffsetCommitConflict, NothingProcessed, UnknownMember, IllegalGeneration, \
    GroupNotEmpty, opened, opened and aborted, closed, producer gone, producer kept, forgotten, \
    could be committed, timeout, aborted by a newer session, got, begin repeated, \
    committed in one request, begun, records repeated, added, prepare repeated, prepared, \
    commit repeated, committed what was prepared, committed by a newer session, committed, \
    abort repeated, aborted what was prepared, aborted by an operator, aborted, \
    expired though it ran";

#[test]
fn any_life_of_transactions_is_as_the_oracle_says() {
    holds(1_500, vec(op(), 1..120), (10, EVENTS), |ops| {
        let mut life = Life::new();
        for name in 0..NAMES {
            life.step(&Op::Open(name, None))?;
        }
        for op in &ops {
            life.step(op)?;
        }
        Ok(life.seen)
    });
}

/// Repeated begins of a few ids, while time and the setting change.
#[derive(Clone, Debug)]
enum Move {
    /// A begin of an id, and whether it commits at once.
    Begin(usize, bool),
    Abort(usize),
    Clock(i64),
    Retain(i64),
    Sweep,
}

fn a_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        10 => (0..8_usize, any::<bool>()).prop_map(|(id, commit)| Move::Begin(id, commit)),
        4 => (0..8_usize).prop_map(Move::Abort),
        4 => (-30..40_i64).prop_map(Move::Clock),
        2 => (1..60_i64).prop_map(Move::Retain),
        5 => Just(Move::Sweep),
    ]
}

/// Also a clock that goes back, as a database's may after a failover.
#[test]
fn no_id_runs_twice_whatever_the_clock_and_the_retention_do() {
    // how many ids were begun again after they were forgotten
    holds(3_000, vec(a_move(), 1..80), (1_000, "refused"), |moves| {
        let mut seen = Seen::default();
        let mut ledger = Ledger::new(START, own("transaction_retention_ms=20"));
        let mut ran = BTreeSet::new();
        let id = |index: usize| made_at(START.0 + 4 * index as i64);
        for a_move in moves {
            match a_move {
                Move::Begin(index, commit) => {
                    let (id, work) = (id(index), Work::default());
                    let (session, timeout_ms) = (None, Some(10));
                    let begin = Begin { id, session, timeout_ms, work, commit };
                    match ledger.handle(&Request::Begin(begin)) {
                        Ok(Answer::Transaction(Answered { duplicate: false, .. })) => {
                            prop_assert!(ran.insert(id), "{id} runs twice");
                        }
                        Err(Refusal::TransactionExpired) if ran.contains(&id) => {
                            seen.saw("refused");
                        }
                        _ => {}
                    }
                }
                Move::Abort(index) => {
                    let _ = ledger.handle(&Request::Call(id(index), Caller::Bearer, Call::Abort));
                }
                Move::Clock(ms) => ledger.now.0 += ms,
                Move::Retain(ms) => ledger.tenant = own(&format!("transaction_retention_ms={ms}")),
                Move::Sweep => ledger.sweep(),
            }
        }
        Ok(seen)
    });
}
