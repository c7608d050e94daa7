//! THE LAW: pure functions over state and input. Nothing here awaits, reads a clock, draws a
//! random number or knows SQL, HTTP or a task.

pub mod append;
pub mod draft;
pub mod expiry;
pub mod fold;
pub mod ground;
pub mod memory;
pub mod provenance;
pub mod sequence;
pub mod session;
pub mod settings;
pub mod spread;
#[cfg(test)]
mod tests;

use crate::model::{Epoch, Offset, ProducerId, Sequence};

/// Why a request was refused, with the facts a client needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    UnknownProducer {
        producer_id: ProducerId,
    },
    ProducerFenced {
        current_epoch: Epoch,
    },
    InvalidProducerEpoch {
        current_epoch: Epoch,
    },
    /// No state in this scope and a sequence above 0.
    UnknownProducerState {
        received: Sequence,
    },
    OutOfOrderSequence {
        expected: Sequence,
        received: Sequence,
    },
    SequenceReused {
        sequence: Sequence,
    },
    OffsetMismatch {
        expected_offset: Offset,
        next_offset: Offset,
    },
    /// `limit` is the name of the setting.
    BatchTooLarge {
        limit_name: &'static str,
        limit: i64,
        received: i64,
    },
    /// The open id was used by an open of another name or producer.
    OpenIdReused,
    /// `If-Match` names another state than the present one.
    PreconditionFailed {
        etag: String,
    },
    /// The open id is not a UUIDv7, or its instant is too far from the clock.
    InvalidOpenId,
}
