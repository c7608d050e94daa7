//! The replicas: `broker::append::lane` and `broker::append::writer` in small steps, with the real
//! rules.
//!
//! A pass keeps the cache as it was *before* it decided and decides again when its statement
//! takes effect: deciding is a pure function, so this is the same plan, and the state stays small.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::{
    model::{LogId, Offset, Sequence, Timestamp},
    rules::append::{
        self, Request,
        cache::{Head, LogCaches},
        encoding,
        plan::Plan,
        producer_state::Entry,
        read_set,
    },
};

use super::{
    Broken, Rule, Seen,
    ledger::{self, Bases, JOURNAL, StateRow, Statement, Who},
    load::{Facts, Loader, Pair, Starts},
    world::{Config, Known, Ticket, Turn, World},
};

type Positions = BTreeMap<LogId, Offset>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    Idle,
    /// Decided; the statement (or the confirming read) is on its way.
    Fast(Vec<Ticket>),
    Slow(SlowPass),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlowPass {
    pub group: Vec<Ticket>,
    pub overtaken: bool,
    /// What it decides was lost before: the statement may still take effect.
    pub is_redo: bool,
    /// What could be loaded before the lock was.
    pub early: bool,
    pub known: Positions,
    pub step: Step,
}

/// What a slow path does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    ReadHeads,
    States { heads: Vec<Head> },
    Tails { heads: Vec<Head>, starts: Starts },
    Sessions { heads: Vec<Head> },
    Share,
    Lock { shared: BTreeSet<Pair>, held: Facts },
    Load { shared: BTreeSet<Pair>, held: Facts, heads: Vec<Head> },
    Commit { now_at: Positions },
}

/// A statement whose replica is dead or has given up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Orphan {
    pub statement: Statement,
    pub attempts: Vec<u8>,
    /// One of its requests was answered with a refusal since.
    pub refused: bool,
}

impl Pass {
    /// It has sent what may be lost.
    pub fn is_writing(&self) -> bool {
        match self {
            Pass::Idle => false,
            Pass::Fast(_) => true,
            Pass::Slow(slow) => matches!(slow.step, Step::Commit { .. }),
        }
    }
}

impl World {
    pub fn can_step(&self, config: &Config, replica: usize) -> bool {
        let who = Who::Replica(replica);
        match &self.replicas[replica].pass {
            Pass::Idle => false,
            Pass::Fast(group) => {
                let requests = config.requests(self, group);
                self.ledger.may_lock(&read_set::touched_logs(&requests), who)
            }
            Pass::Slow(slow) => match &slow.step {
                Step::Share if config.without == Some(Rule::ShareUnregistered) => true,
                Step::Share => {
                    let requests = config.requests(self, &slow.group);
                    let shared = unregistered(&self.replicas[replica].caches.0, &requests);
                    self.ledger.may_share(&shared.into_iter().map(|(_, id)| id).collect())
                }
                Step::Lock { .. } => {
                    let requests = config.requests(self, &slow.group);
                    self.ledger.may_lock(&read_set::touched_logs(&requests), who)
                }
                _ => true,
            },
        }
    }
}

impl Config {
    fn requests(&self, world: &World, group: &[Ticket]) -> Vec<Request> {
        group.iter().map(|ticket| self.request(world, ticket)).collect()
    }
}

fn positions(caches: &LogCaches, logs: &[LogId]) -> Positions {
    let position = |log_id: &LogId| Some((*log_id, caches.get(log_id)?.next_offset));
    logs.iter().filter_map(position).collect()
}

fn unregistered(caches: &LogCaches, requests: &[Request]) -> BTreeSet<Pair> {
    let numbered = |request: &Request| Some((request.home, request.numbered?.producer_id));
    let is_registered = |(log_id, id): &Pair| {
        let producer = caches.get(log_id).and_then(|log| log.producers.get(id));
        producer.is_some_and(|producer| producer.registered)
    };
    requests.iter().filter_map(numbered).filter(|pair| !is_registered(pair)).collect()
}

