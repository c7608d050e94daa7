//! The sequence table of the contract: what a sequence means, given the state of its producer.
//!
//! | state | sequence | verdict |
//! |---|---|---|
//! | none | 0 | append |
//! | none | > 0 | ahead (unknown producer state) |
//! | last | last + 1 | append |
//! | last | <= last, remembered, same digest | duplicate |
//! | last | <= last, remembered, other digest | refused: reused |
//! | last | <= last, forgotten | forgotten duplicate |
//! | last | > last + 1 | ahead (out of order) |
//!
//! Monotonic sequencing turns both kinds of "ahead" into "append".

use super::producer_state::{ProducerState, REMEMBERED_REQUESTS, Remembered};
use crate::{
    model::{Digest, Epoch, append::ProducerSeq, session::Sequencing},
    rules::Refusal,
};

/// The facts of a session row about its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionFacts {
    pub epoch: Epoch,
    /// The current epoch is closed.
    pub closed: bool,
    /// States of earlier epochs do not count.
    pub reset_epoch: Epoch,
    pub sequencing: Sequencing,
}

/// The verdict on a sequenced request that is not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceVerdict<'a> {
    /// New. `fresh`: decided without a state.
    Append { fresh: bool },
    /// Stored before, and remembered.
    Duplicate(&'a Remembered),
    /// Stored before, at a forgotten location.
    Forgotten,
    /// Less than a window ahead: it can wait for missing sequences; this is the refusal if they do
    /// not arrive.
    OutOfOrder(Refusal),
}

/// Rows 1 to 10 of the table, in order. `session` none: the producer does not exist.
pub fn judge<'a>(
    session: Option<&SessionFacts>,
    state: &'a ProducerState,
    numbered: &ProducerSeq,
    digest: &Digest,
) -> Result<SequenceVerdict<'a>, Refusal> {
    let ProducerSeq { producer_id, epoch, sequence } = *numbered;
    let session = session.ok_or(Refusal::UnknownProducer { producer_id })?;
    if epoch < session.epoch {
        return Err(Refusal::ProducerFenced { current_epoch: session.epoch });
    }
    if epoch > session.epoch || session.closed {
        return Err(Refusal::InvalidProducerEpoch { current_epoch: session.epoch });
    }
    let contiguous = session.sequencing == Sequencing::Contiguous;
    let last = state.last_sequence.filter(|_| state.epoch >= session.reset_epoch);
    let expected = last.map_or(0, |last| last + 1);
    if sequence == expected || (sequence > expected && !contiguous) {
        return Ok(SequenceVerdict::Append { fresh: last.is_none() });
    }
    if sequence < expected {
        return match state.recent.iter().find(|request| request.sequence == sequence) {
            Some(request) if request.digest == *digest => Ok(SequenceVerdict::Duplicate(request)),
            Some(_) => Err(Refusal::SequenceReused { sequence }),
            None => Ok(SequenceVerdict::Forgotten),
        };
    }
    let refusal = match last {
        None => Refusal::UnknownProducerState { received: sequence },
        Some(_) => Refusal::OutOfOrderSequence { expected, received: sequence },
    };
    if sequence - expected < REMEMBERED_REQUESTS as i64 {
        Ok(SequenceVerdict::OutOfOrder(refusal))
    } else {
        Err(refusal)
    }
}
