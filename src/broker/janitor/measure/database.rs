//! The janitor task that measures the database as oncelog's role sees it: the sizes of tables, and
//! transactions that keep vacuum from removing rows.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    broker::{
        Broker,
        janitor::{Task, Throttle},
    },
    store::{
        self,
        janitor::{Chunk, measure},
    },
    telemetry::{self, OTHERS},
};

const MEASURED_EVERY: Duration = Duration::from_secs(15);

pub struct Database(Throttle);

impl Default for Database {
    fn default() -> Self {
        Self(Throttle::every(MEASURED_EVERY))
    }
}

impl Task for Database {
    const NAME: &'static str = "database";
    type Item = ();

    async fn due(&self, _: &Broker) -> Result<Vec<()>, store::Error> {
        Ok(self.0.due())
    }

    async fn chunk(&self, broker: &Broker, (): (), _: i64) -> Result<Chunk, store::Error> {
        let begun = Instant::now();
        let read = broker.store.run(async move |connection| {
            let tables = measure::tables(connection).await?;
            Ok::<_, store::Error>((tables, measure::oldest_transaction(connection).await?))
        });
        let (tables, oldest) = read.await?;
        let is_shown = |table: &str| telemetry::TABLES.contains(&table);
        for name in telemetry::TABLES {
            let is_in = |table: &str| table == *name || *name == OTHERS && !is_shown(table);
            let bytes: i64 = tables.iter().filter(|(t, _)| is_in(t)).map(|(_, bytes)| bytes).sum();
            metrics::gauge!(telemetry::DATABASE_TABLE_BYTES, "table" => *name).set(bytes as f64);
        }
        metrics::gauge!(telemetry::DATABASE_OLDEST_TRANSACTION_AGE_SECONDS).set(oldest.age_seconds);
        metrics::gauge!(telemetry::DATABASE_OLDEST_XMIN_AGE_TRANSACTIONS)
            .set(oldest.xmin_age_transactions as f64);
        self.0.done(begun);
        Ok(Chunk::default())
    }
}
