//! The janitor tasks for transactions: they abort those past their deadlines, remove the staged
//! rows of aborted ones, forget old outcomes, and measure open transactions.

use uuid::Uuid;

use super::{Task, Tenants};
use crate::{
    broker::{Broker, janitor},
    model::{
        TenantId, Timestamp,
        transaction::{Reason, State},
    },
    rules::transaction,
    store::{
        self, Store,
        janitor::{Chunk, transactions::Cutoff},
    },
    telemetry,
};

/// Maximum number of transactions per round of a task.
const TRANSACTIONS_PER_ROUND: i64 = 1_000;
/// Maximum number aborted by one statement.
const ABORTED_AT_ONCE: usize = 100;

/// Aborts transactions past their deadlines.
pub struct Late;

impl Task for Late {
    const NAME: &'static str = "transactions";
    type Item = (TenantId, Vec<Uuid>);

    async fn due(&self, broker: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        let late = broker
            .store
            .run(async |c| store::janitor::transactions::late(c, TRANSACTIONS_PER_ROUND).await);
        let mut due = Vec::new();
        for (tenant, ids) in late.await? {
            due.extend(ids.chunks(ABORTED_AT_ONCE).map(|ids| (tenant, ids.to_vec())));
        }
        Ok(due)
    }

    async fn chunk(
        &self,
        broker: &Broker,
        (tenant, ids): Self::Item,
        _: i64,
    ) -> Result<Chunk, store::Error> {
        let expire = broker.store.run(async move |c| {
            store::janitor::transactions::expire_unless_held(c, tenant, &ids).await
        });
        let rows = expire.await?;
        count_aborted(Reason::Timeout, rows);
        Ok(Chunk { rows, more: false })
    }
}

/// Removes the staged rows of aborted transactions.
pub struct Staged;

impl Task for Staged {
    const NAME: &'static str = "staged";
    type Item = (TenantId, Uuid);

    async fn due(&self, broker: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        broker
            .store
            .run(async |c| store::transaction::staging::sweeping(c, TRANSACTIONS_PER_ROUND).await)
            .await
    }

    async fn chunk(
        &self,
        broker: &Broker,
        swept: Self::Item,
        rows: i64,
    ) -> Result<Chunk, store::Error> {
        janitor::transaction(&broker.store, async move |c| {
            store::transaction::staging::sweep(c, swept, rows).await
        })
        .await
    }
}

/// Forgets outcomes after their retention.
#[derive(Default)]
pub struct Outcomes {
    tenants: Tenants,
}

impl Task for Outcomes {
    const NAME: &'static str = "outcomes";
    type Item = Cutoff;

    async fn due(&self, broker: &Broker) -> Result<Vec<Cutoff>, store::Error> {
        let (tenants, now) = self.tenants.next(&broker.store).await?;
        let cutoffs: Vec<Cutoff> = tenants
            .iter()
            .map(|(tenant, settings)| {
                let instant = Timestamp(now.0 - transaction::retention_ms(settings));
                Cutoff { tenant: *tenant, instant }
            })
            .collect();
        let due = broker.store.run(async move |connection| {
            store::janitor::transactions::due(connection, &cutoffs).await
        });
        due.await
    }

    async fn chunk(
        &self,
        broker: &Broker,
        cutoff: Cutoff,
        rows: i64,
    ) -> Result<Chunk, store::Error> {
        janitor::transaction(&broker.store, async move |c| {
            store::janitor::transactions::forget(c, cutoff, rows).await
        })
        .await
    }
}

/// Measures open transactions in every round.
pub struct Open;

impl Task for Open {
    const NAME: &'static str = "open_transactions";
    type Item = ();

    async fn due(&self, _: &Broker) -> Result<Vec<()>, store::Error> {
        Ok(vec![()])
    }

    async fn chunk(&self, broker: &Broker, (): (), _: i64) -> Result<Chunk, store::Error> {
        measure(&broker.store).await?;
        Ok(Chunk::default())
    }
}

/// Sets the gauges of open transactions.
async fn measure(store: &Store) -> Result<(), store::Error> {
    let read = store.run(async move |connection| {
        let open = store::transaction::open(connection).await?;
        Ok::<_, store::Error>((open, store::session::clock(connection).await?))
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

/// Counts aborted transactions.
pub fn count_aborted(reason: Reason, count: u64) {
    metrics::counter!(telemetry::TRANSACTIONS_ABORTED_TOTAL, "reason" => reason.as_str())
        .increment(count);
}
