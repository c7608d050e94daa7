//! Concurrent calls of one transaction, statement by statement, under READ COMMITTED.
//!
//! One step of [`super::ledger`] is several statements in the server. A statement sees what was
//! committed when it began ([`At::Begin`]), and what its own database transaction has written. At a
//! locked row ([`At::Reach`]) it waits, or skips it. If the row has changed since, it evaluates the
//! row's columns again; its sub-selects and joins still use the snapshot of its beginning, and a
//! row that was only locked is unchanged. The rules that decide are the real ones. Every set of
//! two, three and four calls is explored in every order.

mod tables;

use std::collections::BTreeSet;

use oncelog::{
    model::{
        LogId, Name, Timestamp,
        session::Sequencing,
        transaction::{Caller, CommitRight, Reason, State},
    },
    rules::{
        append::sequence::SessionFacts,
        group::offsets::{self, Claimed, Committer, GroupFacts, OffsetPlace, judge_in_transaction},
        transaction::{TransactionVerdict, Verb, check_producer, judge},
    },
};
use stateright::{Model, Property};

use self::tables::{
    At, Call, EXPIRES_AT, ID, Lock, OFFSET, Running, SESSION, Tables, Transaction, World,
};
use super::{
    super::harness::{self, never},
    Broken,
};

/// The offset that the transaction is to commit.
fn claimed() -> Claimed {
    let place = OffsetPlace { group: Name::parse("g").unwrap(), log_id: LogId(1) };
    Claimed { place, offset: OFFSET, claim: CommitRight::Expected(None) }
}

const CALLS: [Call; 8] = [
    Call::Commit,
    Call::Commit,
    Call::Append,
    Call::Offsets,
    Call::Prepare,
    Call::Abort,
    Call::Open,
    Call::Expire,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Step(Call, At, usize),
    Tick,
}

/// What can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Offsets are counted in the transaction's row: without, a commit looks whether any are
    /// staged.
    OffsetCount,
    /// A commit compares the batches it sees with the count in the row.
    BatchCount,
    /// A row that has changed while a statement waited is judged again.
    RecheckRow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    FastCommit,
    JudgedCommit,
    OffsetCommitted,
    /// A row was held elsewhere; or had changed since the statement began.
    Skipped,
    Overtaken,
    Prepared,
    Fenced,
    TimedOut,
    Aborted,
}

/// The configuration is the rule that is left out.
type Check = harness::Check<Option<Rule>, Seen>;

impl Check {
    fn has(&self, rule: Rule) -> bool {
        self.config != Some(rule)
    }

    /// None: it has to wait, or is done.
    fn step(&self, world: &World, index: usize) -> Option<World> {
        let mut then = world.clone();
        let Running { call, at, .. } = then.calls[index];
        match at {
            At::Begin => {
                let seen = then.tables.with(&then.calls[index].written);
                then.calls[index].seen = Some(seen);
                then.calls[index].at = At::Reach;
            }
            At::Reach => self.reach(&mut then, index)?,
            At::Write => self.commit_fast(&mut then, index),
            At::Session => {
                let lock = if call == Call::Open { Lock::Session } else { Lock::SharedSession };
                self.lock(&mut then, index, lock)?;
                let facts = SessionFacts {
                    epoch: then.tables.epoch,
                    closed: false,
                    reset_epoch: 0,
                    sequencing: Sequencing::Contiguous,
                };
                then.calls[index].at = if call == Call::Open { At::Begin } else { At::Row };
                if call != Call::Open && check_producer(SESSION, Some(&facts)).is_err() {
                    self.note(Seen::Fenced);
                    then.calls[index].leave(At::Done(false));
                }
            }
            At::Row => {
                self.lock(&mut then, index, Lock::Row)?;
                then.calls[index].at = self.judged(&then, call);
                if let at @ (At::Done(_) | At::Late) = then.calls[index].at {
                    then.calls[index].leave(at);
                }
            }
            At::Read => {
                then.calls[index].seen = Some(then.tables.clone());
                then.calls[index].at = At::Place;
            }
            At::Place => self.judge_offset(&mut then, index)?,
            At::Judged => self.write_judged(&mut then, index),
            At::End => then.write(index),
            At::Late => {
                // EXPIRE, which waits: it is the row as it is then that counts
                if !world.is_free(index, Lock::Row) {
                    return None;
                }
                let now = then.now;
                let transaction = &mut then.tables.transaction;
                if transaction.row.has_expired(now) {
                    transaction.abort(Reason::Timeout, EXPIRES_AT);
                }
                then.calls[index].at = At::Session;
            }
            At::Done(_) => return None,
        }
        then.check(&world.tables);
        Some(then)
    }

