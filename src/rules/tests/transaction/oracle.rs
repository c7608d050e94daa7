//! The naive oracle: it keeps everything that ever happened in a list, forgets nothing, and derives
//! the expected answer from the list alone. It has no rows, transitions or horizon.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::ledger::{
    Answer, Appends, Begin, Call, Limits, Request, SESSION_TIMEOUT_MS, TOPIC, Work,
};
use crate::{
    model::{
        Epoch, Name, Offset, Partition, ProducerId, Sequence, Timestamp,
        transaction::{Answered, Caller, CommitRight, PlacedAppend, Reason, State, Transaction},
    },
    rules::{Refusal, group::offsets::OffsetPlace, tests::check_epoch},
};

type Owners = BTreeMap<OffsetPlace, Option<String>>;

const DAY_MS: i64 = 86_400_000;

#[derive(Clone, Debug)]
enum Event {
    Opened(ProducerId, Name),
    Closed(ProducerId),
    /// The producer expired.
    Gone(ProducerId),
    Begun {
        begin: Begin,
        until: Timestamp,
    },
    Added {
        id: Uuid,
        sequence: Option<Sequence>,
        work: Work,
    },
    Prepared(Uuid),
    Committed {
        id: Uuid,
        placed: Vec<PlacedAppend>,
        offsets: BTreeMap<OffsetPlace, Offset>,
    },
    Aborted(Uuid, Reason),
    Forgot {
        ids: BTreeSet<Uuid>,
        before: Timestamp,
    },
    /// The owner of each of a group's places from then on.
    Owned(Name, Owners),
}

/// The history of a transaction, from its begin.
#[derive(Clone, Debug)]
struct Story {
    begin: Begin,
    began_at: Timestamp,
    until: Timestamp,
    state: State,
    prepared_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    reason: Option<Reason>,
    items: Appends,
    offsets: BTreeMap<OffsetPlace, (Offset, CommitRight)>,
    /// By place: where the first run began of those that it has processed.
    began: BTreeMap<OffsetPlace, Option<Offset>>,
    /// The sequenced calls.
    calls: Vec<Appends>,
    placed: Option<Vec<PlacedAppend>>,
}

impl Story {
    fn end(&mut self, state: State, reason: Option<Reason>, at: Timestamp) {
        (self.state, self.reason, self.ended_at) = (state, reason, Some(at));
    }

    fn add(&mut self, work: &Work) {
        self.items.extend(work.appends.clone());
        for (place, offset, claim) in &work.offsets {
            self.offsets.insert(place.clone(), (*offset, claim.clone()));
            match claim {
                CommitRight::Member { began, .. } => began.iter().for_each(|began| {
                    self.began.entry(place.clone()).or_insert(*began);
                }),
                // which is no run
                CommitRight::Expected(_) => drop(self.began.remove(place)),
            }
        }
    }

    fn parts(&self) -> Vec<(Partition, i64)> {
        self.items.iter().flatten().copied().collect()
    }

    fn is_of(&self, producer: ProducerId) -> bool {
        self.begin.session.is_some_and(|(id, _)| id == producer)
    }

    fn told(&self, duplicate: bool) -> Answer {
        let transaction = Transaction {
            transaction_id: self.begin.id,
            state: self.state,
            session: self.begin.session,
            created_at: self.began_at,
            expires_at: (self.state == State::Ongoing).then_some(self.until),
            prepared_at: self.prepared_at,
            ended_at: self.ended_at,
            reason: self.reason,
            append_count: self.items.len() as i64,
            appends: self.placed.clone(),
        };
        Answer::Transaction(Answered { transaction, duplicate })
    }
}

pub struct Oracle {
    pub now: Timestamp,
    history: Vec<(Timestamp, Event)>,
}

impl Oracle {
    pub fn new(now: Timestamp) -> Self {
        Self { now, history: Vec::new() }
    }

    fn note(&mut self, event: Event) {
        self.history.push((self.now, event));
    }

    fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.history.iter().map(|(_, event)| event)
    }

    /// None: never begun. It may be forgotten.
    fn story(&self, id: Uuid) -> Option<Story> {
        let is_begin =
            |event: &Event| matches!(event, Event::Begun { begin, .. } if begin.id == id);
        let first = self.history.iter().position(|(_, event)| is_begin(event))?;
        let (began_at, Event::Begun { begin, until }) = self.history[first].clone() else {
            unreachable!()
        };
        let mut story = Story {
            began_at,
            until,
            state: State::Ongoing,
            prepared_at: None,
            ended_at: None,
            reason: None,
            items: Vec::new(),
            offsets: BTreeMap::new(),
            began: BTreeMap::new(),
            calls: Vec::new(),
            placed: None,
            begin: begin.clone(),
        };
        story.add(&begin.work);
        for (at, event) in &self.history[first + 1..] {
            if story.state == State::Ongoing && *at >= until {
                break;
            }
            story.follow(*at, event);
        }
        if story.state == State::Ongoing && self.now >= until {
            story.end(State::Aborted, Some(Reason::Timeout), until);
        }
        Some(story)
    }

    fn stories(&self) -> impl Iterator<Item = Story> {
        self.events().filter_map(|event| match event {
            Event::Begun { begin, .. } => self.story(begin.id),
            _ => None,
        })
    }

    fn is_forgotten(&self, id: Uuid) -> bool {
        self.events().any(|event| matches!(event, Event::Forgot { ids, .. } if ids.contains(&id)))
    }

    /// The history of a remembered transaction, or why there is none.
    fn remembered(&self, id: Uuid, limits: Limits) -> Result<Story, Refusal> {
        let story = self.story(id).filter(|_| !self.is_forgotten(id));
        let too_old = self.may_be_forgotten(id, limits);
        let refusal =
            if too_old { Refusal::TransactionExpired } else { Refusal::TransactionNotFound };
        story.ok_or(refusal)
    }

    fn may_be_forgotten(&self, id: Uuid, limits: Limits) -> bool {
        let made_at = Timestamp::of_uuid(&id).unwrap();
        let is_before = |event: &Event| match event {
            Event::Forgot { ids, before } => !ids.is_empty() && made_at < *before,
            _ => false,
        };
        made_at.0 + limits.retention_ms < self.now.0 || self.events().any(is_before)
    }

    /// None: it does not exist (any more). With whether the session was closed.
    fn epoch(&self, producer: ProducerId) -> Option<(Epoch, bool)> {
        let mut found = None;
        for event in self.events() {
            match event {
                Event::Opened(id, _) if *id == producer => {
                    found = Some((found.map_or(0, |(epoch, _)| epoch + 1), false));
                }
                Event::Closed(id) if *id == producer => {
                    found = found.map(|(epoch, _)| (epoch + 1, true));
                }
                Event::Gone(id) if *id == producer => found = None,
                _ => {}
            }
        }
        found
    }

    fn check_producer(&self, producer: (ProducerId, Epoch)) -> Result<(), Refusal> {
        check_epoch(producer, self.epoch(producer.0))
    }

    fn ongoing_of(&self, producer: ProducerId) -> Option<Uuid> {
        let ongoing =
            self.stories().find(|story| story.is_of(producer) && story.state == State::Ongoing);
        ongoing.map(|story| story.begin.id)
    }

    fn committed_offset(&self, place: &OffsetPlace) -> Option<Offset> {
        self.events().rev().find_map(|event| match event {
            Event::Committed { offsets, .. } => offsets.get(place).copied(),
            _ => None,
        })
    }

    /// The owner of each place in each generation of a group, from the first one on.
    fn generations(&self, group: &Name) -> Vec<&Owners> {
        let owned = self.events().filter_map(|event| match event {
            Event::Owned(name, owners) if name == group => Some(owners),
            _ => None,
        });
        owned.collect()
    }

    fn check_claim(
        &self,
        place: &OffsetPlace,
        offset: Offset,
        claim: &CommitRight,
    ) -> Result<bool, Refusal> {
        let generations = self.generations(&place.group);
        let newest = generations.last();
        let is_member = |id: &String| {
            newest.is_some_and(|owners| owners.values().flatten().any(|owner| owner == id))
        };
        let committed_offset = self.committed_offset(place);
        match claim {
            CommitRight::Expected(_) if newest.is_some_and(|o| o.values().any(Option::is_some)) => {
                Err(Refusal::GroupNotEmpty)
            }
            CommitRight::Expected(expected) => Ok(*expected == committed_offset),
            CommitRight::Member { member_id, .. } if !is_member(member_id) => {
                Err(Refusal::UnknownMember)
            }
            CommitRight::Member { member_id, generation, expected, .. } => {
                // it has owned the place in all of them
                let from = usize::try_from(generation - 1).unwrap_or(usize::MAX);
                let since = generations.get(from..).filter(|since| !since.is_empty());
                let owns = |owners: &&Owners| owners[place].as_ref() == Some(member_id);
                if !since.is_some_and(|since| since.iter().all(owns)) {
                    let generation = generations.len() as i64;
                    return Err(Refusal::IllegalGeneration { generation });
                }
                Ok(match expected {
                    Some(expected) => *expected == committed_offset,
                    None => Some(offset) >= committed_offset,
                })
            }
        }
    }

    fn check_offsets(&self, story: &Story) -> Result<(), Refusal> {
        for (place, (offset, claim)) in &story.offsets {
            let holds = |other: &Story| {
                other.state == State::Prepared
                    && other.begin.id != story.begin.id
                    && other.offsets.contains_key(place)
            };
            let pinned_by = self.stories().find(holds).map(|other| other.begin.id);
            let mut fits = self.check_claim(place, *offset, claim)?;
            let committed_offset = self.committed_offset(place);
            let began = story.began.get(place).filter(|_| !story.items.is_empty()).copied();
            fits &= began.is_none_or(|began| began == committed_offset);
            if !fits || pinned_by.is_some() {
                let bases = bases(claim, began);
                let wrong = bases.iter().find(|base| **base != committed_offset);
                let expected_offset = *wrong.or(bases.first()).unwrap_or(&Some(*offset));
                let conflict =
                    Refusal::OffsetCommitConflict { expected_offset, committed_offset, pinned_by };
                return Err(conflict);
            }
        }
        self.check_progress(story)
    }

    /// A transaction with records has moved some offset.
    fn check_progress(&self, story: &Story) -> Result<(), Refusal> {
        let is_members =
            |(_, (_, claim)): &(&OffsetPlace, &(Offset, CommitRight))| claim.member_id().is_some();
        let mut by_members = story.offsets.iter().filter(is_members);
        let first = by_members.clone().next().filter(|_| !story.items.is_empty());
        let moves = by_members.any(|(p, (at, _))| self.committed_offset(p) != Some(*at));
        first
            .filter(|_| !moves)
            .map_or(Ok(()), |(_, (offset, _))| Err(Refusal::NothingProcessed { offset: *offset }))
    }

    /// The expected answer to a request; adds its effect to the list.
    pub fn answer(&mut self, request: &Request, limits: Limits) -> Result<Answer, Refusal> {
        match request {
            Request::Open { name, condition } => self.open(name, *condition),
            Request::Close(producer) => {
                let unknown = Refusal::UnknownProducer { producer_id: *producer };
                let (_, closed) = self.epoch(*producer).ok_or(unknown)?;
                if !closed {
                    self.note(Event::Closed(*producer));
                }
                Ok(Answer::Closed)
            }
            Request::Begin(begin) => self.begin(begin, limits),
            Request::Call(id, caller, call) => self.call(*id, *caller, call, limits),
            Request::Get(id) => Ok(self.remembered(*id, limits)?.told(false)),
        }
    }

    fn open(
        &mut self,
        name: &Name,
        condition: Option<(ProducerId, Epoch)>,
    ) -> Result<Answer, Refusal> {
        let opened: Vec<_> = (self.events())
            .filter_map(|event| match event {
                Event::Opened(id, opened) => Some((*id, opened)),
                _ => None,
            })
            .collect();
        let known = opened.iter().find(|(id, n)| *n == name && self.epoch(*id).is_some());
        let known = known.map(|(id, _)| *id);
        let ids: BTreeSet<_> = opened.iter().map(|(id, _)| *id).collect();
        let id = known.unwrap_or(ProducerId(ids.len() as i64));
        if let Some((producer_id, epoch)) = condition {
            if known != Some(producer_id) {
                return Err(Refusal::UnknownProducer { producer_id });
            }
            self.check_producer((producer_id, epoch))?;
        }
        let aborted = self.ongoing_of(id);
        self.note(Event::Opened(id, name.clone()));
        Ok(Answer::Opened(id, self.epoch(id).unwrap().0, aborted))
    }

    fn begin(&mut self, begin: &Begin, limits: Limits) -> Result<Answer, Refusal> {
        let id = begin.id;
        let (maximum, asked) = (limits.max_timeout_ms, begin.timeout_ms);
        if let Ok(story) = self.remembered(id, limits) {
            let what =
                |begin: &Begin| (begin.session, begin.timeout_ms, begin.work.clone(), begin.commit);
            let is_same = what(&story.begin) == what(begin);
            return if is_same { Ok(story.told(true)) } else { Err(Refusal::TransactionReused) };
        }
        if let Some(received) = asked.filter(|asked| *asked > maximum) {
            return Err(Refusal::TimeoutTooLong { maximum, received });
        }
        if let Some(producer) = begin.session {
            self.check_producer(producer)?;
        }
        if self.may_be_forgotten(id, limits) {
            return Err(Refusal::TransactionExpired);
        }
        if Timestamp::of_uuid(&id).unwrap().0 - self.now.0 > DAY_MS {
            return Err(Refusal::InvalidTransactionId);
        }
        let of_session = begin.session.map(|_| SESSION_TIMEOUT_MS);
        let timeout_ms = asked.or(of_session).unwrap_or(limits.timeout_ms).min(maximum);
        if let Some((producer, _)) = begin.session
            && let Some(transaction_id) = self.ongoing_of(producer)
        {
            return Err(Refusal::ConcurrentTransactions { transaction_id });
        }
        check_size(&Vec::new(), &begin.work.appends, limits)?;
        let until = Timestamp(self.now.0 + timeout_ms);
        self.note(Event::Begun { begin: begin.clone(), until });
        if begin.commit {
            let story = self.story(id).unwrap();
            if let Err(refusal) = self.check_offsets(&story) {
                // it never was
                self.history.pop();
                return Err(refusal);
            }
            self.commit(&story);
        }
        Ok(self.story(id).unwrap().told(false))
    }

    fn call(
        &mut self,
        id: Uuid,
        caller: Caller,
        call: &Call,
        limits: Limits,
    ) -> Result<Answer, Refusal> {
        if let Caller::Session(producer_id, epoch) = caller {
            self.check_producer((producer_id, epoch))?;
        }
        let story = self.remembered(id, limits)?;
        check_caller(&story, caller, call)?;
        let (state, reason) = (story.state, story.reason);
        let wrong = Err(Refusal::InvalidTransactionState { state, reason });
        match (call, state) {
            (Call::Prepare, State::Prepared)
            | (Call::Commit { .. }, State::Committed)
            | (Call::Abort, State::Aborted) => return Ok(story.told(true)),
            (Call::Commit { .. } | Call::Abort, State::Prepared) | (_, State::Ongoing) => {}
            _ => return wrong,
        }
        match call {
            Call::Add { sequence, work } => {
                if is_known(&story, *sequence, &work.appends)? {
                    return Ok(story.told(true));
                }
                check_size(&story.items, &work.appends, limits)?;
                self.note(Event::Added { id, sequence: *sequence, work: work.clone() });
            }
            Call::Prepare => {
                self.check_offsets(&story)?;
                self.note(Event::Prepared(id));
            }
            Call::Commit { expected_appends, work } => {
                let adds = *work != Work::default();
                if adds && caller == Caller::Operator {
                    return Err(Refusal::OperatorMayNotCommit);
                }
                if adds && state == State::Prepared {
                    return wrong;
                }
                check_size(&story.items, &work.appends, limits)?;
                let mut story = story;
                story.add(work);
                let received = story.items.len() as i64;
                if let Some(expected) = expected_appends.filter(|expected| *expected != received) {
                    return Err(Refusal::AppendsMissing { expected, received });
                }
                if state == State::Ongoing {
                    self.check_offsets(&story)?;
                }
                if adds {
                    self.note(Event::Added { id, sequence: None, work: work.clone() });
                }
                self.commit(&story);
            }
            Call::Abort => {
                let by_operator = caller == Caller::Operator;
                let reason = if by_operator { Reason::Operator } else { Reason::Client };
                self.note(Event::Aborted(id, reason));
            }
        }
        Ok(self.story(id).unwrap().told(false))
    }

    /// Its records follow those of all earlier commits.
    fn commit(&mut self, story: &Story) {
        let mut placed: Vec<PlacedAppend> = Vec::new();
        for (partition, record_count) in story.parts() {
            let before = self.events().flat_map(|event| match event {
                Event::Committed { placed, .. } => placed.as_slice(),
                _ => &[],
            });
            let here = before.chain(&placed).filter(|append| append.partition == partition);
            let base_offset = Some(here.map(|append| append.record_count).sum());
            placed.push(PlacedAppend { topic: TOPIC.into(), partition, base_offset, record_count });
        }
        let offsets = story.offsets.iter().map(|(place, (offset, _))| (place.clone(), *offset));
        let offsets = offsets.collect();
        self.note(Event::Committed { id: story.begin.id, placed, offsets });
    }

    pub fn sweep(&mut self, limits: Limits) {
        let before = Timestamp(self.now.0 - limits.retention_ms);
        let ids = self.stories().filter_map(|story| {
            let id = story.begin.id;
            let is_old = story.ended_at?.max(Timestamp::of_uuid(&id)?) < before;
            (is_old && !self.is_forgotten(id)).then_some(id)
        });
        let ids = ids.collect();
        self.note(Event::Forgot { ids, before });
    }

    /// Whether it may be removed.
    pub fn expire(&mut self, producer: ProducerId) -> bool {
        let holds = |story: Story| story.is_of(producer) && story.state == State::Prepared;
        let may_go = !self.stories().any(holds) && self.epoch(producer).is_some();
        if may_go {
            self.note(Event::Gone(producer));
        }
        may_go
    }

    pub fn rebalance(&mut self, group: &Name, owners: &[(OffsetPlace, Option<String>)]) {
        self.note(Event::Owned(group.clone(), owners.iter().cloned().collect()));
    }
}

