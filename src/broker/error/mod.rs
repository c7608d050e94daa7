//! The one error of all operations: a code, words for a person, facts for a program.

pub mod refusals;
pub mod tenants;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    model::{Code, Fault, Invalid, Name, Partition, invalid::TooLarge},
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
        Invalid::at(pointer, detail).into()
    }

    pub fn topic_not_found(topic: &Name) -> Self {
        Self::new(Code::TopicNotFound, format!("There is no topic {topic}."))
    }

    /// Of an open transaction, which cannot be committed any more.
    pub fn topic_gone() -> Self {
        let detail = "A topic of this transaction was deleted since. It can only be aborted.";
        Self::new(Code::TopicNotFound, detail)
    }

    pub fn group_not_found(group: &Name) -> Self {
        let detail = format!("There is no group {group}: none has committed or joined.");
        Self::new(Code::GroupNotFound, detail)
    }

    pub fn no_tenant(tenant: &Name) -> Self {
        let detail = format!("There is no tenant {tenant}: nobody made it, or it is gone.");
        Self::new(Code::TenantNotFound, detail)
    }

    /// Between a request's admission and its work.
    pub fn tenant_is_gone() -> Self {
        let detail = "The tenant was deleted, and is gone with all that it had.";
        Self::new(Code::TenantNotFound, detail)
    }

    pub fn topic_in_use(topic: &Name, transaction_id: Uuid) -> Self {
        let detail = format!(
            "The prepared transaction {transaction_id} holds topic {topic}: it may still commit \
             there. End it first."
        );
        Self::new(Code::TopicInUse, detail).fact("transaction_id", transaction_id.to_string())
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

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        let Invalid { faults, unlisted, too_large } = invalid;
        let (pointer, detail) = match faults.first() {
            Some(first) => (&*first.pointer, &*first.detail),
            None => ("", "The request is malformed"),
        };
        let place = if pointer.is_empty() { "the body" } else { pointer };
        if let Some(TooLarge { code, limit }) = too_large {
            return Error::new(code, format!("{place}: {detail}")).fact("limit", limit);
        }
        let more = match (faults.len(), unlisted) {
            (0 | 1, 0) => String::new(),
            (listed, 0) => format!(" (and {} more, see errors)", listed - 1),
            (_, unlisted) => format!(" (see errors, and {unlisted} more)"),
        };
        let detail = format!("{place}: {detail}{more}");
        Error::new(Code::InvalidRequest, detail).fact("errors", errors(&faults))
    }
}

/// The mistakes as a problem document lists them.
pub(super) fn errors(faults: &[Fault]) -> Vec<Value> {
    let error = |Fault { pointer, detail }: &Fault| json!({"pointer": pointer, "detail": detail});
    faults.iter().map(error).collect()
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
            store::Error::Unexpected(_) | store::Error::Unsuitable(_) => {
                tracing::error!(%error, "the database holds or answers something unexpected");
                Self::internal()
            }
        }
    }
}
