//! The one error type of all operations: a code, a detail for people, and facts for programs.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    model::{Code, Name, Partition, ValidationErrors, validation::TooLarge},
    rules::Refusal,
    store,
    telemetry::{self, LineLimit},
};

/// The error that every operation returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    pub code: Code,
    /// What is wrong, what is expected and what to do; understandable without the title.
    pub detail: String,
    /// The facts of this code, which become members of the problem document.
    pub facts: Vec<(&'static str, Value)>,
    /// The seconds after which the same request may succeed, where that does not depend on the code
    /// alone.
    pub retry_after_s: Option<u64>,
}

impl Error {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), facts: Vec::new(), retry_after_s: None }
    }

    pub fn fact(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.facts.push((name, value.into()));
        self
    }

    /// A malformed field, named by its JSON pointer.
    pub fn invalid(pointer: &str, detail: &str) -> Self {
        ValidationErrors::at(pointer, detail).into()
    }

    pub fn topic_not_found(topic: &Name) -> Self {
        Self::new(Code::TopicNotFound, format!("Topic {topic} does not exist."))
    }

    /// Of an open transaction, which cannot be committed any more.
    pub fn topic_gone() -> Self {
        let detail =
            "A topic of this transaction was deleted. The transaction can only be aborted.";
        Self::new(Code::TopicNotFound, detail)
    }

    pub fn group_not_found(group: &Name) -> Self {
        let detail =
            format!("Group {group} does not exist. A join or an offset commit creates it.");
        Self::new(Code::GroupNotFound, detail)
    }

    pub fn no_tenant(tenant: &Name) -> Self {
        let detail = format!("Tenant {tenant} does not exist.");
        Self::new(Code::TenantNotFound, detail)
    }

    /// Where a token's use does not create tenants.
    pub fn tenant_is_unknown(tenant: &Name) -> Self {
        let detail = format!(
            "Tenant {tenant} is not known here. An operator creates it: PUT /v1/tenants/{tenant}."
        );
        Self::new(Code::Forbidden, detail)
    }

    pub fn tenant_was_deleted(tenant: &Name) -> Self {
        let detail = format!(
            "Tenant {tenant} was deleted. Only an operator can create another with its name: PUT \
             /v1/tenants/{tenant}."
        );
        Self::new(Code::TenantNotFound, detail)
    }

    pub fn too_many_tenants(limit: i64) -> Self {
        let detail = format!(
            "max_tenants is {limit}, and there are as many. An operator deletes some, or creates \
             this one."
        );
        Self::new(Code::QuotaExceeded, detail).fact("limit", limit)
    }

    /// For a tenant that is deleted between the admission of a request and its work.
    pub fn tenant_is_gone() -> Self {
        let detail = "The tenant was deleted with all its data.";
        Self::new(Code::TenantNotFound, detail)
    }

    pub fn invalid_transaction_id() -> Self {
        Refusal::InvalidTransactionId.into()
    }

    pub fn topic_in_use(topic: &Name, transaction_id: Uuid) -> Self {
        let detail = format!(
            "The prepared transaction {transaction_id} holds topic {topic} and may still commit to \
             it. Commit or abort it first."
        );
        Self::new(Code::TopicInUse, detail).fact("transaction_id", transaction_id.to_string())
    }

    pub fn partition_not_found(topic: &Name, partition: Partition, count: Partition) -> Self {
        let last = count - 1;
        let detail =
            format!("Topic {topic} has no partition {partition}; its partitions are 0 to {last}.");
        Self::new(Code::PartitionNotFound, detail)
    }

    pub fn unavailable(detail: &str) -> Self {
        Self::new(Code::Unavailable, detail)
    }

    pub fn outcome_unknown() -> Self {
        let detail = "The database connection was lost before the outcome was known. Send the same \
                      request again: an append with a sequence is stored once, and the repeat \
                      returns its offsets.";
        Self::new(Code::OutcomeUnknown, detail)
    }

    /// The same after a part of the change was committed: it is not true that nothing changed.
    pub fn after_change(self) -> Self {
        if self.code == Code::Unavailable { Self::outcome_unknown() } else { self }
    }

    pub fn internal() -> Self {
        let detail = "Internal error. The server log has details under this request id.";
        Self::new(Code::Internal, detail)
    }
}

impl From<ValidationErrors> for Error {
    fn from(invalid: ValidationErrors) -> Self {
        let ValidationErrors { listed, unlisted, too_large } = invalid;
        let (pointer, detail) = match listed.first() {
            Some(first) => (&*first.pointer, &*first.detail),
            None => ("", "the request is malformed"),
        };
        let place = if pointer.is_empty() { "the body" } else { pointer };
        if let Some(TooLarge { code, limit }) = too_large {
            return Error::new(code, format!("{place}: {detail}")).fact("limit", limit);
        }
        let more = match (listed.len(), unlisted) {
            (0 | 1, 0) => String::new(),
            (count, 0) => format!(" (and {} more, see errors)", count - 1),
            (_, unlisted) => format!(" (see errors, and {unlisted} more)"),
        };
        let detail = format!("{place}: {detail}{more}");
        Error::new(Code::InvalidRequest, detail).fact("errors", json!(listed))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let code = refusal.code();
        if let Some(key) = refusal.limited_by() {
            let limit = key.name();
            metrics::counter!(telemetry::TENANTS_LIMITED_TOTAL, "limit" => limit).increment(1);
        }
        match refusal.errors() {
            Some(errors) if code == Code::InvalidRequest => errors.into(),
            _ => Self {
                code,
                detail: refusal.to_string(),
                facts: refusal.facts(),
                retry_after_s: refusal.retry_after_s(),
            },
        }
    }
}

impl From<store::Error> for Error {
    /// Database messages go to the log, here and only here; clients never see them.
    fn from(error: store::Error) -> Self {
        metrics::counter!(telemetry::DATABASE_ERRORS_TOTAL, "kind" => error.kind()).increment(1);
        log(&error);
        match error {
            store::Error::Contended(_) => {
                Self::unavailable("The rows are contended. Nothing was changed; retry.")
            }
            store::Error::Unavailable(_) => {
                Self::unavailable("The database is unavailable. Nothing was changed; retry.")
            }
            store::Error::OutcomeUnknown(_) => Self::outcome_unknown(),
            store::Error::Unexpected(_) | store::Error::Unsuitable(_) => Self::internal(),
        }
    }
}

fn log(error: &store::Error) {
    static AWAY: LineLimit = LineLimit::new();
    static UNEXPECTED: LineLimit = LineLimit::new();
    let is_unexpected = matches!(error, store::Error::Unexpected(_) | store::Error::Unsuitable(_));
    let lines = if is_unexpected { &UNEXPECTED } else { &AWAY };
    let Some(left_out) = lines.admit() else { return };
    match error {
        store::Error::Contended(_) => {
            tracing::warn!(%error, left_out, "gave up on a contended row");
        }
        store::Error::Unavailable(_) => tracing::warn!(%error, left_out, "database unavailable"),
        store::Error::OutcomeUnknown(_) => {
            tracing::warn!(%error, left_out, "the outcome of a commit is unknown");
        }
        store::Error::Unexpected(_) | store::Error::Unsuitable(_) => {
            tracing::error!(%error, left_out, "unexpected data or answer from the database");
        }
    }
}
