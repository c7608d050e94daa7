//! Where a member reads on in a partition, and where the run began that it is in: what it processes
//! between two commits.

use super::Starts;
use crate::{
    model::{Offset, group::AutoOffsetReset, read::Run},
    rules::Refusal,
};

/// Where the run began that a fetch goes on with, in a partition that its cursor names. (`Run::New`:
/// at the cursor.) `standing`: the offsets that are committed there and that a prepared transaction is
/// to commit.
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

/// Where a prepared transaction is to commit an offset, records are withheld from all but its owner
/// that has passed it. `named`: where a cursor of this ownership goes on.
pub fn is_withheld(named: Option<Offset>, pinned_offset: Option<Offset>) -> bool {
    pinned_offset.is_some_and(|pinned| named.is_none_or(|named| named < pinned))
}

/// Where a group goes on in a partition that holds [start, end).
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
