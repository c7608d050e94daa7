//! The rates of tenants on this replica: the state of their token buckets.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use moka::future::Cache;
use tokio::time::Instant;

use super::{Error, REMEMBERED_TENANTS};
use crate::{
    model::{
        TenantId,
        settings::rates::{Metered, RateState},
    },
    rules::rates::{Buckets, Rates},
};

/// After so long every bucket that is not deep below zero is full.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// The buckets of every tenant that has a rate.
pub struct Meters {
    buckets: Cache<TenantId, Arc<Mutex<Buckets>>>,
    began: Instant,
}

/// The meter of a tenant with a rate. Clones share it.
#[derive(Clone, Debug)]
pub struct Meter {
    rates: Rates,
    buckets: Arc<Mutex<Buckets>>,
    began: Instant,
}

impl Meters {
    pub fn new() -> Self {
        let buckets =
            Cache::builder().max_capacity(REMEMBERED_TENANTS).time_to_idle(REMEMBERED_FOR).build();
        Self { buckets, began: Instant::now() }
    }

    /// None: the tenant has no rate.
    pub async fn of(&self, tenant: TenantId, rates: Rates) -> Option<Meter> {
        if !rates.has_any() {
            return None;
        }
        let buckets = self.buckets.get_with(tenant, async { Arc::default() }).await;
        Some(Meter { rates, buckets, began: self.began })
    }
}

impl Meter {
    fn now<T>(&self, work: impl FnOnce(&mut Buckets) -> T) -> T {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.refill(&self.rates, self.began.elapsed());
        work(&mut buckets)
    }

    /// Takes a request.
    pub fn admit(&self) -> Result<(), Error> {
        Ok(self.now(|buckets| buckets.admit(&self.rates))?)
    }

    /// Takes the bytes of a request's body.
    pub fn received(&self, bytes: u64) {
        self.now(|buckets| buckets.take(Metered::BytesIn, bytes));
    }

    /// Takes the bytes of an answer.
    pub fn answered(&self, bytes: u64) {
        self.now(|buckets| buckets.take(Metered::BytesOut, bytes));
    }

    /// The state of each rate that is limited.
    pub fn states(&self) -> Vec<RateState> {
        self.now(|buckets| buckets.states(&self.rates).collect())
    }
}
