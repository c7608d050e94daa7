//! The bodies of all transaction calls, and their conversion into the model's types.

use serde::Deserialize;
use utoipa::ToSchema;

use super::items::{Appends, Offsets, ParsedWork, TransactionAppend, TransactionOffset};
use crate::{
    broker::{Error, Taken},
    http::extract::{auth::Grant, json::AtMost},
    model::{
        Epoch, MAX_INTEGER, ProducerId, ValidationErrors,
        dedup::RequestKey,
        transaction::{Begin, Call, Caller, Work},
        uuid_v7,
    },
};

/// All fields are optional: `{}` begins an empty transaction with an id from the server.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginTransaction<'a> {
    /// A new, recent UUIDv7 that makes this begin safe to repeat; always send one, or, with
    /// `commit`, an `Idempotency-Key` instead.
    #[schema(value_type = Option<Uuid>)]
    transaction_id: Option<String>,
    /// The session that begins the transaction. Requires `epoch`; every later call must send both.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Requires `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// How long the transaction may stay open before it is aborted, at most
    /// `max_transaction_timeout_ms`. Default: the session's `transaction_timeout_ms`, else the
    /// tenant's.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// The first records, or all of them.
    #[serde(borrow)]
    #[schema(value_type = Option<Vec<TransactionAppend>>, max_items = 10000)]
    appends: Option<Appends<'a>>,
    /// Group offsets to commit with the transaction. If a partition occurs twice, the last one
    /// wins.
    #[schema(value_type = Option<Vec<TransactionOffset>>, max_items = 10000)]
    offsets: Option<Offsets<'a>>,
    /// True: this is the whole transaction, which is committed at once.
    #[schema(default = false)]
    commit: Option<bool>,
}

/// Records to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendToTransaction<'a> {
    /// The session that began the transaction, if any. Requires `epoch`.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Requires `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// The sequence of this call in the transaction: 0, 1, 2 ... It makes the call safe to repeat.
    #[schema(minimum = 0)]
    sequence: Option<i64>,
    /// One or more appends, stored in this order.
    #[serde(borrow)]
    #[schema(value_type = Vec<TransactionAppend>, min_items = 1, max_items = 10000)]
    appends: Option<Appends<'a>>,
}

/// Group offsets to commit with the transaction.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddOffsetsToTransaction<'a> {
    /// The session that began the transaction, if any. Requires `epoch`.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Requires `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// One or more offsets. If a partition occurs twice, the last one wins.
    #[serde(borrow)]
    #[schema(value_type = Vec<TransactionOffset>, min_items = 1, max_items = 10000)]
    offsets: Option<Offsets<'a>>,
}

/// The caller; `{}` if no session began the transaction.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallTransaction {
    /// The session that began the transaction, if any. Requires `epoch`.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Requires `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
}

/// The caller, and the last contents; `{}` if no session began the transaction and nothing is to be
/// added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitTransaction<'a> {
    /// The session that began the transaction, if any. Requires `epoch`.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Requires `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// Commit only if the transaction then holds this many items of `appends`, over all calls.
    #[schema(minimum = 0)]
    expected_appends: Option<i64>,
    /// The last records.
    #[serde(borrow)]
    #[schema(value_type = Option<Vec<TransactionAppend>>, max_items = 10000)]
    appends: Option<Appends<'a>>,
    /// The last offsets. If a partition occurs twice, the last one wins.
    #[schema(value_type = Option<Vec<TransactionOffset>>, max_items = 10000)]
    offsets: Option<Offsets<'a>>,
}

impl BeginTransaction<'_> {
    pub fn checked(
        self,
        idempotency_key: Option<RequestKey>,
        traceparent: Option<&str>,
        grant: &Grant,
        held: &mut Taken,
    ) -> Result<Begin, Error> {
        let mut errors = ValidationErrors::default();
        let commit = self.commit.unwrap_or_default();
        if idempotency_key.is_some() && !commit {
            errors.add("Idempotency-Key", KEY_WITHOUT_COMMIT);
        } else if idempotency_key.is_some() && self.transaction_id.is_some() {
            errors.add("Idempotency-Key", "give it or a transaction_id, not both");
        }
        let session = parse_session(self.producer_id, self.epoch, &mut errors);
        let timeout_ms = errors.range("/timeout_ms", self.timeout_ms, 1..=MAX_INTEGER);
        let work = ParsedWork::read((self.appends, self.offsets), traceparent, held, &mut errors)?;
        errors.finish()?;
        let named = self.transaction_id.as_deref();
        let id = named.map(|text| uuid_v7(text).ok_or_else(Error::invalid_transaction_id));
        Ok(Begin {
            transaction_id: id.transpose()?,
            idempotency_key,
            session,
            timeout_ms,
            work: work.permitted(grant)?,
            commit,
            scopes: grant.scopes.clone(),
        })
    }
}

