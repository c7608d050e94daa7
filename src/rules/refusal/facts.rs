//! What programs learn of a refusal, besides its code.

use serde_json::{Value as Json, json};

use super::Refusal;
use crate::model::{ValidationError, ValidationErrors, settings::Key, transaction::Reason};

/// When a request that reached a quota is worth repeating.
const QUOTA_RETRY_AFTER_S: u64 = 5;

impl Refusal {
    /// The seconds after which the same request may succeed, where that does not depend on the code
    /// alone.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::QuotaReached { .. } => Some(QUOTA_RETRY_AFTER_S),
            Self::RateLimited { retry_after_s, .. } => Some(*retry_after_s),
            _ => None,
        }
    }

    /// The setting that limits the tenant, if one does.
    pub fn limited_by(&self) -> Option<Key> {
        match self {
            Self::QuotaReached { key, .. } | Self::RateLimited { key, .. } => Some(*key),
            _ => None,
        }
    }

    /// The facts for programs, which a code always has.
    pub fn facts(&self) -> Vec<(&'static str, Json)> {
        match self {
            Self::ProducerFenced { current_epoch }
            | Self::InvalidProducerEpoch { current_epoch } => {
                vec![("current_epoch", json!(current_epoch))]
            }
            Self::UnknownProducerState { .. } => vec![("expected", json!(0))],
            Self::OutOfOrderSequence { expected, received }
            | Self::AppendsMissing { expected, received } => {
                vec![("expected", json!(expected)), ("received", json!(received))]
            }
            Self::OffsetMismatch { expected_offset, next_offset } => {
                vec![
                    ("expected_offset", json!(expected_offset)),
                    ("next_offset", json!(next_offset)),
                ]
            }
            Self::BatchTooLarge { limit, .. }
            | Self::TransactionTooLarge { limit, .. }
            | Self::TooMany { limit, .. }
            | Self::QuotaReached { limit, .. }
            | Self::RateLimited { limit, .. } => vec![("limit", json!(limit))],
            Self::RecordHeld { transaction_id }
            | Self::ConcurrentTransactions { transaction_id } => {
                vec![("transaction_id", json!(transaction_id))]
            }
            Self::InvalidTransactionState { state, reason } => {
                vec![
                    ("state", json!(state.as_str())),
                    ("reason", json!(reason.map(Reason::as_str))),
                ]
            }
            Self::OffsetCommitConflict { expected_offset, committed_offset, pinned_by } => {
                let offsets = [
                    ("expected_offset", json!(expected_offset)),
                    ("committed_offset", json!(committed_offset)),
                ];
                let pin = pinned_by.map(|id| ("transaction_id", json!(id)));
                offsets.into_iter().chain(pin).collect()
            }
            Self::NothingProcessed { offset } => {
                vec![("expected_offset", json!(offset)), ("committed_offset", json!(offset))]
            }
            Self::OffsetOutOfRange { log_start_offset, high_watermark, .. }
            | Self::NowhereToBegin { log_start_offset, high_watermark, .. } => {
                vec![
                    ("log_start_offset", json!(log_start_offset)),
                    ("high_watermark", json!(high_watermark)),
                ]
            }
            Self::IllegalGeneration { generation } => vec![("generation", json!(generation))],
            Self::ScopeLacks { scope } | Self::SessionNotCovered { scope } => {
                vec![("required_scope", json!(scope))]
            }
            Self::NamelessSession => vec![("required_scope", json!("produce"))],
            Self::TransactionNotCovered { word } => {
                vec![("required_scope", json!(word.as_str()))]
            }
            _ => self.errors().into_iter().map(|errors| ("errors", json!(errors.listed))).collect(),
        }
    }

    /// What is wrong with parts of the request, each by its pointer.
    pub fn errors(&self) -> Option<ValidationErrors> {
        let at = |pointer: &str| Some(ValidationErrors::at(pointer, self.to_string()));
        let of_records = |records: &[String], detail: &str| {
            Some(ValidationErrors::of(
                records.iter().map(|pointer| ValidationError::new(pointer, detail)),
            ))
        };
        match self {
            Self::RecordIdReused { records } => of_records(records, "another record has this id"),
            Self::DuplicateRecord { records } => of_records(records, "already stored"),
            Self::AboveMaxima { at, settings } => {
                Some(ValidationErrors::of(settings.iter().map(|(key, value, maximum)| {
                    let detail = format!(
                        "{value} exceeds {maximum}, the operator's maximum for this tenant"
                    );
                    ValidationError::new(format!("{at}/{}", key.name()), detail)
                })))
            }
            Self::IdempotencyKeyAhead => at("Idempotency-Key"),
            Self::InvalidOpenId => at("/open_id"),
            Self::SessionMissing => at("/producer_id"),
            Self::OperatorMayNotCommit => at("?as"),
            Self::TimeoutTooLong { .. } => at("/timeout_ms"),
            _ => None,
        }
    }
}
