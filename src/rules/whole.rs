//! Transactions of one request, decided in a group with appends: all of one or nothing. They stand,
//! beside their logs, on what is known here; a quick pass assumes it, and its statement confirms it.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::{
    Refusal,
    offsets::{self, Claimed, Group, Place},
    sequence::SessionFacts,
    transaction::{self, Row},
};
use crate::model::{
    Digest, Epoch, LogId, Name, Offset, Partition, ProducerId, Timestamp, transaction::Claim,
};

/// A transaction that is one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    pub transaction_id: Uuid,
    /// The client chose the id: it may have run before.
    pub chosen: bool,
    pub session: Option<(ProducerId, Epoch)>,
    pub append_count: i64,
    /// How long its tenant remembers outcomes.
    pub retention_ms: i64,
    /// The journals of the topics that its records were spread over, with the partitions they had.
    pub journals: Vec<(LogId, Partition)>,
    /// Of each part, in their order.
    pub topics: Vec<Name>,
    /// Each for another place.
    pub offsets: Vec<Claimed>,
}

/// What is known of a group's transactions, their sessions and their groups' offsets.
/// (An id comes once in a group.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub rows: HashMap<Uuid, Row>,
    pub sessions: HashMap<ProducerId, SessionFacts>,
    /// The ongoing transaction of a producer.
    pub ongoing: HashMap<ProducerId, Uuid>,
    pub places: BTreeMap<Place, offsets::Row>,
    pub groups: BTreeMap<Name, Group>,
    /// Where the logs of the places begin and end. None: offsets are not held against them here.
    pub ends: Option<BTreeMap<LogId, (Offset, Offset)>>,
    /// None: ids are not judged here.
    pub memory: Option<Memory>,
    moves: BTreeMap<Place, OffsetMove>,
}

/// An offset that a pass commits, as it is before and after all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetMove {
    pub place: Place,
    pub from: Option<Offset>,
    pub to: Offset,
    /// The greatest one on the way.
    pub highest: Offset,
}

/// What ids are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub horizon: Timestamp,
    pub now: Timestamp,
}

/// What becomes of a transaction that is not committed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was committed before.
    Before(Box<Row>),
    Refused(Refusal),
    /// A topic is gone.
    Stale,
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Stopped::Refused(refusal)
    }
}

impl Whole {
    /// Whether a statement can confirm what a quick pass assumes of it (`Standing::assumed`).
    pub fn may_be_assumed(&self) -> bool {
        let expects = |claimed: &Claimed| matches!(claimed.claim, Claim::Expected(Some(_)));
        self.session.is_none() && self.offsets.iter().all(expects)
    }
}

impl Standing {
    /// That none of these has run, and every committed offset is the first that is expected there.
    /// None: what one expects is not what those before it leave, so not all of them can be committed.
    pub fn assumed<'a>(wholes: impl Iterator<Item = &'a Whole>) -> Option<Self> {
        let mut standing = Self::default();
        let mut left: BTreeMap<&Place, Offset> = BTreeMap::new();
        for Claimed { place, offset, claim } in wholes.flat_map(|whole| &whole.offsets) {
            let Claim::Expected(expected) = *claim else { return None };
            match left.insert(place, *offset) {
                Some(before) if Some(before) != expected => return None,
                Some(_) => {}
                None => {
                    let row =
                        offsets::Row { committed_offset: expected, ..offsets::Row::default() };
                    standing.places.insert(place.clone(), row);
                    standing.groups.entry(place.group.clone()).or_default();
                }
            }
        }
        Some(standing)
    }

    /// Whether the transaction may be committed now. (Its topics and sizes are judged elsewhere.)
    pub fn judge(&self, whole: &Whole, digest: &Digest) -> Result<(), Stopped> {
        if let Some((producer_id, epoch)) = whole.session {
            transaction::check_producer((producer_id, epoch), self.sessions.get(&producer_id))?;
        }
        if let Some(row) = self.rows.get(&whole.transaction_id) {
            transaction::repeat(row, digest)?;
            return Err(Stopped::Before(Box::new(row.clone())));
        }
        if let Some(Memory { horizon, now }) = self.memory.filter(|_| whole.chosen) {
            transaction::check_id(&whole.transaction_id, horizon, whole.retention_ms, now)?;
        }
        let ongoing = whole.session.and_then(|(producer, _)| self.ongoing.get(&producer));
        if let Some(transaction_id) = ongoing.copied() {
            return Err(Refusal::ConcurrentTransactions { transaction_id }.into());
        }
        Ok(())
    }

    /// Whether its offsets may be committed now.
    pub fn judge_offsets(&self, whole: &Whole) -> Result<(), Stopped> {
        for Claimed { place, offset, claim } in &whole.offsets {
            let row = self.places.get(place).ok_or(Stopped::Stale)?;
            let group = self.groups.get(&place.group).ok_or(Stopped::Stale)?;
            if let Some(ends) = &self.ends {
                let ends = ends.get(&place.log_id).ok_or(Stopped::Stale)?;
                offsets::check_range(*offset, *ends)?;
            }
            offsets::judge_in_transaction(row, group, claim, *offset, whole.transaction_id)?;
        }
        Ok(())
    }

    /// It is committed with this pass: the next one sees its offsets.
    pub fn apply(&mut self, whole: &Whole) {
        for Claimed { place, offset, .. } in &whole.offsets {
            let row = self.places.entry(place.clone()).or_default();
            let moved = self.moves.entry(place.clone()).or_insert_with(|| OffsetMove {
                place: place.clone(),
                from: row.committed_offset,
                to: *offset,
                highest: *offset,
            });
            moved.to = *offset;
            moved.highest = moved.highest.max(*offset);
            row.committed_offset = Some(*offset);
            row.metadata = None;
        }
    }

    /// The offsets that those applied commit.
    pub fn moves(&self) -> Vec<OffsetMove> {
        self.moves.values().cloned().collect()
    }
}
