//! The state of the model, what may happen next, and what must be true after it.

use std::collections::{BTreeMap, BTreeSet};

use oncelog::{
    model::{LogId, Offset},
    rules::{Refusal, group::GroupState},
};
use stateright::{Model, Property};

use super::{
    super::harness::{self, never},
    Broken, Rule, Seen,
    ledger::{Commit, How, Ledger, Range},
};

/// What a check explores.
#[derive(Clone, Debug)]
pub struct Config {
    pub clients: Vec<Kind>,
    pub partitions: i64,
    /// In each partition.
    pub records: Offset,
    /// Clients fetch on before they process.
    pub gathers: bool,
    pub budget: Budget,
    pub without: Option<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    pub how: How,
    /// It joins as an instance.
    pub is_static: bool,
}

/// How often each kind of thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Clients that come back after they were told that they are no members, or after a crash.
    pub joins: u8,
    pub crashes: u8,
    pub deaths: u8,
    pub forgets: u8,
    pub growths: u8,
}

/// One that fetches, processes, commits and waits for the answer, with heartbeats at any time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    member: Option<String>,
    /// A fetch's answer that is on its way.
    fetched: Option<(i64, Vec<Range>)>,
    /// The commit it waits for.
    sent: Option<u8>,
    /// The newest answer that has come, if it told of something that is still to be let go of.
    told: Option<i64>,
    /// The newest generation it has heard of by heartbeats: of no use, but to the careless.
    heard: i64,
}

const NOBODY: Client = Client { member: None, fetched: None, sent: None, told: None, heard: 0 };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    ledger: Ledger,
    clients: Vec<Client>,
    /// All that was ever sent.
    network: BTreeMap<u8, Commit>,
    joined: u8,
    left: Budget,
    /// By committed transactions.
    processed: BTreeSet<(LogId, Offset)>,
    broken: BTreeSet<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Join(usize),
    /// A client forgets all; its member is left to its lease.
    Crash(usize),
    Late(usize),
    Grow,
    /// A heartbeat arrives, and its answer as well.
    Beat(usize),
    /// A heartbeat arrives, and its answer never.
    BeatLost(usize),
    /// A fetch arrives; a second one's answer takes the place of the first's.
    Ask(usize),
    /// The answer has come, and a fetch goes on behind it, to process both.
    More(usize),
    /// Its answer arrives: the records are processed, and the commit is sent.
    Receive(usize),
    /// A commit arrives, and its answer as well.
    Commit(usize),
    /// Any commit ever sent arrives, and its answer never.
    Deliver(u8),
    /// A client gives up on a commit without knowing what became of it.
    Forget(usize),
}

type Check = harness::Check<Config, Seen>;

impl World {
    fn new(config: &Config) -> Self {
        let mut world = Self {
            ledger: Ledger::new(config.partitions, config.records, config.without),
            clients: vec![NOBODY; config.clients.len()],
            network: BTreeMap::new(),
            joined: 0,
            left: config.budget,
            processed: BTreeSet::new(),
            broken: BTreeSet::new(),
        };
        // one is there already; the others come when they come
        world.left.joins += config.clients.len() as u8;
        world.join(config, 0);
        world
    }

    fn join(&mut self, config: &Config, client: usize) {
        let id = format!("m{}", self.joined);
        let instance = config.clients[client].is_static.then(|| format!("pod{client}"));
        self.joined += 1;
        self.left.joins -= 1;
        self.ledger.join(&id, instance);
        self.clients[client].member = Some(id);
    }

    fn breaks(&mut self, broken: Broken, if_so: bool) {
        if if_so {
            self.broken.insert(broken);
        }
    }

    /// Nobody loses anything but what it was told to let go of, in an answer that has come, by a
    /// call of its own. `by`: who has called, and the newest of such answers.
    fn check_group(&mut self, before: &GroupState, by: Option<(&str, Option<i64>)>) {
        let after = self.ledger.group.0.clone();
        self.breaks(Broken::GenerationFell, after.generation < before.generation);
        for (log_id, place) in &before.places {
            let Some(owner) = place.owner.as_ref() else { continue };
            let keeps = after.places[log_id].owner.as_ref() == Some(owner);
            let lives = after.members.contains_key(&owner.member_id);
            let is_told = |told: i64| place.revoked.is_some_and(|revoked| revoked.since <= told);
            let lets_go =
                by.is_some_and(|(id, told)| id == owner.member_id && told.is_some_and(is_told));
            self.breaks(Broken::LostUntold, lives && !keeps && !lets_go);
        }
        let settles = self.ledger.settles();
        self.breaks(Broken::NotSettled, !settles);
    }

