//! The janitor task that enforces retention: it removes records older than their topic keeps them,
//! and the oldest records of partitions that exceed their size.
//!
//! No schedule is stored: each round checks the next logs of all, by their heads and first rows. A
//! log that may exceed a limit is locked as by an append and checked again, and its log start moves
//! past a chunk of its oldest rows. Rows covered by a snapshot are removed in the same step, so
//! that the next one sees the current size; other rows wait for the snapshot, as after a trim.
//!
//! A prepared transaction that will commit a group's offset holds the records from there on. One
//! that is prepared while the head is locked comes after the step.

use std::sync::{Mutex, PoisonError};

use super::{Task, transaction};
use crate::{
    broker::Broker,
    model::{LogId, TenantId},
    rules::retention::{Gone, Log, RetentionLimits, step},
    store::{
        self, Connection,
        janitor::{Chunk, Due, retention::HeadSizes},
    },
    telemetry,
};

/// Maximum number of logs checked per round, and of the tenants that they may belong to; the next
/// round continues after them.
const LOGS_PER_ROUND: i64 = 2_000;
const TENANTS_PER_ROUND: i64 = 1_000;

/// Where the next round starts.
#[derive(Default)]
pub struct Retention(Mutex<Round>);

#[derive(Clone, Copy)]
struct Round {
    after: Due,
    /// The greatest overdue time since the first log.
    overdue_ms: i64,
}

impl Default for Round {
    fn default() -> Self {
        Self { after: (TenantId(0), LogId(0)), overdue_ms: 0 }
    }
}

/// The result of checking some logs.
struct DueLogs {
    due: Vec<Due>,
    overdue_ms: i64,
    /// The last log checked, if there may be more after it.
    last: Option<Due>,
}

impl Task for Retention {
    const NAME: &'static str = "retention";
    type Item = Due;

    /// Logs that may exceed a limit.
    async fn due(&self, broker: &Broker) -> Result<Vec<Due>, store::Error> {
        let round = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = broker.store.run(async move |c| find(c, round.after).await).await?;
        let overdue_ms = round.overdue_ms.max(found.overdue_ms);
        let next = match found.last {
            Some(after) => Round { after, overdue_ms },
            None => {
                let overdue_s = overdue_ms as f64 / 1_000.0;
                metrics::gauge!(telemetry::RETENTION_OVERDUE_SECONDS).set(overdue_s);
                Round::default()
            }
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(found.due)
    }

    /// One step of a log, of at most this many rows.
    async fn chunk(&self, broker: &Broker, log: Due, rows: i64) -> Result<Chunk, store::Error> {
        let take = transaction(&broker.store, async move |c| take(c, log, rows).await);
        let (by_time, by_bytes, chunk) = take.await?;
        for (limit, gone) in [("time", by_time), ("bytes", by_bytes)] {
            let count = |name| metrics::counter!(name, "limit" => limit);
            count(telemetry::RETENTION_RECORDS_TOTAL).increment(gone.records.unsigned_abs());
            count(telemetry::RETENTION_BYTES_TOTAL).increment(gone.bytes.unsigned_abs());
        }
        Ok(chunk)
    }
}

async fn find(connection: &mut Connection, after: Due) -> Result<DueLogs, store::Error> {
    // also the tenant whose logs the last round did not come to the end of
    let before = TenantId(after.0.0 - 1);
    let tenants = store::catalog::tenants::page(connection, before, TENANTS_PER_ROUND).await?;
    let mut found = DueLogs { due: Vec::new(), overdue_ms: 0, last: None };
    let Some((last, _)) = tenants.last() else { return Ok(found) };
    let mut logs = store::janitor::retention::page(connection, after, LOGS_PER_ROUND).await?;
    // those of the tenants behind come with them
    let known = logs.partition_point(|seen| seen.log.0 <= *last);
    logs.truncate(known);
    let now = store::session::clock(connection).await?;
    for HeadSizes { log, settings, next_offset, size_bytes, oldest } in &logs {
        let Some(oldest) = oldest else { continue };
        let tenant = tenants.binary_search_by_key(&log.0, |(tenant, _)| *tenant);
        // one that was made meanwhile is seen by the next round
        let Ok(tenant) = tenant.map(|at| &tenants[at].1) else { continue };
        let limits = RetentionLimits::of(&[settings, tenant]);
        let (next_offset, size_bytes) = (*next_offset, *size_bytes);
        let head = Log { log_start_offset: 0, next_offset, size_bytes, held_offset: None };
        if limits.concern(&head, oldest, now) {
            found.due.push(*log);
            found.overdue_ms = found.overdue_ms.max(limits.overdue_ms(oldest, now).unwrap_or(0));
        }
    }
    found.last = if known as i64 == LOGS_PER_ROUND {
        logs.last().map(|seen| seen.log)
    } else {
        let are_more = tenants.len() as i64 == TENANTS_PER_ROUND;
        are_more.then_some((*last, LogId(i64::MAX)))
    };
    Ok(found)
}

async fn take(
    connection: &mut Connection,
    log: Due,
    rows: i64,
) -> Result<(Gone, Gone, Chunk), store::Error> {
    let nothing = (Gone::default(), Gone::default(), Chunk::default());
    // as they are now: what was kept for longer meanwhile stays
    let (tenant, _) = store::catalog::tenants::settings(connection, log.0).await?;
    let Some(locked) = store::janitor::retention::lock(connection, log).await? else {
        return Ok(nothing);
    };
    let kept_offset = locked.kept_offset;
    let oldest = store::janitor::retention::oldest(connection, log, kept_offset, rows).await?;
    let limits = RetentionLimits::of(&[&locked.settings, &tenant]);
    let step = step(&locked.log, &oldest, &limits, locked.now);
    let moves = step.log_start_offset > locked.log.log_start_offset;
    if moves {
        store::janitor::retention::move_start(connection, log, step.log_start_offset).await?;
    }
    let before = step.log_start_offset.min(locked.snapshot_offset);
    let removed = if kept_offset < before {
        store::janitor::trim_rows(connection, log, before, rows).await?.rows
    } else {
        0
    };
    let more = oldest.len() as i64 == rows && (moves || removed > 0);
    Ok((step.by_time, step.by_bytes, Chunk { rows: removed, more }))
}
