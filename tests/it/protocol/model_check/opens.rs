//! Opens (`broker::session`), snapshots and trims (`broker::janitor`) in small steps.

use std::collections::BTreeMap;

use oncelog::{
    model::{Epoch, LogId, Offset, ProducerId, Sequence, session::Sequences},
    rules::{self, append::snapshot::TailRow},
};

use super::{
    Rule, Seen,
    ledger::{Ledger, StateRow, Who, open_of},
    world::{Run, Turn},
};

type Nexts = BTreeMap<LogId, Sequence>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opening {
    /// Its open id.
    pub id: u8,
    pub producer: ProducerId,
    pub wish: Wish,
    pub step: OpenStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    Continue,
    Reset,
    /// No open: the session ends.
    Close,
}

/// What an open does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpenStep {
    /// Lock the session row. `listed`: logs read too early (rule 18 left out).
    Lock {
        listed: Option<Vec<LogId>>,
    },
    /// Read the registered logs.
    List,
    /// Lock their heads. `early`: next sequences read too early (rule 18 left out).
    Heads {
        logs: Vec<LogId>,
        early: Option<Nexts>,
    },
    /// Raise the epoch and the fences, read the next sequences, commit.
    Raise {
        logs: Vec<LogId>,
        early: Option<Nexts>,
    },
    /// The epoch is committed: read the registered logs,
    ListAgain {
        epoch: Epoch,
    },
    /// fence one after the other,
    Fence {
        epoch: Epoch,
        logs: Vec<LogId>,
    },
    /// and read the next sequences.
    Standings {
        epoch: Epoch,
    },
    Answer {
        epoch: Epoch,
        nexts: Nexts,
    },
    /// Its client asks again.
    Repeat,
}

/// A snapshot that has folded without the lock (rule 24 left out).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Folding {
    log_id: LogId,
    end: Offset,
    states: Vec<(ProducerId, StateRow)>,
}

impl Wish {
    fn sequences(self) -> Sequences {
        if self == Self::Reset { Sequences::Reset } else { Sequences::Continue }
    }
}

impl Opening {
    fn who(&self) -> Who {
        Who::Open(self.id)
    }

    pub fn can_step(&self, ledger: &Ledger) -> bool {
        match &self.step {
            OpenStep::Lock { .. } | OpenStep::Repeat => ledger.may_lock_session(self.producer),
            OpenStep::Heads { logs, .. } => ledger.may_lock(logs, self.who()),
            OpenStep::Fence { logs, .. } => ledger.may_lock(&logs[..logs.len().min(1)], self.who()),
            _ => true,
        }
    }

    /// Its epoch is committed, its answer not told.
    pub fn can_be_lost(&self) -> bool {
        self.wish != Wish::Close && !matches!(self.step, OpenStep::Lock { .. } | OpenStep::Repeat)
    }

    /// It has begun and its epoch is not everywhere yet.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.step, OpenStep::Lock { .. } | OpenStep::Answer { .. } | OpenStep::Repeat)
    }
}

