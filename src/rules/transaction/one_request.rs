//! One-request transactions, decided in a batch with appends: all of one or nothing. Besides their
//! logs they depend on the context here; the fast path assumes it, and its statement verifies it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use super::TransactionRow;
use crate::{
    model::{
        Digest, Epoch, LogId, Name, Offset, Partition, ProducerId, Timestamp,
        transaction::{CommitRight, RepeatedBy},
    },
    rules::{
        Refusal,
        append::{dedup, sequence::SessionFacts},
        group::offsets::{self, Claimed, Committer, GroupFacts, OffsetPlace},
        transaction,
    },
};

/// A one-request transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleRequestTxn {
    pub transaction_id: Uuid,
    pub repeated_by: RepeatedBy,
    pub session: Option<(ProducerId, Epoch)>,
    pub append_count: i64,
    /// How long its tenant remembers outcomes.
    pub retention_ms: i64,
    /// The journals of the topics that its records were spread over, with their partition counts
    /// then.
    pub journals: Vec<(LogId, Partition)>,
    /// One per part, in order.
    pub topics: Vec<Name>,
    /// Each for a different place.
    pub offsets: Vec<Claimed>,
}

/// The context of a batch's transactions: their rows, sessions, and the offsets of their groups.
/// (An id occurs once in a batch, and so does a key.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnContext {
    /// By the id of the request; a row found by its key has the id of the first.
    pub rows: HashMap<Uuid, TransactionRow>,
    pub sessions: HashMap<ProducerId, SessionFacts>,
    /// The ongoing transaction of a producer.
    pub ongoing: HashMap<ProducerId, Uuid>,
    pub places: BTreeMap<OffsetPlace, offsets::OffsetRow>,
    pub groups: BTreeMap<Name, GroupFacts>,
    /// The start and end of the logs of the places. None: offsets are not checked against them.
    pub ends: Option<BTreeMap<LogId, (Offset, Offset)>>,
    /// None: ids are not checked here.
    pub caches: Option<OutcomeHorizon>,
    /// The keys of its records and requests.
    pub known: dedup::Known,
    moves: BTreeMap<OffsetPlace, OffsetMove>,
    /// Places where the committed offset may be smaller than assumed.
    from_below: BTreeSet<OffsetPlace>,
}

/// An offset that a batch commits: the place before the batch, and the new offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetMove {
    pub place: OffsetPlace,
    /// The member that owns it, and since when.
    pub owner: Option<(String, i64)>,
    /// The generation of the group.
    pub generation: i64,
    pub from: Option<Offset>,
    /// Whether it also replaces a smaller committed offset.
    pub from_below: bool,
    pub to: Offset,
    /// The greatest offset in between.
    pub highest: Offset,
}

/// The facts that ids are checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutcomeHorizon {
    pub horizon: Timestamp,
    pub now: Timestamp,
}

/// Why a transaction is not committed now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was committed before.
    AlreadyCommitted(Box<TransactionRow>),
    Refused(Refusal),
    /// A topic was deleted.
    TopicChanged,
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Stopped::Refused(refusal)
    }
}

impl SingleRequestTxn {
    /// Equal for transactions of which one is a repeat of the other: its key, or its id.
    pub fn identity(&self) -> Uuid {
        self.repeated_by.key().map_or(self.transaction_id, |key| key.key)
    }

    /// The instant that the client has named.
    pub fn instant(&self) -> Option<Timestamp> {
        self.repeated_by.instant(&self.transaction_id)
    }

    /// Whether a statement can verify the assumption of the fast path (`TxnContext::optimistic`).
    /// It does not lock the heads that the first commit in a partition must lock.
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
    /// The weakest assumption under which every transaction of the batch commits; the statement
    /// verifies it. No id has run. The committed offset is the one the first transaction expects,
    /// or, if a member does not state it, less than its first offset, so that it moves. The members
    /// have owned their places since the oldest of their generations, or before, in a group that
    /// has reached the newest of them. None if no assumption allows all of them.
    pub fn optimistic<'a>(
        txns: impl Iterator<Item = &'a SingleRequestTxn> + Clone,
    ) -> Option<Self> {
        let mut assumed = Self::default();
        for txn in txns.clone() {
            for claimed in &txn.offsets {
                assumed.assume(claimed, txn.committer());
            }
        }
        let mut then = assumed.clone();
        for txn in txns {
            then.judge_offsets(txn).ok()?;
            then.apply(txn);
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

    /// Whether the transaction can be committed now. (Its topics and sizes are checked elsewhere.)
    /// A remembered outcome is returned before anything else is checked.
    pub fn judge(&self, txn: &SingleRequestTxn, digest: &Digest) -> Result<(), Stopped> {
        if let Some(row) = self.rows.get(&txn.transaction_id) {
            transaction::repeat(row, txn.repeated_by, digest)?;
            return Err(Stopped::AlreadyCommitted(Box::new(row.clone())));
        }
        if let Some((producer_id, epoch)) = txn.session {
            transaction::check_producer((producer_id, epoch), self.sessions.get(&producer_id))?;
        }
        if let Some(OutcomeHorizon { horizon, now }) = self.caches {
            let (id, by) = (&txn.transaction_id, txn.repeated_by);
            transaction::check_begin(id, by, horizon, txn.retention_ms, now)?;
        }
        let ongoing = txn.session.and_then(|(producer, _)| self.ongoing.get(&producer));
        if let Some(transaction_id) = ongoing.copied() {
            return Err(Refusal::ConcurrentTransactions { transaction_id }.into());
        }
        Ok(())
    }

    /// Whether its offsets can be committed now.
    pub fn judge_offsets(&self, txn: &SingleRequestTxn) -> Result<(), Stopped> {
        let mut moves = Vec::with_capacity(txn.offsets.len());
        for claimed @ Claimed { place, offset, .. } in &txn.offsets {
            let row = self.places.get(place).ok_or(Stopped::TopicChanged)?;
            let group = self.groups.get(&place.group).ok_or(Stopped::TopicChanged)?;
            if let Some(ends) = &self.ends {
                let ends = ends.get(&place.log_id).ok_or(Stopped::TopicChanged)?;
                offsets::check_range(*offset, *ends)?;
            }
            moves.push((row, group, claimed));
        }
        Ok(offsets::judge_in_transaction(&moves, txn.committer())?)
    }

    /// Applies its commit to the context, so that the next transaction sees its offsets.
    pub fn apply(&mut self, txn: &SingleRequestTxn) {
        for Claimed { place, offset, .. } in &txn.offsets {
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

    /// The offsets that the applied transactions commit.
    pub fn moves(&self) -> Vec<OffsetMove> {
        self.moves.values().cloned().collect()
    }
}
