//! What must be true: every stored row, every answer and every cache is held against the whole
//! history of the logs, with no rule in between but the fold of one entry.

use std::collections::BTreeMap;

use oncelog::{
    model::{Epoch, LogId, Offset, ProducerId, Sequence, Timestamp},
    rules::append::{
        Request,
        plan::Decision,
        producer_state::{Placement, ProducerState, REMEMBERED_REQUESTS, Remembered},
    },
};

use super::{
    Broken, Seen,
    ledger::{Bases, Ledger, PARTITIONS, Payload, Row},
    passes::Pass,
    world::{Ticket, Turn, World},
};

/// (epoch, sequence) of a producer's requests in the rows of its log, in order.
fn appended(rows: &[Row], producer: ProducerId) -> Vec<(Epoch, Sequence)> {
    let entries = rows.iter().flat_map(Row::entries);
    let own = entries.filter(|entry| entry.producer_id == producer);
    own.map(|entry| (entry.epoch, entry.sequence)).collect()
}

/// What a producer has to send next in the count that an epoch belongs to.
fn next_sequence(ledger: &Ledger, rows: &[Row], producer: ProducerId, epoch: Epoch) -> Sequence {
    let run_of = |epoch| ledger.sessions[&producer].run_of(epoch);
    let appended = appended(rows, producer);
    let same = appended.iter().rfind(|(e, _)| run_of(*e) == run_of(epoch));
    same.map_or(0, |(_, sequence)| sequence + 1)
}

/// Where a payload lies in a partition.
fn offset_of(ledger: &Ledger, log_id: LogId, payload: Payload) -> Option<Offset> {
    ledger.log(log_id).rows.iter().find_map(|row| {
        let index = row.payloads.iter().position(|p| *p == payload)?;
        Some(row.base_offset + index as i64)
    })
}

fn first_offset(remembered: &Remembered) -> Offset {
    match &remembered.placement {
        Placement::Partition { base_offset } => *base_offset,
        Placement::Topic { bases, .. } => bases[0].1,
        // nowhere: it was known
        Placement::Records(_) => -1,
    }
}

