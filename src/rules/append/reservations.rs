//! Which records of a decided request are stored, and which keys it reserves with them.

use super::{
    Request, RequestPart,
    dedup::{Known, RecordVerdict},
    encoding,
    producer_state::{Placement, RecordPlace},
};
use crate::model::{
    LogId, Offset, Timestamp, TopicId,
    dedup::{DedupKey, PayloadDigest, Ring},
};

/// The outcomes of the records in each of a request's `dedups`.
pub type Verdicts = Vec<Vec<RecordVerdict>>;

/// A key that is stored with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReservation {
    pub journal: LogId,
    pub ring: Ring,
    /// The ring's table for new keys.
    pub slot: i16,
    pub topic_id: TopicId,
    pub key: DedupKey,
    pub digest: PayloadDigest,
    /// None: no expiry.
    pub lifetime_ms: Option<i64>,
    /// The log of its record, and the distance from the log's base in this batch.
    pub record: Option<(LogId, i64)>,
    /// The response to its request.
    pub answer: Option<Vec<u8>>,
}

/// Whether any of these records is stored.
pub fn stores_any(request: &Request, verdicts: &Verdicts) -> bool {
    stored_parts(request, verdicts).iter().any(|part| part.record_count > 0)
}

/// Whether any of these records is not stored.
pub fn skips_any(verdicts: &Verdicts) -> bool {
    verdicts.iter().flatten().any(|verdict| *verdict != RecordVerdict::New)
}

/// The stored records of a request's parts.
pub fn stored_parts(request: &Request, verdicts: &Verdicts) -> Vec<RequestPart> {
    let mut parts = request.parts.clone();
    for (dedup, verdicts) in request.dedups.iter().zip(verdicts) {
        let records = dedup.records.iter().zip(verdicts);
        for (record, _) in records.filter(|(_, verdict)| **verdict != RecordVerdict::New) {
            if let Some(part) = parts.get_mut(record.part) {
                part.record_count -= 1;
                part.size_bytes -= record.size_bytes;
            }
        }
    }
    parts
}

/// Which records of a part are stored, in order. None: all.
pub fn kept(request: &Request, verdicts: &Verdicts, part: usize) -> Option<Vec<bool>> {
    if !skips_any(verdicts) {
        return None;
    }
    let (dedup, verdicts) = request
        .dedups
        .iter()
        .zip(verdicts)
        .find(|(dedup, _)| dedup.records.iter().any(|record| record.part == part))?;
    let records = dedup.records.iter().zip(verdicts);
    let records = records.filter(|(record, _)| record.part == part);
    Some(records.map(|(_, verdict)| *verdict == RecordVerdict::New).collect())
}

/// The reservations of a request: the keys of its stored records, and its own. `deltas`: of its
/// parts; `placement`: its location, if it has a key of its own.
pub fn claims(
    request: &Request,
    verdicts: &Verdicts,
    deltas: &[i64],
    placement: Option<&Placement>,
    known: &Known,
) -> Vec<KeyReservation> {
    let mut claims = Vec::new();
    for (index, dedup) in request.dedups.iter().enumerate() {
        let claim = |key, digest, lifetime_ms| {
            let ring = Ring::of(lifetime_ms);
            KeyReservation {
                journal: dedup.journal,
                ring,
                slot: known.slot(ring),
                topic_id: dedup.topic_id,
                key,
                digest,
                lifetime_ms,
                record: None,
                answer: None,
            }
        };
        let mut next: Vec<i64> = deltas.to_vec();
        let records = dedup.records.iter().zip(verdicts.get(index).into_iter().flatten());
        for (record, _) in records.filter(|(_, verdict)| **verdict == RecordVerdict::New) {
            let (Some(part), Some(delta)) =
                (request.parts.get(record.part), next.get_mut(record.part))
            else {
                continue;
            };
            if let Some(key) = record.key {
                let record_at = Some((part.log_id, *delta));
                let claim = claim(key, record.digest, dedup.window_ms);
                claims.push(KeyReservation { record: record_at, ..claim });
            }
            *delta += 1;
        }
        if let (Some(request_key), Some(placement)) = (dedup.request_key, placement) {
            let lifetime_ms = request_key.lifetime_ms(dedup.window_ms, known.now);
            let answer = Some(encoding::encode_placement(placement));
            let claim = claim(request_key.key, request_key.digest, lifetime_ms);
            claims.push(KeyReservation { answer, ..claim });
        }
    }
    claims
}

/// The location of every record of a request with keys. `base`: of the first record that a part
/// stores.
pub fn places(
    request: &Request,
    verdicts: &Verdicts,
    mut base: impl FnMut(usize) -> Offset,
) -> Vec<RecordPlace> {
    let mut next: Vec<Offset> = (0..request.parts.len()).map(&mut base).collect();
    let (Some(dedup), Some(verdicts)) = (request.dedups.first(), verdicts.first()) else {
        return Vec::new();
    };
    let mut places: Vec<RecordPlace> = Vec::with_capacity(verdicts.len());
    for (record, verdict) in dedup.records.iter().zip(verdicts) {
        let place = match verdict {
            RecordVerdict::New => {
                let partition = request.parts.get(record.part).map_or(0, |part| part.partition);
                let offset = next.get_mut(record.part).map(|next| {
                    *next += 1;
                    *next - 1
                });
                RecordPlace { partition, offset, known: None }
            }
            RecordVerdict::Same(first) => match places.get(*first) {
                Some(first) => RecordPlace { known: Some(first.known.flatten()), ..*first },
                None => continue,
            },
            RecordVerdict::Known(seen) => RecordPlace {
                partition: seen.partition,
                offset: seen.offset,
                known: Some(Some(seen.first_seen_at)),
            },
        };
        places.push(place);
    }
    places
}

/// When the newest of these was first seen.
pub fn newest(verdicts: &[RecordVerdict]) -> Option<Timestamp> {
    let seen = |verdict: &RecordVerdict| match verdict {
        RecordVerdict::Known(seen) => Some(seen.first_seen_at),
        RecordVerdict::New | RecordVerdict::Same(_) => None,
    };
    verdicts.iter().filter_map(seen).max()
}
