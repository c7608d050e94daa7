//! `broker::append::load`, statement by statement, over the stand-in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use oncelog::{
    model::{LogId, Offset, ProducerId},
    rules::append::{
        Request,
        cache::{Head, JournalKeys, LogCache, LogCaches, Producer},
        producer_state::ProducerState,
        sequence::SessionFacts,
        snapshot::TailRow,
    },
};

use super::{
    Rule,
    ledger::{Ledger, Row},
};

/// From which row on a producer loaded now counts rows.
pub type Starts = BTreeMap<LogId, BTreeMap<ProducerId, Offset>>;
pub type Pair = (LogId, ProducerId);
/// What session rows say that nobody can change now.
pub type Facts = BTreeMap<ProducerId, SessionFacts>;

/// The log's rows do not fit the cache.
#[derive(Debug)]
pub struct Corrupt;

/// What one load works on.
pub struct Loader<'a> {
    pub caches: &'a mut LogCaches,
    pub ledger: &'a Ledger,
    pub heads: &'a [Head],
    pub requests: &'a [Request],
    pub held: Option<&'a Facts>,
    pub without: Option<Rule>,
}

impl Loader<'_> {
    /// LogCaches that is no prefix of the log is thrown away.
    pub fn begin(&mut self) {
        for head in self.heads {
            if let Some(log) = self.caches.get_mut(&head.log_id) {
                log.see_fence(head.fence);
            }
            let no_prefix = |log: &LogCache| match self.without {
                Some(Rule::ThrowAwayNoPrefix) => false,
                Some(Rule::Fingerprint) => {
                    let last_appended_at = log.last_appended_at;
                    !log.is_prefix_of(&Head { last_appended_at, ..*head })
                }
                _ => !log.is_prefix_of(head),
            };
            if self.caches.get(&head.log_id).is_none_or(no_prefix) {
                self.caches.insert(head.log_id, LogCache::cold(head));
            }
        }
    }

    fn numbered(&self) -> BTreeSet<Pair> {
        let pairs = self.requests.iter().filter_map(|r| Some((r.home, r.numbered?.producer_id)));
        pairs.filter(|(id, _)| self.heads.iter().any(|head| head.log_id == *id)).collect()
    }

    pub fn new_producers(&self) -> BTreeSet<Pair> {
        let is_known = |(log_id, id): &Pair| {
            let producer = self.caches.get(log_id).and_then(|log| log.producers.get(id));
            let head = self.heads.iter().find(|head| head.log_id == *log_id);
            let is_read = |producer: &Producer| {
                let is_old = head.is_some_and(|head| head.fence != producer.verified_fence);
                let lax = [Rule::VerifiedFence, Rule::ReloadUnderANewFence];
                let is_lax = self.without.is_some_and(|without| lax.contains(&without));
                producer.registered && (is_lax || !is_old)
            };
            producer.is_some_and(is_read)
        };
        self.numbered().into_iter().filter(|pair| !is_known(pair)).collect()
    }

    /// One statement: the states of the new_producers.
    pub fn load_new_producers(&mut self) -> Starts {
        let mut starts = Starts::new();
        for (log_id, id) in self.new_producers() {
            let Some(log) = self.caches.get_mut(&log_id) else { continue };
            let mut producer = Producer {
                verified_fence: -1,
                session: None,
                state: ProducerState::default(),
                registered: false,
            };
            let head = self.heads.iter().find(|head| head.log_id == log_id);
            if let (Some(stored), Some(head)) = (self.ledger.states.get(&(log_id, id)), head) {
                producer.state = stored.state();
                producer.registered = true;
                let mut start = stored.as_of_offset.max(head.snapshot_offset);
                if self.without == Some(Rule::AllRowsOfANewProducer) {
                    start = start.max(log.next_offset);
                }
                starts.entry(log_id).or_default().insert(id, start);
            }
            log.producers.insert(id, producer);
        }
        starts
    }

    /// From where on each log's rows have to be read.
    pub fn lacking(&self, starts: &Starts) -> Vec<(LogId, Offset)> {
        let first = |head: &Head| {
            let log = self.caches.get(&head.log_id)?;
            let starts = starts.get(&head.log_id).into_iter().flat_map(BTreeMap::values).copied();
            let first = starts.clone().fold(log.next_offset, Offset::min);
            let last = match self.without {
                Some(Rule::StateAheadOfTheHead) => head.next_offset,
                _ => starts.fold(head.next_offset, Offset::max),
            };
            (first < last).then_some((head.log_id, first))
        };
        self.heads.iter().filter_map(first).collect()
    }

    /// One statement: the rows. Of a cache of another history nothing is folded: it is cold, and
    /// its new_producers are to be loaded.
    pub fn load_tails(&mut self, starts: &Starts) -> Result<(), Corrupt> {
        for (log_id, first) in self.lacking(starts) {
            let head = self.heads.iter().find(|head| head.log_id == log_id);
            let (Some(log), Some(head)) = (self.caches.get_mut(&log_id), head) else { continue };
            let from_before = |row: &&Row| row.base_offset + row.record_count >= first;
            let tail: Vec<TailRow<'_>> =
                self.ledger.rows(log_id, 0).filter(from_before).map(Row::as_tail).collect();
            if log.next_offset < head.next_offset && !log.ends_in(&tail) {
                self.caches.insert(log_id, LogCache::cold(head));
                let starts = self.load_new_producers();
                return self.load_tails(&starts);
            }
            let since = tail.partition_point(|row| row.base_offset < first);
            let starts: HashMap<ProducerId, Offset> =
                starts.get(&log_id).into_iter().flatten().map(|(id, at)| (*id, *at)).collect();
            log.fold(first, &tail[since..], &starts).map_err(|_| Corrupt)?;
        }
        Ok(())
    }

    fn unread(&self) -> Vec<Pair> {
        let is_unread = |(log_id, id): &Pair| {
            let fence = self.heads.iter().find(|head| head.log_id == *log_id).map(|h| h.fence);
            let producer = self.caches.get(log_id).and_then(|log| log.producers.get(id));
            producer.is_some_and(|producer| match self.without {
                Some(Rule::VerifiedFence) => producer.verified_fence == -1,
                _ => Some(producer.verified_fence) != fence,
            })
        };
        self.numbered().into_iter().filter(is_unread).collect()
    }

    /// One statement each: partition counts (nothing grows here), session rows. Then the fences.
    pub fn finish(&mut self) {
        for (log_id, id) in self.unread() {
            let fence = self.heads.iter().find(|head| head.log_id == log_id).map(|h| h.fence);
            let log = self.caches.get_mut(&log_id);
            let producer = log.and_then(|log| log.producers.get_mut(&id));
            if let (Some(producer), Some(fence)) = (producer, fence) {
                let held = self.held.and_then(|held| held.get(&id)).copied();
                let mut facts = held.or_else(|| self.ledger.facts(id));
                if let (Some(facts), Some(Rule::ResetEpoch)) = (&mut facts, self.without) {
                    facts.reset_epoch = 0;
                }
                producer.session = facts;
                producer.verified_fence = fence;
            }
        }
        for head in self.heads {
            if let Some(log) = self.caches.get_mut(&head.log_id) {
                if self.requests.iter().any(|r| r.home == head.log_id && r.spread.is_some()) {
                    log.partition_count = super::ledger::PARTITIONS.len() as i32;
                }
                if head.log_id == super::ledger::JOURNAL {
                    log.keys = Some(JournalKeys::default());
                }
                if log.next_offset == head.next_offset {
                    log.last_appended_at = head.last_appended_at;
                }
            }
        }
    }
}
