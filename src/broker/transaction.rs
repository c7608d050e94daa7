//! Transactions of several requests: begun, added to, prepared, ended, seen.

use uuid::Uuid;

use super::{Broker, Error};
use crate::model::{
    TenantId,
    topic::{Listed, Page},
    transaction::{Answered, Begin, Call, Caller, Filter, Transaction},
};

impl Broker {
    /// Begins a transaction, or answers how one begun with the same id and payload stands now.
    pub async fn begin_transaction(
        &self,
        _tenant: TenantId,
        _begin: Begin,
    ) -> Result<Answered, Error> {
        Err(Error::internal())
    }

    pub async fn call_transaction(
        &self,
        _tenant: TenantId,
        _id: Uuid,
        _caller: Caller,
        _call: Call,
    ) -> Result<Answered, Error> {
        Err(Error::internal())
    }

    pub async fn transaction(&self, _tenant: TenantId, _id: Uuid) -> Result<Transaction, Error> {
        Err(Error::internal())
    }

    /// By id; without where their appends lie.
    pub async fn transactions(
        &self,
        _tenant: TenantId,
        _filter: Filter,
        _page: Page,
    ) -> Result<Listed<Transaction>, Error> {
        Err(Error::internal())
    }
}
