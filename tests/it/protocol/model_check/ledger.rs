//! The stand-in for Postgres: committed rows, and who holds which lock. What a statement reads or
//! writes here is what its namesake in `oncelog::store` reads or writes; what a transaction has not
//! committed is not here yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use oncelog::{
    model::{
        Epoch, LogId, Name, Offset, ProducerId, Scopes, Sequence, Timestamp,
        session::{Open, Sequences, Sequencing},
    },
    rules::{
        append::{
            cache::Head, encoding, plan::Plan, producer_state::ProducerState,
            sequence::SessionFacts, snapshot::TailRow,
        },
        session::SessionRow,
    },
};

/// The topic's journal.
pub const JOURNAL: LogId = LogId(1);
/// Its partitions.
pub const PARTITIONS: [LogId; 2] = [LogId(2), LogId(3)];

/// What a request carries, told apart forever: (producer, epoch, sequence), or (-1, 0, attempt).
pub type Payload = (i64, Epoch, Sequence);

/// Who may hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    Replica(usize),
    Open(u8),
    Expiry,
}

/// A row of `batches`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    pub base_offset: Offset,
    pub record_count: i64,
    pub appended_at: Timestamp,
    pub producers: Option<Vec<u8>>,
    pub payloads: Vec<Payload>,
}

/// A row of `logs` with its rows of `batches`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Log {
    pub head: Head,
    /// All that was ever committed: the history that the properties are about.
    pub rows: Vec<Row>,
    /// That many of them are trimmed: no statement sees them.
    pub gone: usize,
    pub holder: Option<Who>,
}

/// A row of `producer_states`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateRow {
    pub epoch: Epoch,
    pub last_sequence: Option<Sequence>,
    pub recent: Vec<u8>,
    pub as_of_offset: Offset,
}

/// A row of `sessions` with its rows of `session_opens`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    pub row: SessionRow,
    /// Open id -> the epoch it made.
    pub opens: BTreeMap<u8, Epoch>,
    /// Epochs that began with `"sequences": "reset"`.
    pub resets: Vec<Epoch>,
    pub holder: Option<Who>,
    pub sharers: BTreeSet<Who>,
    /// It is gone, but for the history.
    pub expired: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub logs: BTreeMap<LogId, Log>,
    pub states: BTreeMap<(LogId, ProducerId), StateRow>,
    pub sessions: BTreeMap<ProducerId, Session>,
    /// Stands still, but where there are failovers.
    pub clock: Timestamp,
    /// Another after each failover.
    pub server: u8,
}

/// What a pass asks of one head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    pub log_id: LogId,
    pub fence: Option<i64>,
    pub position: Option<(Offset, Timestamp)>,
    pub record_count: i64,
    /// Their `base_offset` is the distance from the log's base in this pass.
    pub rows: Vec<Row>,
}

/// `store::append::append_if`, bound.
pub type Statement = Vec<Want>;

/// What it answers: the base of every written log.
pub type Bases = BTreeMap<LogId, Offset>;

/// The statement a plan becomes. `payloads`: of each request of the group.
pub fn statement(plan: &Plan, payloads: &[Payload]) -> Statement {
    let want = |write: &oncelog::rules::append::plan::LogWrite| Want {
        log_id: write.log_id,
        fence: write.compare.map(|compare| compare.fence),
        position: write.compare.and_then(|compare| compare.position),
        record_count: write.record_count,
        rows: (write.rows.iter())
            .map(|row| Row {
                base_offset: row.delta,
                record_count: row.record_count,
                appended_at: Timestamp(0),
                producers: row.producers.clone(),
                payloads: row.lines.iter().map(|(request, _)| payloads[*request]).collect(),
            })
            .collect(),
    };
    plan.writes.iter().map(want).collect()
}

impl Row {
    pub fn as_tail(&self) -> TailRow<'_> {
        TailRow {
            base_offset: self.base_offset,
            record_count: self.record_count,
            appended_at: self.appended_at,
            producers: self.producers.as_deref(),
        }
    }

    pub fn entries(&self) -> Vec<oncelog::rules::append::producer_state::Entry> {
        let bytes = self.producers.as_deref();
        bytes.map_or(Vec::new(), |b| encoding::decode_entries(self.base_offset, b).unwrap())
    }
}

impl StateRow {
    pub fn new(as_of_offset: Offset) -> Self {
        Self { epoch: 0, last_sequence: None, recent: Vec::new(), as_of_offset }
    }

    pub fn of(state: &ProducerState, as_of_offset: Offset) -> Self {
        let ProducerState { epoch, last_sequence, recent } = state;
        let recent = encoding::encode_recent(recent);
        Self { epoch: *epoch, last_sequence: *last_sequence, recent, as_of_offset }
    }

    pub fn state(&self) -> ProducerState {
        let recent = encoding::decode_recent(&self.recent).unwrap().into();
        ProducerState { epoch: self.epoch, last_sequence: self.last_sequence, recent }
    }
}

pub fn open_of(producer: ProducerId, sequences: Sequences) -> Open {
    Open {
        transactional_id: Some(name_of(producer)),
        condition: None,
        open_id: None,
        transaction_timeout_ms: None,
        sequencing: Sequencing::Contiguous,
        sequences,
        scopes: Arc::new(Scopes::all()),
    }
}

fn name_of(producer: ProducerId) -> Name {
    Name::parse(&format!("p{}", producer.0)).unwrap()
}

impl Session {
    fn new(producer: ProducerId) -> Self {
        let facts = SessionFacts {
            epoch: 0,
            closed: false,
            reset_epoch: 0,
            sequencing: Sequencing::Contiguous,
        };
        let row = SessionRow {
            producer_id: producer,
            transactional_id: Some(name_of(producer)),
            opened_by: None,
            facts,
            transaction_timeout_ms: 0,
            open_horizon: Timestamp(0),
            opened_at: Timestamp(0),
            fencing: false,
        };
        let (opens, resets, sharers) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        Self { row, opens, resets, holder: None, sharers, expired: false }
    }

