//! Where a member continues in a partition, and where its run began: what it processes between two
//! commits.

use super::Starts;
use crate::{
    model::{Offset, group::AutoOffsetReset, read::Run},
    rules::Refusal,
};

/// Where the run of a fetch began, in a partition of its cursor. (`Run::New`: at the cursor.)
/// `standing`: the committed offset, and the one that a prepared transaction will commit.
pub fn run_began(
    run: Run,
    named: Offset,
    began: Option<Option<Offset>>,
    standing: [Option<Offset>; 2],
) -> Option<Option<Offset>> {
    match run {
        Run::SinceCommit if standing.contains(&Some(named)) => Some(Some(named)),
        Run::SinceCommit | Run::Continue => began,
        Run::New => Some(Some(named)),
    }
}

/// While a prepared transaction pins an offset, records are withheld from all but the owner that
/// has passed it. `named`: the position of a cursor of this ownership.
pub fn is_withheld(named: Option<Offset>, pinned_offset: Option<Offset>) -> bool {
    pinned_offset.is_some_and(|pinned| named.is_none_or(|named| named < pinned))
}

/// Where a group resumes in a partition that holds [start, end).
pub fn position(
    committed_offset: Option<Offset>,
    starts: Option<Starts>,
    reset: AutoOffsetReset,
    (log_start_offset, high_watermark): (Offset, Offset),
) -> Result<Offset, Refusal> {
    match committed_offset {
        Some(offset) if offset > high_watermark => {
            return Err(Refusal::OffsetOutOfRange { offset, log_start_offset, high_watermark });
        }
        Some(offset) if offset >= log_start_offset => return Ok(offset),
        None if starts == Some(Starts::Earliest) => return Ok(log_start_offset),
        _ => {}
    }
    match reset {
        AutoOffsetReset::Earliest => Ok(log_start_offset),
        AutoOffsetReset::Latest => Ok(high_watermark),
        AutoOffsetReset::Error => {
            Err(Refusal::NowhereToBegin { committed_offset, log_start_offset, high_watermark })
        }
    }
}
