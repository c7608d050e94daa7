//! The state of the model, what may happen next, and what must be true after it.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::{
    model::{
        Epoch, Offset, ProducerId, Timestamp,
        transaction::{CommitRight, Reason, State},
    },
    rules::{Refusal, transaction::TransactionRow},
};
use stateright::{Model, Property};
use uuid::Uuid;

use super::{
    super::harness::{self, never},
    Broken, Rule, Seen, TIMEOUT_MS,
    ledger::{Batch, Call, GENERATION, Ledger, Message},
};

/// What a client does, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Begin,
    /// An append to a partition.
    Append(usize),
    /// The group's offset, by compare-and-set from where it was when the client began.
    Offset,
    Prepare,
    Commit,
    Abort,
    /// The whole transaction in one request, with the group's offset or without.
    Whole {
        offset: bool,
    },
    /// Commits what was found prepared by the open.
    Recover,
}

pub type Script = &'static [Step];

/// What a check explores.
#[derive(Clone, Debug)]
pub struct Config {
    /// One a producer.
    pub scripts: Vec<Script>,
    /// Of clients without session.
    pub unbound: Vec<Script>,
    /// Of the client that opens the first producer's session again.
    pub successor: Script,
    /// The group has a member, which all of them believe to be.
    pub by_member: bool,
    /// How many steps a client sends before it has the answer to the first.
    pub in_flight: usize,
    pub budget: Budget,
    pub without: Option<Rule>,
}

/// How often each kind of thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub opens: u8,
    pub ticks: u8,
    pub sweeps: u8,
    /// Changes of the retention, to and fro.
    pub retentions: u8,
}

/// A process that runs its script under the epoch it was given, whatever comes: a zombie never
/// learns that it is one but by its answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    session: Option<(ProducerId, Epoch)>,
    id: Uuid,
    script: Script,
    /// Steps answered.
    done: usize,
    /// The committed offset when it began.
    read: Option<Offset>,
    /// Prepared by an earlier epoch, in doubt.
    found: Option<(Uuid, i64)>,
    /// It commits as the member, and says or not where its run began.
    by_member: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub ledger: Ledger,
    clients: Vec<Client>,
    left: Budget,
    /// Every id ever begun, and what it was answered to have come to.
    begun: BTreeSet<Uuid>,
    told: BTreeMap<Uuid, (State, Option<Reason>)>,
    /// Who has moved the group's offset.
    moved_by: BTreeSet<Uuid>,
    broken: BTreeSet<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// What a client has sent as a step of its script arrives, for the first time or again, and the
    /// answer reaches it.
    Deliver(usize, usize),
    /// The answer is lost.
    DeliverInVain(usize, usize),
    Open,
    Tick,
    Sweep,
    Retain,
}

type Handled = Result<(Ledger, TransactionRow, bool), Refusal>;

type Check = harness::Check<Config, Seen>;

const MEMBER: &str = "m";
const RETENTIONS_MS: [i64; 2] = [2, 9];

/// A UUIDv7 made at an instant.
fn made_at(instant: Timestamp, number: usize) -> Uuid {
    Uuid::from_u128((instant.0 as u128) << 80 | 7 << 76 | 2 << 62 | number as u128)
}

impl Client {
    fn expected_appends(&self) -> i64 {
        self.script.iter().filter(|step| matches!(step, Step::Append(_))).count() as i64
    }

    /// Where its appends go, in their order.
    fn appends(&self) -> Vec<usize> {
        let of = |step: &Step| match step {
            Step::Append(partition) => vec![*partition],
            Step::Whole { .. } => vec![0, 1],
            _ => vec![],
        };
        self.script.iter().flat_map(of).collect()
    }

