//! The janitor: every replica runs one, small chunks, `skip locked`, no leader.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Broker, expiry};
use crate::{
    model::{LogId, ProducerId, TenantId},
    rules::{self, memory::TailRow, provenance},
    store::{self, Connection, Store, snapshots::FoldedState},
    telemetry,
};

const SWEEP_INTERVAL: Duration = Duration::from_millis(1_000);
/// Logs of one task handled in one round.
const LOGS_PER_SWEEP: i64 = 100;
/// Rows removed, or folded, in one transaction: a head is held for milliseconds.
const ROWS_PER_CHUNK: i64 = 1_000;

/// Sweeps until the broker stops.
pub async fn run(broker: Arc<Broker>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while broker.stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = sweep(&broker.store, &broker.expiry).await {
            tracing::debug!(%error, "the janitor will try again");
        }
    }
}

/// One round: everything that is due, chunk by chunk.
pub async fn sweep(store: &Store, rounds: &expiry::Rounds) -> Result<(), store::Error> {
    sweep_logs(store).await?;
    count("expiry", rounds.expire(store).await?);
    count("open_ids", expiry::drop_orphaned_opens(store).await?);
    Ok(())
}

async fn sweep_logs(store: &Store) -> Result<(), store::Error> {
    let due = store.run(|c| Box::pin(store::janitor::trimmable(c, LOGS_PER_SWEEP))).await?;
    count("trim", due.len() as u64);
    for log in due {
        while store.transaction(move |c| Box::pin(trim_chunk(c, log))).await? {}
    }
    let due = store.run(|c| Box::pin(store::janitor::unsnapped(c, LOGS_PER_SWEEP))).await?;
    count("snapshot", due.len() as u64);
    for (tenant, log) in due {
        snapshot(store, tenant, log).await?;
    }
    let due = store.run(|c| Box::pin(store::janitor::doomed(c, LOGS_PER_SWEEP))).await?;
    count("doomed_logs", due.len() as u64);
    for log in due {
        let remove = move || {
            store.transaction(move |c| {
                Box::pin(store::janitor::remove_doomed(c, log, ROWS_PER_CHUNK))
            })
        };
        while remove().await? {}
    }
    Ok(())
}

fn count(task: &'static str, due: u64) {
    metrics::counter!(telemetry::JANITOR_RUNS_TOTAL, "task" => task).increment(due);
}

async fn trim_chunk(
    connection: &mut Connection,
    log: store::janitor::Due,
) -> Result<bool, store::Error> {
    match store::janitor::lock_trimmable(connection, log).await? {
        Some((before, kept_offset)) if kept_offset < before => {
            store::janitor::trim_rows(connection, log, before, ROWS_PER_CHUNK).await
        }
        _ => Ok(false),
    }
}

/// Folds the rows since the last snapshot into the registered states, chunk by chunk.
pub async fn snapshot(store: &Store, tenant: TenantId, log: LogId) -> Result<(), store::Error> {
    let chunk = move || store.transaction(move |c| Box::pin(snapshot_chunk(c, tenant, log)));
    while chunk().await? {}
    Ok(())
}

/// True: there is more.
async fn snapshot_chunk(
    connection: &mut Connection,
    tenant: TenantId,
    log: LogId,
) -> Result<bool, store::Error> {
    let Some((from, to)) = store::snapshots::lock(connection, tenant, log).await? else {
        return Ok(false);
    };
    let rows = store::snapshots::rows(connection, tenant, log, from, to, ROWS_PER_CHUNK).await?;
    let more = rows.len() as i64 == ROWS_PER_CHUNK;
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
    Ok(more)
}