/// The committed offset that a commit expects, for a run that began there.
fn bases(claim: &CommitRight, began: Option<Option<Offset>>) -> Vec<Option<Offset>> {
    let expected = match claim {
        CommitRight::Expected(expected) => Some(*expected),
        CommitRight::Member { expected, .. } => *expected,
    };
    expected.into_iter().chain(began).collect()
}

fn check_size(before: &Appends, more: &Appends, limits: Limits) -> Result<(), Refusal> {
    let count = |appends: &Appends| appends.iter().flatten().count() as i64;
    let (limit, received) = (limits.max_batches, count(before) + count(more));
    let too_large = !more.is_empty() && received > limit;
    if too_large { Err(Refusal::TransactionTooLarge { limit, received }) } else { Ok(()) }
}

/// Whether a call was made before.
fn is_known(story: &Story, sequence: Option<Sequence>, appends: &Appends) -> Result<bool, Refusal> {
    let Some(sequence) = sequence else { return Ok(false) };
    if let Some(known) = story.calls.get(sequence as usize) {
        let is_same = known == appends;
        return if is_same { Ok(true) } else { Err(Refusal::SequenceReused { sequence }) };
    }
    let expected = story.calls.len() as i64;
    if sequence > expected {
        return Err(Refusal::OutOfOrderSequence { expected, received: sequence });
    }
    Ok(false)
}