    /// A commit was accepted, for the first time.
    fn check_commit(&mut self, commit: &Commit, before: &Ledger) {
        for range in &commit.ranges {
            let owner = before.owner(range.log_id);
            let is_its = owner.is_some_and(|owner| {
                owner.member_id == commit.member_id && owner.since == range.since
            });
            self.breaks(Broken::NotItsOwn, !is_its);
            let was = before.committed.get(&range.log_id).copied().unwrap_or(0);
            let is = self.ledger.committed.get(&range.log_id).copied().unwrap_or(0);
            self.breaks(Broken::WentBack, is < was);
            self.breaks(Broken::Skipped, range.from > was);
            for offset in (range.from..range.to).filter(|_| commit.is_transaction()) {
                let again = !self.processed.insert((range.log_id, offset));
                self.breaks(Broken::ProcessedTwice, again);
            }
        }
    }

    /// An answer is of no more use once all is let go of that it told of: what is taken later is
    /// told later.
    fn forget_the_irrelevant(&mut self) {
        let places = &self.ledger.group.0.places;
        for Client { member, told, .. } in &mut self.clients {
            let is_told = |told: &mut i64| {
                let mut owned = places.values().filter(|place| {
                    member.as_ref().is_some_and(|member| place.is_owned_by(member))
                });
                owned.any(|place| place.revoked.is_some_and(|revoked| revoked.since <= *told))
            };
            *told = told.take_if(is_told);
        }
    }

    fn sent(&mut self, config: &Config, client: usize, fetched: (i64, Vec<Range>)) {
        let (generation, ranges) = fetched;
        let Client { member, heard, .. } = &self.clients[client];
        let is_careless = config.without == Some(Rule::GenerationOfTheFetch);
        let number = self.network.len() as u8;
        let commit = Commit {
            number,
            how: config.clients[client].how,
            member_id: member.clone().unwrap(),
            generation: if is_careless { generation.max(*heard) } else { generation },
            ranges,
        };
        let judged_now = commit.how == How::Staged && config.without == Some(Rule::AtTheEnd);
        if judged_now && self.ledger.judge_staged(&commit).is_err() {
            return;
        }
        self.network.insert(number, commit);
        self.clients[client].sent = Some(number);
    }
}

impl Check {
    /// The member calls, and shows the newest answer it has; None: it is told that it is none.
    fn call(&self, world: &mut World, client: usize) -> Option<String> {
        let id = world.clients[client].member.clone()?;
        let told = world.clients[client].told;
        let before = world.ledger.group.0.clone();
        if world.ledger.beat(&id, told).is_err() {
            self.note(Seen::Unknown);
            world.clients[client] = NOBODY;
            return None;
        }
        let owned =
            |state: &GroupState| state.places.values().filter(|p| p.is_owned_by(&id)).count();
        if owned(&world.ledger.group.0) < owned(&before) {
            self.note(Seen::HandedOver);
        }
        world.check_group(&before, Some((&id, told)));
        Some(id)
    }

    /// Its answer is on its way. `before`: what the member has fetched and goes on behind.
    fn fetch(&self, world: &mut World, client: usize, before: &[Range]) {
        if let Some(id) = self.call(world, client) {
            let fetched = world.ledger.fetched(&id, before);
            world.clients[client].fetched = Some(fetched).filter(|(_, ranges)| !ranges.is_empty());
        }
    }

