//! Who may commit an offset of a group, and over which one.
//!
//! | by right of | commits if | over a greater one |
//! |---|---|---|
//! | a member | it owns the partition, since its generation or earlier | keeps that; in a transaction refused: its records were processed before |
//! | a member, an expected offset | both as above and below | moves back |
//! | an expected offset | the group has no members, and this is the committed offset | moves back |
//! | nothing (not in a transaction) | the group has no members | moves back |
//!
//! Nobody commits where a prepared transaction is to. Who may commit at all is judged before what is
//! committed there.
//!
//! A transaction that appends has processed something. What a member gives by cursor was processed
//! since its run began, so that must still be what is committed: of two runs with the same records
//! one commits. And of what it gives some offset must move.

use uuid::Uuid;

use crate::{
    model::{LogId, Name, Offset, group::Member, transaction::CommitRight},
    rules::Refusal,
};

/// A group's place in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OffsetPlace {
    pub group: Name,
    pub log_id: LogId,
}

/// An offset that a transaction is to commit, and by what right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub place: OffsetPlace,
    pub offset: Offset,
    pub claim: CommitRight,
}

/// What is committed there, and who may commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OffsetRow {
    /// None: none yet.
    pub committed_offset: Option<Offset>,
    pub metadata: Option<String>,
    /// The member that owns the partition, and the generation in which it got it.
    pub owner: Option<(String, i64)>,
    /// The prepared transaction that is to commit here.
    pub pinned_by: Option<Uuid>,
}

/// What is known of a group's members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFacts {
    /// The newest.
    pub generation: i64,
    /// Those of interest, and one at least if there is any.
    pub members: Vec<String>,
}

/// By what right an offset is committed outside of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    Member(Member),
    /// This is the committed offset; none: none yet.
    Expected(Option<Offset>),
    /// Whatever is committed.
    Free,
}

/// What becomes of an offset that may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetVerdict {
    Commit,
    /// What is committed is greater, and stays.
    Keep,
}

/// One offset of a commit.
#[derive(Clone, Copy, Debug)]
pub struct RequestedOffset<'a> {
    pub row: &'a OffsetRow,
    pub right: &'a Right,
    pub offset: Offset,
}

/// Why a commit was refused whole, and which of its offsets are the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub refusal: Refusal,
    pub items: Vec<usize>,
}

