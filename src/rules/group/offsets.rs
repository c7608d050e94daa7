//! Who may commit an offset of a group, and over which committed offset.
//!
//! | by right of | commits if | over a greater one |
//! |---|---|---|
//! | a member | it owns the partition, since its generation or earlier | keeps that |
//! | a member, an expected offset | both as above and below | moves back |
//! | an expected offset | the group has no members, and this is the committed offset | moves back |
//! | nothing (not in a transaction) | the group has no members | moves back |
//!
//! In a transaction, a member's commit over a greater offset is refused: its records were processed
//! before.
//!
//! Nobody can commit where a prepared transaction will. The right to commit is checked before the
//! committed offset.
//!
//! A transaction that appends has processed records. What a member commits by cursor was processed
//! since its run began, so the committed offset must still be the beginning of the run: of two runs
//! with the same records, one commits. And at least one of its offsets must move.

use uuid::Uuid;

use crate::{
    model::{LogId, Name, Offset, group::Member, transaction::CommitRight},
    rules::Refusal,
};

/// A partition of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OffsetPlace {
    pub group: Name,
    pub log_id: LogId,
}

/// An offset that a transaction will commit, and with which right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub place: OffsetPlace,
    pub offset: Offset,
    pub claim: CommitRight,
}

/// The committed offset, and who may commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OffsetRow {
    /// None: no committed offset yet.
    pub committed_offset: Option<Offset>,
    pub metadata: Option<String>,
    /// The owner of the partition, and the generation in which it became the owner.
    pub owner: Option<(String, i64)>,
    /// The prepared transaction that will commit here.
    pub pinned_by: Option<Uuid>,
}

/// The members of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFacts {
    /// The newest generation.
    pub generation: i64,
    /// The relevant members, and at least one if there is any.
    pub members: Vec<String>,
}

/// The right to commit an offset outside of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    Member(Member),
    /// This must be the committed offset; none: no committed offset yet.
    Expected(Option<Offset>),
    /// Any committed offset.
    Free,
}

/// The effect of an allowed commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetVerdict {
    Commit,
    /// The committed offset is greater, and stays.
    Keep,
}

/// One offset of a commit.
#[derive(Clone, Copy, Debug)]
pub struct RequestedOffset<'a> {
    pub row: &'a OffsetRow,
    pub right: &'a Right,
    pub offset: Offset,
}

/// Why a commit was refused as a whole, and which of its offsets are the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub refusal: Refusal,
    pub items: Vec<usize>,
}

/// Decides a commit outside of transactions: one verdict per offset, or no effect.
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

/// An offset must not exceed the high watermark; a log is (log start, high watermark).
pub fn check_range(
    offset: Offset,
    (log_start_offset, high_watermark): (Offset, Offset),
) -> Result<(), Refusal> {
    if offset > high_watermark {
        return Err(Refusal::OffsetOutOfRange { offset, log_start_offset, high_watermark });
    }
    Ok(())
}

/// A transaction whose offsets are checked.
#[derive(Clone, Copy, Debug)]
pub struct Committer {
    /// Its own pin does not block it.
    pub transaction_id: Uuid,
    /// Whether it also has appends.
    pub appends: bool,
}

/// Checks whether a transaction may commit all its offsets.
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
    /// The committed offset that this one expects.
    pub fn bases(&self, by: Committer) -> impl Iterator<Item = Option<Offset>> + use<> {
        let (expected, began) = match self.claim {
            CommitRight::Member { expected, began, .. } => (expected, began.filter(|_| by.appends)),
            CommitRight::Expected(expected) => (Some(expected), None),
        };
        expected.into_iter().chain(began)
    }

    /// The offset of a transaction that has given one for this place before: the last offset
    /// counts, but the run began where the first one's did.
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

/// Whether a member owns a partition, since its generation or before.
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
