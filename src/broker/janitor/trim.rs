//! The janitor task that removes rows which are covered by a snapshot and before their log's start.

use super::{Task, transaction};
use crate::{
    broker::Broker,
    store::{
        self, Connection,
        janitor::{Chunk, Due},
    },
};

const LOGS_PER_ROUND: i64 = 100;

pub struct Trim;

impl Task for Trim {
    const NAME: &'static str = "trim";
    type Item = Due;

    async fn due(&self, broker: &Broker) -> Result<Vec<Due>, store::Error> {
        broker.store.run(async |c| store::janitor::trimmable(c, LOGS_PER_ROUND).await).await
    }

    async fn chunk(&self, broker: &Broker, log: Due, rows: i64) -> Result<Chunk, store::Error> {
        transaction(&broker.store, async move |c| trim(c, log, rows).await).await
    }
}

async fn trim(connection: &mut Connection, log: Due, rows: i64) -> Result<Chunk, store::Error> {
    match store::janitor::lock_trimmable(connection, log).await? {
        Some((before, kept_offset)) if kept_offset < before => {
            store::janitor::trim_rows(connection, log, before, rows).await
        }
        _ => Ok(Chunk::default()),
    }
}