impl Turn<'_> {
    pub fn open(&mut self, producer: ProducerId, wish: Wish) {
        let id = self.world.left.opens;
        self.world.left.opens -= 1;
        let early = self.is_without(Rule::ListAfterLock);
        let listed = early.then(|| self.world.ledger.registered_logs(producer));
        self.world.opens.push(Opening { id, producer, wish, step: OpenStep::Lock { listed } });
    }

    pub fn open_step(&mut self, index: usize) {
        let open = self.world.opens.remove(index);
        let (producer, who) = (open.producer, open.who());
        let next = match open.step.clone() {
            // the name begins again, with another producer
            OpenStep::Lock { .. } if self.world.ledger.sessions[&producer].expired => None,
            OpenStep::Lock { listed } => {
                self.world.ledger.session_mut(producer).holder = Some(who);
                match listed {
                    Some(logs) => Some(OpenStep::Heads { logs, early: None }),
                    None => Some(OpenStep::List),
                }
            }
            OpenStep::List if self.config.chunked => Some(self.raise_epoch_first(&open)),
            OpenStep::List => {
                let logs = self.world.ledger.registered_logs(producer);
                let early = self.is_without(Rule::ReadAfterHeads);
                let early = early.then(|| self.nexts(producer, self.next_epoch(&open).reset_epoch));
                Some(OpenStep::Heads { logs, early })
            }
            OpenStep::Heads { logs, early } => {
                self.world.ledger.lock(&logs, who);
                Some(OpenStep::Raise { logs, early })
            }
            OpenStep::Raise { logs, early } => Some(self.raise(&open, &logs, early)),
            OpenStep::ListAgain { epoch } => {
                let logs = self.world.ledger.registered_logs(producer);
                Some(OpenStep::Fence { epoch, logs })
            }
            OpenStep::Fence { epoch, mut logs } => {
                if logs.is_empty() {
                    Some(OpenStep::Standings { epoch })
                } else {
                    self.raise_fences(&[logs.remove(0)]);
                    Some(OpenStep::Fence { epoch, logs })
                }
            }
            OpenStep::Standings { epoch } => Some(self.standings(producer, epoch)),
            OpenStep::Answer { epoch, nexts } => {
                self.opened(&open, epoch, &nexts);
                None
            }
            OpenStep::Repeat => self.repeat(&open),
        };
        if let Some(step) = next {
            self.world.opens.insert(index, Opening { step, ..open });
        }
    }

    fn next_epoch(&self, open: &Opening) -> rules::session::NextEpoch {
        let row = &self.world.ledger.sessions[&open.producer].row;
        rules::session::open(&open_of(open.producer, open.wish.sequences()), Some(row)).unwrap()
    }

    fn advance(&mut self, open: &Opening, fencing: bool) -> Epoch {
        let is_close = open.wish == Wish::Close;
        let mut next = self.next_epoch(open);
        let session = self.world.ledger.session_mut(open.producer);
        if is_close {
            // it ends once
            next.epoch -= i64::from(session.row.facts.closed);
            next.reset_epoch = session.row.facts.reset_epoch;
        }
        session.row.facts.epoch = next.epoch;
        session.row.facts.closed = is_close;
        session.row.facts.reset_epoch = next.reset_epoch;
        session.row.fencing = fencing;
        session.opens.insert(open.id, next.epoch);
        if open.wish == Wish::Reset {
            session.resets.push(next.epoch);
        }
        next.epoch
    }

    pub fn raise_fences(&mut self, logs: &[LogId]) {
        if !self.is_without(Rule::RaiseFences) {
            logs.iter().for_each(|log| self.world.ledger.log_mut(*log).head.fence += 1);
        }
    }

    fn nexts(&self, producer: ProducerId, reset_epoch: Epoch) -> Nexts {
        let standings = self.world.ledger.standings(producer);
        standings.into_iter().map(|(log, state)| (log, state.next_sequence(reset_epoch))).collect()
    }

    fn raise(&mut self, open: &Opening, logs: &[LogId], early: Option<Nexts>) -> OpenStep {
        let epoch = self.advance(open, false);
        self.raise_fences(logs);
        let reset_epoch = self.world.ledger.sessions[&open.producer].row.facts.reset_epoch;
        let nexts = early.unwrap_or_else(|| self.nexts(open.producer, reset_epoch));
        self.check_counted(open.producer, epoch, &nexts);
        self.world.ledger.release(open.who());
        OpenStep::Answer { epoch, nexts }
    }

    fn raise_epoch_first(&mut self, open: &Opening) -> OpenStep {
        let epoch = self.advance(open, true);
        self.world.ledger.release(open.who());
        OpenStep::ListAgain { epoch }
    }

    fn standings(&mut self, producer: ProducerId, epoch: Epoch) -> OpenStep {
        let session = self.world.ledger.session_mut(producer);
        session.row.fencing &= session.row.facts.epoch != epoch;
        let reset_epoch = session.row.facts.reset_epoch;
        let nexts = self.nexts(producer, reset_epoch);
        self.check_counted(producer, epoch, &nexts);
        OpenStep::Answer { epoch, nexts }
    }

    /// The answer arrives: a new run begins, and earlier ones are zombies.
    fn opened(&mut self, open: &Opening, epoch: Epoch, nexts: &Nexts) {
        let producer = open.producer;
        let answered = self.world.answered.entry(producer).or_insert(0);
        *answered = epoch.max(*answered);
        if open.wish == Wish::Close {
            return self.note(Seen::Closed);
        }
        let first = nexts.get(&self.config.home(producer)).copied().unwrap_or(0);
        self.world.runs.push(Run { producer, epoch, first, next_unacked: first });
    }

    pub fn open_lost(&mut self, index: usize) {
        self.world.left.lost_opens -= 1;
        let open = &mut self.world.opens[index];
        self.world.ledger.release(open.who());
        open.step = OpenStep::Repeat;
    }

    /// The same open id again: answered again, or done now if it never was.
    fn repeat(&mut self, open: &Opening) -> Option<OpenStep> {
        let session = &self.world.ledger.sessions[&open.producer];
        let Some(epoch) = session.opens.get(&open.id) else {
            return Some(OpenStep::Lock { listed: None });
        };
        let (epoch, fencing) = (*epoch, session.row.fencing);
        match rules::session::repeat(
            &open_of(open.producer, open.wish.sequences()),
            (!session.expired).then(|| session.row.clone()),
            (open.producer, epoch),
        ) {
            Err(_) => {
                self.note(Seen::RepeatedOpenFenced);
                None
            }
            Ok(_) if fencing => Some(OpenStep::ListAgain { epoch }),
            Ok(_) => {
                self.note(Seen::RepeatedOpen);
                Some(self.standings(open.producer, epoch))
            }
        }
    }

    // the janitor

    /// Lock the head, fold, write, commit: the head's lock keeps everybody away, so one step.
    pub fn snapshot(&mut self, log_id: LogId) {
        self.world.left.snapshots -= 1;
        self.note(Seen::Snapshot);
        let folding = if self.is_without(Rule::FoldFromTheDatabase) {
            self.fold_caches(log_id)
        } else {
            self.fold_rows(log_id)
        };
        self.world.snapshots.push(folding);
        if !self.is_without(Rule::LockBeforeSnapshot) {
            self.snapshot_write(self.world.snapshots.len() - 1);
        }
    }

    fn fold_rows(&self, log_id: LogId) -> Folding {
        let ledger = &self.world.ledger;
        let head = &ledger.log(log_id).head;
        let rows: Vec<TailRow<'_>> = (ledger.rows(log_id, head.snapshot_offset))
            .map(|row| row.as_tail())
            .filter(|row| row.producers.is_some())
            .collect();
        let of_log = ledger.states.iter().filter(|((log, _), _)| *log == log_id);
        let states = of_log.map(|((_, id), row)| (*id, (row.state(), row.as_of_offset))).collect();
        let end = head.next_offset;
        let folded = rules::append::snapshot::snapshot(states, &rows).unwrap();
        let states = folded.iter().map(|(id, state, _)| (*id, StateRow::of(state, end))).collect();
        Folding { log_id, end, states }
    }

    fn fold_caches(&self, log_id: LogId) -> Folding {
        let end = self.world.ledger.log(log_id).head.next_offset;
        let known = self.world.replicas[0].caches.0.get(&log_id);
        let known = known.filter(|log| log.next_offset == end);
        let producers = known.into_iter().flat_map(|log| &log.producers);
        let registered = producers.filter(|(_, producer)| producer.registered);
        let state = |(id, producer): (&ProducerId, &oncelog::rules::append::cache::Producer)| {
            (*id, StateRow::of(&producer.state, end))
        };
        Folding { log_id, end, states: registered.map(state).collect() }
    }

    pub fn snapshot_write(&mut self, index: usize) {
        let Folding { log_id, end, states } = self.world.snapshots.remove(index);
        for (id, folded) in states {
            // only what is registered, and only forward
            if let Some(row) = self.world.ledger.states.get_mut(&(log_id, id))
                && row.as_of_offset < end
            {
                *row = folded;
            }
        }
        self.world.ledger.log_mut(log_id).head.snapshot_offset = end;
    }

    pub fn trim(&mut self, log_id: LogId, before: Offset) {
        self.world.left.trims -= 1;
        self.note(Seen::Trim);
        let log = self.world.ledger.log_mut(log_id);
        log.gone = log.rows.iter().filter(|r| r.base_offset + r.record_count <= before).count();
        log.head.kept_offset = before;
    }
}
