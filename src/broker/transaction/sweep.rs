//! The janitor's part of transactions: aborts those past their deadlines, removes what aborted ones
//! staged, forgets outcomes, and measures what is open.

use std::sync::atomic::{AtomicI64, Ordering};

use uuid::Uuid;

use crate::{
    model::{
        TenantId, Timestamp,
        settings::OwnSettings,
        transaction::{Reason, State},
    },
    rules::transaction,
    store::{self, Store, forgetting::Cutoff, janitor::Chunk},
    telemetry,
};

/// Transactions handled in one round of a task.
const TRANSACTIONS_PER_ROUND: i64 = 1_000;
/// Tenants whose outcomes are looked at in one round; the next round goes on behind them.
const TENANTS_PER_ROUND: i64 = 1_000;
/// Staged rows removed, or outcomes forgotten, in one database transaction.
const ROWS_PER_CHUNK: i64 = 1_000;

/// Where the next round begins to forget.
#[derive(Default)]
pub struct Rounds {
    after_tenant: AtomicI64,
}

/// Aborts those past their deadlines; tells how many.
pub async fn abort_late(store: &Store) -> Result<u64, store::Error> {
    let late = store.run(|c| Box::pin(store::forgetting::late(c, TRANSACTIONS_PER_ROUND)));
    let mut aborted = 0;
    for (tenant, ids) in late.await? {
        let expire = store.run(move |c| {
            Box::pin(async move { store::forgetting::expire_unless_held(c, tenant, &ids).await })
        });
        aborted += expire.await?;
    }
    count_aborted(Reason::Timeout, aborted);
    Ok(aborted)
}

/// Aborted transactions whose staged rows are to be removed.
pub async fn to_sweep(store: &Store) -> Result<Vec<(TenantId, Uuid)>, store::Error> {
    store.run(|c| Box::pin(store::staging::sweeping(c, TRANSACTIONS_PER_ROUND))).await
}

/// Removes a chunk of what one of them staged.
pub async fn sweep(store: &Store, swept: (TenantId, Uuid)) -> Result<Chunk, store::Error> {
    store.transaction(move |c| Box::pin(store::staging::sweep(c, swept, ROWS_PER_CHUNK))).await
}

/// Tenants that have outcomes to forget.
pub async fn to_forget(store: &Store, rounds: &Rounds) -> Result<Vec<Cutoff>, store::Error> {
    let after = TenantId(rounds.after_tenant.load(Ordering::Relaxed));
    let due = store.run(move |connection| {
        Box::pin(async move {
            let tenants = store::tenants::page(connection, after, TENANTS_PER_ROUND).await?;
            let now = store::sessions::clock(connection).await?;
            let cutoff = |(tenant, settings): &(TenantId, OwnSettings)| {
                let instant = Timestamp(now.0 - transaction::retention_ms(settings));
                Cutoff { tenant: *tenant, instant }
            };
            let cutoffs: Vec<Cutoff> = tenants.iter().map(cutoff).collect();
            let is_full = tenants.len() as i64 == TENANTS_PER_ROUND;
            let last = tenants.last().filter(|_| is_full).map_or(0, |(tenant, _)| tenant.0);
            Ok::<_, store::Error>((store::forgetting::due(connection, &cutoffs).await?, last))
        })
    });
    let (due, last) = due.await?;
    rounds.after_tenant.store(last, Ordering::Relaxed);
    Ok(due)
}

/// Forgets a chunk of a tenant's outcomes.
pub async fn forget(store: &Store, cutoff: Cutoff) -> Result<Chunk, store::Error> {
    store.transaction(move |c| Box::pin(store::forgetting::forget(c, cutoff, ROWS_PER_CHUNK))).await
}

/// Sets the gauges of what is open.
pub async fn measure(store: &Store) -> Result<(), store::Error> {
    let read = store.run(|connection| {
        Box::pin(async move {
            let open = store::transactions::open(connection).await?;
            Ok::<_, store::Error>((open, store::sessions::clock(connection).await?))
        })
    });
    let (open, now) = read.await?;
    for state in [State::Ongoing, State::Prepared] {
        let found = open.iter().find(|(found, ..)| *found == state);
        let (count, age_ms) = found.map_or((0, 0), |(_, count, since)| (*count, now.0 - since.0));
        metrics::gauge!(telemetry::OPEN_TRANSACTIONS, "state" => state.as_str()).set(count as f64);
        metrics::gauge!(telemetry::OLDEST_TRANSACTION_AGE_SECONDS, "state" => state.as_str())
            .set(age_ms.max(0) as f64 / 1_000.0);
    }
    Ok(())
}

/// Counts transactions that were aborted.
pub fn count_aborted(reason: Reason, count: u64) {
    metrics::counter!(telemetry::TRANSACTIONS_ABORTED_TOTAL, "reason" => reason.as_str())
        .increment(count);
}
