//! The outcomes of decided requests, once their pass is written.

use super::{batch::Outcome, txn::locate_parts};
use crate::{
    model::{
        Digest, Offset,
        transaction::{PlacedAppend, State},
    },
    rules::{
        append::{
            Request,
            dedup::RecordVerdict,
            locate_records,
            producer_state::Placement,
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
    let base = |part: usize| base(request, deltas, written, part);
    if let Some(transaction) = &request.transaction {
        let bases = (0..request.parts.len()).map(base);
        let appends = locate_parts(request, transaction, verdicts, bases);
        let row = Box::new(committed(transaction, request.digest, appends, written));
        return Outcome::Committed { row, duplicate: false };
    }
    let placement = locate_records(request, verdicts, base);
    let duplicate = match &placement {
        Placement::Records(places) => places.iter().all(|place| place.known.is_some()),
        Placement::Topic { .. } | Placement::Partition { .. } => false,
    };
    Outcome::Placed { placement, appended_at: written.appended_at, duplicate }
}

/// Every record was already stored.
pub fn all_duplicates(request: &Request, verdicts: Vec<RecordVerdict>) -> Outcome {
    let appended_at = newest(&verdicts).unwrap_or_default();
    let placement = Placement::Records(places(request, &vec![verdicts], |_| 0));
    Outcome::Placed { placement, appended_at, duplicate: true }
}

/// The offset of the first record stored from a part.
fn base(request: &Request, deltas: &[i64], written: &Written, part: usize) -> Offset {
    let base = request.parts.get(part).and_then(|part| written.bases.get(&part.log_id));
    base.map_or(0, |base| base + deltas.get(part).copied().unwrap_or(0))
}

fn committed(
    transaction: &SingleRequestTxn,
    digest: Digest,
    appends: Vec<PlacedAppend>,
    written: &Written,
) -> TransactionRow {
    let ended_at = written.ended_at.unwrap_or(written.appended_at);
    TransactionRow {
        transaction_id: transaction.transaction_id,
        state: State::Committed,
        session: transaction.session,
        digest,
        created_at: ended_at,
        expires_at: ended_at,
        prepared_at: None,
        ended_at: Some(ended_at),
        reason: None,
        append_count: transaction.append_count,
        batch_count: 0,
        next_sequence: 0,
        appends: Some(appends),
    }
}
