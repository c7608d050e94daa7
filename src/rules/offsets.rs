//! Who may commit an offset of a group, and over which one.
//!
//! | claim | holds if |
//! |---|---|
//! | a member's | it owns the partition, since its generation or earlier; never backwards in a transaction |
//! | expected offset | the group has no members, and this is the committed offset |
//! | none | the group has no members |
//!
//! Nobody commits where a prepared transaction is to.

use uuid::Uuid;

use super::Refusal;
use crate::model::{LogId, Name, Offset, transaction::Claim};

/// A group's place in a partition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub group: Name,
    pub log_id: LogId,
}

/// An offset that a transaction is to commit, and by what right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    pub place: Place,
    pub offset: Offset,
    pub claim: Claim,
}

/// What is committed there, and who may commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
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
pub struct Group {
    /// The newest.
    pub generation: i64,
    pub members: Vec<String>,
}

/// Whether a transaction may commit an offset. `transaction`: its own pin is none to it.
pub fn judge_in_transaction(
    row: &Row,
    group: &Group,
    claim: &Claim,
    offset: Offset,
    transaction: Uuid,
) -> Result<(), Refusal> {
    let committed_offset = row.committed_offset;
    let pinned_by = row.pinned_by.filter(|pin| *pin != transaction);
    let conflict = |expected_offset| Refusal::OffsetCommitConflict {
        expected_offset,
        committed_offset,
        pinned_by,
    };
    match claim {
        Claim::Member { member_id, generation } => {
            check_member(row, group, member_id, *generation)?;
            // its records were processed before
            if pinned_by.is_some() || committed_offset.is_some_and(|committed| offset < committed) {
                return Err(conflict(Some(offset)));
            }
        }
        Claim::Expected(expected) => {
            if !group.members.is_empty() || row.owner.is_some() {
                return Err(Refusal::GroupNotEmpty);
            }
            if pinned_by.is_some() || committed_offset != *expected {
                return Err(conflict(*expected));
            }
        }
    }
    Ok(())
}

/// Whether a member owns a partition, and has since its generation or before.
pub fn check_member(
    row: &Row,
    group: &Group,
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
