//! An in-memory stand-in for the database, with rows, states and heads as the store keeps them, and
//! the broker's batches over it. One topic of up to `MAX_PARTITIONS` partitions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    model::{
        Epoch, LogId, Offset, Partition, ProducerId, Sequence, Timestamp, session::Sequencing,
    },
    rules::{
        append::{
            self, Request,
            cache::{Head, LogCache, LogCaches, Producer},
            encoding,
            plan::Plan,
            producer_state::ProducerState,
            read_set::{self, ExpectedHead},
            sequence::SessionFacts,
            snapshot::{self, TailRow},
        },
        tests::{JOURNAL, log_of, open_session},
        transaction::one_request::TxnContext,
    },
};

pub const MAX_PARTITIONS: Partition = 4;

pub struct StoredRow {
    pub base_offset: Offset,
    pub record_count: i64,
    pub appended_at: Timestamp,
    pub producers: Option<Vec<u8>>,
    /// (id, part) of the requests whose lines it holds.
    pub lines: Vec<(u64, usize)>,
}

impl StoredRow {
    pub fn as_tail(&self) -> TailRow<'_> {
        let Self { base_offset, record_count, appended_at, producers, .. } = self;
        TailRow {
            base_offset: *base_offset,
            record_count: *record_count,
            appended_at: *appended_at,
            producers: producers.as_deref(),
        }
    }
}

pub struct StoredState {
    pub epoch: Epoch,
    pub last_sequence: Option<Sequence>,
    pub recent: Vec<u8>,
    pub as_of_offset: Offset,
}

