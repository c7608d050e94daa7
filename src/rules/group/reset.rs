//! Where a reset moves the offsets of a group. A group can be reset or deleted only without
//! members, and while no prepared transaction will commit in it.

use uuid::Uuid;

use super::{Starts, position::position};
use crate::{
    model::{
        Offset,
        group::{AutoOffsetReset, view::ResetTo},
    },
    rules::Refusal,
};

/// The state of one partition that a reset depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResetContext {
    pub committed_offset: Option<Offset>,
    pub starts: Option<Starts>,
    pub auto_offset_reset: AutoOffsetReset,
    /// The log holds [start, end).
    pub log: (Offset, Offset),
    /// The first record at or after the requested instant; None if there is none yet.
    pub found: Option<Offset>,
}

/// Whether a group may be reset or deleted. `pinned`: the committed offset that a prepared
/// transaction pins, and the transaction.
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

/// The new offset, clamped to the log.
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

/// The lag of the group; None if it has nowhere to start.
pub fn lag(ground: &ResetContext) -> Option<i64> {
    let ResetContext { committed_offset, starts, auto_offset_reset, log, .. } = *ground;
    let position = position(committed_offset, starts, auto_offset_reset, log).ok()?;
    Some(log.1 - position)
}
