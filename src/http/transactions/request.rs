//! The bodies of all calls, and how each becomes the model's.

use serde::Deserialize;
use utoipa::ToSchema;

use super::items::{Appends, Offsets, ParsedWork, TransactionAppend, TransactionOffset};
use crate::{
    broker::{Error, Taken},
    http::extract::{
        auth::Grant,
        json::{AtMost, Faults},
    },
    model::{
        Epoch, MAX_INTEGER, ProducerId,
        transaction::{Begin, Call, Caller, Work},
        uuid_v7,
    },
};

/// All fields are optional: without any an empty transaction begins, under an id of the server's.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BeginTransaction<'a> {
    /// A new UUIDv7, of about now, that makes this begin repeatable; always send one.
    #[schema(value_type = Option<Uuid>)]
    transaction_id: Option<String>,
    /// With `epoch`: the session that begins it. Every later call has to name it.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Comes with `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// How long it may stay open, at most `max_transaction_timeout_ms`; then it is aborted. The
    /// default is the session's `transaction_timeout_ms`, else the tenant's.
    #[schema(minimum = 1)]
    timeout_ms: Option<i64>,
    /// Its first records, or all of them.
    #[serde(borrow)]
    #[schema(value_type = Option<Vec<TransactionAppend>>, max_items = 10000)]
    appends: Option<Appends<'a>>,
    /// Offsets of groups to commit with it. The last one for a partition wins.
    #[schema(value_type = Option<Vec<TransactionOffset>>, max_items = 10000)]
    offsets: Option<Offsets<'a>>,
    /// True: this is the whole transaction, and it is committed at once.
    #[schema(default = false)]
    commit: Option<bool>,
}

/// More records.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendToTransaction<'a> {
    /// With `epoch`: the session that began it, if one did.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Comes with `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// The number of this call in the transaction: 0, 1, 2 ... It makes the call repeatable.
    #[schema(minimum = 0)]
    sequence: Option<i64>,
    /// One or more, in the order they are appended in.
    #[serde(borrow)]
    #[schema(value_type = Vec<TransactionAppend>, min_items = 1, max_items = 10000)]
    appends: Option<Appends<'a>>,
}

/// Offsets of groups to commit with it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddOffsetsToTransaction<'a> {
    /// With `epoch`: the session that began it, if one did.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Comes with `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// One or more. The last one for a partition wins.
    #[serde(borrow)]
    #[schema(value_type = Vec<TransactionOffset>, min_items = 1, max_items = 10000)]
    offsets: Option<Offsets<'a>>,
}

/// Who calls; `{}` where no session began the transaction.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CallTransaction {
    /// With `epoch`: the session that began it, if one did.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Comes with `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
}

/// Who commits, and what is still to be added; `{}` where no session began the transaction.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitTransaction<'a> {
    /// With `epoch`: the session that began it, if one did.
    #[schema(minimum = 0)]
    producer_id: Option<i64>,
    /// Comes with `producer_id`.
    #[schema(minimum = 0)]
    epoch: Option<i64>,
    /// Commit only if it then holds so many items of `appends`, over all calls.
    #[schema(minimum = 0)]
    expected_appends: Option<i64>,
    /// Its last records.
    #[serde(borrow)]
    #[schema(value_type = Option<Vec<TransactionAppend>>, max_items = 10000)]
    appends: Option<Appends<'a>>,
    /// Its last offsets. The last one for a partition wins.
    #[schema(value_type = Option<Vec<TransactionOffset>>, max_items = 10000)]
    offsets: Option<Offsets<'a>>,
}

impl BeginTransaction<'_> {
    pub fn checked(
        self,
        traceparent: Option<&str>,
        grant: &Grant,
        held: &mut Taken,
    ) -> Result<Begin, Error> {
        let mut faults = Faults::default();
        let session = session(self.producer_id, self.epoch, &mut faults);
        let timeout_ms = faults.range("/timeout_ms", self.timeout_ms, 1..=MAX_INTEGER);
        let asked = ParsedWork::read((self.appends, self.offsets), traceparent, held, &mut faults)?;
        faults.finish()?;
        let named = self.transaction_id.as_deref();
        let id = named.map(|text| uuid_v7(text).ok_or_else(Error::invalid_transaction_id));
        Ok(Begin {
            transaction_id: id.transpose()?,
            session,
            timeout_ms,
            work: asked.permitted(grant)?,
            commit: self.commit.unwrap_or_default(),
        })
    }
}

