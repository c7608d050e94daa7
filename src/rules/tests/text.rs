//! Text tables: the rows and cells they consist of, and how refusals read in them.

use crate::{
    model::transaction::{Reason, State},
    rules::Refusal,
};

/// The rows of a table.
pub fn rows(table: &str) -> impl Iterator<Item = &str> {
    table.lines().map(str::trim).filter(|line| !line.is_empty())
}

/// The cells of a row, `given | given -> wanted`; those missing at its end are empty.
pub fn cells<const N: usize>(row: &str) -> [&str; N] {
    let mut cells = row.split("->").flat_map(|part| part.split('|')).map(str::trim);
    let found = std::array::from_fn(|_| cells.next().unwrap_or_default());
    assert_eq!(cells.next(), None, "{row}");
    found
}

/// Checks a table with the rows `given | event -> wanted`.
pub fn check(table: &str, judge: impl Fn(&str, &str) -> String) {
    for row in rows(table) {
        let [given, event, want] = cells(row);
        assert_eq!(judge(given, event), want, "{row}");
    }
}

pub fn show_state(state: State, reason: Option<Reason>) -> String {
    reason.map_or(state.as_str().into(), |why| format!("{} {}", state.as_str(), why.as_str()))
}

pub fn show_refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::UnknownProducer { producer_id } => format!("unknown P{}", producer_id.0),
        Refusal::ProducerFenced { current_epoch } => format!("fenced by e{current_epoch}"),
        Refusal::InvalidProducerEpoch { current_epoch } => format!("not issued, e{current_epoch}"),
        Refusal::UnknownProducerState { received } => format!("no state for s{received}"),
        Refusal::OutOfOrderSequence { expected, received } => {
            format!("s{received} want s{expected}")
        }
        Refusal::SequenceReused { sequence } => format!("reused s{sequence}"),
        Refusal::OffsetMismatch { expected_offset, next_offset } => {
            format!("at {next_offset} not {expected_offset}")
        }
        Refusal::BatchTooLarge { .. } => "too large".into(),
        Refusal::OpenIdReused | Refusal::TransactionReused => "reused".into(),
        Refusal::InvalidTransactionState { state, reason } => {
            format!("no, {}", show_state(*state, *reason))
        }
        Refusal::OperatorMayNotCommit => "may not".into(),
        Refusal::InvalidTransactionId => "invalid".into(),
        Refusal::TransactionExpired => "expired".into(),
        Refusal::TransactionNotFound => "not found".into(),
        Refusal::TransactionTooLarge { limit, received } => format!("{received} over {limit}"),
        Refusal::TimeoutTooLong { maximum, received } => format!("{received} over {maximum}"),
        Refusal::AppendsMissing { expected, received } => format!("{received} want {expected}"),
        Refusal::UnknownMember => "unknown".into(),
        Refusal::IllegalGeneration { generation } => format!("illegal, g{generation}"),
        Refusal::TooMany { what, limit } => format!("at most {limit} {what}"),
        other => format!("{other:?}"),
    }
}
