//! Removes what deleted topics have left behind.

use super::{Task, transaction};
use crate::{
    broker::Broker,
    model::{TenantId, TopicId},
    store::{
        self,
        janitor::{Chunk, Due},
    },
};

const LOGS_PER_ROUND: i64 = 100;
const TOPICS_PER_ROUND: i64 = 100;

pub struct DoomedLogs;

impl Task for DoomedLogs {
    const NAME: &'static str = "doomed_logs";
    type Item = Due;

    async fn due(&self, broker: &Broker) -> Result<Vec<Due>, store::Error> {
        broker.store.run(async |c| store::janitor::doomed(c, LOGS_PER_ROUND).await).await
    }

    async fn chunk(&self, broker: &Broker, log: Due, rows: i64) -> Result<Chunk, store::Error> {
        let remove = transaction(&broker.store, async move |c| {
            store::janitor::remove_doomed(c, log, rows).await
        });
        remove.await
    }
}

/// Removes their dedup keys in the ring that never turns.
pub struct DoomedTopics;

impl Task for DoomedTopics {
    const NAME: &'static str = "doomed_topics";
    type Item = (TenantId, TopicId);

    async fn due(&self, broker: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        let due = broker.store.run(async |c| {
            store::janitor::deleted_tenants::doomed_topics(c, TOPICS_PER_ROUND).await
        });
        due.await
    }

    async fn chunk(
        &self,
        broker: &Broker,
        topic: Self::Item,
        rows: i64,
    ) -> Result<Chunk, store::Error> {
        let remove = transaction(&broker.store, async move |c| {
            store::janitor::deleted_tenants::remove_keys(c, topic, rows).await
        });
        remove.await
    }
}