impl Turn<'_> {
    /// The rows of a log from the `from`-th on have just been committed.
    pub fn check_stored(&mut self, log_id: LogId, from: usize) {
        let log = self.world.ledger.log(log_id).clone();
        let mut next_offset = 0;
        for row in &log.rows {
            self.breaks(Broken::NotDense, row.base_offset != next_offset);
            next_offset += row.record_count;
        }
        self.breaks(Broken::NotDense, next_offset != log.head.next_offset);
        for (index, row) in log.rows.iter().enumerate().skip(from) {
            let rows = &log.rows[..index];
            for payload in &row.payloads {
                let count = |row: &Row| row.payloads.iter().filter(|p| *p == payload).count();
                let times: usize = log.rows[..=index].iter().map(count).sum();
                self.breaks(Broken::StoredTwice, times > 1);
            }
            for (at, entry) in row.entries().iter().enumerate() {
                let (producer, epoch) = (entry.producer_id, entry.epoch);
                self.breaks(Broken::AcceptedAfterFence, epoch < self.world.answered[&producer]);
                let expired = self.world.ledger.sessions[&producer].expired;
                self.breaks(Broken::AcceptedAfterExpiry, expired);
                // those of one row come one after the other
                let entries = row.entries();
                let expected = match entries[..at].iter().rfind(|e| e.producer_id == producer) {
                    Some(before) if before.epoch == epoch => before.sequence + 1,
                    _ => next_sequence(&self.world.ledger, rows, producer, epoch),
                };
                self.breaks(Broken::Gap, entry.sequence > expected);
                self.breaks(Broken::StoredTwice, entry.sequence < expected);
                if entry.fresh && !appended(rows, producer).is_empty() {
                    self.note(Seen::StartedAtZeroAgain);
                }
                let opens = self.world.opens.iter();
                if opens.filter(|open| open.producer == producer).any(|o| o.is_under_way()) {
                    self.note(Seen::AppendedDuringOpen);
                }
            }
        }
    }

    pub fn is_stored(&self, ticket: &Ticket) -> bool {
        let request = self.config.request(&self.world, ticket);
        let payload = self.config.payload(&self.world, ticket);
        let mut parts = request.parts.iter();
        parts.all(|part| offset_of(&self.world.ledger, part.log_id, payload).is_some())
    }

    /// An answer leaves.
    pub fn answer(
        &mut self,
        ticket: &Ticket,
        request: &Request,
        decision: &Decision,
        bases: &Bases,
        is_fast: bool,
    ) {
        match decision {
            Decision::Appended { deltas, .. } => {
                let offsets: Vec<Option<Offset>> = (request.parts.iter().zip(deltas))
                    .map(|(part, delta)| Some(bases.get(&part.log_id)? + delta))
                    .collect();
                self.check_answer(ticket, request, &offsets);
                if offsets.len() > 1 {
                    self.note(Seen::AppendedToTwoLogs);
                }
            }
            Decision::Repeated(remembered) => {
                self.note(if is_fast { Seen::RepeatedFast } else { Seen::RepeatedSlow });
                if bases.values().any(|base| first_offset(remembered) >= *base) {
                    self.note(Seen::RepeatedInItsBatch);
                }
                if self.world.left.losses < self.config.budget.losses && !is_fast {
                    self.note(Seen::RedoneAndRepeated);
                }
                let offsets: Vec<Option<Offset>> = match &remembered.placement {
                    Placement::Partition { base_offset } => vec![Some(*base_offset)],
                    Placement::Topic { bases, .. } => {
                        bases.iter().map(|(_, base)| Some(*base)).collect()
                    }
                    Placement::Records(_) => vec![None],
                };
                self.check_answer(ticket, request, &offsets);
            }
            Decision::AlreadyCommitted(row) => unreachable!("a transaction: {row:?}"),
            Decision::AllDuplicates(_) | Decision::RetryNextBatch => {
                unreachable!("only numbered ones have a key")
            }
            Decision::Forgotten => {
                let stored =
                    appended(&self.world.ledger.log(request.home).rows, self.producer(ticket));
                let at = stored.iter().position(|(_, sequence)| *sequence == ticket.sequence);
                let is_old = at.is_some_and(|at| stored.len() - at > REMEMBERED_REQUESTS);
                self.breaks(Broken::WronglyAnswered, !is_old);
            }
            Decision::OutOfOrder(_) => {
                self.note(Seen::Ahead);
                self.refuse(ticket, true);
            }
            Decision::Refused(refusal) => {
                if matches!(refusal, oncelog::rules::Refusal::ProducerFenced { .. }) {
                    self.note(Seen::ZombieRefused);
                }
                if matches!(refusal, oncelog::rules::Refusal::UnknownProducer { .. }) {
                    self.note(Seen::UnknownRefused);
                }
                self.refuse(ticket, true);
            }
            Decision::TopicChanged => self.breaks(Broken::WronglyAnswered, true),
        }
    }

    fn producer(&self, ticket: &Ticket) -> ProducerId {
        ticket.run.map_or(ProducerId(-1), |run| self.world.runs[run].producer)
    }

    /// Accepted: it lies where the answer says, in all its partitions.
    fn check_answer(&mut self, ticket: &Ticket, request: &Request, offsets: &[Option<Offset>]) {
        let payload = self.config.payload(&self.world, ticket);
        let ledger = &self.world.ledger;
        let stored: Vec<Option<Offset>> =
            request.parts.iter().map(|part| offset_of(ledger, part.log_id, payload)).collect();
        let mut is_true = stored.iter().all(Option::is_some) && stored == offsets;
        if !request.dedups.is_empty() {
            // only its number is used
            let rows = &ledger.log(request.home).rows;
            let (id, epoch, sequence) = payload;
            let used = appended(rows, ProducerId(id)).contains(&(epoch, sequence));
            is_true = used && stored.iter().all(Option::is_none) && stored == offsets;
        }
        self.breaks(Broken::WronglyAnswered, !is_true);
        self.breaks(Broken::AcceptedAfterFence, ticket.fenced);
        if let Some(run) = ticket.run {
            let run = &mut self.world.runs[run];
            run.next_unacked = run.next_unacked.max(ticket.sequence + 1);
        }
    }

    /// A refusal leaves: it says that nothing was stored, and nothing will be.
    pub fn refuse(&mut self, ticket: &Ticket, judged: bool) {
        for orphan in &mut self.world.orphans {
            orphan.refused |= orphan.attempts.contains(&ticket.attempt);
        }
        let Some(run) = ticket.run else { return };
        let run = &self.world.runs[run];
        let session = &self.world.ledger.sessions[&run.producer];
        let facts = &session.row.facts;
        let is_current = facts.epoch == run.epoch && !facts.closed && !session.expired;
        self.breaks(Broken::WronglyRefused, judged && ticket.owed && is_current);
    }

    /// An open is about to answer (or has just committed) these next sequences.
    pub fn check_counted(
        &mut self,
        producer: ProducerId,
        epoch: Epoch,
        answered: &BTreeMap<LogId, Sequence>,
    ) {
        let ledger = &self.world.ledger;
        if ledger.sessions[&producer].row.facts.epoch != epoch {
            return; // a later open has come between: this one's client is a zombie from the start
        }
        let home = self.config.home(producer);
        let expected = next_sequence(ledger, &ledger.log(home).rows, producer, epoch);
        let answered = answered.get(&home).copied().unwrap_or(0);
        self.breaks(Broken::NotCounted, answered != expected);
    }

    /// Whatever a replica remembers between passes is a prefix of the log, folded.
    pub fn check_caches(&mut self) {
        let World { ledger, replicas, .. } = &self.world;
        let mut wrong = false;
        for replica in replicas.iter().filter(|replica| replica.pass == Pass::Idle) {
            for (log_id, log) in &replica.caches.0 {
                let head = &ledger.log(*log_id).head;
                wrong |= log.next_offset > head.next_offset;
                // one with an old verified fence is loaded again before it is used
                let is_used = |verified_fence: i64| {
                    self.config.known.is_none() || verified_fence == head.fence
                };
                for (id, producer) in
                    log.producers.iter().filter(|(_, p)| is_used(p.verified_fence))
                {
                    let mut state = ProducerState::default();
                    let rows = ledger.log(*log_id).rows.iter();
                    let end = |row: &Row| row.base_offset + row.record_count.min(1);
                    for row in rows.filter(|row| end(row) <= log.next_offset) {
                        for entry in row.entries().iter().filter(|e| e.producer_id == *id) {
                            state.apply(entry, row.appended_at);
                        }
                    }
                    wrong |= producer.registered && state != producer.state;
                }
            }
        }
        self.breaks(Broken::CacheWrong, wrong);
    }

    /// The database comes back without its last commit, and a pooler has kept the connections. What
    /// was acknowledged is lost; what is there must still be one history.
    pub fn failover(&mut self) {
        self.world.left.failovers -= 1;
        self.note(Seen::FailedOver);
        let World { ledger, runs, .. } = &mut self.world;
        let log = ledger.log_mut(PARTITIONS[0]);
        let lost = log.rows.pop().unwrap();
        log.head.next_offset = lost.base_offset;
        log.head.last_appended_at = log.rows.last().map_or(Timestamp(0), |row| row.appended_at);
        let rows = log.rows.clone();
        ledger.server += 1;
        ledger.states.retain(|_, state| state.as_of_offset < lost.base_offset);
        for run in runs {
            let next = next_sequence(ledger, &rows, run.producer, run.epoch);
            run.next_unacked = run.next_unacked.min(next);
        }
    }
}

impl World {
    pub fn may_fail_over(&self) -> bool {
        let log = self.ledger.log(PARTITIONS[0]);
        let last = log.rows.last();
        last.is_some_and(|row| row.base_offset >= log.head.snapshot_offset)
            && self.replicas.iter().all(|replica| replica.pass == Pass::Idle)
            && self.opens.is_empty()
            && self.orphans.is_empty()
    }
}