const KEY_WITHOUT_COMMIT: &str = "taken only with \"commit\": true; a transaction of several \
    requests is repeated by its id: begin with a transaction_id of your own";

/// A call with its caller.
pub type Called = (Caller, Call);

impl AppendToTransaction<'_> {
    pub fn checked(
        self,
        traceparent: Option<&str>,
        grant: &Grant,
        held: &mut Taken,
    ) -> Result<Called, Error> {
        let mut errors = ValidationErrors::default();
        let caller = client(self.producer_id, self.epoch, &mut errors);
        let sequence = errors.count("/sequence", self.sequence);
        if self.appends.as_ref().is_none_or(AtMost::is_empty) {
            errors.add("/appends", "missing or empty; expected an array of at least one append");
        }
        let work = ParsedWork::read((self.appends, None), traceparent, held, &mut errors)?;
        errors.finish()?;
        let Work { appends, .. } = work.permitted(grant)?;
        Ok((caller, Call::Records { sequence, appends }))
    }
}

impl AddOffsetsToTransaction<'_> {
    pub fn checked(self, grant: &Grant, held: &mut Taken) -> Result<Called, Error> {
        let mut errors = ValidationErrors::default();
        let caller = client(self.producer_id, self.epoch, &mut errors);
        if self.offsets.as_ref().is_none_or(AtMost::is_empty) {
            errors.add("/offsets", "missing or empty; expected an array of at least one offset");
        }
        let work = ParsedWork::read((None, self.offsets), None, held, &mut errors)?;
        errors.finish()?;
        let Work { offsets, .. } = work.permitted(grant)?;
        Ok((caller, Call::Offsets(offsets)))
    }
}

impl CallTransaction {
    pub fn prepare(self) -> Result<Called, Error> {
        let mut errors = ValidationErrors::default();
        let caller = client(self.producer_id, self.epoch, &mut errors);
        errors.finish()?;
        Ok((caller, Call::Prepare))
    }

    pub fn abort(self, by_operator: bool) -> Result<Called, Error> {
        let mut errors = ValidationErrors::default();
        let caller = if by_operator {
            operator(self.producer_id, self.epoch, &mut errors)
        } else {
            client(self.producer_id, self.epoch, &mut errors)
        };
        errors.finish()?;
        Ok((caller, Call::Abort))
    }
}

impl CommitTransaction<'_> {
    pub fn checked(
        self,
        traceparent: Option<&str>,
        grant: &Grant,
        by_operator: bool,
        held: &mut Taken,
    ) -> Result<Called, Error> {
        let mut errors = ValidationErrors::default();
        let caller = if by_operator {
            for (name, is_empty) in [
                ("/appends", self.appends.as_ref().is_none_or(AtMost::is_empty)),
                ("/offsets", self.offsets.as_ref().is_none_or(AtMost::is_empty)),
            ] {
                if !is_empty {
                    errors.add(name, "an operator can only end a transaction, not add to it");
                }
            }
            operator(self.producer_id, self.epoch, &mut errors)
        } else {
            client(self.producer_id, self.epoch, &mut errors)
        };
        let expected_appends = errors.count("/expected_appends", self.expected_appends);
        let work = ParsedWork::read((self.appends, self.offsets), traceparent, held, &mut errors)?;
        errors.finish()?;
        Ok((caller, Call::Commit { expected_appends, work: work.permitted(grant)? }))
    }
}

fn parse_session(
    producer_id: Option<i64>,
    epoch: Option<i64>,
    errors: &mut ValidationErrors,
) -> Option<(ProducerId, Epoch)> {
    let parts = [("/producer_id", producer_id), ("/epoch", epoch)];
    for (pointer, value) in parts {
        errors.count(pointer, value);
        if value.is_none() && parts.iter().any(|(_, value)| value.is_some()) {
            errors.add(pointer, "missing: give producer_id and epoch together, or neither");
        }
    }
    producer_id.map(ProducerId).zip(epoch)
}

fn client(producer_id: Option<i64>, epoch: Option<i64>, errors: &mut ValidationErrors) -> Caller {
    match parse_session(producer_id, epoch, errors) {
        Some((producer_id, epoch)) => Caller::Session(producer_id, epoch),
        None => Caller::Bearer,
    }
}

fn operator(producer_id: Option<i64>, epoch: Option<i64>, errors: &mut ValidationErrors) -> Caller {
    for (pointer, value) in [("/producer_id", producer_id), ("/epoch", epoch)] {
        if value.is_some() {
            errors.add(pointer, "an operator names no session: omit it, or omit `as`");
        }
    }
    Caller::Operator
}
