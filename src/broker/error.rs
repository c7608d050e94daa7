//! The one error of all operations: a code, words for a person, facts for a program.

use serde_json::{Value, json};

use crate::{
    model::{Code, Name, Partition},
    rules::Refusal,
    store, telemetry,
};

/// What an operation answers instead of its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    pub code: Code,
    /// What was wrong, what was expected, what to do; readable alone.
    pub detail: String,
    /// The code's facts, as members of the problem document.
    pub facts: Vec<(&'static str, Value)>,
}

impl Error {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), facts: Vec::new() }
    }

    pub fn fact(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.facts.push((name, value.into()));
        self
    }

    /// A malformed field, by JSON pointer.
    pub fn invalid(pointer: &str, detail: &str) -> Self {
        Self::new(Code::InvalidRequest, format!("{pointer}: {detail}"))
            .fact("errors", json!([{"pointer": pointer, "detail": detail}]))
    }

    pub fn topic_not_found(topic: &Name) -> Self {
        Self::new(Code::TopicNotFound, format!("There is no topic {topic}."))
    }

    pub fn partition_not_found(topic: &Name, partition: Partition, count: Partition) -> Self {
        let last = count - 1;
        let detail =
            format!("Topic {topic} has no partition {partition}; it has partitions 0 to {last}.");
        Self::new(Code::PartitionNotFound, detail)
    }

    pub fn precondition_failed(etag: &str) -> Self {
        let detail = format!(
            "If-Match names another state; the present one is {etag}. Read it again, then decide \
             anew. Nothing was changed."
        );
        Self::new(Code::PreconditionFailed, detail)
    }

    pub fn unavailable(detail: &str) -> Self {
        Self::new(Code::Unavailable, detail)
    }

    pub fn outcome_unknown() -> Self {
        let detail = "The database went away before it answered. Send the same request again: \
                      with a sequence it is stored once, and the repeat tells where.";
        Self::new(Code::OutcomeUnknown, detail)
    }

    pub fn internal() -> Self {
        let detail = "The server met something it does not understand; its log tells more.";
        Self::new(Code::Internal, detail)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::UnknownProducer { producer_id } => {
                let id = producer_id.0;
                let detail =
                    format!("There is no producer {id}, or it has expired. Open a session.");
                Self::new(Code::UnknownProducer, detail)
            }
            Refusal::ProducerFenced { current_epoch } => {
                let detail = format!(
                    "A newer session of this producer was opened: its epoch is {current_epoch}. \
                     This one may do nothing any more."
                );
                Self::new(Code::ProducerFenced, detail).fact("current_epoch", current_epoch)
            }
            Refusal::InvalidProducerEpoch { current_epoch } => {
                let detail = format!(
                    "This epoch was never issued; the producer's is {current_epoch}. Epochs come \
                     from opening a session."
                );
                Self::new(Code::InvalidProducerEpoch, detail).fact("current_epoch", current_epoch)
            }
            Refusal::UnknownProducerState { received } => {
                let detail = format!(
                    "This producer has never appended here, so sequence 0 is expected, not \
                     {received}."
                );
                Self::new(Code::UnknownProducerState, detail).fact("expected", 0)
            }
            Refusal::OutOfOrderSequence { expected, received } => {
                let detail = format!(
                    "Sequence {expected} is expected here, not {received}: a request before this \
                     one is missing."
                );
                Self::new(Code::OutOfOrderSequence, detail)
                    .fact("expected", expected)
                    .fact("received", received)
            }
            Refusal::SequenceReused { sequence } => {
                let detail = format!("Sequence {sequence} was used here with other records.");
                Self::new(Code::SequenceReused, detail)
            }
            Refusal::OffsetMismatch { expected_offset, next_offset } => {
                let detail = format!(
                    "The partition's next offset is {next_offset}, not {expected_offset}. Nothing \
                     was appended."
                );
                Self::new(Code::OffsetMismatch, detail)
                    .fact("expected_offset", expected_offset)
                    .fact("next_offset", next_offset)
            }
            Refusal::BatchTooLarge { limit_name, limit, received } => {
                let detail = format!("{limit_name} is {limit} here; this batch has {received}.");
                Self::new(Code::BatchTooLarge, detail).fact("limit", limit)
            }
            Refusal::PreconditionFailed { etag } => Self::precondition_failed(&etag),
            Refusal::OpenIdReused => {
                let detail = "This open_id was used by an open of another transactional_id or \
                              producer_id. Make a new one for every open.";
                Self::new(Code::IdempotencyKeyReused, detail)
            }
            Refusal::InvalidOpenId => Self::invalid(
                "/open_id",
                "an open_id is a UUIDv7 whose instant lies within 24 hours of the server's clock",
            ),
        }
    }
}

impl From<store::Error> for Error {
    /// The database's own words go to the log, here, once.
    fn from(error: store::Error) -> Self {
        metrics::counter!(telemetry::DATABASE_ERRORS_TOTAL, "kind" => error.kind()).increment(1);
        match &error {
            store::Error::Contended(_) => {
                tracing::warn!(%error, "gave up on a contended row");
                Self::unavailable("Too much was going on at the same rows. Nothing was changed.")
            }
            store::Error::Unavailable(_) => {
                tracing::warn!(%error, "the database is unavailable");
                Self::unavailable("The database cannot be reached right now. Nothing was changed.")
            }
            store::Error::OutcomeUnknown(_) => {
                tracing::warn!(%error, "the outcome of a commit is unknown");
                Self::outcome_unknown()
            }
            store::Error::Corrupt(_) => {
                tracing::error!(%error, "the database holds or answers something unexpected");
                Self::internal()
            }
        }
    }
}
