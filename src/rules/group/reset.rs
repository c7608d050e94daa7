//! Where a reset moves the offsets of a group, and when a group may be reset or deleted: without
//! members, and while no prepared transaction is to commit in it.

use uuid::Uuid;

use super::{Starts, position::position};
use crate::{
    model::{
        Offset,
        group::{AutoOffsetReset, view::ResetTo},
    },
    rules::Refusal,
};

/// What an offset is moved by, in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetContext {
    pub committed_offset: Option<Offset>,
    pub starts: Option<Starts>,
    pub auto_offset_reset: AutoOffsetReset,
    /// The log holds [start, end).
    pub log: (Offset, Offset),
    /// The first record of the instant asked for; None: there is none yet.
    pub found: Option<Offset>,
}

/// Whether a group may be reset or deleted. `pinned`: what is committed where a prepared transaction
/// is to commit, and which.
pub fn check(has_members: bool, pinned: Option<(Option<Offset>, Uuid)>) -> Result<(), Refusal> {
    if has_members {
        return Err(Refusal::GroupNotEmpty);
    }
    match pinned {
        Some((committed_offset, id)) => Err(Refusal::OffsetCommitConflict {
            expected_offset: None,
            committed_offset,
            pinned_by: Some(id),
        }),
        None => Ok(()),
    }
}

/// Where the offset goes: always into the log, or to its end.
pub fn target(to: ResetTo, ground: &ResetContext) -> Result<Offset, Refusal> {
    let ResetContext { committed_offset, starts, auto_offset_reset, log: (start, end), found } =
        *ground;
    let wanted = match to {
        ResetTo::Earliest => start,
        ResetTo::Latest => end,
        ResetTo::Offset(offset) => offset,
        ResetTo::Timestamp(_) => found.unwrap_or(end),
        ResetTo::By(records) => {
            let from = match committed_offset {
                Some(offset) => offset,
                None => position(None, starts, auto_offset_reset, (start, end))?,
            };
            from.saturating_add(records)
        }
    };
    Ok(wanted.clamp(start, end.max(start)))
}

/// How many records the group has still to process; None: it is to begin nowhere.
pub fn lag(ground: &ResetContext) -> Option<i64> {
    let ResetContext { committed_offset, starts, auto_offset_reset, log, .. } = *ground;
    let position = position(committed_offset, starts, auto_offset_reset, log).ok()?;
    Some(log.1 - position)
}
