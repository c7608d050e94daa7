//! Snapshots: the rows since the last one are folded into the registered states.

use std::collections::BTreeMap;

use super::{Task, measured, size};
use crate::{
    broker::Broker,
    model::{LogId, ProducerId, TenantId},
    rules::{self, memory::TailRow, provenance},
    store::{
        self, Connection, Store,
        janitor::{Chunk, Due},
        snapshots::FoldedState,
    },
    telemetry,
};

const LOGS_PER_ROUND: i64 = 100;

/// A trim by hand waits for a snapshot. (Others are taken as logs grow.)
pub struct Snapshots;

impl Task for Snapshots {
    const NAME: &'static str = "snapshot";
    type Item = Due;

    async fn due(&self, broker: &Broker) -> Result<Vec<Due>, store::Error> {
        broker.store.run(|c| Box::pin(store::janitor::unsnapped(c, LOGS_PER_ROUND))).await
    }

    async fn chunk(&self, broker: &Broker, log: Due, rows: i64) -> Result<Chunk, store::Error> {
        chunk(&broker.store, log, rows).await
    }
}

/// Takes a snapshot, chunk by chunk.
pub async fn snapshot(store: &Store, tenant: TenantId, log: LogId) -> Result<(), store::Error> {
    let mut rows = size::FIRST;
    loop {
        let chunk = chunk(store, (tenant, log), rows);
        let (chunk, next) = measured(Snapshots::NAME, rows, chunk).await?;
        if !chunk.more {
            return Ok(());
        }
        rows = next;
    }
}

/// The head is the first lock that it waits for: nobody waits for it meanwhile.
async fn chunk(store: &Store, log: Due, rows: i64) -> Result<Chunk, store::Error> {
    store.transaction(move |c| Box::pin(fold(c, log, rows))).await
}

async fn fold(
    connection: &mut Connection,
    (tenant, log): Due,
    limit: i64,
) -> Result<Chunk, store::Error> {
    let Some((from, to)) = store::snapshots::lock(connection, tenant, log).await? else {
        return Ok(Chunk::default());
    };
    let rows = store::snapshots::rows(connection, tenant, log, from, to, limit).await?;
    let more = rows.len() as i64 == limit;
    let end = rows.last().filter(|_| more).map_or(to, |row| row.base_offset + row.record_count);
    let mut producers: Vec<ProducerId> = Vec::new();
    for row in &rows {
        let bytes = row.producers.as_deref().unwrap_or_default();
        let entries = provenance::decode_entries(row.base_offset, bytes)?;
        producers.extend(entries.iter().map(|entry| entry.producer_id));
    }
    producers.sort_unstable();
    producers.dedup();
    let states = store::snapshots::states(connection, tenant, log, &producers).await?;
    let states: BTreeMap<_, _> =
        states.into_iter().map(|s| (s.producer_id, (s.state, s.as_of_offset))).collect();
    let tail: Vec<TailRow<'_>> = rows.iter().map(store::loading::StoredRow::as_tail).collect();
    let folded: Vec<FoldedState> = rules::fold::snapshot(states, &tail)?
        .into_iter()
        .map(|(producer_id, state, last_appended_at)| FoldedState {
            producer_id,
            epoch: state.epoch,
            last_sequence: state.last_sequence,
            recent: provenance::encode_recent(&state.recent),
            last_appended_at,
        })
        .collect();
    store::snapshots::write(connection, tenant, log, end, &folded).await?;
    metrics::counter!(telemetry::SNAPSHOTS_TOTAL).increment(1);
    Ok(Chunk { rows: rows.len() as u64, more })
}
