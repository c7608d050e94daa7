//! Reads watermarks from the heads of logs, one statement for all reads of a tenant that arrived
//! before it. Everything that a read asks for is as of one instant.

use std::{collections::HashMap, time::Duration};

use metrics::Histogram;
use tokio::time::Instant;

use crate::{
    broker::{
        Error,
        coalesce::{Batch, Coalescer, SharedLookup, When},
    },
    model::{GroupId, LogId, Offset, TenantId},
    store::{self, History, Store},
    telemetry,
};

/// The log start and high watermark of a partition. The high watermark of a journal is the
/// partition count of its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    pub log_start_offset: Offset,
    pub high_watermark: Offset,
    /// The history in which they were read.
    pub history: History,
}

impl Watermarks {
    pub fn ends(&self) -> (Offset, Offset) {
        (self.log_start_offset, self.high_watermark)
    }
}

#[derive(Clone)]
struct WatermarkLookup {
    store: Store,
    duration: Histogram,
    reads: Histogram,
}

impl SharedLookup for WatermarkLookup {
    type Key = LogId;
    type Found = Watermarks;
    /// Within it, readers that were woken together send their queries.
    const WINDOW: Duration = Duration::from_millis(5);

    async fn run(&self, batch: Batch<LogId>) -> Result<HashMap<LogId, Watermarks>, store::Error> {
        let begun = Instant::now();
        let seen = self.query(batch.tenant, batch.keys).await;
        self.duration.record(begun.elapsed().as_secs_f64());
        self.reads.record(batch.calls as f64);
        seen
    }
}

impl WatermarkLookup {
    async fn query(
        &self,
        tenant: TenantId,
        logs: Vec<LogId>,
    ) -> Result<HashMap<LogId, Watermarks>, store::Error> {
        let read = self.store.run(async move |connection| {
            store::catalog::logs::watermarks(connection, tenant, &logs).await
        });
        let seen = |(log, log_start_offset, high_watermark, server)| {
            let history = self.store.saw(server);
            (log, Watermarks { log_start_offset, high_watermark, history })
        };
        Ok(read.await?.into_iter().map(seen).collect())
    }
}

/// None, where watermarks are read, means that the log was deleted with its topic.
#[derive(Clone)]
pub struct WatermarkReader {
    heads: Coalescer<WatermarkLookup>,
}

impl WatermarkReader {
    pub fn new(store: Store) -> Self {
        Self {
            heads: Coalescer::new(WatermarkLookup {
                store,
                duration: metrics::histogram!(telemetry::LOOK_DURATION_SECONDS),
                reads: metrics::histogram!(telemetry::LOOK_READS),
            }),
        }
    }

    /// The log's watermarks, as of now or later.
    pub async fn read(&self, tenant: TenantId, log: LogId) -> Result<Option<Watermarks>, Error> {
        self.read_when(tenant, log, When::Now).await
    }

    /// Same; `AfterWindow` for one of many reads that were woken together.
    pub async fn read_when(
        &self,
        tenant: TenantId,
        log: LogId,
        when: When,
    ) -> Result<Option<Watermarks>, Error> {
        self.heads.find(tenant, log, when).await
    }

    /// The watermarks of all these logs, as of one instant, now or later.
    pub async fn read_all(
        &self,
        tenant: TenantId,
        logs: Vec<LogId>,
    ) -> Result<Vec<Option<Watermarks>>, Error> {
        self.heads.find_all(tenant, logs, When::Now).await
    }

    /// The watermarks of those logs that exist, as of one instant, by a statement of its own.
    pub async fn query(
        &self,
        tenant: TenantId,
        logs: Vec<LogId>,
    ) -> Result<HashMap<LogId, Watermarks>, store::Error> {
        self.heads.lookup.query(tenant, logs).await
    }

    /// The generations of those groups that exist.
    pub async fn generations(
        &self,
        tenant: TenantId,
        groups: Vec<GroupId>,
    ) -> Result<Vec<(GroupId, i64)>, store::Error> {
        let read = self.heads.lookup.store.run(async move |connection| {
            store::group::leases::generations(connection, tenant, &groups).await
        });
        read.await
    }
}
