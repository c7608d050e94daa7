//! Tests of the rules: by text tables, by properties over random histories, and against oracles
//! that remember everything.

mod access;
pub mod append;
mod compaction;
mod expiry;
mod group;
mod key_rings;
mod random;
mod rates;
mod retention;
mod revocation;
mod session;
mod settings;
mod tenant;
mod text;
mod transaction;

use super::{
    Refusal,
    append::{
        Request, Spread,
        plan::{Decision, Plan},
        producer_state::{Placement, Remembered},
        sequence::SessionFacts,
    },
};
use crate::model::{
    Digest, Epoch, LogId, Name, Partition, ProducerId, Sequence, append::ProducerSeq,
    session::Sequencing,
};
use append::ledger::Written;

pub const JOURNAL: LogId = LogId(100);

pub fn log_of(partition: Partition) -> LogId {
    LogId(i64::from(partition) + 1)
}

pub fn digest(of: &str) -> Digest {
    xxhash_rust::xxh3::xxh3_128(of.as_bytes()).to_be_bytes()
}

pub fn numbered(producer_id: i64, epoch: Epoch, sequence: Sequence) -> Option<ProducerSeq> {
    Some(ProducerSeq { producer_id: ProducerId(producer_id), epoch, sequence })
}

pub fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// An open session that was never reset.
pub fn open_session(epoch: Epoch) -> SessionFacts {
    SessionFacts { epoch, closed: false, reset_epoch: 0, sequencing: Sequencing::Contiguous }
}

/// Rows 1 to 3 of the contract's table. The current epoch comes with whether the session is closed.
pub fn check_epoch(
    (producer_id, epoch): (ProducerId, Epoch),
    current: Option<(Epoch, bool)>,
) -> Result<(), Refusal> {
    let (current_epoch, closed) = current.ok_or(Refusal::UnknownProducer { producer_id })?;
    if epoch < current_epoch {
        return Err(Refusal::ProducerFenced { current_epoch });
    }
    if epoch > current_epoch || closed {
        return Err(Refusal::InvalidProducerEpoch { current_epoch });
    }
    Ok(())
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With `appended_at`, as in the answer to a retry.
    Ok(Remembered),
    Dup(Remembered),
    Old,
    Ahead(Refusal),
    Refused(Refusal),
    Respread,
}

/// The answers of a batch, built like those of a lane.
pub fn answers(group: &[Request], plan: &Plan, written: Option<&Written>) -> Vec<Answer> {
    let answer = |(request, decision): (&Request, &Decision)| match decision {
        Decision::Appended { deltas, .. } => {
            Answer::Ok(appended(request, deltas, written.unwrap()))
        }
        Decision::Repeated(remembered) => Answer::Dup(remembered.clone()),
        Decision::Forgotten => Answer::Old,
        Decision::OutOfOrder(refusal) => Answer::Ahead(refusal.clone()),
        Decision::Refused(refusal) => Answer::Refused(refusal.clone()),
        Decision::TopicChanged => Answer::Respread,
        Decision::AlreadyCommitted(row) => unreachable!("a transaction: {row:?}"),
        Decision::AllDuplicates(_) | Decision::RetryNextBatch => {
            unreachable!("no record has a key")
        }
    };
    assert_eq!(group.len(), plan.decisions.len(), "one decision a request");
    group.iter().zip(&plan.decisions).map(answer).collect()
}

fn appended(request: &Request, deltas: &[i64], written: &Written) -> Remembered {
    assert_eq!(request.parts.len(), deltas.len(), "one delta a part");
    let parts = request.parts.iter().zip(deltas);
    let bases: Vec<_> =
        parts.map(|(part, delta)| (part.partition, written.bases[&part.log_id] + delta)).collect();
    let placement = match request.spread {
        Some(Spread { partition_count, keyless }) => {
            Placement::Topic { partition_count, keyless, bases }
        }
        None => Placement::Partition { base_offset: bases[0].1 },
    };
    Remembered {
        sequence: request.numbered.map_or(0, |numbered| numbered.sequence),
        digest: request.digest,
        appended_at: written.appended_at,
        placement,
    }
}