    fn lock(&self, world: &mut World, index: usize, lock: Lock) -> Option<()> {
        if !world.is_free(index, lock) {
            return None;
        }
        world.calls[index].locks.insert(lock);
        Some(())
    }

    /// What the rules say of the locked row.
    fn judged(&self, world: &World, call: Call) -> At {
        let row = &world.tables.transaction.row;
        if row.has_expired(world.now) {
            return At::Late;
        }
        let (verb, next) = match call {
            Call::Commit => (Verb::Commit, At::Read),
            Call::Prepare => (Verb::Prepare, At::Read),
            Call::Abort => (Verb::Abort, At::Read),
            _ => (Verb::Add, At::Judged),
        };
        match judge(row, verb, Caller::Session(SESSION.0, SESSION.1)) {
            Ok(TransactionVerdict::Repeat) => At::Done(true),
            Ok(TransactionVerdict::Go(_)) => next,
            Err(_) => At::Done(false),
        }
    }

    /// What a statement asks of the transaction's row.
    fn is_asked(&self, call: Call, tables: &Tables, now: Timestamp) -> bool {
        let Transaction { row, id_count, .. } = &tables.transaction;
        match call {
            Call::Expire => row.has_expired(now),
            Call::Append if row.expires_at <= now => false,
            Call::Commit if self.has(Rule::OffsetCount) && *id_count > 0 => false,
            _ => row.state == State::Ongoing,
        }
    }

    /// The statement that has begun comes to the transaction's row.
    fn reach(&self, world: &mut World, index: usize) -> Option<()> {
        let Running { call, ref seen, .. } = world.calls[index];
        let seen = seen.clone().unwrap();
        let is_asked = |tables: &Tables| self.is_asked(call, tables, world.now);
        if !is_asked(&seen) {
            self.without_row(world, index);
            return Some(());
        }
        if !world.is_free(index, Lock::Row) {
            // LOCK_ONGOING waits, the others leave it out
            if call == Call::Open {
                return None;
            }
            self.note(Seen::Skipped);
            self.without_row(world, index);
            return Some(());
        }
        if self.has(Rule::RecheckRow) && !is_asked(&world.tables) {
            self.note(Seen::Overtaken);
            self.without_row(world, index);
            return Some(());
        }
        let now = world.now;
        let mut transaction = world.tables.transaction.clone();
        let running = &mut world.calls[index];
        match call {
            Call::Commit => {
                let sees_all = seen.staged == transaction.row.batch_count;
                let may = sees_all || !self.has(Rule::BatchCount);
                if !may || !self.has(Rule::OffsetCount) && seen.has_staged_offset {
                    self.without_row(world, index);
                    return Some(());
                }
                running.locks.insert(Lock::Row);
                running.at = At::Write;
            }
            Call::Append => {
                transaction.row.append_count += 1;
                transaction.row.batch_count += 1;
                running.written.transaction = Some(transaction);
                running.written.staged = 1;
                world.write(index);
            }
            Call::Expire => {
                self.note(Seen::TimedOut);
                transaction.abort(Reason::Timeout, EXPIRES_AT);
                running.written.transaction = Some(transaction);
                world.write(index);
            }
            _ => {
                self.note(Seen::Aborted);
                running.locks.insert(Lock::Row);
                let reason = if now < EXPIRES_AT { Reason::Fenced } else { Reason::Timeout };
                transaction.abort(reason, now.min(EXPIRES_AT));
                running.written.transaction = Some(transaction);
                running.written.epoch = Some(SESSION.1 + 1);
                running.at = At::End;
            }
        }
        Some(())
    }

    /// A statement has left the row out.
    fn without_row(&self, world: &mut World, index: usize) {
        let running = &mut world.calls[index];
        match running.call {
            Call::Open => {
                running.written.epoch = Some(SESSION.1 + 1);
                running.at = At::End;
            }
            Call::Expire => running.leave(At::Done(false)),
            _ => running.leave(At::Session),
        }
    }

    fn commit_fast(&self, world: &mut World, index: usize) {
        let (now, mut transaction) = (world.now, world.tables.transaction.clone());
        let running = &mut world.calls[index];
        if now >= EXPIRES_AT {
            running.leave(At::Session);
            return;
        }
        self.note(Seen::FastCommit);
        running.written.stored = running.seen.as_ref().unwrap().staged;
        transaction.commit(now);
        running.written.transaction = Some(transaction);
        world.write(index);
    }

    fn judge_offset(&self, world: &mut World, index: usize) -> Option<()> {
        let Running { call, ref seen, .. } = world.calls[index];
        let was_prepared = world.tables.transaction.row.state == State::Prepared;
        let is_asked = seen.as_ref().unwrap().has_staged_offset;
        if is_asked && (call != Call::Abort || was_prepared) {
            self.lock(world, index, Lock::Place)?;
            let claimed = claimed();
            let asked = (&world.tables.place, &GroupFacts::default(), &claimed);
            let by = Committer { transaction_id: ID, appends: true };
            let judged = judge_in_transaction(&[asked], by);
            if call != Call::Abort && !was_prepared && judged.is_err() {
                world.calls[index].leave(At::Done(false));
                return Some(());
            }
        }
        world.calls[index].at = At::Judged;
        Some(())
    }