    fn message(&self, step: usize) -> Option<Message> {
        let before = &self.script[..step];
        let sequence = before.iter().filter(|step| matches!(step, Step::Append(_))).count() as i64;
        let claim = match self.by_member {
            None => CommitRight::Expected(self.read),
            Some(says_where) => CommitRight::Member {
                member_id: MEMBER.into(),
                generation: GENERATION,
                expected: None,
                began: says_where.then_some(self.read),
            },
        };
        // the tens count how often it was moved, the rest says by whom
        let moves = self.read.map_or(0, |offset| offset / 10 + 1);
        let offset = moves * 10 + (self.id.as_u128() & 7) as i64;
        let mut id = self.id;
        let call = match self.script[step] {
            Step::Begin => Call::Begin,
            Step::Whole { offset: has_offset } => {
                Call::Whole { appends: vec![0, 1], offset: has_offset.then_some((offset, claim)) }
            }
            Step::Append(partition) => Call::Records { sequence, appends: vec![partition] },
            Step::Offset => Call::Offset(offset, claim),
            Step::Prepare => Call::Prepare,
            Step::Commit => Call::Commit { expected_appends: self.expected_appends() },
            Step::Abort => Call::Abort,
            Step::Recover => {
                let (found, expected_appends) = self.found?;
                id = found;
                Call::Commit { expected_appends }
            }
        };
        Some(Message { id, session: self.session, call })
    }

    /// Steps it has sent.
    fn sent(&self, in_flight: usize) -> std::ops::Range<usize> {
        // it begins before it goes on
        let begins = self.script[self.done..]
            .first()
            .is_some_and(|step| matches!(step, Step::Begin | Step::Whole { .. } | Step::Recover));
        let ahead = if begins { 1 } else { in_flight };
        0..(self.done + ahead).min(self.script.len())
    }
}

impl World {
    fn new(config: &Config) -> Self {
        let mut world = Self {
            ledger: Ledger::new(
                Timestamp(1_000),
                RETENTIONS_MS[1],
                config.by_member.then_some(MEMBER),
                config.without,
            ),
            clients: Vec::new(),
            left: config.budget,
            begun: BTreeSet::new(),
            told: BTreeMap::new(),
            moved_by: BTreeSet::new(),
            broken: BTreeSet::new(),
        };
        for (producer, script) in config.scripts.iter().enumerate() {
            let producer = ProducerId(producer as i64);
            let epoch = world.ledger.open(producer).epoch;
            world.come(config, script, Some((producer, epoch)), None);
        }
        for script in &config.unbound {
            world.come(config, script, None, None);
        }
        world
    }

    fn come(
        &mut self,
        config: &Config,
        script: Script,
        session: Option<(ProducerId, Epoch)>,
        found: Option<(Uuid, i64)>,
    ) {
        let id = made_at(self.ledger.now, self.clients.len());
        // nothing in doubt: there is nothing to recover
        let done = usize::from(script[0] == Step::Recover && found.is_none());
        let read = self.ledger.offset.committed_offset;
        let by_member = config.by_member.then_some(config.without != Some(Rule::Runs));
        self.clients.push(Client { session, id, script, done, read, found, by_member });
    }

    fn breaks(&mut self, broken: Broken, if_so: bool) {
        if if_so {
            self.broken.insert(broken);
        }
    }

    fn epoch(&self, producer: ProducerId) -> Epoch {
        self.ledger.sessions[&producer].facts.epoch
    }

    fn check_accepted(
        &mut self,
        message: &Message,
        row: &TransactionRow,
        duplicate: bool,
        before: &Ledger,
    ) {
        let own = row.transaction_id;
        let asks_again = duplicate && matches!(message.call, Call::Begin | Call::Whole { .. });
        if let Some((producer, epoch)) = message.session {
            let fenced = epoch < self.epoch(producer) && !asks_again;
            self.breaks(Broken::AcceptedAfterFence, fenced);
        }
        self.check_told(row);
        if duplicate {
            return;
        }
        if matches!(message.call, Call::Begin | Call::Whole { .. }) {
            let again = !self.begun.insert(own);
            self.breaks(Broken::RunsTwice, again);
            return;
        }
        let was = &before.transactions[&own].row;
        let is_late = was.state == State::Ongoing && before.now.0 >= was.created_at.0 + TIMEOUT_MS;
        let is_abort = message.call == Call::Abort;
        self.breaks(Broken::AcceptedAfterDeadline, is_late && !is_abort);
        if let (State::Ongoing, Some((producer, epoch))) = (was.state, was.session) {
            let fenced = epoch < self.epoch(producer) && !is_abort;
            self.breaks(Broken::AcceptedAfterFence, fenced);
        }
    }

    fn tick(mut self) -> Self {
        self.left.ticks -= 1;
        self.ledger.now.0 += 1;
        self
    }

    fn sweep(mut self) -> Self {
        self.left.sweeps -= 1;
        self.ledger.sweep();
        self
    }

