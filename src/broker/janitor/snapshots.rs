//! The janitor task that takes snapshots: it folds the rows since the last one into the stored
//! producer states.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use super::{Task, size, task::measured};
use crate::{
    broker::Broker,
    model::{LogId, ProducerId, TenantId},
    rules::{
        self,
        append::{encoding, snapshot::TailRow},
    },
    store::{
        self, Connection, Store,
        janitor::{Chunk, Due, snapshots::FoldedState},
    },
    telemetry,
};

/// Maximum number of logs due after a trim, and of logs checked for rows since their snapshot, per
/// round.
const TRIMS_PER_ROUND: i64 = 100;
const LOGS_PER_ROUND: i64 = 2_000;

/// A log with more offsets since its snapshot is due, whether its writers use sequences or not: far
/// below what is still read at once (`FAR_OFFSETS`). (A lane takes snapshots of its cached logs
/// earlier, as they grow.)
const UNFOLDED_OFFSETS: i64 = 50_000;

/// The log after which the next round continues.
#[derive(Default)]
pub struct Snapshots(Mutex<Option<Due>>);

impl Task for Snapshots {
    const NAME: &'static str = "snapshot";
    type Item = Due;

    async fn due(&self, broker: &Broker) -> Result<Vec<Due>, store::Error> {
        let first = (TenantId(0), LogId(0));
        let after = self.0.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(first);
        let find = broker.store.run(async move |c| find(c, after).await);
        let (due, last) = find.await?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = last;
        Ok(due)
    }

    async fn chunk(&self, broker: &Broker, log: Due, rows: i64) -> Result<Chunk, store::Error> {
        chunk(&broker.store, log, rows).await
    }
}

/// The due logs, and the last log checked if there may be more after it.
async fn find(
    connection: &mut Connection,
    after: Due,
) -> Result<(Vec<Due>, Option<Due>), store::Error> {
    let mut due = store::janitor::unsnapped(connection, TRIMS_PER_ROUND).await?;
    let logs =
        store::janitor::unfolded(connection, after, UNFOLDED_OFFSETS, LOGS_PER_ROUND).await?;
    let last = logs.last().filter(|_| logs.len() as i64 == LOGS_PER_ROUND).map(|(log, _)| *log);
    due.extend(logs.into_iter().filter(|(_, is_due)| *is_due).map(|(log, _)| log));
    Ok((due, last))
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

/// The head is the first lock it waits for, so nobody waits for it meanwhile.
async fn chunk(store: &Store, log: Due, rows: i64) -> Result<Chunk, store::Error> {
    store.transaction(async move |c| fold(c, log, rows).await).await
}

async fn fold(
    connection: &mut Connection,
    (tenant, log): Due,
    limit: i64,
) -> Result<Chunk, store::Error> {
    let Some((from, to)) = store::janitor::snapshots::lock(connection, tenant, log).await? else {
        return Ok(Chunk::default());
    };
    let rows = store::janitor::snapshots::rows(connection, tenant, log, from, to, limit).await?;
    let more = rows.len() as i64 == limit;
    let end = rows.last().filter(|_| more).map_or(to, |row| row.base_offset + row.record_count);
    let mut producers: Vec<ProducerId> = Vec::new();
    for row in &rows {
        let Some(bytes) = row.producers.as_deref() else { continue };
        let entries = encoding::decode_entries(row.base_offset, bytes)?;
        producers.extend(entries.iter().map(|entry| entry.producer_id));
    }
    producers.sort_unstable();
    producers.dedup();
    let states = store::janitor::snapshots::states(connection, tenant, log, &producers).await?;
    let states: BTreeMap<_, _> =
        states.into_iter().map(|s| (s.producer_id, (s.state, s.as_of_offset))).collect();
    let tail: Vec<TailRow<'_>> = rows.iter().map(store::append::load::StoredRow::as_tail).collect();
    let folded: Vec<FoldedState> = rules::append::snapshot::snapshot(states, &tail)?
        .into_iter()
        .map(|(producer_id, state, last_appended_at)| FoldedState {
            producer_id,
            epoch: state.epoch,
            last_sequence: state.last_sequence,
            recent: encoding::encode_recent(&state.recent),
            last_appended_at,
        })
        .collect();
    store::janitor::snapshots::write(connection, tenant, log, end, &folded).await?;
    metrics::counter!(telemetry::SNAPSHOTS_TOTAL).increment(1);
    Ok(Chunk { rows: rows.len() as u64, more })
}