    fn write_judged(&self, world: &mut World, index: usize) {
        let (now, tables) = (world.now, world.tables.clone());
        let running = &mut world.calls[index];
        let (mut transaction, mut place) = (tables.transaction, tables.place);
        let has_offset = running.seen.as_ref().is_some_and(|seen| seen.has_staged_offset);
        let was_prepared = transaction.row.state == State::Prepared;
        let ends = matches!(running.call, Call::Commit | Call::Prepare);
        if ends && !was_prepared && now >= EXPIRES_AT {
            running.leave(At::Late);
            return;
        }
        let written = &mut running.written;
        match running.call {
            Call::Append => {
                transaction.row.append_count += 1;
                transaction.row.batch_count += 1;
                written.staged = 1;
            }
            Call::Offsets => {
                transaction.id_count += 1;
                written.has_staged_offset = Some(true);
            }
            Call::Prepare => {
                self.note(Seen::Prepared);
                transaction.row.state = State::Prepared;
                transaction.row.prepared_at = Some(now);
                place.pinned_by = has_offset.then_some(ID);
            }
            Call::Commit => {
                self.note(Seen::JudgedCommit);
                transaction.commit(now);
                written.stored = tables.staged;
                if has_offset {
                    self.note(Seen::OffsetCommitted);
                    place =
                        offsets::OffsetRow { committed_offset: Some(OFFSET), ..Default::default() };
                    written.has_staged_offset = Some(false);
                }
            }
            _ => {
                self.note(Seen::Aborted);
                transaction.abort(Reason::Client, now);
                place.pinned_by = None;
            }
        }
        written.transaction = Some(transaction);
        written.place = running.locks.contains(&Lock::Place).then_some(place);
        running.at = At::End;
    }
}

impl Model for Check {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let sets = (0_u32..1 << CALLS.len()).filter(|set| (2..=4).contains(&set.count_ones()));
        let world = |set: u32| {
            let calls = CALLS.iter().enumerate().filter(|(at, _)| set & 1 << at != 0);
            let calls = calls.map(|(_, call)| Running::new(*call)).collect();
            let tables = Tables::new();
            World { now: Timestamp(0), tables, calls, broken: BTreeSet::new() }
        };
        sets.map(world).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if !world.broken.is_empty() {
            return;
        }
        let step = |(index, call): (usize, &Running)| Action::Step(call.call, call.at, index);
        actions.extend(world.calls.iter().enumerate().map(step));
        if world.now < EXPIRES_AT {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        match action {
            Action::Step(_, _, index) => self.step(world, index),
            Action::Tick => Some(World { now: EXPIRES_AT, ..world.clone() }),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = never![
            NotAtomic,
            LeftBehind,
            PreparedButRefused,
            AcceptedAfterFence,
            AcceptedAfterDeadline,
            OutcomeChanged
        ];
        properties.push(Property::always(Broken::Stuck.name(), |check: &Check, world: &World| {
            let is_done = |call: &Running| matches!(call.at, At::Done(_));
            let mut indices = 0..world.calls.len();
            let can_go = indices.any(|index| check.step(world, index).is_some());
            !world.broken.is_empty() || world.calls.iter().all(is_done) || can_go
        }));
        properties
    }
}

#[test]
fn holds_statement_by_statement() {
    let all = [
        Seen::FastCommit,
        Seen::JudgedCommit,
        Seen::OffsetCommitted,
        Seen::Skipped,
        Seen::Overtaken,
        Seen::Prepared,
        Seen::Fenced,
        Seen::TimedOut,
        Seen::Aborted,
    ];
    Check::new(None).explore("holds_statement_by_statement", 20_001, &all);
}

/// Leaves a rule out: this part of the contract must break.
fn breaks(without: Rule, broken: Broken) {
    Check::new(Some(without)).find_violation(&format!("{without:?}"), broken.name(), 0);
}

#[test]
fn without_counting_offsets_in_the_row_a_commit_drops_them() {
    breaks(Rule::OffsetCount, Broken::NotAtomic);
    breaks(Rule::OffsetCount, Broken::LeftBehind);
}

#[test]
fn without_counting_batches_in_the_row_a_commit_drops_them() {
    breaks(Rule::BatchCount, Broken::NotAtomic);
}

#[test]
fn without_judging_rows_anew_what_is_over_goes_on() {
    breaks(Rule::RecheckRow, Broken::OutcomeChanged);
}
