//! A stand-in for the database, and what the broker does over it with the real rules: a group that
//! is changed as a whole, and offsets that are judged where they are committed.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
};

use oncelog::{
    model::{
        LogId, Name, Offset, Timestamp,
        group::{self, Join, Subscription},
        read::Run,
        transaction::{CommitRight, RepeatedBy},
    },
    rules::{
        Refusal,
        group::{
            GroupState, Owner, Topics,
            offsets::{
                Claimed, Committer, GroupFacts, OffsetPlace, OffsetRow, OffsetVerdict,
                RequestedOffset, Right, judge_all, judge_in_transaction,
            },
            position::run_began,
        },
        transaction::one_request::{SingleRequestTxn, Stopped, TxnContext},
    },
};
use uuid::Uuid;

use super::Rule;

const NOW: Timestamp = Timestamp(1_000);
const TIMEOUT_MS: i64 = 300;

/// A group with no time in it: leases run out when they are said to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared(pub GroupState);

impl Hash for Shared {
    fn hash<H: Hasher>(&self, into: &mut H) {
        self.0.generation.hash(into);
        self.0.topics_version.hash(into);
        for (id, member) in &self.0.members {
            (id, &member.instance_id).hash(into);
        }
        for (log_id, place) in &self.0.places {
            let revoked = place.revoked.map(|revoked| (revoked.since, revoked.let_go_by.is_some()));
            (log_id, &place.owner, &place.assigned_to, revoked).hash(into);
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
    /// What was committed where its run began.
    pub began: Option<Offset>,
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

fn place(log_id: LogId) -> OffsetPlace {
    OffsetPlace { group: name("g"), log_id }
}

fn transaction_id(number: u8) -> Uuid {
    Uuid::from_u128(u128::from(number))
}

impl Ledger {
    pub fn new(partitions: i64, records: Offset, without: Option<Rule>) -> Self {
        Self {
            group: Shared(GroupState::default()),
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
        rule: impl FnOnce(&mut GroupState, &Topics) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (mut after, topics) = (self.group.0.clone(), self.topics());
        after.expire(&topics, NOW);
        after.refresh(&topics, NOW);
        rule(&mut after, &topics)?;
        if !self.has(Rule::LettingGo) {
            for id in after.members.keys().cloned().collect::<Vec<_>>() {
                let newest = after.generation;
                after.beat(&id, Some(newest), NOW)?;
            }
        }
        self.group.0 = after;
        Ok(())
    }

    pub fn join(&mut self, member_id: &str, instance_id: Option<String>) {
        let topics = BTreeSet::from([name("c")]);
        let join = Join {
            subscription: Subscription { topics, ..Subscription::default() },
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

    /// `shown`: the generation of an answer that the member has.
    pub fn beat(&mut self, member_id: &str, shown: Option<i64>) -> Result<(), Refusal> {
        let is_told = |place: &oncelog::rules::group::GroupPartition| {
            let is_told = place.revoked.is_some_and(|revoked| revoked.let_go_by.is_some());
            is_told && place.is_owned_by(member_id)
        };
        let newest = self.group.0.generation;
        let shown = match self.has(Rule::Shown) {
            true => shown,
            // anyone who calls has had the answer before
            false => self.group.0.places.values().any(is_told).then_some(newest),
        };
        self.change(|state, _| state.beat(member_id, shown, NOW))
    }

    /// The cursor of an answer was committed.
    pub fn let_go(&mut self, member_id: &str, shown: i64) {
        let let_go = |state: &mut GroupState, _: &Topics| {
            state.let_go(member_id, Some(shown), NOW);
            Ok(())
        };
        self.change(let_go).unwrap();
    }

    /// The next record of every partition that the member is given, in which generation; with what
    /// it has fetched before, if it goes on behind that.
    pub fn fetched(&self, member_id: &str, before: &[Range]) -> (i64, Vec<Range>) {
        let told = self.group.0.membership(member_id);
        let of = |(log_id, place): (&LogId, &oncelog::rules::group::GroupPartition)| {
            let is_given =
                told.assignment.get(&place.topic).is_some_and(|n| n.contains(&place.partition));
            let since = place.owner.as_ref().filter(|owner| owner.member_id == member_id)?.since;
            let before =
                before.iter().find(|range| (range.log_id, range.since) == (*log_id, since));
            let committed = self.committed.get(log_id).copied();
            let next = |at: Offset| if is_given { (at + 1).min(self.logs[log_id]) } else { at };
            let range = match before {
                Some(before) => Range {
                    began: self.run_began(before, committed),
                    to: next(before.to),
                    ..before.clone()
                },
                None => {
                    let from = committed.unwrap_or(0);
                    Range { log_id: *log_id, since, began: committed, from, to: next(from) }
                }
            };
            (range.from < range.to).then_some(range)
        };
        (told.generation, self.group.0.places.iter().filter_map(of).collect())
    }

    /// Who gathers goes on with its run, whatever was committed meanwhile.
    fn run_began(&self, before: &Range, committed: Option<Offset>) -> Option<Offset> {
        let run = if self.has(Rule::Continues) { Run::Continue } else { Run::SinceCommit };
        run_began(run, before.to, Some(before.began), [committed, None]).unwrap()
    }

    pub fn owner(&self, log_id: LogId) -> Option<&Owner> {
        self.group.0.places.get(&log_id).and_then(|place| place.owner.as_ref())
    }

    fn row(&self, log_id: LogId) -> OffsetRow {
        let owner = self.owner(log_id).map(|owner| (owner.member_id.clone(), owner.since));
        let committed_offset = self.committed.get(&log_id).copied();
        OffsetRow { owner, committed_offset, ..OffsetRow::default() }
    }

    fn known(&self) -> GroupFacts {
        let members = self.group.0.members.keys().cloned().collect();
        GroupFacts { generation: self.group.0.generation, members }
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

    fn claimed(&self, commit: &Commit) -> Vec<Claimed> {
        let Commit { member_id, generation, ranges, .. } = commit;
        let claimed = |range: &Range| {
            let claim = CommitRight::Member {
                member_id: member_id.clone(),
                generation: *generation,
                expected: None,
                began: Some(range.began).filter(|_| self.has(Rule::Runs)),
            };
            Claimed { place: place(range.log_id), offset: range.to, claim }
        };
        ranges.iter().map(claimed).collect()
    }

    pub fn judge_staged(&self, commit: &Commit) -> Result<(), Refusal> {
        let (claimed, group) = (self.claimed(commit), self.known());
        let rows: Vec<OffsetRow> =
            commit.ranges.iter().map(|range| self.row(range.log_id)).collect();
        let asked: Vec<_> = rows.iter().zip(&claimed).map(|(row, c)| (row, &group, c)).collect();
        let by = Committer { transaction_id: transaction_id(commit.number), appends: true };
        self.owned(judge_in_transaction(&asked, by))
    }

    fn judge_whole(&self, commit: &Commit) -> Result<(), Refusal> {
        let txn = SingleRequestTxn {
            transaction_id: transaction_id(commit.number),
            repeated_by: RepeatedBy::Id,
            session: None,
            append_count: 1,
            retention_ms: 1,
            journals: Vec::new(),
            topics: Vec::new(),
            offsets: self.claimed(commit),
        };
        let mut context = TxnContext::default();
        context.groups.insert(name("g"), self.known());
        let rows = commit.ranges.iter().map(|r| (place(r.log_id), self.row(r.log_id)));
        context.places.extend(rows);
        match context.judge_offsets(&txn) {
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
        let asked: Vec<RequestedOffset<'_>> = each
            .map(|((range, row), right)| RequestedOffset { row, right, offset: range.to })
            .collect();
        let verdicts = judge_all(&asked, &self.known()).map_err(|refused| refused.refusal)?;
        for (range, verdict) in commit.ranges.iter().zip(verdicts) {
            if verdict == OffsetVerdict::Commit || !self.has(Rule::Monotonic) {
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
                let newest = then.group.0.generation;
                if then.beat(id, Some(newest)).is_err() {
                    return false;
                }
            }
        }
        let GroupState { members, places, .. } = &then.group.0;
        let is_settled = |place: &oncelog::rules::group::GroupPartition| {
            place.owner.as_ref().map(|owner| &owner.member_id) == place.assigned_to.as_ref()
        };
        let all = members.is_empty() || places.len() == self.logs.len();
        all && places
            .values()
            .all(|place| is_settled(place) && place.owner.is_some() != members.is_empty())
    }
}
