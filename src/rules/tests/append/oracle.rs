//! The naive oracle: it keeps every request ever accepted in a list and derives from the list alone
//! what must happen next. It has no replay, windows, caches or fences.

use std::collections::BTreeMap;

use crate::{
    model::{LogId, Offset, Partition, ProducerId, Sequence, Timestamp, session::Sequencing},
    rules::{
        Refusal,
        append::{
            Request, Spread,
            producer_state::{Placement, ProducerState, Remembered},
            sequence::SessionFacts,
        },
        tests::{Answer, JOURNAL, check_epoch},
    },
};

pub type Sessions = BTreeMap<ProducerId, SessionFacts>;

pub struct Accepted {
    pub id: u64,
    pub request: Request,
    pub answer: Remembered,
}

#[derive(Default)]
pub struct Oracle {
    pub accepted: Vec<Accepted>,
}

impl Oracle {
    /// Records in a partition's log; sequenced requests in the journal.
    pub fn next_offset(&self, log_id: LogId) -> Offset {
        let count = |request: &Request| -> i64 {
            if log_id == JOURNAL {
                return i64::from(request.home == JOURNAL && request.numbered.is_some());
            }
            request.parts.iter().filter(|p| p.log_id == log_id).map(|p| p.record_count).sum()
        };
        self.accepted.iter().map(|accepted| count(&accepted.request)).sum()
    }

    /// All requests of a producer in a scope, since its epoch `since`.
    fn history(&self, home: LogId, id: ProducerId, since: i64) -> Vec<&Accepted> {
        let is_its = |accepted: &&Accepted| {
            let Request { home: scope, numbered, .. } = &accepted.request;
            *scope == home && numbered.is_some_and(|n| n.producer_id == id && n.epoch >= since)
        };
        self.accepted.iter().filter(is_its).collect()
    }

    pub fn expected(&self, home: LogId, id: ProducerId, since: i64) -> Sequence {
        let history = self.history(home, id, since);
        history.last().map_or(0, |last| last.request.numbered.unwrap().sequence + 1)
    }

    /// The state of a producer by the list alone; a reset counts once it has appended since.
    pub fn state(&self, home: LogId, id: ProducerId, resets: &[i64]) -> ProducerState {
        let all = self.history(home, id, 0);
        let Some(last) = all.last().and_then(|last| last.request.numbered) else {
            return ProducerState::default();
        };
        let since = resets.iter().copied().filter(|reset| *reset <= last.epoch).max().unwrap_or(0);
        let mut recent: Vec<_> = self.history(home, id, since);
        let recent = recent.split_off(recent.len().saturating_sub(5));
        ProducerState {
            epoch: last.epoch,
            last_sequence: Some(last.sequence),
            recent: recent.into_iter().map(|accepted| accepted.answer.clone()).collect(),
        }
    }

    /// The expected answers to a batch, in order; adds accepted requests to the list.
    pub fn answers(
        &mut self,
        (sessions, partition_count): (&Sessions, Partition),
        group: &[Request],
        ids: &[u64],
        at: Option<Timestamp>,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (request, id) in group.iter().zip(ids) {
            let answer = self.refusal(sessions, partition_count, request);
            answers.push(answer.unwrap_or_else(|| {
                let answer = self.place(request, at.expect("something is written"));
                let accepted = Accepted { id: *id, request: request.clone(), answer };
                self.accepted.push(accepted);
                Answer::Ok(self.accepted.last().unwrap().answer.clone())
            }));
        }
        answers
    }

    fn place(&self, request: &Request, appended_at: Timestamp) -> Remembered {
        let parts = request.parts.iter();
        let bases: Vec<_> = parts.map(|p| (p.partition, self.next_offset(p.log_id))).collect();
        let placement = match request.spread {
            None => Placement::Partition { base_offset: bases[0].1 },
            Some(Spread { partition_count, keyless }) => {
                Placement::Topic { partition_count, keyless, bases }
            }
        };
        let sequence = request.numbered.map_or(0, |numbered| numbered.sequence);
        Remembered { sequence, digest: request.digest, appended_at, placement }
    }

    /// None: it must be appended.
    fn refusal(
        &self,
        sessions: &Sessions,
        partition_count: Partition,
        request: &Request,
    ) -> Option<Answer> {
        if request.spread.is_some_and(|spread| spread.partition_count != partition_count) {
            return Some(Answer::Respread);
        }
        if let Some(answer) = self.table(sessions, request) {
            return Some(answer);
        }
        if let Some(refusal) = &request.over_limit {
            return Some(Answer::Refused(refusal.clone()));
        }
        let next_offset = self.next_offset(request.home);
        let expected_offset = request.expected_offset.filter(|offset| *offset != next_offset)?;
        Some(Answer::Refused(Refusal::OffsetMismatch { expected_offset, next_offset }))
    }

    /// The contract's table, row by row; none: append.
    fn table(&self, sessions: &Sessions, request: &Request) -> Option<Answer> {
        let numbered = request.numbered?;
        let (producer_id, sequence) = (numbered.producer_id, numbered.sequence);
        // 1, 2, 3
        let session = sessions.get(&producer_id);
        let current = session.map(|session| (session.epoch, session.closed));
        if let Err(refusal) = check_epoch((producer_id, numbered.epoch), current) {
            return Some(Answer::Refused(refusal));
        }
        let session = session?;
        let history = self.history(request.home, producer_id, session.reset_epoch);
        let greatest = history.iter().map(|a| a.request.numbered.unwrap().sequence).max();
        // 7, 8, 9
        if greatest.is_some_and(|greatest| sequence <= greatest) {
            let mut window = history.iter().rev().take(5);
            let known = window.find(|a| a.request.numbered.unwrap().sequence == sequence);
            return Some(match known {
                None => Answer::Old,
                Some(known) if known.request.digest == request.digest => {
                    Answer::Dup(known.answer.clone())
                }
                Some(_) => Answer::Refused(Refusal::SequenceReused { sequence }),
            });
        }
        // 4, 6
        let expected = greatest.map_or(0, |greatest| greatest + 1);
        if sequence == expected || session.sequencing == Sequencing::Monotonic {
            return None;
        }
        // 5, 10
        let refusal = match greatest {
            None => Refusal::UnknownProducerState { received: sequence },
            Some(_) => Refusal::OutOfOrderSequence { expected, received: sequence },
        };
        let may_wait = sequence < expected + 5;
        Some(if may_wait { Answer::Ahead(refusal) } else { Answer::Refused(refusal) })
    }
}