fn check_caller(story: &Story, caller: Caller, call: &Call) -> Result<(), Refusal> {
    let (has_session, state) = (story.begin.session.is_some(), story.state);
    match caller {
        Caller::Session(id, _) if !story.is_of(id) => Err(Refusal::ProducerMismatch),
        Caller::Bearer if has_session => Err(Refusal::SessionMissing),
        Caller::Operator => match call {
            Call::Abort => Ok(()),
            Call::Commit { .. } if state != State::Ongoing => Ok(()),
            _ => Err(Refusal::OperatorMayNotCommit),
        },
        _ => Ok(()),
    }
}

impl Story {
    /// Applies an event to it.
    fn follow(&mut self, at: Timestamp, event: &Event) {
        let own = self.begin.id;
        let is_ongoing = self.state == State::Ongoing;
        match event {
            Event::Opened(producer, _) | Event::Closed(producer) | Event::Gone(producer)
                if is_ongoing && self.is_of(*producer) =>
            {
                self.end(State::Aborted, Some(Reason::Fenced), at);
            }
            Event::Added { id, sequence, work } if *id == own => {
                self.add(work);
                self.calls.extend(sequence.map(|_| work.appends.clone()));
            }
            Event::Prepared(id) if *id == own => {
                (self.state, self.prepared_at) = (State::Prepared, Some(at));
            }
            Event::Committed { id, placed, .. } if *id == own => {
                self.end(State::Committed, None, at);
                self.placed = Some(placed.clone());
            }
            Event::Aborted(id, reason) if *id == own => {
                self.end(State::Aborted, Some(*reason), at);
            }
            _ => {}
        }
    }
}
