//! Transactions of one request, decided in a group with appends: all of one or nothing. They stand,
//! beside their logs, on what is known here; a fast path assumes it, and its statement confirms it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use super::TransactionRow;
use crate::{
    model::{
        Digest, Epoch, LogId, Name, Offset, Partition, ProducerId, Timestamp,
        transaction::CommitRight,
    },
    rules::{
        Refusal,
        append::{dedup, sequence::SessionFacts},
        group::offsets::{self, Claimed, Committer, GroupFacts, OffsetPlace},
        transaction,
    },
};

/// A transaction that is one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleRequestTxn {
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
pub struct TxnContext {
    pub rows: HashMap<Uuid, TransactionRow>,
    pub sessions: HashMap<ProducerId, SessionFacts>,
    /// The ongoing transaction of a producer.
    pub ongoing: HashMap<ProducerId, Uuid>,
    pub places: BTreeMap<OffsetPlace, offsets::OffsetRow>,
    pub groups: BTreeMap<Name, GroupFacts>,
    /// Where the logs of the places begin and end. None: offsets are not held against them here.
    pub ends: Option<BTreeMap<LogId, (Offset, Offset)>>,
    /// None: ids are not judged here.
    pub caches: Option<OutcomeHorizon>,
    /// Of its records' ids and its requests' keys.
    pub known: dedup::Known,
    moves: BTreeMap<OffsetPlace, OffsetMove>,
    /// Where less may be committed than is assumed.
    from_below: BTreeSet<OffsetPlace>,
}

/// An offset that a pass commits: the place as it is before all of it, and what it commits there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetMove {
    pub place: OffsetPlace,
    /// The member that owns it, and since when.
    pub owner: Option<(String, i64)>,
    /// The group's.
    pub generation: i64,
    pub from: Option<Offset>,
    /// It goes on from a smaller one as well.
    pub from_below: bool,
    pub to: Offset,
    /// The greatest one on the way.
    pub highest: Offset,
}

/// What ids are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeHorizon {
    pub horizon: Timestamp,
    pub now: Timestamp,
}

/// What becomes of a transaction that is not committed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was committed before.
    AlreadyCommitted(Box<TransactionRow>),
    Refused(Refusal),
    /// A topic is gone.
    TopicChanged,
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Stopped::Refused(refusal)
    }
}

impl SingleRequestTxn {
    /// Whether a statement can confirm what a fast path assumes of it (`TxnContext::assumed`). It does
    /// not hold the heads that the first commit in a partition has to hold.
    pub fn may_be_assumed(&self) -> bool {
        let by = self.committer();
        let is_first = |claimed: &Claimed| claimed.bases(by).any(|base| base.is_none());
        self.session.is_none() && !self.offsets.iter().any(is_first)
    }

    fn committer(&self) -> Committer {
        Committer { transaction_id: self.transaction_id, appends: self.append_count > 0 }
    }
}

impl TxnContext {
    /// The least with which all of these can be committed: none has run; what is committed is what
    /// the first one goes on from, or, where a member does not say that, less than its first offset (it
    /// moves); and the members own their places since the oldest of their generations, or before, of a
    /// group that has reached the newest. None: nothing would let them all be committed.
    pub fn optimistic<'a>(
        wholes: impl Iterator<Item = &'a SingleRequestTxn> + Clone,
    ) -> Option<Self> {
        let mut assumed = Self::default();
        for whole in wholes.clone() {
            for claimed in &whole.offsets {
                assumed.assume(claimed, whole.committer());
            }
        }
        let mut then = assumed.clone();
        for whole in wholes {
            then.judge_offsets(whole).ok()?;
            then.apply(whole);
        }
        Some(assumed)
    }

    fn assume(&mut self, claimed: &Claimed, by: Committer) {
        let Claimed { place, offset, claim } = claimed;
        let group = self.groups.entry(place.group.clone()).or_default();
        let (row, base) = (self.places.entry(place.clone()), claimed.bases(by).next());
        match claim {
            CommitRight::Expected(expected) => {
                row.or_insert(offsets::OffsetRow {
                    committed_offset: *expected,
                    ..Default::default()
                });
            }
            CommitRight::Member { member_id, generation, .. } => {
                let row = row.or_insert_with(|| {
                    self.from_below.extend(base.is_none().then(|| place.clone()));
                    offsets::OffsetRow {
                        committed_offset: base.unwrap_or(Some(*offset - 1)),
                        owner: Some((member_id.clone(), *generation)),
                        ..Default::default()
                    }
                });
                if let Some((owner, since)) = &mut row.owner
                    && owner == member_id
                {
                    *since = (*since).min(*generation);
                }
                group.generation = group.generation.max(*generation);
                if !group.members.contains(member_id) {
                    group.members.push(member_id.clone());
                }
            }
        }
    }

    /// Whether the transaction may be committed now. (Its topics and sizes are judged elsewhere.) What
    /// became of one that is remembered is told before anything else is judged.
    pub fn judge(&self, whole: &SingleRequestTxn, digest: &Digest) -> Result<(), Stopped> {
        if let Some(row) = self.rows.get(&whole.transaction_id) {
            transaction::repeat(row, digest)?;
            return Err(Stopped::AlreadyCommitted(Box::new(row.clone())));
        }
        if let Some((producer_id, epoch)) = whole.session {
            transaction::check_producer((producer_id, epoch), self.sessions.get(&producer_id))?;
        }
        if let Some(OutcomeHorizon { horizon, now }) = self.caches.filter(|_| whole.chosen) {
            transaction::check_id(&whole.transaction_id, horizon, whole.retention_ms, now)?;
        }
        let ongoing = whole.session.and_then(|(producer, _)| self.ongoing.get(&producer));
        if let Some(transaction_id) = ongoing.copied() {
            return Err(Refusal::ConcurrentTransactions { transaction_id }.into());
        }
        Ok(())
    }

    /// Whether its offsets may be committed now.
    pub fn judge_offsets(&self, whole: &SingleRequestTxn) -> Result<(), Stopped> {
        let mut asked = Vec::with_capacity(whole.offsets.len());
        for claimed @ Claimed { place, offset, .. } in &whole.offsets {
            let row = self.places.get(place).ok_or(Stopped::TopicChanged)?;
            let group = self.groups.get(&place.group).ok_or(Stopped::TopicChanged)?;
            if let Some(ends) = &self.ends {
                let ends = ends.get(&place.log_id).ok_or(Stopped::TopicChanged)?;
                offsets::check_range(*offset, *ends)?;
            }
            asked.push((row, group, claimed));
        }
        Ok(offsets::judge_in_transaction(&asked, whole.committer())?)
    }

    /// It is committed with this pass: the next one sees its offsets.
    pub fn apply(&mut self, whole: &SingleRequestTxn) {
        for Claimed { place, offset, .. } in &whole.offsets {
            let row = self.places.entry(place.clone()).or_default();
            let moved = self.moves.entry(place.clone()).or_insert_with(|| OffsetMove {
                place: place.clone(),
                owner: row.owner.clone(),
                generation: self.groups.get(&place.group).map_or(0, |group| group.generation),
                from: row.committed_offset,
                from_below: self.from_below.contains(place),
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
