//! The janitor: every replica runs one, small chunks, `skip locked`, no leader.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Broker, compaction, expiry, group_expiry, transaction::sweep as transactions};
use crate::{
    model::{LogId, ProducerId, TenantId},
    rules::{self, memory::TailRow, provenance},
    store::{self, Connection, Store, janitor::Chunk, snapshots::FoldedState},
    telemetry,
};

const SWEEP_INTERVAL: Duration = Duration::from_millis(1_000);
/// The partitions of a member that is gone wait for this.
const SETTLE_INTERVAL: Duration = Duration::from_millis(500);
/// Going over a log may take its time, which nothing else has to wait for.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(15);
/// Logs of one task handled in one round.
const LOGS_PER_SWEEP: i64 = 100;
/// Rows removed, or folded, in one transaction: a head is held for milliseconds.
const ROWS_PER_CHUNK: i64 = 1_000;

/// Sweeps until it is dropped. Groups are not kept waiting by the rest.
pub async fn run(broker: Arc<Broker>) {
    let settling = every(SETTLE_INTERVAL, || settle(&broker));
    let clearing = every(SWEEP_INTERVAL, || clear(&broker));
    let compacting = every(COMPACTION_INTERVAL, || compact(&broker));
    tokio::join!(settling, clearing, compacting);
}

async fn every<F: Future<Output = Result<(), store::Error>>>(
    interval: Duration,
    round: impl Fn() -> F,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // what failed was logged, and will be tried again
        let _ = round().await;
    }
}

/// One round: everything that is due, chunk by chunk. A task that fails does not hold up the others.
pub async fn sweep(broker: &Broker) -> Result<(), store::Error> {
    settle(broker).await.and(clear(broker).await).and(compact(broker).await)
}

async fn compact(broker: &Broker) -> Result<(), store::Error> {
    task("compaction", compact_logs(&broker.store, &broker.compaction)).await
}

async fn settle(broker: &Broker) -> Result<(), store::Error> {
    task("members", settle_groups(broker)).await
}

async fn clear(broker: &Broker) -> Result<(), store::Error> {
    let store = &broker.store;
    let aborted = task("transactions", abort_late(store)).await;
    let unstaged = task("staged", remove_staged(store)).await;
    let forgotten = task("outcomes", forget_outcomes(store, &broker.forgetting)).await;
    let transactions = aborted.and(unstaged).and(forgotten);
    let trimmed = task("trim", trim(store)).await;
    let snapped = task("snapshot", snapshot_trimmed(store)).await;
    let removed = task("doomed_logs", remove_doomed(store)).await;
    let expired = task("expiry", expire(store, &broker.expiry)).await;
    let forgotten = task("groups", expire_groups(store, &broker.group_expiry)).await;
    let measured = task("lag", broker.lags.measure(store)).await;
    let groups = forgotten.and(measured);
    let dropped = task("open_ids", drop_open_ids(store)).await;
    let analyzed = task("statistics", refresh_statistics(store)).await;
    let logs = trimmed.and(snapped).and(removed);
    transactions.and(logs).and(expired).and(groups).and(dropped).and(analyzed)
}

async fn task(
    task: &'static str,
    work: impl Future<Output = Result<(), store::Error>>,
) -> Result<(), store::Error> {
    let begun = Instant::now();
    let result = work.await;
    metrics::histogram!(telemetry::JANITOR_DURATION_SECONDS, "task" => task)
        .record(begun.elapsed().as_secs_f64());
    match &result {
        Ok(()) => {
            metrics::gauge!(telemetry::JANITOR_LAST_SUCCESS_TIMESTAMP_SECONDS, "task" => task)
                .set(telemetry::timestamp_seconds())
        }
        Err(error) => {
            metrics::counter!(telemetry::JANITOR_FAILURES_TOTAL, "task" => task).increment(1);
            tracing::debug!(%error, task, "the janitor will try again");
        }
    }
    result
}

fn count_due<T>(task: &'static str, due: Vec<T>) -> Vec<T> {
    metrics::counter!(telemetry::JANITOR_DUE_TOTAL, "task" => task).increment(due.len() as u64);
    due
}

/// Counts the rows of a chunk; true: there is more.
fn count_rows(task: &'static str, chunk: Chunk) -> bool {
    metrics::counter!(telemetry::JANITOR_ROWS_TOTAL, "task" => task).increment(chunk.rows);
    chunk.more
}

async fn trim(store: &Store) -> Result<(), store::Error> {
    let due = store.run(|c| Box::pin(store::janitor::trimmable(c, LOGS_PER_SWEEP))).await?;
    for log in count_due("trim", due) {
        let trim = move || store.transaction(move |c| Box::pin(trim_chunk(c, log)));
        while count_rows("trim", trim().await?) {}
    }
    Ok(())
}

async fn trim_chunk(
    connection: &mut Connection,
    log: store::janitor::Due,
) -> Result<Chunk, store::Error> {
    match store::janitor::lock_trimmable(connection, log).await? {
        Some((before, kept_offset)) if kept_offset < before => {
            store::janitor::trim_rows(connection, log, before, ROWS_PER_CHUNK).await
        }
        _ => Ok(Chunk { rows: 0, more: false }),
    }
}

