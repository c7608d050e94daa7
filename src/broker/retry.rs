//! Attempts at calls: what they depend on may change meanwhile, and then they start again.

use uuid::Uuid;

use super::{Broker, Error};
use crate::{
    model::{LogId, TenantId},
    rules::Refusal,
    store,
};

/// How often a call is attempted before it is given up.
pub const ATTEMPTS: usize = 8;

/// Why an attempt ended early; its database transaction is rolled back.
pub enum Stop<T> {
    Failed(Error),
    /// Nothing has to be written: this is the result of the call.
    Done(Box<T>),
    /// What the attempt depended on has changed meanwhile.
    Again,
    /// A lock was not had in time, or another transaction was first.
    Contended(store::Error),
    /// These logs need newer snapshots first.
    Behind(Vec<LogId>),
    /// This transaction is past its deadline, but not aborted yet.
    Expired(Uuid),
}

impl<T> From<Error> for Stop<T> {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl<T> From<Refusal> for Stop<T> {
    fn from(refusal: Refusal) -> Self {
        Stop::Failed(refusal.into())
    }
}

impl<T> From<store::Error> for Stop<T> {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Contended(_) => Stop::Contended(error),
            error => Stop::Failed(error.into()),
        }
    }
}

/// For callers that do not start again.
impl<T> From<Stop<T>> for Error {
    fn from(stop: Stop<T>) -> Self {
        match stop {
            Stop::Failed(error) => error,
            Stop::Contended(error) => error.into(),
            Stop::Done(_) | Stop::Again | Stop::Behind(_) | Stop::Expired(_) => Error::internal(),
        }
    }
}

impl Broker {
    /// Makes attempts, which get their number from 0 on, until one has a result or fails. None:
    /// the last one ended like those before it.
    pub(super) async fn retry<T, F: Future<Output = Result<T, Stop<T>>>>(
        &self,
        tenant: TenantId,
        attempt: impl Fn(usize) -> F,
    ) -> Result<Option<T>, Error> {
        for number in 0..ATTEMPTS {
            match attempt(number).await {
                Ok(result) => return Ok(Some(result)),
                Err(Stop::Done(result)) => return Ok(Some(*result)),
                Err(Stop::Again) => {}
                Err(Stop::Behind(logs)) => self.catch_up(tenant, logs).await?,
                Err(Stop::Expired(id)) => self.expire_transactions(tenant, vec![id]).await?,
                Err(stop @ (Stop::Failed(_) | Stop::Contended(_))) => return Err(stop.into()),
            }
        }
        Ok(None)
    }
}
