//! The state of the model, its actions, and what may happen next.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    sync::Mutex,
};

use oncelog::{
    model::{Epoch, LogId, Offset, ProducerId, Sequence, Timestamp, TopicId, dedup::id_key},
    rules::{
        append::{
            Request, RequestPart, Spread,
            cache::{LogCache, LogCaches, Producer},
            dedup::{Dedup, Fact, KeyedRecord, KnownRecord as SeenBefore},
        },
        transaction::one_request::TxnContext,
    },
};
use stateright::{Model, Property};

use super::{
    super::harness::{self, never},
    Broken, Rule, Seen,
    expiries::Expiry,
    ledger::{JOURNAL, Ledger, PARTITIONS, Payload, Who},
    opens::{Opening, Wish},
    passes::{Orphan, Pass},
};

const TOPIC: TopicId = TopicId(1);

/// Where a producer appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Partition(usize),
    /// To that many partitions at once.
    Topic(usize),
}

/// How often each kind of thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    pub sends: u8,
    pub opens: u8,
    /// Lost answers of passes.
    pub losses: u8,
    /// Lost opens.
    pub lost_opens: u8,
    pub kills: u8,
    pub snapshots: u8,
    pub trims: u8,
    pub failovers: u8,
    pub expiries: u8,
}

/// What a check explores.
#[derive(Clone, Debug)]
pub struct Config {
    /// One a producer.
    pub scopes: Vec<Scope>,
    /// Requests of producer 0 that are in the log at the start.
    pub stored_before: Sequence,
    /// How many new sequences a run sends.
    pub per_run: Sequence,
    /// How many sequences may be in flight.
    pub in_flight: Sequence,
    /// Two requests may come in one group: of two producers, or any where several are in flight.
    pub pairs: bool,
    /// Unsequenced appends to the first partition.
    pub plain: bool,
    /// The record of this sequence is known by its id: the request uses its number and stores
    /// nothing.
    pub known: Option<Sequence>,
    /// Opens of producer 0 may reset.
    pub reset: bool,
    /// The session of producer 0 may be ended.
    pub close: bool,
    /// Opens raise the epoch first and fence log by log.
    pub chunked: bool,
    /// The load before the lock in its single statements.
    pub early_steps: bool,
    pub budget: Budget,
    pub without: Option<Rule>,
}

/// A client that has opened a session and appends under its epoch, whatever comes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    pub producer: ProducerId,
    pub epoch: Epoch,
    /// What the open answered.
    pub first: Sequence,
    /// What follows the last acknowledged one.
    pub next_unacked: Sequence,
}

/// A request on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// None: unsequenced.
    pub run: Option<usize>,
    pub sequence: Sequence,
    /// Distinguishes attempts.
    pub attempt: u8,
    /// All before it was acknowledged when it was sent: in its epoch it may not be refused.
    pub owed: bool,
    /// It was sent after a later epoch had been answered: it may not be accepted.
    pub fenced: bool,
}

/// A replica's cache, hashable.
#[derive(Clone, Debug, Default)]
pub struct Known(pub LogCaches);

impl Known {
    fn sorted(&self) -> Vec<(&LogId, [i64; 5], BTreeMap<&ProducerId, &Producer>)> {
        let numbers = |log: &LogCache| {
            let (contended, count) =
                (i64::from(log.contended_passes), i64::from(log.partition_count));
            [log.next_offset, log.fence, log.last_appended_at.0, contended, count]
        };
        let mut logs: Vec<_> = (self.0.iter())
            .map(|(id, log)| (id, numbers(log), log.producers.iter().collect()))
            .collect();
        logs.sort_by_key(|(id, ..)| **id);
        logs
    }
}