/// A call, and who makes it.
pub type Called = (Caller, Call);

impl AppendToTransaction<'_> {
    pub fn checked(
        self,
        traceparent: Option<&str>,
        grant: &Grant,
        held: &mut Taken,
    ) -> Result<Called, Error> {
        let mut faults = Faults::default();
        let caller = client(self.producer_id, self.epoch, &mut faults);
        let sequence = faults.count("/sequence", self.sequence);
        if self.appends.as_ref().is_none_or(AtMost::is_empty) {
            faults.add("/appends", "missing or empty; expected an array of at least one append");
        }
        let asked = ParsedWork::read((self.appends, None), traceparent, held, &mut faults)?;
        faults.finish()?;
        let Work { appends, .. } = asked.permitted(grant)?;
        Ok((caller, Call::Records { sequence, appends }))
    }
}

impl AddOffsetsToTransaction<'_> {
    pub fn checked(self, grant: &Grant, held: &mut Taken) -> Result<Called, Error> {
        let mut faults = Faults::default();
        let caller = client(self.producer_id, self.epoch, &mut faults);
        if self.offsets.as_ref().is_none_or(AtMost::is_empty) {
            faults.add("/offsets", "missing or empty; expected an array of at least one offset");
        }
        let asked = ParsedWork::read((None, self.offsets), None, held, &mut faults)?;
        faults.finish()?;
        let Work { offsets, .. } = asked.permitted(grant)?;
        Ok((caller, Call::Offsets(offsets)))
    }
}

impl CallTransaction {
    pub fn prepare(self) -> Result<Called, Error> {
        let mut faults = Faults::default();
        let caller = client(self.producer_id, self.epoch, &mut faults);
        faults.finish()?;
        Ok((caller, Call::Prepare))
    }

    pub fn abort(self, by_operator: bool) -> Result<Called, Error> {
        let mut faults = Faults::default();
        let caller = if by_operator {
            operator(self.producer_id, self.epoch, &mut faults)
        } else {
            client(self.producer_id, self.epoch, &mut faults)
        };
        faults.finish()?;
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
        let mut faults = Faults::default();
        let caller = if by_operator {
            for (name, is_empty) in [
                ("/appends", self.appends.as_ref().is_none_or(AtMost::is_empty)),
                ("/offsets", self.offsets.as_ref().is_none_or(AtMost::is_empty)),
            ] {
                if !is_empty {
                    faults.add(name, "an operator ends a transaction, and adds nothing to it");
                }
            }
            operator(self.producer_id, self.epoch, &mut faults)
        } else {
            client(self.producer_id, self.epoch, &mut faults)
        };
        let expected_appends = faults.count("/expected_appends", self.expected_appends);
        let asked = ParsedWork::read((self.appends, self.offsets), traceparent, held, &mut faults)?;
        faults.finish()?;
        Ok((caller, Call::Commit { expected_appends, work: asked.permitted(grant)? }))
    }
}

fn session(
    producer_id: Option<i64>,
    epoch: Option<i64>,
    faults: &mut Faults,
) -> Option<(ProducerId, Epoch)> {
    let parts = [("/producer_id", producer_id), ("/epoch", epoch)];
    for (pointer, value) in parts {
        faults.count(pointer, value);
        if value.is_none() && parts.iter().any(|(_, value)| value.is_some()) {
            faults.add(pointer, "missing: producer_id and epoch come together or not at all");
        }
    }
    producer_id.map(ProducerId).zip(epoch)
}

fn client(producer_id: Option<i64>, epoch: Option<i64>, faults: &mut Faults) -> Caller {
    match session(producer_id, epoch, faults) {
        Some((producer_id, epoch)) => Caller::Session(producer_id, epoch),
        None => Caller::Bearer,
    }
}

fn operator(producer_id: Option<i64>, epoch: Option<i64>, faults: &mut Faults) -> Caller {
    for (pointer, value) in [("/producer_id", producer_id), ("/epoch", epoch)] {
        if value.is_some() {
            faults.add(pointer, "an operator names no session: leave it out, or leave `as` out");
        }
    }
    Caller::Operator
}