    fn deliver(&self, world: &mut World, number: u8) -> Result<(), Refusal> {
        let (commit, before) = (world.network[&number].clone(), world.ledger.clone());
        let judged = world.ledger.commit(&commit);
        let was_announced = |range: &Range| {
            let revoked = before.group.0.places[&range.log_id].revoked;
            revoked.is_some_and(|revoked| revoked.let_go_by.is_some())
        };
        self.note(match &judged {
            Ok(true) => Seen::Repeated,
            Ok(false) if commit.ranges.iter().any(was_announced) => Seen::CommittedAfterRevoked,
            Ok(false) => Seen::Committed,
            Err(Refusal::UnknownMember) => Seen::FencedAsUnknown,
            Err(Refusal::IllegalGeneration { .. }) => {
                let owns = |range: &Range| {
                    let owner = before.owner(range.log_id);
                    owner.is_some_and(|owner| owner.member_id == commit.member_id)
                };
                if commit.ranges.iter().all(owns) { Seen::FencedRegained } else { Seen::FencedLost }
            }
            Err(_) => Seen::Conflict,
        });
        if !judged? {
            world.check_commit(&commit, &before);
        }
        if commit.how == How::Cursor {
            let before = world.ledger.group.0.clone();
            world.ledger.let_go(&commit.member_id, commit.generation);
            world.check_group(&before, Some((&commit.member_id, Some(commit.generation))));
        }
        Ok(())
    }

    fn is_there(&self, world: &World, client: usize) -> bool {
        world.clients[client].member.is_some()
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
        for client in 0..world.clients.len() {
            if !self.is_there(world, client) {
                actions.extend((world.left.joins > 0).then_some(Action::Join(client)));
                continue;
            }
            actions.extend([Action::Beat(client), Action::BeatLost(client)]);
            actions.extend((world.left.crashes > 0).then_some(Action::Crash(client)));
            if world.clients[client].sent.is_some() {
                actions.push(Action::Commit(client));
                actions.extend((world.left.forgets > 0).then_some(Action::Forget(client)));
            } else {
                actions.push(Action::Ask(client));
                let fetched = world.clients[client].fetched.is_some();
                actions.extend(fetched.then_some(Action::Receive(client)));
                actions.extend((fetched && self.config.gathers).then_some(Action::More(client)));
            }
        }
        actions.extend(world.network.keys().map(|number| Action::Deliver(*number)));
        if world.left.deaths > 0 {
            actions.extend((0..world.ledger.group.0.members.len()).map(Action::Late));
        }
        actions.extend((world.left.growths > 0).then_some(Action::Grow));
    }

    /// None: nothing has changed.
    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let (config, mut then) = (&self.config, world.clone());
        let before = &world.ledger.group.0;
        match action {
            Action::Join(client) => {
                then.join(config, client);
                let count = |state: &GroupState| state.members.len();
                if count(before) == count(&then.ledger.group.0) {
                    self.note(Seen::Replaced);
                }
                then.check_group(before, None);
            }
            Action::Crash(client) => {
                then.left.crashes -= 1;
                then.clients[client] = NOBODY;
            }
            Action::Late(member) => {
                then.left.deaths -= 1;
                let id = before.members.keys().nth(member).cloned().unwrap();
                then.ledger.late(&id);
                then.check_group(before, None);
            }
            Action::Grow => {
                then.left.growths -= 1;
                let log_id = LogId(then.ledger.logs.len() as i64);
                then.ledger.logs.insert(log_id, config.records);
            }
            Action::Beat(client) => {
                if self.call(&mut then, client).is_some() {
                    let careless = config.without == Some(Rule::GenerationOfTheFetch);
                    let generation = then.ledger.group.0.generation;
                    then.clients[client].heard = if careless { generation } else { 0 };
                    then.clients[client].told = Some(generation);
                }
            }
            Action::BeatLost(client) => drop(self.call(&mut then, client)),
            Action::Ask(client) => self.fetch(&mut then, client, &[]),
            Action::More(client) => {
                let (generation, ranges) = then.clients[client].fetched.clone()?;
                then.clients[client].told = then.clients[client].told.max(Some(generation));
                self.fetch(&mut then, client, &ranges);
            }
            Action::Receive(client) => {
                let fetched = then.clients[client].fetched.take()?;
                then.clients[client].told = then.clients[client].told.max(Some(fetched.0));
                then.sent(config, client, fetched);
            }
            Action::Commit(client) => {
                let number = then.clients[client].sent.take()?;
                if self.deliver(&mut then, number) == Err(Refusal::UnknownMember) {
                    then.clients[client].member = None;
                }
            }
            Action::Deliver(number) => {
                let _ = self.deliver(&mut then, number);
            }
            Action::Forget(client) => {
                then.left.forgets -= 1;
                then.clients[client].sent = None;
            }
        }
        then.forget_the_irrelevant();
        (then != *world).then_some(then)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        never![ProcessedTwice, Skipped, WentBack, NotItsOwn, LostUntold, NotSettled, GenerationFell]
    }
}
