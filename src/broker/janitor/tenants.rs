//! Iterates over all tenants, some per round.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::{
    model::{TenantId, Timestamp, settings::OwnSettings},
    store::{self, Store},
};

const PER_ROUND: i64 = 1_000;

/// Where the next round continues.
#[derive(Default)]
pub struct Tenants {
    after: AtomicI64,
}

impl Tenants {
    /// The next tenants with their own settings, and the current time. After the last tenant it
    /// starts again.
    pub async fn next(
        &self,
        store: &Store,
    ) -> Result<(Vec<(TenantId, OwnSettings)>, Timestamp), store::Error> {
        let after = TenantId(self.after.load(Ordering::Relaxed));
        let read = store.run(async move |connection| {
            let tenants = store::catalog::tenants::page(connection, after, PER_ROUND).await?;
            Ok::<_, store::Error>((tenants, store::session::clock(connection).await?))
        });
        let (tenants, now) = read.await?;
        let last = tenants.last().filter(|_| tenants.len() as i64 == PER_ROUND);
        self.after.store(last.map_or(0, |(tenant, _)| tenant.0), Ordering::Relaxed);
        Ok((tenants, now))
    }
}
