//! A stand-in for the database, and what the broker does over it with the real rules: a group that is
//! changed as a whole, and offsets that are judged where they are committed.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
};

use oncelog::{
    model::{
        LogId, Name, Offset, Timestamp,
        group::{self, Join, Subscription},
        transaction::Claim,
    },
    rules::{
        Refusal,
        group::{Owner, State, Topics},
        offsets::{
            Asked, Claimed, Group, Place, Right, Row, Verdict, judge_all, judge_in_transaction,
        },
        whole::{Standing, Stopped, Whole},
    },
};
use uuid::Uuid;

use super::Rule;

const NOW: Timestamp = Timestamp(1_000);
const TIMEOUT_MS: i64 = 300;

/// A group with no time in it: leases run out when they are said to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared(pub State);

impl Hash for Shared {
    fn hash<H: Hasher>(&self, into: &mut H) {
        self.0.generation.hash(into);
        self.0.topics_version.hash(into);
        for (id, member) in &self.0.members {
            (id, &member.instance_id).hash(into);
        }
        for (log_id, place) in &self.0.places {
            (log_id, &place.owner, &place.assigned_to, place.announced).hash(into);
        }
    }
}

/// How a client commits what it has processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum How {
    /// In a transaction of one request.
    Whole,
    /// In a transaction that is begun when the records come, and committed later.
    Staged,
    /// Outside of transactions, by its generation.
    Plain,
    /// By a cursor, which knows since when it owns each partition.
    Cursor,
}

/// What was fetched of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    pub log_id: LogId,
    /// The member's ownership as it fetched.
    pub since: i64,
    pub from: Offset,
    pub to: Offset,
}

/// What a member has processed. Sent once, it may arrive at any time, and again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Commit {
    pub number: u8,
    pub how: How,
    pub member_id: String,
    pub generation: i64,
    pub ranges: Vec<Range>,
}