/// A trim by hand waits for a snapshot.
async fn snapshot_trimmed(store: &Store) -> Result<(), store::Error> {
    let due = store.run(|c| Box::pin(store::janitor::unsnapped(c, LOGS_PER_SWEEP))).await?;
    for (tenant, log) in count_due("snapshot", due) {
        snapshot(store, tenant, log).await?;
    }
    Ok(())
}

async fn remove_doomed(store: &Store) -> Result<(), store::Error> {
    let due = store.run(|c| Box::pin(store::janitor::doomed(c, LOGS_PER_SWEEP))).await?;
    for log in count_due("doomed_logs", due) {
        let remove = move || {
            store.transaction(move |c| {
                Box::pin(store::janitor::remove_doomed(c, log, ROWS_PER_CHUNK))
            })
        };
        while count_rows("doomed_logs", remove().await?) {}
    }
    Ok(())
}

/// Drops the records of compacted topics that later ones of their keys have superseded.
async fn compact_logs(store: &Store, rounds: &compaction::Rounds) -> Result<(), store::Error> {
    for log in count_due("compaction", rounds.due(store).await?) {
        count_rows("compaction", compaction::compact(store, log).await?);
    }
    Ok(())
}

/// Members whose lease has run out are gone; partitions that were made are assigned.
async fn settle_groups(broker: &Broker) -> Result<(), store::Error> {
    let store = &broker.store;
    let late = store.run(|c| Box::pin(store::members::late(c, LOGS_PER_SWEEP))).await?;
    let outdated = store.run(|c| Box::pin(store::members::outdated(c, LOGS_PER_SWEEP))).await?;
    let late = late.into_iter().map(|due| (due, "late"));
    let outdated = outdated.into_iter().map(|due| (due, "topics"));
    for ((tenant, group), cause) in count_due("members", late.chain(outdated).collect()) {
        broker.settle_group(tenant, &group, cause).await;
    }
    Ok(())
}

/// Aborts transactions past their deadlines, and measures what is open then.
async fn abort_late(store: &Store) -> Result<(), store::Error> {
    let aborted = transactions::abort_late(store).await?;
    metrics::counter!(telemetry::JANITOR_DUE_TOTAL, "task" => "transactions").increment(aborted);
    transactions::measure(store).await
}

/// Removes what aborted transactions have staged.
async fn remove_staged(store: &Store) -> Result<(), store::Error> {
    for swept in count_due("staged", transactions::to_sweep(store).await?) {
        while count_rows("staged", transactions::sweep(store, swept).await?) {}
    }
    Ok(())
}

/// Forgets the outcomes of transactions that need be remembered no more.
async fn forget_outcomes(store: &Store, rounds: &transactions::Rounds) -> Result<(), store::Error> {
    for cutoff in count_due("outcomes", transactions::to_forget(store, rounds).await?) {
        while count_rows("outcomes", transactions::forget(store, cutoff).await?) {}
    }
    Ok(())
}

/// Forgets producers that have been idle too long.
async fn expire(store: &Store, rounds: &expiry::Rounds) -> Result<(), store::Error> {
    for (tenant, producer) in count_due("expiry", rounds.idle(store).await?) {
        count_rows("expiry", expiry::look_at(store, tenant, producer).await?);
    }
    Ok(())
}

/// Forgets groups that have been idle too long.
async fn expire_groups(store: &Store, rounds: &group_expiry::Rounds) -> Result<(), store::Error> {
    for (tenant, group) in count_due("groups", rounds.idle(store).await?) {
        count_rows("groups", group_expiry::look_at(store, tenant, group).await?);
    }
    Ok(())
}

/// Drops the open ids that expired producers have left, once no open is accepted by them.
async fn drop_open_ids(store: &Store) -> Result<(), store::Error> {
    for (tenant, open_id) in count_due("open_ids", expiry::orphaned_opens(store).await?) {
        let drop =
            store.run(move |c| Box::pin(store::expiry::drop_orphaned_open(c, tenant, open_id)));
        count_rows("open_ids", drop.await?);
    }
    Ok(())
}

/// Plans are made when a connection first runs a statement, and autovacuum looks once a minute: a
/// young installation would go by plans for empty tables meanwhile.
async fn refresh_statistics(store: &Store) -> Result<(), store::Error> {
    if store.run(|c| Box::pin(store::janitor::outgrown(c))).await? {
        count_due("statistics", vec![()]);
        store.run(|c| Box::pin(store::janitor::analyze(c))).await?;
    }
    Ok(())
}

/// Folds the rows since the last snapshot into the registered states, chunk by chunk.
pub async fn snapshot(store: &Store, tenant: TenantId, log: LogId) -> Result<(), store::Error> {
    let chunk = move || store.transaction(move |c| Box::pin(snapshot_chunk(c, tenant, log)));
    while count_rows("snapshot", chunk().await?) {}
    Ok(())
}

async fn snapshot_chunk(
    connection: &mut Connection,
    tenant: TenantId,
    log: LogId,
) -> Result<Chunk, store::Error> {
    let Some((from, to)) = store::snapshots::lock(connection, tenant, log).await? else {
        return Ok(Chunk { rows: 0, more: false });
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
    Ok(Chunk { rows: rows.len() as u64, more })
}
