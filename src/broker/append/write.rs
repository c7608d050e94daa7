//! Writes a decided batch: the plan's rows and keys, and on the slow path what goes with them in
//! the same transaction.

use std::collections::{BTreeMap, BTreeSet};

use super::{batch::RequestBatch, txn};
use crate::{
    model::{LogId, Offset, ProducerId},
    rules::append::{cache::LogCaches, plan::Plan},
    store::{self, Connection, append::Written},
};

/// Whether a plan was applied.
pub enum PlanResult {
    Applied(Option<Written>),
    /// A compare failed: nothing was written.
    Stale,
}

/// Writes the plan if the caches are current. A plan without writes is confirmed by a read that
/// starts now, after its requests arrived.
pub async fn write_if(
    connection: &mut Connection,
    batch: &RequestBatch,
    plan: &Plan,
    is_fast: bool,
) -> Result<PlanResult, store::Error> {
    let RequestBatch { tenant, .. } = *batch;
    // a slow path holds what its transactions stand on, and writes them after its rows
    let ended = if is_fast { txn::ended(batch, plan) } else { Vec::new() };
    if !plan.writes_rows_or_keys() && ended.is_empty() {
        let held = store::append::confirm(connection, tenant, &plan.writes).await?;
        return Ok(if held { PlanResult::Applied(None) } else { PlanResult::Stale });
    }
    let records = batch.records(plan);
    let records: Vec<Option<&str>> = records.iter().map(Option::as_deref).collect();
    let written = store::append::append_if(connection, tenant, plan, &records, &ended).await?;
    Ok(written.map_or(PlanResult::Stale, |written| PlanResult::Applied(Some(written))))
}

/// Writes the plan of a slow path, registers producers that append for the first time, and commits.
/// Returns none if nothing was to be written. `now_at` are the positions of the locked logs.
pub async fn write_locked(
    mut transaction: store::Transaction<'_>,
    caches: &LogCaches,
    batch: &RequestBatch,
    plan: &Plan,
    now_at: &BTreeMap<LogId, Offset>,
    held: &txn::HeldRows,
) -> Result<Option<Written>, store::Error> {
    let ended = txn::ended(batch, plan);
    if !plan.writes_anything() {
        if batch.is_redo {
            // a write would make the lost statement's compare fail; without one the fence does, or
            // what is refused now might be stored after all
            let dependencies: Vec<LogId> = now_at.keys().copied().collect();
            store::catalog::logs::raise_fences(&mut transaction, batch.tenant, &dependencies)
                .await?;
            txn::write(&mut transaction, batch.tenant, held, &ended, plan, None).await?;
            store::commit(transaction).await?;
        } else {
            store::rollback(transaction).await?;
        }
        return Ok(None);
    }
    let PlanResult::Applied(written) = write_if(&mut transaction, batch, plan, false).await? else {
        return Err(store::Error::Unexpected("a compare failed on a locked head".into()));
    };
    let written = match written {
        None => Some(Written::at(store::session::clock(&mut transaction).await?)),
        written => written,
    };
    let ended_at = written.as_ref().map(|written| written.appended_at);
    txn::write(&mut transaction, batch.tenant, held, &ended, plan, ended_at).await?;
    if !plan.registrations.is_empty() {
        let at = |log_id| now_at.get(log_id).copied().unwrap_or(0);
        let registrations: Vec<(LogId, ProducerId, Offset)> =
            plan.registrations.iter().map(|(log, id)| (*log, *id, at(log))).collect();
        store::append::load::register(&mut transaction, batch.tenant, &registrations).await?;
    }
    if let (Some(written), false) = (&written, plan.silent.is_empty()) {
        let appended_at = written.appended_at;
        let states: Vec<_> = plan.silent_states(caches, appended_at).collect();
        let tenant = batch.tenant;
        store::append::load::write_states(&mut transaction, tenant, &states, appended_at).await?;
        let logs: BTreeSet<LogId> = states.iter().map(|(log_id, ..)| *log_id).collect();
        let logs: Vec<LogId> = logs.into_iter().collect();
        store::catalog::logs::raise_fences(&mut transaction, tenant, &logs).await?;
    }
    store::commit(transaction).await?;
    Ok(written)
}