impl Commit {
    pub fn is_transaction(&self) -> bool {
        matches!(self.how, How::Whole | How::Staged)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub group: Shared,
    /// How many records there are in each partition.
    pub logs: BTreeMap<LogId, Offset>,
    pub committed: BTreeMap<LogId, Offset>,
    /// Transactions that were committed.
    pub done: BTreeSet<u8>,
    pub without: Option<Rule>,
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn transaction_id(number: u8) -> Uuid {
    Uuid::from_u128(u128::from(number))
}

impl Ledger {
    pub fn new(partitions: i64, records: Offset, without: Option<Rule>) -> Self {
        Self {
            group: Shared(State::default()),
            logs: (0..partitions).map(|log| (LogId(log), records)).collect(),
            committed: BTreeMap::new(),
            done: BTreeSet::new(),
            without,
        }
    }

    fn topics(&self) -> Topics {
        let partitions = self.logs.keys().map(|log_id| (*log_id, name("c"), log_id.0 as i32));
        Topics { version: self.logs.len() as i64, partitions: partitions.collect() }
    }

    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    fn change(
        &mut self,
        rule: impl FnOnce(&mut State, &Topics) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (mut after, topics) = (self.group.0.clone(), self.topics());
        after.expire(&topics, NOW);
        after.refresh(&topics, NOW);
        rule(&mut after, &topics)?;
        if !self.has(Rule::LettingGo) {
            for id in after.members.keys().cloned().collect::<Vec<_>>() {
                after.beat(&id, true, NOW)?;
                after.beat(&id, true, NOW)?;
            }
        }
        self.group.0 = after;
        Ok(())
    }

    pub fn join(&mut self, member_id: &str, instance_id: Option<String>) {
        let topics = BTreeSet::from([name("c")]);
        let join = Join {
            subscription: Subscription { topics, pattern: None },
            instance_id,
            session_timeout_ms: None,
            auto_offset_reset: None,
        };
        self.change(|state, topics| state.join(member_id, &join, TIMEOUT_MS, topics, NOW)).unwrap();
    }

    /// A member's lease runs out, and is seen to have.
    pub fn late(&mut self, member_id: &str) {
        let member = self.group.0.members.get_mut(member_id).unwrap();
        member.lease_expires_at = Timestamp(NOW.0 - 1);
        self.change(|_, _| Ok(())).unwrap();
    }

    pub fn beat(&mut self, member_id: &str) -> Result<(), Refusal> {
        self.change(|state, _| state.beat(member_id, true, NOW))
    }

    /// The next record of every partition that the member is given, in which generation.
    pub fn fetched(&self, member_id: &str) -> (i64, Vec<Range>) {
        let told = self.group.0.membership(member_id);
        let of = |(log_id, place): (&LogId, &oncelog::rules::group::Place)| {
            let is_given = told.assignment.get(&place.topic)?.contains(&place.partition);
            let owner = place.owner.as_ref().filter(|_| is_given)?;
            let from = self.committed.get(log_id).copied().unwrap_or(0);
            let to = (from + 1).min(self.logs[log_id]);
            (from < to).then_some(Range { log_id: *log_id, since: owner.since, from, to })
        };
        (told.generation, self.group.0.places.iter().filter_map(of).collect())
    }

    pub fn owner(&self, log_id: LogId) -> Option<&Owner> {
        self.group.0.places.get(&log_id).and_then(|place| place.owner.as_ref())
    }

    fn row(&self, log_id: LogId) -> Row {
        let owner = self.owner(log_id).map(|owner| (owner.member_id.clone(), owner.since));
        let committed_offset = self.committed.get(&log_id).copied();
        Row { owner, committed_offset, ..Row::default() }
    }

    fn known(&self) -> Group {
        let members = self.group.0.members.keys().cloned().collect();
        Group { generation: self.group.0.generation, members }
    }

    /// A commit arrives; whether it had been done before.
    pub fn commit(&mut self, commit: &Commit) -> Result<bool, Refusal> {
        if commit.is_transaction() && self.done.contains(&commit.number) {
            return Ok(true);
        }
        match commit.how {
            How::Whole => self.judge_whole(commit)?,
            How::Staged if self.has(Rule::AtTheEnd) => self.judge_staged(commit)?,
            How::Staged => {}
            How::Plain | How::Cursor => return self.commit_plainly(commit).map(|()| false),
        }
        self.done.insert(commit.number);
        self.committed.extend(commit.ranges.iter().map(|range| (range.log_id, range.to)));
        Ok(false)
    }

    pub fn judge_staged(&self, commit: &Commit) -> Result<(), Refusal> {
        let Commit { member_id, generation, number, .. } = commit;
        let claim = Claim::Member { member_id: member_id.clone(), generation: *generation };
        commit.ranges.iter().try_for_each(|range| {
            let (row, id) = (self.row(range.log_id), transaction_id(*number));
            self.owned(judge_in_transaction(&row, &self.known(), &claim, range.to, id))
        })
    }

    fn judge_whole(&self, commit: &Commit) -> Result<(), Refusal> {
        let Commit { member_id, generation, number, .. } = commit;
        let claim = Claim::Member { member_id: member_id.clone(), generation: *generation };
        let place = |range: &Range| Place { group: name("g"), log_id: range.log_id };
        let claimed =
            |range: &Range| Claimed { place: place(range), offset: range.to, claim: claim.clone() };
        let whole = Whole {
            transaction_id: transaction_id(*number),
            chosen: true,
            session: None,
            append_count: 0,
            retention_ms: 1,
            journals: Vec::new(),
            topics: Vec::new(),
            offsets: commit.ranges.iter().map(claimed).collect(),
        };
        let mut standing = Standing::default();
        standing.groups.insert(name("g"), self.known());
        standing.places.extend(commit.ranges.iter().map(|r| (place(r), self.row(r.log_id))));
        match standing.judge_offsets(&whole) {
            Err(Stopped::Refused(refusal)) => self.owned(Err(refusal)),
            judged => {
                assert_eq!(judged, Ok(()));
                Ok(())
            }
        }
    }

    /// Without the rule everybody owns everything.
    fn owned(&self, judged: Result<(), Refusal>) -> Result<(), Refusal> {
        match judged {
            Err(Refusal::UnknownMember | Refusal::IllegalGeneration { .. })
                if !self.has(Rule::Ownership) =>
            {
                Ok(())
            }
            judged => judged,
        }
    }

    fn commit_plainly(&mut self, commit: &Commit) -> Result<(), Refusal> {
        let right = |range: &Range| {
            let is_by_cursor = commit.how == How::Cursor;
            let generation = if is_by_cursor { range.since } else { commit.generation };
            Right::Member(group::Member { member_id: commit.member_id.clone(), generation })
        };
        let rights: Vec<_> = commit.ranges.iter().map(right).collect();
        let rows: Vec<_> = commit.ranges.iter().map(|range| self.row(range.log_id)).collect();
        let each = commit.ranges.iter().zip(&rows).zip(&rights);
        let asked: Vec<Asked<'_>> =
            each.map(|((range, row), right)| Asked { row, right, offset: range.to }).collect();
        let verdicts = judge_all(&asked, &self.known()).map_err(|refused| refused.refusal)?;
        for (range, verdict) in commit.ranges.iter().zip(verdicts) {
            if verdict == Verdict::Commit || !self.has(Rule::Monotonic) {
                self.committed.insert(range.log_id, range.to);
            }
        }
        Ok(())
    }

    /// When all have called twice every partition is where it is to be.
    pub fn settles(&self) -> bool {
        let mut then = self.clone();
        for _ in 0..2 {
            for id in self.group.0.members.keys() {
                if then.beat(id).is_err() {
                    return false;
                }
            }
        }
        let State { members, places, .. } = &then.group.0;
        let is_settled = |place: &oncelog::rules::group::Place| {
            place.owner.as_ref().map(|owner| &owner.member_id) == place.assigned_to.as_ref()
        };
        let all = members.is_empty() || places.len() == self.logs.len();
        all && places
            .values()
            .all(|place| is_settled(place) && place.owner.is_some() != members.is_empty())
    }
}
