//! Deduplication by record ids and Idempotency-Keys. One request wins; the others get the location
//! of its record.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::{
    model::{
        LogId, Offset, Partition, Timestamp, TopicId,
        dedup::{DedupKey, PayloadDigest, RequestKey, Ring},
        transaction::ID_AHEAD_MS,
    },
    rules::Refusal,
};

/// The dedup keys of an append to one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// The journal whose head is locked to remember keys in the topic.
    pub journal: LogId,
    pub topic_id: TopicId,
    /// How long new keys are remembered; none: no expiry.
    pub window_ms: Option<i64>,
    /// One per record, in request order; empty if no record has a key.
    pub records: Vec<KeyedRecord>,
    /// Whether a request with a duplicate record is refused as a whole.
    pub refuses_duplicates: bool,
    /// The key of the whole request.
    pub request_key: Option<RequestKey>,
}

/// A record with a possible key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRecord {
    /// Its position in the request: which append, and where in that append.
    pub append: Option<usize>,
    pub index: usize,
    /// The part of the request that it belongs to.
    pub part: usize,
    /// None: it has no id.
    pub key: Option<DedupKey>,
    /// The digest of its key and value.
    pub digest: PayloadDigest,
    /// The size of its line.
    pub size_bytes: i64,
}

impl KeyedRecord {
    fn pointer(&self) -> String {
        let append = self.append.map(|append| format!("/appends/{append}")).unwrap_or_default();
        format!("{append}/records/{}", self.index)
    }
}

/// The entry of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Record {
        digest: PayloadDigest,
        seen: KnownRecord,
    },
    /// A request with its response (`rules::provenance`). `is_live`: its window has not passed.
    Request {
        digest: PayloadDigest,
        answer: Vec<u8>,
        first_seen_at: Timestamp,
        is_live: bool,
    },
    /// A prepared transaction will store such a record.
    Held {
        digest: PayloadDigest,
        transaction_id: Uuid,
    },
}

/// The location of a known record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KnownRecord {
    pub partition: Partition,
    /// None: it has left the log.
    pub offset: Option<Offset>,
    pub first_seen_at: Timestamp,
}

/// The looked-up keys of a batch, and those that the batch itself has reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub facts: HashMap<(TopicId, DedupKey), Fact>,
    /// By topic: keys (UUIDv7) with an earlier timestamp may have been forgotten.
    pub horizons: HashMap<TopicId, Timestamp>,
    pub now: Timestamp,
    /// The table for new keys of each ring that was read.
    pub slots: HashMap<Ring, i16>,
    /// Reserved by earlier requests of this batch.
    claimed: HashSet<(TopicId, DedupKey)>,
}

/// The outcome of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordVerdict {
    /// It is stored.
    New,
    /// A duplicate of an earlier record of the same request.
    Same(usize),
    Known(KnownRecord),
}

/// Why the keys of an append do not allow it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    Refused(Refusal),
    /// An earlier request of this batch has reserved one of its keys: decide it again in the next
    /// batch.
    RetryNextBatch,
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Stopped::Refused(refusal)
    }
}