    /// Which count of sequences an epoch belongs to.
    pub fn run_of(&self, epoch: Epoch) -> usize {
        self.resets.iter().filter(|reset| **reset <= epoch).count()
    }
}

impl Ledger {
    /// What a session's row says, if it is there.
    pub fn facts(&self, producer: ProducerId) -> Option<SessionFacts> {
        let session = self.sessions.get(&producer).filter(|session| !session.expired)?;
        Some(session.row.facts)
    }

    pub fn new(producers: usize) -> Self {
        let log = |log_id| {
            let head = Head {
                log_id,
                next_offset: 0,
                fence: 0,
                last_appended_at: Timestamp(0),
                snapshot_offset: 0,
                kept_offset: 0,
            };
            (log_id, Log { head, rows: Vec::new(), gone: 0, holder: None })
        };
        let session = |id| (ProducerId(id), Session::new(ProducerId(id)));
        Self {
            server: 0,
            logs: [JOURNAL, PARTITIONS[0], PARTITIONS[1]].into_iter().map(log).collect(),
            states: BTreeMap::new(),
            sessions: (0..producers as i64).map(session).collect(),
            clock: Timestamp(1),
        }
    }

    pub fn log(&self, log_id: LogId) -> &Log {
        &self.logs[&log_id]
    }

    pub fn log_mut(&mut self, log_id: LogId) -> &mut Log {
        self.logs.get_mut(&log_id).unwrap()
    }

    pub fn session_mut(&mut self, producer: ProducerId) -> &mut Session {
        self.sessions.get_mut(&producer).unwrap()
    }

    /// Rows a statement sees, from an offset on. (The history also holds what stored nothing.)
    pub fn rows(&self, log_id: LogId, from: Offset) -> impl Iterator<Item = &Row> {
        let log = self.log(log_id);
        let is_row = move |row: &&Row| row.record_count > 0 && row.base_offset >= from;
        log.rows.iter().skip(log.gone).filter(is_row)
    }

    pub fn heads(&self, logs: &[LogId]) -> Vec<Head> {
        logs.iter().map(|log_id| self.log(*log_id).head).collect()
    }

    pub fn registered_logs(&self, producer: ProducerId) -> Vec<LogId> {
        self.states.keys().filter(|(_, id)| *id == producer).map(|(log_id, _)| *log_id).collect()
    }

    /// `store::session::standings`: one statement.
    pub fn standings(&self, producer: ProducerId) -> Vec<(LogId, ProducerState)> {
        let standing = |log_id: LogId| {
            let stored = &self.states[&(log_id, producer)];
            let mut state = stored.state();
            let from = stored.as_of_offset.max(self.log(log_id).head.snapshot_offset);
            for row in self.rows(log_id, from) {
                for entry in row.entries().iter().filter(|e| e.producer_id == producer) {
                    state.apply(entry, row.appended_at);
                }
            }
            (log_id, state)
        };
        self.registered_logs(producer).into_iter().map(standing).collect()
    }

    // locks

    pub fn may_lock(&self, logs: &[LogId], who: Who) -> bool {
        logs.iter().all(|log_id| self.log(*log_id).holder.is_none_or(|holder| holder == who))
    }

    pub fn lock(&mut self, logs: &[LogId], who: Who) {
        logs.iter().for_each(|log_id| self.log_mut(*log_id).holder = Some(who));
    }

    pub fn may_share(&self, producers: &BTreeSet<ProducerId>) -> bool {
        producers.iter().all(|id| self.sessions[id].holder.is_none())
    }

    pub fn may_lock_session(&self, producer: ProducerId) -> bool {
        let session = &self.sessions[&producer];
        session.holder.is_none() && session.sharers.is_empty()
    }

    /// Commit, rollback or a dead connection.
    pub fn release(&mut self, who: Who) {
        for log in self.logs.values_mut().filter(|log| log.holder == Some(who)) {
            log.holder = None;
        }
        for session in self.sessions.values_mut() {
            session.sharers.remove(&who);
            session.holder = session.holder.filter(|holder| *holder != who);
        }
    }

    // the write statement

    pub fn compares(&self, want: &Want) -> bool {
        let head = &self.log(want.log_id).head;
        want.fence.is_none_or(|fence| fence == head.fence)
            && (want.position)
                .is_none_or(|position| position == (head.next_offset, head.last_appended_at))
    }

    /// `store::append::append_if`. None: a head did not compare. `each_alone` leaves rule 8 out.
    pub fn append_if(
        &mut self,
        statement: &Statement,
        each_alone: bool,
    ) -> Option<(Timestamp, Bases)> {
        let held: Vec<&Want> = statement.iter().filter(|want| self.compares(want)).collect();
        if held.len() < statement.len() && !each_alone {
            return None;
        }
        let last = held.iter().map(|want| self.log(want.log_id).head.last_appended_at).max()?;
        let appended_at = last.max(self.clock);
        let mut bases = Bases::new();
        for want in held.into_iter().filter(|want| !want.rows.is_empty()) {
            let log = self.log_mut(want.log_id);
            let base = log.head.next_offset;
            log.head.next_offset += want.record_count;
            log.head.last_appended_at = appended_at;
            let row =
                |row: &Row| Row { base_offset: base + row.base_offset, appended_at, ..row.clone() };
            log.rows.extend(want.rows.iter().map(row));
            bases.insert(want.log_id, base);
        }
        (!bases.is_empty()).then_some((appended_at, bases))
    }
}