    fn retain(mut self) -> Self {
        self.left.retentions -= 1;
        let [short, long] = RETENTIONS_MS;
        let is_short = self.ledger.retention_ms == short;
        self.ledger.retention_ms = if is_short { long } else { short };
        self
    }

    /// An outcome is told.
    fn tell(&mut self, id: Uuid, outcome: (State, Option<Reason>)) {
        let was = self.told.insert(id, outcome);
        let changed =
            was.is_some_and(|was| was.0 > outcome.0 || (was.0 > State::Prepared && was != outcome));
        self.breaks(Broken::OutcomeChanged, changed);
    }

    /// What a transaction has in the logs, in its own order: which of its appends, and where.
    fn stored(&self, id: Uuid) -> Vec<(usize, i32, Offset)> {
        let of_log = |(partition, log): (usize, &Vec<Batch>)| {
            let own = log.iter().filter(|batch| batch.transaction_id == id);
            own.map(|batch| (batch.ordinal, partition as i32, batch.base_offset))
                .collect::<Vec<_>>()
        };
        let mut stored: Vec<_> = self.ledger.logs.iter().enumerate().flat_map(of_log).collect();
        stored.sort_unstable();
        stored
    }

    /// An answer says where its appends are.
    fn check_told(&mut self, row: &TransactionRow) {
        let told = row.appends.iter().flatten().enumerate();
        let told = told.map(|(ordinal, append)| (ordinal, append.partition, append.base_offset));
        let stored = self.stored(row.transaction_id).into_iter();
        let is_true = told.eq(stored.map(|(ordinal, at, base)| (ordinal, at, Some(base))));
        self.breaks(Broken::ToldWrong, !is_true);
    }

    /// What is in the logs is all of what was committed, once, and nothing else.
    fn check_logs(&mut self) {
        for log in self.ledger.logs.clone() {
            let dense = log.iter().enumerate().all(|(at, batch)| batch.base_offset == at as i64);
            self.breaks(Broken::NotDense, !dense);
        }
        for client in self.clients.clone() {
            let is_committed = matches!(self.told.get(&client.id), Some((State::Committed, _)));
            let all = client.appends().into_iter().map(|partition| partition as i32).enumerate();
            let want: Vec<_> = all.filter(|_| is_committed).collect();
            let stored = self.stored(client.id).into_iter();
            let is_whole = stored.map(|(ordinal, partition, _)| (ordinal, partition)).eq(want);
            self.breaks(Broken::NotAtomic, !is_whole);
        }
    }

    fn check_offset(&mut self, id: Uuid, from: Option<Offset>) {
        let to = self.ledger.offset.committed_offset;
        if from == to {
            return;
        }
        let again = !self.moved_by.insert(id);
        let count = |offset: Option<Offset>| offset.map_or(0, |offset| offset / 10 + 1);
        let follows = count(to) == count(from) + 1;
        self.breaks(Broken::OffsetTwice, again || !follows);
    }

    /// What is prepared can be committed, whatever else has happened.
    fn check_prepared(&mut self) {
        let rows = self.ledger.transactions.values();
        let prepared: Vec<TransactionRow> = (rows.map(|stored| stored.row.clone()))
            .filter(|row| row.state == State::Prepared)
            .collect();
        for row in prepared {
            let session = row.session.map(|(producer, _)| (producer, self.epoch(producer)));
            let call = Call::Commit { expected_appends: row.append_count };
            let commit = Message { id: row.transaction_id, session, call };
            let refused = self.ledger.handled(&commit).is_err();
            self.breaks(Broken::PreparedButRefused, refused);
        }
    }
}

impl Check {
    /// None: nothing has changed.
    fn deliver(&self, world: &World, client: usize, step: usize, answered: bool) -> Option<World> {
        let message = world.clients[client].message(step)?;
        let got = world.ledger.handled(&message);
        self.note_answer(world, &message, &got);
        let mut then = match &got {
            Err(Refusal::InvalidTransactionState { state, reason })
                if world.told.get(&message.id) != Some(&(*state, *reason)) =>
            {
                world.clone()
            }
            Err(_) => return None,
            Ok((ledger, _, true)) if !answered && *ledger == world.ledger => return None,
            Ok(_) => world.clone(),
        };
        match got {
            Ok((ledger, row, duplicate)) => {
                then.ledger = ledger;
                then.tell(row.transaction_id, (row.state, row.reason));
                then.check_accepted(&message, &row, duplicate, &world.ledger);
                if !duplicate {
                    then.check_offset(row.transaction_id, world.ledger.offset.committed_offset);
                    then.check_logs();
                    then.check_prepared();
                }
                if answered {
                    then.clients[client].done = step + 1;
                    if message.call == Call::Begin {
                        then.clients[client].read = then.ledger.offset.committed_offset;
                    }
                }
            }
            Err(Refusal::InvalidTransactionState { state, reason }) => {
                then.tell(message.id, (state, reason));
            }
            Err(_) => {}
        }
        Some(then)
    }

