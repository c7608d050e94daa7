//! The janitor task that removes members with expired leases and assigns new partitions.

use super::{Every, Task};
use crate::{
    broker::Broker,
    model::{Name, TenantId},
    store::{self, janitor::Chunk},
};

/// Maximum number of groups per round, for each cause.
const GROUPS_PER_ROUND: i64 = 100;

pub struct Members;

impl Task for Members {
    const NAME: &'static str = "members";
    /// Urgent: the partitions of a dead member wait for this.
    const EVERY: Every = Every::HalfSecond;
    /// A group, and why it is due.
    type Item = (TenantId, Name, &'static str);

    async fn due(&self, broker: &Broker) -> Result<Vec<Self::Item>, store::Error> {
        let store = &broker.store;
        let late = store.run(async |c| store::group::late(c, GROUPS_PER_ROUND).await).await?;
        let outdated =
            store.run(async |c| store::group::outdated(c, GROUPS_PER_ROUND).await).await?;
        let late = late.into_iter().map(|(tenant, group)| (tenant, group, "late"));
        let outdated = outdated.into_iter().map(|(tenant, group)| (tenant, group, "topics"));
        Ok(late.chain(outdated).collect())
    }

    async fn chunk(
        &self,
        broker: &Broker,
        (tenant, group, cause): Self::Item,
        _: i64,
    ) -> Result<Chunk, store::Error> {
        broker.settle_group(tenant, &group, cause).await;
        Ok(Chunk::default())
    }
}