impl Turn<'_> {
    pub fn caches(&mut self, replica: usize) -> &mut LogCaches {
        &mut self.world.replicas[replica].caches.0
    }

    fn set(&mut self, replica: usize, pass: Pass) {
        self.world.replicas[replica].pass = pass;
    }

    fn start_slow(&mut self, replica: usize, group: Vec<Ticket>, overtaken: bool) {
        let requests = self.config.requests(&self.world, &group);
        let dependencies = read_set::dependency_logs(&requests);
        let caches = self.caches(replica);
        let known = positions(caches, &dependencies);
        let early = dependencies.iter().any(|log_id| !caches.contains_key(log_id));
        let step = if early { Step::ReadHeads } else { Step::Share };
        let slow = SlowPass { group, overtaken, is_redo: false, early, known, step };
        self.set(replica, Pass::Slow(slow));
    }

    fn start_redo(&mut self, replica: usize, group: Vec<Ticket>) {
        self.start_slow(replica, group, false);
        if let Pass::Slow(slow) = &mut self.world.replicas[replica].pass {
            slow.is_redo = true;
        }
    }

    /// Requests arrive, the lane takes them as a group and decides how to begin.
    pub fn send(&mut self, replica: usize, requests: &[Option<(usize, Sequence)>]) {
        let mut group: Vec<Ticket> = Vec::new();
        for request in requests {
            let run = request.map(|(run, _)| &self.world.runs[run]);
            let sequence = request.map_or(0, |(_, sequence)| sequence);
            group.push(Ticket {
                run: request.map(|(run, _)| run),
                sequence,
                attempt: self.world.left.sends,
                owed: run.is_some_and(|run| sequence <= run.next_unacked),
                fenced: run.is_some_and(|run| run.epoch < self.world.answered[&run.producer]),
            });
            self.world.left.sends -= 1;
        }
        group.sort_by_key(|ticket| {
            let request = self.config.request(&self.world, ticket);
            (request.home, request.numbered.map(|n| (n.producer_id, n.epoch, n.sequence)))
        });
        let requests = self.config.requests(&self.world, &group);
        let mut caches = self.caches(replica).clone();
        if self.is_without(Rule::VerifiedFence) {
            for log in caches.values_mut() {
                log.producers.values_mut().for_each(|producer| producer.verified_fence = log.fence);
            }
        }
        if read_set::is_known(&caches, &requests) {
            let plan = append::decide(&mut caches, &requests, &mut self.config.txn_context());
            if plan.silent.is_empty() {
                self.set(replica, Pass::Fast(group));
            } else {
                self.forget(replica, &requests);
                self.start_slow(replica, group, false);
            }
        } else {
            self.start_slow(replica, group, false);
        }
    }

    pub fn step(&mut self, replica: usize) {
        match self.world.replicas[replica].pass.clone() {
            Pass::Idle => {}
            Pass::Fast(group) => self.fast(replica, group),
            Pass::Slow(slow) => self.slow_step(replica, slow),
        }
    }

    /// `Writer::try_fast`, from its statement on.
    fn fast(&mut self, replica: usize, group: Vec<Ticket>) {
        let requests = self.config.requests(&self.world, &group);
        let mut context = self.config.txn_context();
        let plan = append::decide(self.caches(replica), &requests, &mut context);
        let statement = self.statement(&plan, &group);
        if !plan.writes_anything() {
            // the confirming read began after the requests arrived
            let dependencies = statement.iter().filter(|want| want.fence.is_some());
            let held = dependencies.clone().all(|want| self.world.ledger.compares(want));
            if held || self.is_without(Rule::ConfirmWhatIsNotWritten) {
                self.note(Seen::ConfirmedByRead);
                self.pass_ends(replica, group, plan, None);
            } else {
                self.note(Seen::Overtaken);
                self.start_slow(replica, group, true);
            }
            return;
        }
        if let Some((appended_at, bases)) = self.write(&statement) {
            self.note(Seen::FastHeld);
            self.pass_ends(replica, group, plan, Some((appended_at, bases)));
        } else {
            self.note(Seen::Overtaken);
            self.forget(replica, &requests);
            self.start_slow(replica, group, true);
        }
    }

    fn forget(&mut self, replica: usize, requests: &[Request]) {
        for log_id in read_set::touched_logs(requests) {
            self.caches(replica).remove(&log_id);
        }
    }

    fn statement(&self, plan: &Plan, group: &[Ticket]) -> Statement {
        let payload = |ticket| self.config.payload(&self.world, ticket);
        let payloads: Vec<_> = group.iter().map(payload).collect();
        let mut statement = ledger::statement(plan, &payloads);
        match self.config.without {
            Some(Rule::CompareWhatIsNotWritten) if plan.writes_anything() => {
                statement.retain(|want| !want.rows.is_empty());
            }
            Some(Rule::JournalCountsRequests) => {
                for want in statement.iter_mut().filter(|want| want.log_id == JOURNAL) {
                    want.record_count = 0;
                    want.rows.iter_mut().for_each(|row| row.record_count = 0);
                }
            }
            Some(Rule::Fingerprint) => {
                for want in &mut statement {
                    let last = self.world.ledger.log(want.log_id).head.last_appended_at;
                    want.position = want.position.map(|(offset, _)| (offset, last));
                }
            }
            Some(Rule::FreshFlag) => {
                for want in &mut statement {
                    let base = want.position.map_or(0, |(base, _)| base);
                    want.rows.iter_mut().for_each(|row| {
                        let origin = base + row.base_offset;
                        row.producers = row.producers.as_deref().map(|b| not_fresh(origin, b));
                    });
                }
            }
            _ => {}
        }
        statement
    }

    /// `Writer::run_slow`, step by step.
    fn slow_step(&mut self, replica: usize, mut slow: SlowPass) {
        let requests = self.config.requests(&self.world, &slow.group);
        let dependencies = read_set::dependency_logs(&requests);
        slow.step = match slow.step.clone() {
            Step::ReadHeads => {
                let heads = self.world.ledger.heads(&dependencies);
                if self.config.early_steps {
                    self.loader(replica, &heads, &requests, None, |loader| loader.begin());
                    Step::States { heads }
                } else {
                    self.load_at_once(replica, &heads, &requests, None);
                    Step::Share
                }
            }
            Step::States { heads } => {
                let starts = self
                    .loader(replica, &heads, &requests, None, |loader| loader.load_new_producers());
                Step::Tails { heads, starts }
            }
            Step::Tails { heads, starts } => {
                let loaded = self
                    .loader(replica, &heads, &requests, None, |loader| loader.load_tails(&starts));
                if loaded.is_ok() {
                    Step::Sessions { heads }
                } else {
                    self.note(Seen::TrimmedWhileLoading);
                    dependencies.iter().for_each(|log| drop(self.caches(replica).remove(log)));
                    Step::Share
                }
            }
            Step::Sessions { heads } => {
                self.loader(replica, &heads, &requests, None, |loader| loader.finish());
                Step::Share
            }
            Step::Share => self.share(replica, &requests),
            Step::Lock { shared, held } => {
                let touched = read_set::touched_logs(&requests);
                self.world.ledger.lock(&touched, Who::Replica(replica));
                Step::Load { shared, held, heads: self.world.ledger.heads(&dependencies) }
            }
            Step::Load { heads, .. } if !slow.early && !self.all_near(replica, &heads) => {
                self.world.ledger.release(Who::Replica(replica));
                slow.early = true;
                Step::ReadHeads
            }
            Step::Load { shared, held, heads } => {
                match self.load_locked(replica, &slow, &requests, &heads, &shared, &held) {
                    Some(step) => {
                        slow.early |= step == Step::ReadHeads;
                        step
                    }
                    None => return,
                }
            }
            Step::Commit { now_at } => {
                let (plan, written) = self.commit(replica, &slow, &now_at);
                return self.pass_ends(replica, slow.group, plan, written);
            }
        };
        self.set(replica, Pass::Slow(slow));
    }

    fn share(&mut self, replica: usize, requests: &[Request]) -> Step {
        let shared = unregistered(self.caches(replica), requests);
        let held = (shared.iter())
            .filter_map(|(_, id)| Some((*id, self.world.ledger.facts(*id)?)))
            .collect();
        if !self.is_without(Rule::ShareUnregistered) {
            for (_, id) in &shared {
                self.world.ledger.session_mut(*id).sharers.insert(Who::Replica(replica));
            }
        }
        Step::Lock { shared, held }
    }

    fn all_near(&mut self, replica: usize, heads: &[Head]) -> bool {
        let caches = self.caches(replica);
        heads.iter().all(|head| caches.get(&head.log_id).is_some_and(|log| log.is_near(head)))
    }

    fn load_at_once(
        &mut self,
        replica: usize,
        heads: &[Head],
        requests: &[Request],
        held: Option<&Facts>,
    ) -> bool {
        let loaded = self.loader(replica, heads, requests, held, |loader| {
            loader.begin();
            let starts = loader.load_new_producers();
            loader.load_tails(&starts)?;
            loader.finish();
            Ok::<_, super::load::Corrupt>(())
        });
        loaded.is_ok()
    }

    /// None: the pass starts again, or failed.
    fn load_locked(
        &mut self,
        replica: usize,
        slow: &SlowPass,
        requests: &[Request],
        heads: &[Head],
        shared: &BTreeSet<Pair>,
        held: &Facts,
    ) -> Option<Step> {
        let loaded = self.load_at_once(replica, heads, requests, Some(held));
        let now_at = positions(self.caches(replica), &read_set::dependency_logs(requests));
        let agree = heads.iter().all(|h| now_at.get(&h.log_id) == Some(&h.next_offset));
        if !loaded || !agree {
            self.breaks(Broken::DoesNotLoad, true);
            self.world.ledger.release(Who::Replica(replica));
            self.forget(replica, requests);
            self.set(replica, Pass::Idle);
            return None;
        }
        if heads.iter().any(|h| self.world.ledger.log(h.log_id).gone > 0) {
            self.note(Seen::LoadedBehindATrim);
        }
        if !unregistered(self.caches(replica), requests).is_subset(shared) {
            // its state was read before the lock, and it has expired since
            self.world.ledger.release(Who::Replica(replica));
            return Some(Step::ReadHeads);
        }
        for (log_id, position) in &now_at {
            let moved = slow.known.get(log_id).is_some_and(|known| known != position);
            if let Some(log) = self.caches(replica).get_mut(log_id) {
                log.looked(slow.overtaken || moved);
                // after how many such looks does not matter here
                log.contended_passes = log.contended_passes.min(1);
            }
        }
        Some(Step::Commit { now_at })
    }

    /// Decide, write, register, commit.
    fn commit(
        &mut self,
        replica: usize,
        slow: &SlowPass,
        now_at: &Positions,
    ) -> (Plan, Option<(Timestamp, Bases)>) {
        let group = &slow.group;
        let requests = self.config.requests(&self.world, group);
        let mut context = self.config.txn_context();
        let plan = append::decide(self.caches(replica), &requests, &mut context);
        let who = Who::Replica(replica);
        if !plan.writes_anything() {
            if slow.is_redo && !self.is_without(Rule::FenceWhatWasLost) {
                for log_id in read_set::dependency_logs(&requests) {
                    self.world.ledger.log_mut(log_id).head.fence += 1;
                }
            }
            self.world.ledger.release(who);
            return (plan, None);
        }
        let mut written = Some((self.world.ledger.clock, Bases::new()));
        if plan.writes_rows_or_keys() {
            let statement = self.statement(&plan, group);
            written = self.write(&statement);
            assert!(written.is_some(), "a compare failed on a locked head");
        }
        for (log_id, id) in &plan.registrations {
            let at = now_at.get(log_id).copied().unwrap_or(0);
            self.world.ledger.states.entry((*log_id, *id)).or_insert(StateRow::new(at));
        }
        self.write_silent(replica, &plan);
        self.world.ledger.release(who);
        (plan, written)
    }

    fn loader<T>(
        &mut self,
        replica: usize,
        heads: &[Head],
        requests: &[Request],
        held: Option<&Facts>,
        load: impl FnOnce(&mut Loader<'_>) -> T,
    ) -> T {
        let World { ledger, replicas, .. } = &mut self.world;
        let caches = &mut replicas[replica].caches.0;
        load(&mut Loader { caches, ledger, heads, requests, held, without: self.config.without })
    }

    /// The write held, or nothing was to be written: the cache is confirmed and answers leave.
    fn pass_ends(
        &mut self,
        replica: usize,
        group: Vec<Ticket>,
        mut plan: Plan,
        written: Option<(Timestamp, Bases)>,
    ) {
        if let Some((appended_at, bases)) = &written {
            let mut told = bases.clone();
            if self.is_without(Rule::AdvanceOnlyFromBase) {
                for (log_id, log) in self.caches(replica) {
                    told.entry(*log_id).and_modify(|base| *base = log.next_offset);
                }
            }
            plan.confirm(self.caches(replica), *appended_at, &told);
            let server = self.world.ledger.server;
            let former = std::mem::replace(&mut self.world.replicas[replica].server, server);
            if former != server && !self.is_without(Rule::ForgetAtAnotherServer) {
                self.caches(replica).clear();
            }
        }
        let is_fast = matches!(self.world.replicas[replica].pass, Pass::Fast(_));
        self.set(replica, Pass::Idle);
        let requests = self.config.requests(&self.world, &group);
        let bases = written.map(|(_, bases)| bases).unwrap_or_default();
        for ((ticket, request), decision) in group.iter().zip(&requests).zip(&plan.decisions) {
            self.answer(ticket, request, decision, &bases, is_fast);
        }
    }

    fn write(&mut self, statement: &Statement) -> Option<(Timestamp, Bases)> {
        let each_alone = self.is_without(Rule::AllOrNothing);
        let before: BTreeMap<LogId, usize> = statement
            .iter()
            .map(|w| (w.log_id, self.world.ledger.log(w.log_id).rows.len()))
            .collect();
        let written = self.world.ledger.append_if(statement, each_alone)?;
        if self.config.budget.failovers > 0 {
            self.world.ledger.clock.0 += 1;
        }
        for (log_id, rows) in before {
            self.check_stored(log_id, rows);
        }
        Some(written)
    }

    /// The connection fails after the statement or commit was sent.
    pub fn lose(&mut self, replica: usize, took_effect: bool) {
        self.world.left.losses -= 1;
        let group = match self.world.replicas[replica].pass.clone() {
            Pass::Idle => return,
            Pass::Fast(group) => {
                self.leave_orphan(replica, &group);
                group
            }
            Pass::Slow(slow) if took_effect && matches!(slow.step, Step::Commit { .. }) => {
                if let Step::Commit { now_at } = &slow.step {
                    self.commit(replica, &slow, now_at);
                }
                slow.group
            }
            Pass::Slow(slow) => {
                if self.is_without(Rule::ForgetWhatWasLost) {
                    let requests = self.config.requests(&self.world, &slow.group);
                    let mut context = self.config.txn_context();
                    append::decide(self.caches(replica), &requests, &mut context);
                }
                slow.group
            }
        };
        self.world.ledger.release(Who::Replica(replica));
        if !self.is_without(Rule::ForgetWhatWasLost) {
            self.caches(replica).clear();
        }
        let (numbered, lost): (Vec<_>, Vec<_>) = group.into_iter().partition(|t| t.run.is_some());
        drop(lost); // answered `outcome_unknown`
        if numbered.is_empty() {
            return self.set(replica, Pass::Idle);
        }
        if self.is_without(Rule::RedoWhatWasLost) {
            // a read says whether it is stored; if not, "nothing was changed"
            self.set(replica, Pass::Idle);
            for ticket in numbered {
                if !self.is_stored(&ticket) {
                    self.refuse(&ticket, false);
                }
            }
            return;
        }
        self.start_redo(replica, numbered);
    }

    fn leave_orphan(&mut self, replica: usize, group: &[Ticket]) {
        let requests = self.config.requests(&self.world, group);
        let mut caches = self.caches(replica).clone();
        let plan = append::decide(&mut caches, &requests, &mut self.config.txn_context());
        if self.is_without(Rule::ForgetWhatWasLost) {
            self.world.replicas[replica].caches = Known(caches);
        }
        if plan.writes_anything() {
            let statement = self.statement(&plan, group);
            let attempts = group.iter().map(|ticket| ticket.attempt).collect();
            self.world.orphans.push(Orphan { statement, attempts, refused: false });
        }
    }

    pub fn orphan(&mut self, index: usize) {
        let orphan = self.world.orphans.remove(index);
        if self.write(&orphan.statement).is_some() {
            self.note(Seen::LostTookEffect);
            self.breaks(Broken::RefusedButStored, orphan.refused);
        } else {
            self.note(Seen::LostDidNotCompare);
        }
    }

    /// The process dies: what it has sent may still take effect, what it has not committed is gone.
    pub fn kill(&mut self, replica: usize) {
        self.world.left.kills -= 1;
        if let Pass::Fast(group) = self.world.replicas[replica].pass.clone() {
            self.leave_orphan(replica, &group);
        }
        self.world.ledger.release(Who::Replica(replica));
        self.caches(replica).clear();
        self.set(replica, Pass::Idle);
    }
}

fn not_fresh(origin: Offset, bytes: &[u8]) -> Vec<u8> {
    let entries = encoding::decode_entries(origin, bytes).unwrap();
    let entries: Vec<Entry> = entries.into_iter().map(|e| Entry { fresh: false, ..e }).collect();
    encoding::encode_entries(origin, &entries)
}