impl Hash for Known {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sorted().hash(state);
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.sorted() == other.sorted()
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Replica {
    pub caches: Known,
    pub pass: Pass,
    /// The server of its last write; before it, the one that it connected to.
    pub server: u8,
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct World {
    pub ledger: Ledger,
    pub replicas: [Replica; 2],
    pub orphans: Vec<Orphan>,
    pub opens: Vec<Opening>,
    pub expiry: Option<Expiry>,
    pub snapshots: Vec<super::opens::Folding>,
    pub runs: Vec<Run>,
    /// The latest epoch an open has answered.
    pub answered: BTreeMap<ProducerId, Epoch>,
    pub left: Budget,
    pub broken: BTreeSet<Broken>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Requests arrive at a replica that has nothing else to do; (run, sequence), none: plain.
    Send(usize, Vec<Option<(usize, Sequence)>>),
    /// The replica's pass goes on by one step.
    Step(usize),
    /// The answer to its statement or commit is lost: a fast path's statement may still take
    /// effect; a slow path's commit has.
    Lose(usize),
    /// The answer to its commit is lost, and it was rolled back.
    LoseRolledBack(usize),
    Kill(usize),
    /// A statement whose replica has given up takes effect, or does not compare.
    Orphan(usize),
    Open(ProducerId, Wish),
    OpenStep(usize),
    /// The limit of idle time has passed since all that was.
    Expire(ProducerId),
    ExpiryStep,
    /// The open's answer, or its connection, is lost; its client repeats it by its id.
    OpenLost(usize),
    Snapshot(LogId),
    /// A snapshot that has folded writes (only where rule 24 is left out).
    SnapshotWrite(usize),
    Trim(LogId),
    /// The last row of the first partition is lost, and no connection shows it.
    Failover,
}

type Check = harness::Check<Config, Seen>;

/// One transition under way.
pub struct Turn<'a> {
    pub config: &'a Config,
    pub seen: &'a Mutex<BTreeSet<Seen>>,
    pub world: World,
}

impl Turn<'_> {
    pub fn note(&self, seen: Seen) {
        self.seen.lock().unwrap().insert(seen);
    }

    pub fn breaks(&mut self, broken: Broken, if_so: bool) {
        if if_so {
            self.world.broken.insert(broken);
        }
    }

    pub fn is_without(&self, rule: Rule) -> bool {
        self.config.without == Some(rule)
    }
}

impl Config {
    pub fn home(&self, producer: ProducerId) -> LogId {
        match self.scopes[producer.0 as usize] {
            Scope::Partition(partition) => PARTITIONS[partition],
            Scope::Topic(_) => JOURNAL,
        }
    }

    pub fn payload(&self, world: &World, ticket: &Ticket) -> Payload {
        match ticket.run {
            Some(run) => (world.runs[run].producer.0, world.runs[run].epoch, ticket.sequence),
            None => (-1, 0, ticket.attempt.into()),
        }
    }

    pub fn request(&self, world: &World, ticket: &Ticket) -> Request {
        let (producer, epoch, sequence) = self.payload(world, ticket);
        let mut digest = [0; 16];
        digest[..3].copy_from_slice(&[producer as u8, epoch as u8, sequence as u8]);
        let numbered = ticket.run.map(|_| oncelog::model::append::ProducerSeq {
            producer_id: ProducerId(producer),
            epoch,
            sequence,
        });
        let scope = ticket.run.map_or(Scope::Partition(0), |_| self.scopes[producer as usize]);
        let part = |partition: usize| RequestPart {
            log_id: PARTITIONS[partition],
            partition: partition as i32,
            record_count: 1,
            size_bytes: 1,
        };
        let (home, parts, spread) = match scope {
            Scope::Partition(partition) => (PARTITIONS[partition], vec![part(partition)], None),
            Scope::Topic(count) => {
                let spread = Spread { partition_count: PARTITIONS.len() as i32, keyless: None };
                (JOURNAL, (0..count).map(part).collect(), Some(spread))
            }
        };
        let is_known = numbered.is_some() && self.known == Some(sequence);
        let record = KeyedRecord {
            append: None,
            index: 0,
            part: 0,
            key: Some(id_key("known")),
            digest: 0,
            size_bytes: 1,
        };
        let dedup = Dedup {
            journal: JOURNAL,
            topic_id: TOPIC,
            window_ms: None,
            records: vec![record],
            refuses_duplicates: false,
            request_key: None,
        };
        Request {
            home,
            numbered,
            digest,
            expected_offset: None,
            parts,
            spread,
            over_limit: None,
            transaction: None,
            dedups: is_known.then_some(dedup).into_iter().collect(),
        }
    }

    /// What batches depend on beside their heads: the one id that is known.
    pub fn txn_context(&self) -> TxnContext {
        let mut context = TxnContext::default();
        let seen = SeenBefore { partition: 0, offset: Some(0), first_seen_at: Timestamp(0) };
        let fact = Fact::Record { digest: 0, seen };
        context.known.facts.insert((TOPIC, id_key("known")), fact);
        context
    }