/// What becomes of a commit outside of transactions: a verdict on every offset, or nothing is done.
pub fn judge_all(
    asked: &[RequestedOffset<'_>],
    group: &GroupFacts,
) -> Result<Vec<OffsetVerdict>, Refused> {
    let judged: Vec<_> = asked.iter().map(|asked| judge(asked, group)).collect();
    let refusals = || judged.iter().filter_map(|judged| judged.as_ref().err());
    let is_conflict = |refusal: &&Refusal| matches!(refusal, Refusal::OffsetCommitConflict { .. });
    let gravest = refusals().find(|refusal| !is_conflict(refusal)).or_else(|| refusals().next());
    let Some(refusal) = gravest.cloned() else {
        return Ok(judged.into_iter().flatten().collect());
    };
    let concerned =
        judged.iter().enumerate().filter(|(_, judged)| **judged == Err(refusal.clone()));
    Err(Refused { items: concerned.map(|(index, _)| index).collect(), refusal })
}

fn judge(asked: &RequestedOffset<'_>, group: &GroupFacts) -> Result<OffsetVerdict, Refusal> {
    let RequestedOffset { row, right, offset } = *asked;
    match right {
        Right::Member(member) => check_member(row, group, &member.member_id, member.generation)?,
        Right::Expected(_) | Right::Free => check_no_members(row, group)?,
    }
    let expected_offset = match right {
        Right::Expected(expected) => *expected,
        Right::Member(_) | Right::Free => None,
    };
    let is_another =
        matches!(right, Right::Expected(expected) if *expected != row.committed_offset);
    if row.pinned_by.is_some() || is_another {
        return Err(conflict(row, expected_offset, row.pinned_by));
    }
    let goes_back = row.committed_offset.is_some_and(|committed| offset < committed);
    Ok(match right {
        Right::Member(_) if goes_back => OffsetVerdict::Keep,
        _ => OffsetVerdict::Commit,
    })
}

/// A group goes on at most at the end of a log; a log is (log start, high watermark).
pub fn check_range(
    offset: Offset,
    (log_start_offset, high_watermark): (Offset, Offset),
) -> Result<(), Refusal> {
    if offset > high_watermark {
        return Err(Refusal::OffsetOutOfRange { offset, log_start_offset, high_watermark });
    }
    Ok(())
}

/// A transaction whose offsets are judged.
#[derive(Clone, Copy, Debug)]
pub struct Committer {
    /// Its own pin is none to it.
    pub transaction_id: Uuid,
    /// It has appends as well.
    pub appends: bool,
}

/// Whether a transaction may commit its offsets, all of them.
pub fn judge_in_transaction(
    asked: &[(&OffsetRow, &GroupFacts, &Claimed)],
    by: Committer,
) -> Result<(), Refusal> {
    asked.iter().try_for_each(|(row, group, claimed)| judge_claimed(row, group, claimed, by))?;
    let by_members = || asked.iter().filter(|(.., claimed)| claimed.claim.member_id().is_some());
    let moves = |(row, _, claimed): &(&OffsetRow, &GroupFacts, &Claimed)| {
        row.committed_offset != Some(claimed.offset)
    };
    match by_members().next() {
        Some((.., first)) if by.appends && !by_members().any(moves) => {
            Err(Refusal::NothingProcessed { offset: first.offset })
        }
        _ => Ok(()),
    }
}

fn judge_claimed(
    row: &OffsetRow,
    group: &GroupFacts,
    claimed: &Claimed,
    by: Committer,
) -> Result<(), Refusal> {
    let pinned_by = row.pinned_by.filter(|pin| *pin != by.transaction_id);
    let is_another = |base: &Option<Offset>| *base != row.committed_offset;
    let (or_else, goes_back) = match &claimed.claim {
        CommitRight::Member { member_id, generation, expected, .. } => {
            check_member(row, group, member_id, *generation)?;
            let is_behind = row.committed_offset.is_some_and(|at| claimed.offset < at);
            (Some(claimed.offset), expected.is_none() && is_behind)
        }
        CommitRight::Expected(expected) => {
            check_no_members(row, group)?;
            (*expected, false)
        }
    };
    let another = claimed.bases(by).find(is_another);
    if pinned_by.is_some() || another.is_some() || goes_back {
        let expected_offset = another.or(claimed.bases(by).next()).unwrap_or(or_else);
        return Err(conflict(row, expected_offset, pinned_by));
    }
    Ok(())
}

impl Claimed {
    /// What has to be committed there, for this to take its place.
    pub fn bases(&self, by: Committer) -> impl Iterator<Item = Option<Offset>> + use<> {
        let (expected, began) = match self.claim {
            CommitRight::Member { expected, began, .. } => (expected, began.filter(|_| by.appends)),
            CommitRight::Expected(expected) => (Some(expected), None),
        };
        expected.into_iter().chain(began)
    }

    /// As the transaction has it that has given another offset for this place before: the last one
    /// counts, but what was processed until then began where the first one's run began.
    pub fn after(mut self, former: &Claimed) -> Self {
        if let (CommitRight::Member { began, .. }, CommitRight::Member { began: Some(first), .. }) =
            (&mut self.claim, &former.claim)
        {
            *began = Some(*first);
        }
        self
    }
}

fn conflict(row: &OffsetRow, expected_offset: Option<Offset>, pinned_by: Option<Uuid>) -> Refusal {
    let committed_offset = row.committed_offset;
    Refusal::OffsetCommitConflict { expected_offset, committed_offset, pinned_by }
}

fn check_no_members(row: &OffsetRow, group: &GroupFacts) -> Result<(), Refusal> {
    let is_empty = group.members.is_empty() && row.owner.is_none();
    if is_empty { Ok(()) } else { Err(Refusal::GroupNotEmpty) }
}

/// Whether a member owns a partition, and has since its generation or before.
pub fn check_member(
    row: &OffsetRow,
    group: &GroupFacts,
    member_id: &str,
    generation: i64,
) -> Result<(), Refusal> {
    if !group.members.iter().any(|member| member == member_id) {
        return Err(Refusal::UnknownMember);
    }
    match &row.owner {
        Some((owner, since))
            if owner == member_id && (*since..=group.generation).contains(&generation) =>
        {
            Ok(())
        }
        _ => Err(Refusal::IllegalGeneration { generation: group.generation }),
    }
}
