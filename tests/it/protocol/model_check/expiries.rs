//! Expiries (`broker::janitor::producers`) in small steps. There is no time here: when one begins,
//! the limit has just passed since all that happened before, and not since anything that happens
//! from then on.

use std::collections::BTreeMap;

use oncelog::model::{Epoch, LogId, Offset, ProducerId};

use super::{
    Broken, Rule, Seen,
    ledger::{Ledger, Row, Who},
    world::{Turn, World},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expiry {
    producer: ProducerId,
    /// Rows before it, and opens up to it, are older than the limit.
    old: BTreeMap<LogId, Offset>,
    old_epoch: Epoch,
    step: ExpiryStep,
}

/// What an expiry does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ExpiryStep {
    /// Lock the session row, if nobody holds it.
    Lock,
    /// Read the registered logs.
    List,
    /// Lock their heads. `early`: whether the producer was active, looked at too early (rule 21
    /// left out).
    Heads { logs: Vec<LogId>, early: Option<bool> },
    /// Look at the rows; forget, commit.
    Look { logs: Vec<LogId>, early: Option<bool> },
}

impl Expiry {
    fn new(producer: ProducerId, ledger: &Ledger) -> Self {
        let old = ledger.logs.iter().map(|(id, log)| (*id, log.head.next_offset)).collect();
        let old_epoch = ledger.sessions[&producer].row.facts.epoch;
        Self { producer, old, old_epoch, step: ExpiryStep::Lock }
    }

    pub fn can_step(&self, ledger: &Ledger) -> bool {
        match &self.step {
            ExpiryStep::Heads { logs, .. } => ledger.may_lock(logs, Who::Expiry),
            _ => true,
        }
    }

    /// It has a row that is not old, or was opened.
    fn is_active(&self, ledger: &Ledger) -> bool {
        let is_own = |row: &Row| row.entries().iter().any(|e| e.producer_id == self.producer);
        let has_row = |(log_id, old): (&LogId, &Offset)| ledger.rows(*log_id, *old).any(is_own);
        self.old.iter().any(has_row)
            || ledger.sessions[&self.producer].row.facts.epoch != self.old_epoch
    }
}

impl World {
    pub fn may_expire(&self, producer: ProducerId) -> bool {
        self.left.expiries > 0 && self.expiry.is_none() && !self.ledger.sessions[&producer].expired
    }
}

impl Turn<'_> {
    pub fn expire(&mut self, producer: ProducerId) {
        self.world.left.expiries -= 1;
        self.world.expiry = Some(Expiry::new(producer, &self.world.ledger));
    }

    pub fn expiry_step(&mut self) {
        let Some(expiry) = self.world.expiry.take() else { return };
        let producer = expiry.producer;
        let step = match expiry.step.clone() {
            ExpiryStep::Lock if self.world.ledger.may_lock_session(producer) => {
                self.world.ledger.session_mut(producer).holder = Some(Who::Expiry);
                ExpiryStep::List
            }
            ExpiryStep::Lock => return,
            ExpiryStep::List => {
                let logs = self.world.ledger.registered_logs(producer);
                let early = self.is_without(Rule::LookUnderHeads);
                let early = early.then(|| expiry.is_active(&self.world.ledger));
                ExpiryStep::Heads { logs, early }
            }
            ExpiryStep::Heads { logs, early } => {
                self.world.ledger.lock(&logs, Who::Expiry);
                ExpiryStep::Look { logs, early }
            }
            ExpiryStep::Look { logs, early } => return self.look(&expiry, &logs, early),
        };
        self.world.expiry = Some(Expiry { step, ..expiry });
    }

    fn look(&mut self, expiry: &Expiry, logs: &[LogId], early: Option<bool>) {
        let is_active = expiry.is_active(&self.world.ledger);
        if early.unwrap_or(is_active) {
            self.note(Seen::KeptAsActive);
        } else {
            self.note(Seen::Expired);
            self.breaks(Broken::ForgottenThoughActive, is_active);
            self.raise_fences(logs);
            let ledger = &mut self.world.ledger;
            ledger.states.retain(|(_, id), _| *id != expiry.producer);
            ledger.session_mut(expiry.producer).expired = true;
        }
        self.world.ledger.release(Who::Expiry);
    }
}