    fn note_answer(&self, world: &World, message: &Message, got: &Handled) {
        let seen = match (&message.call, got) {
            (Call::Commit { .. }, Ok((.., true))) => Seen::ReplayedCommit,
            (Call::Commit { .. }, Ok((_, row, _))) if row.prepared_at.is_some() => {
                let session = row.session.zip(message.session);
                if session.is_some_and(|(by, now)| by.1 < now.1) {
                    Seen::PreparedCommittedAfterOpen
                } else {
                    Seen::PreparedCommitted
                }
            }
            (Call::Commit { .. }, Ok(_)) => Seen::Committed,
            (Call::Whole { .. }, Ok((.., false))) => Seen::Whole,
            (Call::Begin | Call::Whole { .. }, Ok((.., true))) => Seen::ReplayedBegin,
            (Call::Records { .. }, Ok((.., true))) => Seen::ReplayedAppend,
            (Call::Abort, Ok((_, row, _))) if row.reason == Some(Reason::Client) => Seen::Aborted,
            (Call::Commit { .. }, Err(Refusal::ProducerFenced { .. })) => Seen::FencedCommit,
            (_, Err(Refusal::ProducerFenced { .. })) => Seen::Fenced,
            (_, Err(Refusal::InvalidTransactionState { reason: Some(Reason::Timeout), .. })) => {
                Seen::TimedOut
            }
            (_, Err(Refusal::OffsetCommitConflict { pinned_by: Some(_), .. })) => Seen::Pinned,
            (_, Err(Refusal::OffsetCommitConflict { .. })) => Seen::Conflict,
            (_, Err(Refusal::OutOfOrderSequence { .. })) => Seen::Ahead,
            (_, Err(Refusal::AppendsMissing { .. })) => Seen::AppendsMissing,
            (Call::Begin | Call::Whole { .. }, Err(Refusal::TransactionExpired))
                if world.begun.contains(&message.id) =>
            {
                Seen::ForgottenAndRefused
            }
            _ => return,
        };
        self.note(seen);
    }

    fn open(&self, mut world: World) -> World {
        let producer = ProducerId(0);
        world.left.opens -= 1;
        let opened = world.ledger.open(producer);
        if opened.aborted.is_some() {
            self.note(Seen::AbortedByOpen);
        }
        let found = opened.prepared.map(|row| (row.transaction_id, row.append_count));
        world.come(&self.config, self.config.successor, Some((producer, opened.epoch)), found);
        world.check_prepared();
        world
    }
}

impl Model for Check {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.config)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if !world.broken.is_empty() {
            return;
        }
        for (index, client) in world.clients.iter().enumerate() {
            for step in client.sent(self.config.in_flight) {
                actions.push(Action::DeliverInVain(index, step));
                if step >= client.done {
                    actions.push(Action::Deliver(index, step));
                }
            }
        }
        let left = world.left;
        let more = [
            (left.opens, Action::Open),
            (left.ticks, Action::Tick),
            (left.sweeps, Action::Sweep),
            (left.retentions, Action::Retain),
        ];
        actions.extend(more.into_iter().filter(|(left, _)| *left > 0).map(|(_, action)| action));
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        match action {
            Action::Deliver(client, step) => self.deliver(world, client, step, true),
            Action::DeliverInVain(client, step) => self.deliver(world, client, step, false),
            Action::Open => Some(self.open(world.clone())),
            Action::Tick => Some(world.clone().tick()),
            Action::Sweep => Some(world.clone().sweep()),
            Action::Retain => Some(world.clone().retain()),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        never![
            NotAtomic,
            NotDense,
            AcceptedAfterFence,
            AcceptedAfterDeadline,
            ToldWrong,
            OffsetTwice,
            OutcomeChanged,
            PreparedButRefused,
            RunsTwice
        ]
    }
}