impl StoredState {
    pub fn state(&self) -> ProducerState {
        ProducerState {
            epoch: self.epoch,
            last_sequence: self.last_sequence,
            recent: encoding::decode_recent(&self.recent).unwrap().into(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub appended_at: Timestamp,
    pub bases: BTreeMap<LogId, Offset>,
}

/// A successful batch.
pub struct Passed {
    pub plan: Plan,
    pub written: Option<Written>,
    /// `fast`, `slow`, or `overtaken`: the fast path was tried and failed.
    pub path: &'static str,
}

pub struct Ledger {
    pub heads: BTreeMap<LogId, Head>,
    /// Also those before `kept_offset`, which only tests look at.
    pub rows: BTreeMap<LogId, Vec<StoredRow>>,
    pub states: BTreeMap<(LogId, ProducerId), StoredState>,
    pub sessions: BTreeMap<ProducerId, SessionFacts>,
    pub partition_count: Partition,
    pub now: Timestamp,
}

impl Ledger {
    pub fn new(partition_count: Partition) -> Self {
        let logs = (0..MAX_PARTITIONS).map(log_of).chain([JOURNAL]);
        let head = |log_id| Head {
            log_id,
            next_offset: 0,
            fence: 0,
            last_appended_at: Timestamp(0),
            snapshot_offset: 0,
            kept_offset: 0,
        };
        Self {
            heads: logs.map(|log_id| (log_id, head(log_id))).collect(),
            rows: BTreeMap::new(),
            states: BTreeMap::new(),
            sessions: BTreeMap::new(),
            partition_count,
            now: Timestamp(1_000),
        }
    }

    pub fn open(&mut self, id: ProducerId, sequencing: Sequencing, reset: bool) -> SessionFacts {
        let mut facts = SessionFacts { sequencing, ..open_session(0) };
        if let Some(SessionFacts { epoch, reset_epoch, .. }) = self.sessions.get(&id) {
            facts.epoch = epoch + 1;
            facts.reset_epoch = if reset { facts.epoch } else { *reset_epoch };
        }
        self.sessions.insert(id, facts);
        self.fence(id);
        facts
    }

    pub fn close(&mut self, id: ProducerId) {
        if let Some(facts) = self.sessions.get_mut(&id).filter(|facts| !facts.closed) {
            facts.epoch += 1;
            facts.closed = true;
            self.fence(id);
        }
    }

    fn fence(&mut self, id: ProducerId) {
        let registered = self.states.keys().filter(|(_, producer)| *producer == id);
        for (log_id, _) in registered {
            self.heads.get_mut(log_id).unwrap().fence += 1;
        }
    }

    pub fn grow(&mut self) {
        self.partition_count = (self.partition_count + 1).min(MAX_PARTITIONS);
        self.heads.values_mut().for_each(|head| head.fence += 1);
    }

    /// Replays up to `limit` rows with provenance into the registered states.
    pub fn snapshot(&mut self, log_id: LogId, limit: usize) {
        let head = self.heads.get_mut(&log_id).unwrap();
        let rows = self.rows.entry(log_id).or_default().iter();
        let rows: Vec<_> = rows
            .filter(|row| row.base_offset >= head.snapshot_offset && row.producers.is_some())
            .take(limit)
            .collect();
        let last = rows.last().filter(|_| rows.len() == limit);
        let end = last.map_or(head.next_offset, |row| row.base_offset + row.record_count);
        let tail: Vec<_> = rows.into_iter().map(StoredRow::as_tail).collect();
        let states = self.states.iter().filter(|((log, _), _)| *log == log_id);
        let states =
            states.map(|((_, id), stored)| (*id, (stored.state(), stored.as_of_offset))).collect();
        for (id, state, _) in snapshot::snapshot(states, &tail).unwrap() {
            let stored = self.states.get_mut(&(log_id, id)).unwrap();
            if stored.as_of_offset < end {
                *stored = StoredState {
                    epoch: state.epoch,
                    last_sequence: state.last_sequence,
                    recent: encoding::encode_recent(&state.recent),
                    as_of_offset: end,
                };
            }
        }
        head.snapshot_offset = end;
    }

    /// Drops the rows before the snapshot.
    pub fn trim(&mut self, log_id: LogId) {
        let head = self.heads.get_mut(&log_id).unwrap();
        head.kept_offset = head.snapshot_offset;
    }

    pub fn tail(&self, log_id: LogId, from: Offset) -> Vec<TailRow<'_>> {
        let from = from.max(self.heads[&log_id].kept_offset);
        let rows = self.rows.get(&log_id).into_iter().flatten();
        rows.filter(|row| row.base_offset >= from).map(StoredRow::as_tail).collect()
    }

    /// What `broker::append::load` does, under the heads' locks.
    pub fn load(&self, caches: &mut LogCaches, group: &[Request]) {
        for log_id in read_set::dependency_logs(group) {
            let head = self.heads[&log_id];
            let log = caches.entry(log_id).or_insert_with(|| LogCache::cold(&head));
            if !log.is_prefix_of(&head) {
                *log = LogCache::cold(&head);
            }
            let here = group.iter().filter(|request| request.home == log_id);
            let here: BTreeSet<ProducerId> =
                here.filter_map(|request| Some(request.numbered?.producer_id)).collect();
            let starts = self.load_new_producers(log, head, &here);
            let from = starts.values().copied().fold(log.next_offset, Offset::min);
            if from < head.next_offset {
                log.fold(from, &self.tail(log_id, from), &starts).unwrap();
            }
            if log_id == JOURNAL && (log.partition_count == 0 || log.fence != head.fence) {
                log.partition_count = self.partition_count;
            }
            for id in &here {
                let producer = log.producers.get_mut(id).unwrap();
                if producer.verified_fence != head.fence {
                    producer.verified_fence = head.fence;
                    producer.session = self.sessions.get(id).copied();
                }
            }
            log.fence = head.fence;
            assert_eq!(
                (log.next_offset, log.last_appended_at),
                (head.next_offset, head.last_appended_at),
                "{log_id:?}: head and rows agree"
            );
        }
    }

    fn load_new_producers(
        &self,
        log: &mut LogCache,
        head: Head,
        here: &BTreeSet<ProducerId>,
    ) -> HashMap<ProducerId, Offset> {
        let mut starts = HashMap::new();
        for id in here {
            if log.producers.get(id).is_some_and(|producer| producer.registered) {
                continue;
            }
            let stored = self.states.get(&(head.log_id, *id));
            let state = stored.map(StoredState::state).unwrap_or_default();
            let registered = stored.is_some();
            log.producers
                .insert(*id, Producer { verified_fence: -1, session: None, state, registered });
            if let Some(stored) = stored {
                starts.insert(*id, stored.as_of_offset.max(head.snapshot_offset));
            }
        }
        starts
    }

    fn compares(&self, log_id: LogId, compare: Option<ExpectedHead>) -> bool {
        let head = self.heads[&log_id];
        let here = (head.next_offset, head.last_appended_at);
        compare.is_none_or(|compare| {
            compare.fence == head.fence && compare.position.is_none_or(|position| position == here)
        })
    }

    fn confirm(&self, plan: &Plan) -> bool {
        plan.writes.iter().all(|write| self.compares(write.log_id, write.compare))
    }

    fn append_if(&mut self, plan: &Plan, ids: &[u64]) -> Option<Written> {
        if !self.confirm(plan) {
            return None;
        }
        let heads = plan.writes.iter().map(|write| self.heads[&write.log_id].last_appended_at);
        let appended_at = heads.fold(self.now, Timestamp::max);
        let mut bases = BTreeMap::new();
        for write in plan.writes.iter().filter(|write| !write.rows.is_empty()) {
            let head = self.heads.get_mut(&write.log_id).unwrap();
            let base = head.next_offset;
            head.next_offset += write.record_count;
            head.last_appended_at = appended_at;
            bases.insert(write.log_id, base);
            let mut delta = 0;
            for row in &write.rows {
                assert_eq!(row.delta, delta, "rows follow each other");
                assert!(row.record_count > 0, "a row counts something");
                delta += row.record_count;
                self.rows.entry(write.log_id).or_default().push(StoredRow {
                    base_offset: base + row.delta,
                    record_count: row.record_count,
                    appended_at,
                    producers: row.producers.clone(),
                    lines: row.lines.iter().map(|(index, part)| (ids[*index], *part)).collect(),
                });
            }
            assert_eq!(delta, write.record_count, "the head moves by its rows");
        }
        Some(Written { appended_at, bases })
    }

    /// `lose`: the response to the write is lost. `ids` distinguishes the requests.
    pub fn pass(
        &mut self,
        caches: &mut LogCaches,
        group: &[Request],
        ids: &[u64],
        lose: bool,
    ) -> Passed {
        let mut compared = None;
        if read_set::is_known(caches, group) {
            let plan = append::decide(caches, group, &mut TxnContext::default());
            let writes = plan.writes_anything();
            let written = if writes { self.append_if(&plan, ids) } else { None };
            if written.is_some() || (!writes && self.confirm(&plan)) {
                return held(caches, plan, written, ("fast", lose));
            }
            if writes {
                read_set::touched_logs(group).iter().for_each(|log_id| drop(caches.remove(log_id)));
            }
            compared = Some(plan.compares().collect::<BTreeMap<_, _>>());
        }
        let path = if compared.is_some() { "overtaken" } else { "slow" };
        let compared = compared.unwrap_or_default();
        let known = positions(caches);
        self.load(caches, group);
        let now_at = positions(caches);
        for log_id in read_set::dependency_logs(group) {
            let moved = known.get(&log_id).is_some_and(|known| *known != now_at[&log_id]);
            let log = caches.get_mut(&log_id).unwrap();
            let compare = compared.get(&log_id);
            log.looked(moved || compare.is_some_and(|compare| !compare.holds(log)));
            // one such look is enough here
            log.contended_passes = log.contended_passes.min(1);
        }
        let plan = append::decide(caches, group, &mut TxnContext::default());
        if !plan.writes_anything() {
            return held(caches, plan, None, (path, lose));
        }
        let written = self.append_if(&plan, ids).expect("a locked head compares");
        for (log_id, id) in &plan.registrations {
            let recent = Vec::new();
            let as_of_offset = now_at[log_id];
            let state = StoredState { epoch: 0, last_sequence: None, recent, as_of_offset };
            self.states.entry((*log_id, *id)).or_insert(state);
        }
        held(caches, plan, Some(written), (path, lose))
    }
}

fn held(
    caches: &mut LogCaches,
    mut plan: Plan,
    written: Option<Written>,
    (path, lose): (&'static str, bool),
) -> Passed {
    if lose {
        caches.clear();
    }
    if let Some(Written { appended_at, bases }) = &written {
        plan.confirm(caches, *appended_at, bases);
    }
    Passed { plan, written, path }
}

fn positions(caches: &LogCaches) -> BTreeMap<LogId, Offset> {
    caches.iter().map(|(log_id, log)| (*log_id, log.next_offset)).collect()
}
