//! Runs ANALYZE on new installations: plans are made when a connection first runs a statement, and
//! autovacuum runs once a minute, so plans would be made for empty tables.

use super::Task;
use crate::{
    broker::Broker,
    store::{self, janitor::Chunk},
};

pub struct Statistics;

impl Task for Statistics {
    const NAME: &'static str = "statistics";
    type Item = ();

    async fn due(&self, broker: &Broker) -> Result<Vec<()>, store::Error> {
        let outgrown = broker.store.run(async |c| store::janitor::outgrown(c).await).await?;
        Ok(Vec::from_iter(outgrown.then_some(())))
    }

    async fn chunk(&self, broker: &Broker, (): (), _: i64) -> Result<Chunk, store::Error> {
        broker.store.run(async |c| store::janitor::analyze(c).await).await?;
        Ok(Chunk::default())
    }
}
