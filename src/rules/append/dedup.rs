//! Ids of records and Idempotency-Keys: what of an append is known already. One wins, the others
//! learn where its record lies.

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

/// What an append to one topic has that may be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// Whose head is held by whoever remembers keys in the topic.
    pub journal: LogId,
    pub topic_id: TopicId,
    /// How long what is new is remembered; none: for ever.
    pub window_ms: Option<i64>,
    /// Of every record, in request order; empty: no record has a key.
    pub records: Vec<KeyedRecord>,
    /// A request with a known record is refused whole.
    pub refuses_duplicates: bool,
    /// The whole request's.
    pub request_key: Option<RequestKey>,
}

/// A record that may be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRecord {
    /// Where it stands in what was sent: of several appends in which, and where in its append.
    pub append: Option<usize>,
    pub index: usize,
    /// Of the request's parts, the one that it belongs to.
    pub part: usize,
    /// None: it has no id.
    pub key: Option<DedupKey>,
    /// Of its key and value.
    pub digest: PayloadDigest,
    /// Of its line.
    pub size_bytes: i64,
}

impl KeyedRecord {
    fn pointer(&self) -> String {
        let append = self.append.map(|append| format!("/appends/{append}")).unwrap_or_default();
        format!("{append}/records/{}", self.index)
    }
}

/// What is remembered under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Record {
        digest: PayloadDigest,
        seen: KnownRecord,
    },
    /// A request, and what it was answered (`rules::provenance`).
    /// `is_live`: its window is not over.
    Request {
        digest: PayloadDigest,
        answer: Vec<u8>,
        first_seen_at: Timestamp,
        is_live: bool,
    },
    /// A prepared transaction is to store such a record.
    Held {
        digest: PayloadDigest,
        transaction_id: Uuid,
    },
}

/// Where a known record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KnownRecord {
    pub partition: Partition,
    /// None: it has left the log.
    pub offset: Option<Offset>,
    pub first_seen_at: Timestamp,
}

/// What was looked up for a group, and what the group itself has claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub facts: HashMap<(TopicId, DedupKey), Fact>,
    /// Keys (UUIDv7) with an instant before it may have been forgotten, by topic.
    pub horizons: HashMap<TopicId, Timestamp>,
    pub now: Timestamp,
    /// The partition of each ring that takes new keys, as far as rings were looked at.
    pub slots: HashMap<Ring, i16>,
    /// By requests that were decided before, in this very pass.
    claimed: HashSet<(TopicId, DedupKey)>,
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordVerdict {
    /// It is stored.
    New,
    /// As the record before it in the same request.
    Same(usize),
    Known(KnownRecord),
}

/// Why an append is not decided by its keys now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    Refused(Refusal),
    /// Another request of this pass has claimed one of its keys: judged again in the next one.
    RetryNextBatch,
}

impl From<Refusal> for Stopped {
    fn from(refusal: Refusal) -> Self {
        Stopped::Refused(refusal)
    }
}

impl Known {
    /// What becomes of each record.
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

    /// What the request was answered before, and when it was first seen. None: it is new.
    pub fn judge_request(&self, dedup: &Dedup) -> Result<Option<(&[u8], Timestamp)>, Stopped> {
        let Some(request) = dedup.request_key else { return Ok(None) };
        if self.claimed.contains(&(dedup.topic_id, request.key)) {
            return Err(Stopped::RetryNextBatch);
        }
        Ok(self.repeated(dedup.topic_id, &request, dedup.window_ms)?)
    }

    /// The same of any request whose key has been looked up.
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

    /// The partition that takes new keys of a ring; all that are needed have been looked at.
    pub fn slot(&self, ring: Ring) -> i16 {
        self.slots.get(&ring).copied().unwrap_or(ring.slots()[0])
    }

    fn fact(&self, topic: TopicId, key: DedupKey) -> Option<&Fact> {
        self.facts.get(&(topic, key))
    }

    /// What of a decided request is new is claimed by it.
    pub fn claim(&mut self, dedup: &Dedup, verdicts: &[RecordVerdict]) {
        let news = dedup.records.iter().zip(verdicts);
        let news = news.filter(|(_, verdict)| **verdict == RecordVerdict::New);
        let keys = news.filter_map(|(record, _)| record.key);
        let keys = keys.chain(dedup.request_key.map(|request| request.key));
        self.claimed.extend(keys.map(|key| (dedup.topic_id, key)));
    }
}

/// A key whose instant lies before what is remembered may have been used: it is not run (as an id of a
/// transaction is not).
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