impl Known {
    /// The outcome of each record.
    pub fn judge(&self, dedup: &Dedup) -> Result<Vec<RecordVerdict>, Stopped> {
        let mut firsts: HashMap<DedupKey, usize> = HashMap::new();
        let mut verdicts = Vec::with_capacity(dedup.records.len());
        let (mut reused, mut duplicates, mut held) = (Vec::new(), Vec::new(), None);
        for (index, record) in dedup.records.iter().enumerate() {
            let Some(key) = record.key else {
                verdicts.push(RecordVerdict::New);
                continue;
            };
            if self.claimed.contains(&(dedup.topic_id, key)) {
                return Err(Stopped::RetryNextBatch);
            }
            let (verdict, digest) = match (firsts.get(&key), self.fact(dedup.topic_id, key)) {
                (Some(first), _) => (RecordVerdict::Same(*first), dedup.records[*first].digest),
                (None, Some(Fact::Record { digest, seen })) => {
                    (RecordVerdict::Known(*seen), *digest)
                }
                (None, Some(Fact::Held { digest, transaction_id })) => {
                    held = Some(*transaction_id);
                    (RecordVerdict::New, *digest)
                }
                (None, Some(Fact::Request { .. }) | None) => (RecordVerdict::New, record.digest),
            };
            firsts.entry(key).or_insert(index);
            let pointer = || record.pointer();
            if digest != record.digest {
                reused.push(pointer());
            } else if verdict != RecordVerdict::New {
                duplicates.push(pointer());
            }
            verdicts.push(verdict);
        }
        if !reused.is_empty() {
            return Err(Refusal::RecordIdReused { records: reused }.into());
        }
        if let Some(transaction_id) = held {
            return Err(Refusal::RecordHeld { transaction_id }.into());
        }
        if dedup.refuses_duplicates && !duplicates.is_empty() {
            return Err(Refusal::DuplicateRecord { records: duplicates }.into());
        }
        Ok(verdicts)
    }

    /// The original response of the request, and when it was first seen. None: it is new.
    pub fn judge_request(&self, dedup: &Dedup) -> Result<Option<(&[u8], Timestamp)>, Stopped> {
        let Some(request) = dedup.request_key else { return Ok(None) };
        if self.claimed.contains(&(dedup.topic_id, request.key)) {
            return Err(Stopped::RetryNextBatch);
        }
        Ok(self.repeated(dedup.topic_id, &request, dedup.window_ms)?)
    }

    /// The same for any request whose key has been looked up.
    pub fn repeated(
        &self,
        topic: TopicId,
        request: &RequestKey,
        window_ms: Option<i64>,
    ) -> Result<Option<(&[u8], Timestamp)>, Refusal> {
        // a UUIDv7 that has been used does not run again however old it is
        let remembers = |is_live: bool| is_live || request.instant.is_some();
        if let Some(Fact::Request { digest, answer, first_seen_at, is_live }) =
            self.fact(topic, request.key)
            && remembers(*is_live)
        {
            if *digest != request.digest {
                return Err(Refusal::IdempotencyKeyReused);
            }
            return Ok(Some((answer, *first_seen_at)));
        }
        let horizon = self.horizons.get(&topic).copied().unwrap_or_default();
        check_instant(request.instant, horizon, window_ms, self.now)?;
        Ok(None)
    }

    /// The table for new keys of a ring; all needed rings have been read.
    pub fn slot(&self, ring: Ring) -> i16 {
        self.slots.get(&ring).copied().unwrap_or(ring.slots()[0])
    }

    fn fact(&self, topic: TopicId, key: DedupKey) -> Option<&Fact> {
        self.facts.get(&(topic, key))
    }

    /// Reserves the new keys of a decided request.
    pub fn claim(&mut self, dedup: &Dedup, verdicts: &[RecordVerdict]) {
        let news = dedup.records.iter().zip(verdicts);
        let news = news.filter(|(_, verdict)| **verdict == RecordVerdict::New);
        let keys = news.filter_map(|(record, _)| record.key);
        let keys = keys.chain(dedup.request_key.map(|request| request.key));
        self.claimed.extend(keys.map(|key| (dedup.topic_id, key)));
    }
}

/// A key with a timestamp before the remembered window may have been used: the request is refused,
/// like an old transaction id.
pub fn check_instant(
    instant: Option<Timestamp>,
    horizon: Timestamp,
    window_ms: Option<i64>,
    now: Timestamp,
) -> Result<(), Refusal> {
    let Some(instant) = instant else { return Ok(()) };
    if instant.0 > now.0 + ID_AHEAD_MS {
        return Err(Refusal::IdempotencyKeyAhead);
    }
    let oldest = window_ms.map_or(Timestamp(i64::MIN), |ms| Timestamp(now.0.saturating_sub(ms)));
    if instant < horizon.max(oldest) {
        return Err(Refusal::IdempotencyKeyExpired);
    }
    Ok(())
}
