//! Record ids of staged records: their encoding (`staged_batches.ids`), the outcome of each at
//! commit or prepare, and the remaining lines.

use std::collections::BTreeMap;

use crate::{
    model::{
        LogId, TopicId,
        dedup::{DedupKey, PayloadDigest},
    },
    rules::append::{
        dedup::{Dedup, KeyedRecord, Known, RecordVerdict, Stopped},
        encoding::Corrupt,
    },
};

/// The stored bytes start with the number of appends before the call. Then come the format, the
/// append's position in its call, and the records.
const PREFIX_BYTES: usize = 8;
const FORMAT: u8 = 1;
const ITEM_BYTES: usize = 4;
const ID_BYTES: usize = 32;

/// A staged record with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedId {
    /// The index of its line in its row.
    pub line: u32,
    /// Its position in the append as sent.
    pub index: u32,
    pub key: DedupKey,
    /// The digest of its key and value.
    pub digest: PayloadDigest,
}

/// A topic in which ids are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdTopic {
    pub topic_id: TopicId,
    /// The journal whose head is locked to reserve ids.
    pub journal: LogId,
    /// None: ids do not expire.
    pub window_ms: Option<i64>,
}

/// A staged row in which records have ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedRow {
    pub ordinal: i64,
    pub log_id: LogId,
    pub topic: IdTopic,
    /// The index of its append in the transaction.
    pub append: i64,
    pub ids: Vec<StagedId>,
}

/// A new id, with the position of its record among the remaining lines of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewId {
    pub topic_id: TopicId,
    pub key: DedupKey,
    pub digest: PayloadDigest,
    pub log_id: LogId,
    pub ordinal: i64,
    pub position: i32,
}

/// The outcome of the records with ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordIdPlan {
    pub new: Vec<NewId>,
    /// Lines that are not stored again, by the ordinals of their rows.
    pub skipped: Vec<(i64, Vec<u32>)>,
}

/// The ids of a call's records, for each of its parts.
pub fn pack(parts: usize, dedups: &[Dedup]) -> Vec<Option<Vec<u8>>> {
    let mut packed: Vec<Option<Vec<u8>>> = vec![None; parts];
    let mut lines = vec![0; parts];
    for record in dedups.iter().flat_map(|dedup| &dedup.records) {
        let (Some(bytes), Some(line)) = (packed.get_mut(record.part), lines.get_mut(record.part))
        else {
            continue;
        };
        if let Some(key) = record.key {
            let id =
                StagedId { line: *line, index: record.index as u32, key, digest: record.digest };
            put(bytes.get_or_insert_with(|| header(record.append.unwrap_or(0))), &id);
        }
        *line += 1;
    }
    packed
}

fn header(item: usize) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    bytes.extend_from_slice(&(item as u32).to_be_bytes());
    bytes
}

fn put(bytes: &mut Vec<u8>, id: &StagedId) {
    bytes.extend_from_slice(&id.line.to_be_bytes());
    bytes.extend_from_slice(&id.index.to_be_bytes());
    bytes.extend_from_slice(id.key.as_bytes());
    bytes.extend_from_slice(&id.digest.to_be_bytes());
}

/// The stored ids of one part: the index of its append in the transaction, and the ids.
pub fn unpack(bytes: &[u8]) -> Result<(i64, Vec<StagedId>), Corrupt> {
    let (before, bytes) = bytes.split_first_chunk::<PREFIX_BYTES>().ok_or(Corrupt)?;
    let (format, bytes) = bytes.split_first().ok_or(Corrupt)?;
    let (item, bytes) = bytes.split_first_chunk::<ITEM_BYTES>().ok_or(Corrupt)?;
    let (ids, rest) = bytes.as_chunks::<ID_BYTES>();
    if *format != FORMAT || ids.is_empty() || !rest.is_empty() {
        return Err(Corrupt);
    }
    let ids: Vec<StagedId> = ids.iter().map(take).collect();
    if !ids.is_sorted_by(|one, next| one.line < next.line && one.index < next.index) {
        return Err(Corrupt);
    }
    let append = i64::from_be_bytes(*before).checked_add(i64::from(u32::from_be_bytes(*item)));
    Ok((append.ok_or(Corrupt)?, ids))
}

