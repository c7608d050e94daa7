//! The locations of the records of a decided request, once its pass is written.

use super::{
    batch::Outcome,
    txn::{placed, stored},
};
use crate::{
    model::{Offset, Timestamp, append::PlacedRecord, transaction::State},
    rules::{
        append::{
            Request, Spread,
            dedup::RecordVerdict,
            producer_state::{Placement, RecordPlace},
            reservations::{Verdicts, newest, places},
        },
        transaction::{TransactionRow, one_request::SingleRequestTxn},
    },
    store::append::Written,
};

pub fn appended(
    request: &Request,
    deltas: &[i64],
    verdicts: &Verdicts,
    written: &Written,
) -> Outcome {
    if let Some(whole) = &request.whole {
        let row = Box::new(committed(whole, request, deltas, verdicts, written));
        return Outcome::Committed { row, duplicate: false };
    }
    let base = |part: usize| base(request, deltas, written, part);
    let appended_at = written.appended_at;
    if verdicts.iter().any(|verdicts| !verdicts.is_empty()) {
        let places = places(request, verdicts, base);
        let parts = stored(request, verdicts).into_iter().enumerate();
        return Outcome::Recorded {
            duplicate: places.iter().all(|place| place.known.is_some()),
            records: records(&places, appended_at),
            stored: parts.map(|(part, record_count)| (base(part), record_count)).collect(),
            appended_at,
        };
    }
    let bases = (request.parts.iter().enumerate()).map(|(at, part)| (part.partition, base(at)));
    let placement = match request.spread {
        Some(Spread { partition_count, keyless }) => {
            Placement::Topic { partition_count, keyless, bases: bases.collect() }
        }
        None => Placement::Partition { base_offset: bases.map(|(_, base)| base).sum() },
    };
    Outcome::Placed { placement, appended_at, duplicate: false }
}

/// Every record was already stored.
pub fn known(request: &Request, verdicts: Vec<RecordVerdict>) -> Outcome {
    let appended_at = newest(&verdicts).unwrap_or_default();
    let places = places(request, &vec![verdicts], |_| 0);
    let records = records(&places, appended_at);
    Outcome::Recorded { records, stored: Vec::new(), duplicate: true, appended_at }
}

/// The answer's form. `appended_at` applies to new records.
pub fn records(places: &[RecordPlace], appended_at: Timestamp) -> Vec<PlacedRecord> {
    let record = |place: &RecordPlace| PlacedRecord {
        partition: place.partition,
        offset: place.offset,
        duplicate: place.known.is_some(),
        first_seen_at: place.known.flatten().unwrap_or(appended_at),
    };
    places.iter().map(record).collect()
}

/// The offset of the first record stored from a part.
fn base(request: &Request, deltas: &[i64], written: &Written, part: usize) -> Offset {
    let base = request.parts.get(part).and_then(|part| written.bases.get(&part.log_id));
    base.map_or(0, |base| base + deltas.get(part).copied().unwrap_or(0))
}

fn committed(
    whole: &SingleRequestTxn,
    request: &Request,
    deltas: &[i64],
    verdicts: &Verdicts,
    written: &Written,
) -> TransactionRow {
    let ended_at = written.ended_at.unwrap_or(written.appended_at);
    let base_offsets = (0..request.parts.len()).map(|part| base(request, deltas, written, part));
    TransactionRow {
        transaction_id: whole.transaction_id,
        state: State::Committed,
        session: whole.session,
        digest: request.digest,
        created_at: ended_at,
        expires_at: ended_at,
        prepared_at: None,
        ended_at: Some(ended_at),
        reason: None,
        append_count: whole.append_count,
        batch_count: 0,
        next_sequence: 0,
        appends: Some(placed(request, whole, verdicts, base_offsets)),
    }
}
