//! Encodes the requests in a row (`batches.producers`) and the last requests of a state
//! (`producer_states.recent`): LEB128 integers, about 22 bytes per request.
//!
//! A format byte comes first, so that other formats can follow. The encoding is canonical: bytes
//! that this module would not write are an error, never a guess.

use super::producer_state::{Entry, Placement, RecordPlace, Remembered};
use crate::model::{Digest, MAX_INTEGER, Offset, ProducerId, Timestamp, varint};

const FORMAT: u8 = 1;
const FRESH: u8 = 1;
const TOPIC: u8 = 2;
const RECORDS: u8 = 4;

/// The bytes are not a valid encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// The entries of a row that starts at `base_offset`.
pub fn encode_entries(base_offset: Offset, entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + entries.len() * 32);
    out.push(FORMAT);
    for entry in entries {
        let fresh = if entry.fresh { FRESH } else { 0 };
        out.push(fresh | kind(&entry.placement));
        put(&mut out, entry.producer_id.0);
        put(&mut out, entry.epoch);
        put(&mut out, entry.sequence);
        out.extend_from_slice(&entry.digest);
        put_placement(&mut out, base_offset, &entry.placement);
    }
    out
}

pub fn decode_entries(base_offset: Offset, bytes: &[u8]) -> Result<Vec<Entry>, Corrupt> {
    let mut bytes = format(bytes)?;
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        let flags = flags(&mut bytes, FRESH | TOPIC | RECORDS)?;
        entries.push(Entry {
            producer_id: ProducerId(take(&mut bytes)?),
            epoch: take(&mut bytes)?,
            sequence: take(&mut bytes)?,
            fresh: flags & FRESH != 0,
            digest: digest(&mut bytes)?,
            placement: placement(&mut bytes, base_offset, flags)?,
        });
    }
    Ok(entries)
}

/// The last requests of a state, oldest first.
pub fn encode_recent<'a>(recent: impl IntoIterator<Item = &'a Remembered>) -> Vec<u8> {
    let mut out = vec![FORMAT];
    for request in recent {
        out.push(kind(&request.placement));
        put(&mut out, request.sequence);
        put(&mut out, request.appended_at.0);
        out.extend_from_slice(&request.digest);
        put_placement(&mut out, 0, &request.placement);
    }
    out
}

/// An empty encoding is the state of a producer that has only been registered.
pub fn decode_recent(bytes: &[u8]) -> Result<Vec<Remembered>, Corrupt> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut bytes = format(bytes)?;
    let mut recent = Vec::new();
    while !bytes.is_empty() {
        let flags = flags(&mut bytes, TOPIC | RECORDS)?;
        recent.push(Remembered {
            sequence: take(&mut bytes)?,
            appended_at: Timestamp(take(&mut bytes)?),
            digest: digest(&mut bytes)?,
            placement: placement(&mut bytes, 0, flags)?,
        });
    }
    Ok(recent)
}

fn kind(placement: &Placement) -> u8 {
    match placement {
        Placement::Partition { .. } => 0,
        Placement::Topic { .. } => TOPIC,
        Placement::Records(_) => RECORDS,
    }
}

fn put_placement(out: &mut Vec<u8>, origin: Offset, placement: &Placement) {
    match placement {
        Placement::Partition { base_offset } => put(out, base_offset - origin),
        Placement::Topic { partition_count, keyless, bases } => {
            put(out, i64::from(*partition_count));
            put(out, keyless.map_or(0, |partition| i64::from(partition) + 1));
            put(out, bases.len() as i64);
            for (partition, base_offset) in bases {
                put(out, i64::from(*partition));
                put(out, *base_offset);
            }
        }
        Placement::Records(records) => {
            put(out, records.len() as i64);
            records.iter().for_each(|record| put_record(out, record));
        }
    }
}

const NEW: i64 = 0;
const TWICE: i64 = 1;

fn put_record(out: &mut Vec<u8>, record: &RecordPlace) {
    put(out, i64::from(record.partition));
    put(out, record.offset.map_or(0, |offset| offset + 1));
    put(
        out,
        match record.known {
            None => NEW,
            Some(None) => TWICE,
            Some(Some(since)) => since.0 + TWICE + 1,
        },
    );
}

fn record(bytes: &mut &[u8]) -> Result<RecordPlace, Corrupt> {
    Ok(RecordPlace {
        partition: small(bytes)?,
        offset: take(bytes)?.checked_sub(1).filter(|offset| *offset >= 0),
        known: match take(bytes)? {
            NEW => None,
            TWICE => Some(None),
            since => Some(Some(Timestamp(since - TWICE - 1))),
        },
    })
}

/// The location of the records of a request with a key.
pub fn encode_placement(placement: &Placement) -> Vec<u8> {
    let mut out = vec![FORMAT, kind(placement)];
    put_placement(&mut out, 0, placement);
    out
}

pub fn decode_placement(bytes: &[u8]) -> Result<Placement, Corrupt> {
    let mut bytes = format(bytes)?;
    let flags = flags(&mut bytes, TOPIC | RECORDS)?;
    let placement = placement(&mut bytes, 0, flags)?;
    if bytes.is_empty() { Ok(placement) } else { Err(Corrupt) }
}

fn placement(bytes: &mut &[u8], origin: Offset, flags: u8) -> Result<Placement, Corrupt> {
    if flags & RECORDS != 0 {
        let (count, mut records) = (take(bytes)?, Vec::new());
        for _ in 0..count {
            records.push(record(bytes)?);
        }
        let alone = flags & TOPIC == 0;
        return if alone { Ok(Placement::Records(records)) } else { Err(Corrupt) };
    }
    if flags & TOPIC == 0 {
        let base_offset = origin.checked_add(take(bytes)?).ok_or(Corrupt)?;
        return Ok(Placement::Partition { base_offset });
    }
    let partition_count = small(bytes)?;
    let keyless = small(bytes)?.checked_sub(1).filter(|partition| *partition >= 0);
    let count = take(bytes)?;
    let mut bases = Vec::new();
    for _ in 0..count {
        bases.push((small(bytes)?, take(bytes)?));
    }
    Ok(Placement::Topic { partition_count, keyless, bases })
}

fn format(bytes: &[u8]) -> Result<&[u8], Corrupt> {
    match bytes {
        [FORMAT, rest @ ..] => Ok(rest),
        _ => Err(Corrupt),
    }
}

fn put(out: &mut Vec<u8>, number: i64) {
    varint::put(out, number as u64);
}

/// A number below 2^53.
fn take(bytes: &mut &[u8]) -> Result<i64, Corrupt> {
    let number = varint::take(bytes).and_then(|number| i64::try_from(number).ok());
    number.filter(|number| *number <= MAX_INTEGER).ok_or(Corrupt)
}

fn small(bytes: &mut &[u8]) -> Result<i32, Corrupt> {
    take(bytes)?.try_into().map_err(|_| Corrupt)
}

fn flags(bytes: &mut &[u8], known: u8) -> Result<u8, Corrupt> {
    let flags = byte(bytes)?;
    if flags & !known == 0 { Ok(flags) } else { Err(Corrupt) }
}

fn byte(bytes: &mut &[u8]) -> Result<u8, Corrupt> {
    let (first, rest) = bytes.split_first().ok_or(Corrupt)?;
    *bytes = rest;
    Ok(*first)
}

fn digest(bytes: &mut &[u8]) -> Result<Digest, Corrupt> {
    let (first, rest) = bytes.split_first_chunk().ok_or(Corrupt)?;
    *bytes = rest;
    Ok(*first)
}