fn take(bytes: &[u8; ID_BYTES]) -> StagedId {
    // 4 bytes, 4 bytes, 16 bytes, 8 bytes
    let number = |from: usize, to: usize| {
        bytes[from..to].iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte))
    };
    StagedId {
        line: number(0, 4) as u32,
        index: number(4, 8) as u32,
        key: DedupKey::from_u128(number(8, 24)),
        digest: number(24, 32) as i64,
    }
}

impl IdTopic {
    /// Nothing of it is asked for yet.
    pub fn dedup(self) -> Dedup {
        Dedup {
            journal: self.journal,
            topic_id: self.topic_id,
            window_ms: self.window_ms,
            records: Vec::new(),
            refuses_duplicates: false,
            request_key: None,
        }
    }
}

/// The dedup keys of staged rows, by topic, in their order; the part of a record is its row.
pub fn dedups(rows: &[StagedRow]) -> Vec<Dedup> {
    let mut dedups: BTreeMap<TopicId, Dedup> = BTreeMap::new();
    for (part, row) in rows.iter().enumerate() {
        let dedup = dedups.entry(row.topic.topic_id).or_insert_with(|| row.topic.dedup());
        dedup.records.extend(row.ids.iter().map(|id| KeyedRecord {
            append: Some(row.append as usize),
            index: id.index as usize,
            part,
            key: Some(id.key),
            digest: id.digest,
            size_bytes: 0,
        }));
    }
    // the first record of an id is the one that came first, whatever row it lies in
    for dedup in dedups.values_mut() {
        dedup.records.sort_by_key(|record| (record.append, record.index));
    }
    dedups.into_values().collect()
}

/// Decides the staged records with ids, or why the transaction is refused. `dedups`: of these rows.
pub fn judge(known: &Known, rows: &[StagedRow], dedups: &[Dedup]) -> Result<RecordIdPlan, Stopped> {
    let mut is_new: Vec<Vec<bool>> = vec![Vec::new(); rows.len()];
    for dedup in dedups {
        for (record, verdict) in dedup.records.iter().zip(known.judge(dedup)?) {
            is_new[record.part].push(verdict == RecordVerdict::New);
        }
    }
    let mut claims = RecordIdPlan::default();
    for (row, is_new) in rows.iter().zip(is_new) {
        let mut skipped = Vec::new();
        for (id, is_new) in row.ids.iter().zip(is_new) {
            if is_new {
                claims.new.push(row.claim(id, skipped.len()));
            } else {
                skipped.push(id.line);
            }
        }
        if !skipped.is_empty() {
            claims.skipped.push((row.ordinal, skipped));
        }
    }
    Ok(claims)
}

impl StagedRow {
    /// `skipped`: earlier lines that are dropped.
    fn claim(&self, id: &StagedId, skipped: usize) -> NewId {
        NewId {
            topic_id: self.topic.topic_id,
            key: id.key,
            digest: id.digest,
            log_id: self.log_id,
            ordinal: self.ordinal,
            position: (i64::from(id.line) - skipped as i64) as i32,
        }
    }
}

/// Drops some lines of a row, and returns how many remain.
pub fn left(lines: &str, skipped: &[u32]) -> (String, i64) {
    let mut skipped = skipped.iter().copied().peekable();
    let mut left = (String::with_capacity(lines.len()), 0);
    for (line, number) in lines.split_inclusive('\n').zip(0..) {
        if skipped.next_if_eq(&number).is_none() {
            left.0.push_str(line);
            left.1 += 1;
        }
    }
    left
}