    fn used_logs(&self) -> BTreeSet<LogId> {
        let logs = self.scopes.iter().flat_map(|scope| match *scope {
            Scope::Partition(partition) => vec![PARTITIONS[partition]],
            Scope::Topic(count) => PARTITIONS[..count].iter().copied().chain([JOURNAL]).collect(),
        });
        logs.collect()
    }

    fn sendable(&self, world: &World) -> Vec<Option<(usize, Sequence)>> {
        let mut sendable: Vec<_> = self.plain.then_some(None).into_iter().collect();
        for (index, run) in world.runs.iter().enumerate() {
            let end = (run.next_unacked + self.in_flight).min(run.first + self.per_run);
            let start = if run.epoch == 0 { 0 } else { run.first };
            sendable.extend((start..end).map(|sequence| Some((index, sequence))));
        }
        sendable
    }

    fn send_actions(&self, world: &World, replica: usize, actions: &mut Vec<Action>) {
        let sendable = self.sendable(world);
        if self.pairs && world.left.sends > 1 {
            let producer =
                |one: &Option<(usize, Sequence)>| one.map(|(run, _)| world.runs[run].producer);
            let fit = |one, other| self.in_flight > 1 || producer(one) != producer(other);
            for (index, one) in sendable.iter().enumerate() {
                for other in sendable[index..].iter().filter(|other| fit(one, other)) {
                    actions.push(Action::Send(replica, vec![*one, *other]));
                }
            }
        }
        actions.extend(sendable.into_iter().map(|one| Action::Send(replica, vec![one])));
    }

    fn replica_actions(&self, world: &World, replica: usize, actions: &mut Vec<Action>) {
        let Replica { caches, pass, .. } = &world.replicas[replica];
        if *pass == Pass::Idle {
            if world.left.sends > 0 {
                self.send_actions(world, replica, actions);
            }
        } else if world.can_step(self, replica) {
            actions.push(Action::Step(replica));
        }
        if world.left.losses > 0 && pass.is_writing() {
            actions.push(Action::Lose(replica));
            if matches!(pass, Pass::Slow(_)) {
                actions.push(Action::LoseRolledBack(replica));
            }
        }
        if world.left.kills > 0 && (*pass != Pass::Idle || !caches.0.is_empty()) {
            actions.push(Action::Kill(replica));
        }
    }
}

impl World {
    fn new(config: &Config) -> Self {
        let run = |id| Run { producer: ProducerId(id), epoch: 0, first: 0, next_unacked: 0 };
        let producers = config.scopes.len();
        let replica = Replica { caches: Known::default(), pass: Pass::Idle, server: 0 };
        Self {
            ledger: Ledger::new(producers),
            replicas: [replica.clone(), replica],
            orphans: Vec::new(),
            opens: Vec::new(),
            expiry: None,
            snapshots: Vec::new(),
            runs: (0..producers as i64).map(run).collect(),
            answered: (0..producers as i64).map(|id| (ProducerId(id), 0)).collect(),
            left: config.budget,
            broken: BTreeSet::new(),
        }
    }

    /// Nobody waits forever: as long as something is under way, something can go on.
    fn goes_on(&self, config: &Config) -> bool {
        let passes = (0..2).filter(|replica| self.replicas[*replica].pass != Pass::Idle);
        let passes: Vec<usize> = passes.collect();
        let is_idle = passes.is_empty() && self.opens.is_empty() && self.expiry.is_none();
        is_idle
            || passes.into_iter().any(|replica| self.can_step(config, replica))
            || self.opens.iter().any(|open| open.can_step(&self.ledger))
            || self.expiry.iter().any(|expiry| expiry.can_step(&self.ledger))
    }
}

impl Check {
    fn turn(&self, world: &World) -> Turn<'_> {
        Turn { config: &self.config, seen: &self.seen, world: world.clone() }
    }
}

impl Model for Check {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World::new(&self.config);
        for sequence in 0..self.config.stored_before {
            world.left.sends = 9;
            world = self.next_state(&world, Action::Send(0, vec![Some((0, sequence))])).unwrap();
            while world.replicas[0].pass != Pass::Idle {
                world = self.next_state(&world, Action::Step(0)).unwrap();
            }
        }
        world.runs[0].first = self.config.stored_before;
        world.replicas[0].caches = Known::default();
        world.left = self.config.budget;
        self.seen.lock().unwrap().clear();
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let config = &self.config;
        (0..2).for_each(|replica| config.replica_actions(world, replica, actions));
        let orphans = world.orphans.iter().enumerate();
        let free =
            orphans.filter(|(_, orphan)| world.ledger.may_lock(&orphan.logs(), orphan.who()));
        actions.extend(free.map(|(index, _)| Action::Orphan(index)));
        if world.left.opens > 0 && world.opens.len() < 2 {
            let wishes =
                [(true, Wish::Continue), (config.reset, Wish::Reset), (config.close, Wish::Close)];
            let wishes = wishes.into_iter().filter(|(is_possible, _)| *is_possible);
            actions.extend(wishes.map(|(_, wish)| Action::Open(ProducerId(0), wish)));
        }
        for (index, open) in world.opens.iter().enumerate() {
            if open.can_step(&world.ledger) {
                actions.push(Action::OpenStep(index));
            }
            if world.left.lost_opens > 0 && open.can_be_lost() {
                actions.push(Action::OpenLost(index));
            }
        }
        if world.may_expire(ProducerId(0)) {
            actions.push(Action::Expire(ProducerId(0)));
        }
        if world.expiry.iter().any(|expiry| expiry.can_step(&world.ledger)) {
            actions.push(Action::ExpiryStep);
        }
        for log_id in config.used_logs() {
            let log = world.ledger.log(log_id);
            let free = log.holder.is_none();
            if free && world.left.snapshots > 0 && log.head.snapshot_offset < log.head.next_offset {
                actions.push(Action::Snapshot(log_id));
            }
            if free && world.left.trims > 0 && log.head.kept_offset < self.trimmable(world, log_id)
            {
                actions.push(Action::Trim(log_id));
            }
        }
        actions.extend((0..world.snapshots.len()).map(Action::SnapshotWrite));
        if world.left.failovers > 0 && world.may_fail_over() {
            actions.push(Action::Failover);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut turn = self.turn(world);
        match action {
            Action::Send(replica, requests) => turn.send(replica, &requests),
            Action::Step(replica) => turn.step(replica),
            Action::Lose(replica) => turn.lose(replica, true),
            Action::LoseRolledBack(replica) => turn.lose(replica, false),
            Action::Kill(replica) => turn.kill(replica),
            Action::Orphan(index) => turn.orphan(index),
            Action::Open(producer, wish) => turn.open(producer, wish),
            Action::OpenStep(index) => turn.open_step(index),
            Action::Expire(producer) => turn.expire(producer),
            Action::ExpiryStep => turn.expiry_step(),
            Action::OpenLost(index) => turn.open_lost(index),
            Action::Snapshot(log_id) => turn.snapshot(log_id),
            Action::Failover => turn.failover(),
            Action::SnapshotWrite(index) => turn.snapshot_write(index),
            Action::Trim(log_id) => turn.trim(log_id, self.trimmable(world, log_id)),
        }
        // (a hidden failover makes cache wrong; it must not be used)
        if self.config.without.is_none() && self.config.budget.failovers == 0 {
            turn.check_caches();
        }
        Some(turn.world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = never![
            StoredTwice,
            WronglyAnswered,
            NotDense,
            Gap,
            AcceptedAfterFence,
            NotCounted,
            WronglyRefused,
            RefusedButStored,
            DoesNotLoad,
            CacheWrong,
            AcceptedAfterExpiry,
            ForgottenThoughActive
        ];
        let name = "as long as something is under way, something can go on";
        properties.push(Property::always(name, |check: &Check, world: &World| {
            world.goes_on(&check.config)
        }));
        properties
    }
}

impl Check {
    /// Rows before it may go.
    fn trimmable(&self, world: &World, log_id: LogId) -> Offset {
        let head = &world.ledger.log(log_id).head;
        match self.config.without {
            Some(Rule::TrimBelowSnapshot) => head.next_offset,
            _ => head.snapshot_offset,
        }
    }
}

impl Orphan {
    pub fn logs(&self) -> Vec<LogId> {
        self.statement.iter().map(|want| want.log_id).collect()
    }

    /// It holds nothing yet.
    pub fn who(&self) -> Who {
        Who::Replica(usize::MAX)
    }
}
