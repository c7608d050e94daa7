//! The janitor task that compacts logs: it applies `rules::compaction` to topics whose `cleanup` is
//! `compact`.
//!
//! A round reads rows without locks, chunk by chunk, and rewrites those of a chunk that lose
//! records in one transaction. It holds the head for milliseconds and verifies what was read: if
//! another replica changed the rows meanwhile, the round ends and leaves the log to it. A claim
//! avoids duplicate work between replicas; correctness does not depend on it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Instant,
};

use super::{Every, Task};
use crate::{
    broker::{Broker, janitor},
    model::{LogId, Offset, Timestamp, read::BatchRow, settings::Key, survivors::Kept},
    rules::{
        compaction::{Cleaned, LastOffsets, Left, clean},
        settings::in_force,
    },
    store::{
        self, Server, Store,
        janitor::{
            Chunk,
            compaction::{Candidate, Claimed, CompactedRow, Finished},
        },
    },
    telemetry,
};

/// Maximum number of logs checked per round; the next round continues after them.
const LOGS_PER_ROUND: i64 = 1_000;
/// Maximum size read, and rewritten, at once.
const CHUNK_BYTES: i64 = 512 * 1024;
const ROWS_PER_CHUNK: i64 = 1_000;
/// How long the claim of a dead replica keeps others from the log.
const CLAIM_MS: i64 = 600_000;

/// Where the next round starts.
#[derive(Default)]
pub struct Compaction {
    after_log: AtomicI64,
}

impl Task for Compaction {
    const NAME: &'static str = "compaction";
    const EVERY: Every = Every::QuarterMinute;
    type Item = Candidate;

    /// The logs that are due.
    async fn due(&self, broker: &Broker) -> Result<Vec<Candidate>, store::Error> {
        let after = LogId(self.after_log.load(Ordering::Relaxed));
        let candidates = broker.store.run(async move |connection| {
            store::janitor::compaction::candidates(connection, after, LOGS_PER_ROUND).await
        });
        let mut candidates = candidates.await?;
        let is_full = candidates.len() as i64 == LOGS_PER_ROUND;
        let last = candidates.last().filter(|_| is_full).map_or(0, |last| last.log.1.0);
        self.after_log.store(last, Ordering::Relaxed);
        candidates.retain(|found| found.standing.is_due(delay_ms(found), found.now));
        Ok(candidates)
    }

    /// Compacts a whole log in transactions of its own.
    async fn chunk(&self, broker: &Broker, log: Candidate, _: i64) -> Result<Chunk, store::Error> {
        compact(&broker.store, log).await
    }
}

/// How long tombstones are kept. None: forever.
fn delay_ms(candidate: &Candidate) -> Option<i64> {
    in_force(Key::RetentionMs, &[&candidate.topic, &candidate.tenant]).number()
}

/// Runs a round over a log, unless another replica does.
async fn compact(store: &Store, candidate: Candidate) -> Result<Chunk, store::Error> {
    let round = Round { store, candidate: &candidate, begun: Instant::now() };
    match round.run().await {
        Ok(done) => Ok(Chunk { rows: done.map_or(0, |done| done.rows), more: false }),
        // one that is held for long must not hold up the others
        Err(store::Error::Contended(_)) => Ok(Chunk { rows: 0, more: false }),
        Err(error) => Err(error),
    }
}

struct Round<'a> {
    store: &'a Store,
    candidate: &'a Candidate,
    begun: Instant,
}

/// The result of a round.
#[derive(Default)]
struct RoundResult {
    /// The number of rewritten rows, and the records they lost.
    rows: u64,
    dropped_records: i64,
    freed_bytes: i64,
    /// What is left in all rows of the round.
    left_records: i64,
    tombstones: i64,
}

impl Round<'_> {
    /// Returns none if the log is left to another replica, or was deleted.
    async fn run(self) -> Result<Option<RoundResult>, store::Error> {
        let Candidate { log: (tenant, log), standing, now, .. } = *self.candidate;
        janitor::snapshot(self.store, tenant, log).await?;
        let candidate = self.candidate.clone();
        let until = Timestamp(now.0 + CLAIM_MS);
        let claimed = self.store.write(async move |connection| {
            store::janitor::compaction::claim(connection, &candidate, until).await
        });
        let Some(claimed) = claimed.await? else { return Ok(None) };
        let Claimed { snapshot_offset, log_start_offset, server } = claimed;
        let (last, end) = self.learn(server, snapshot_offset).await?;
        let may_forget = standing.may_forget(delay_ms(self.candidate), now);
        let forget_before = if may_forget { standing.settled_offset } else { 0 };
        let mut done = RoundResult::default();
        let mut from = log_start_offset.min(end);
        while from < end {
            let rows = self.rows(server, (from, end)).await?;
            let Some(behind) = rows.last().map(|row| row.end()) else { break };
            if !self.clean(server, &rows, (&last, forget_before), &mut done).await? {
                return Ok(None);
            }
            from = behind;
        }
        let log = (tenant, log);
        let (left_records, tombstones) = (done.left_records, done.tombstones);
        let settles = may_forget || standing.tombstones == 0;
        let finish = self.store.transaction(async move |connection| {
            let now = store::session::clock(connection).await?;
            let settled = settles.then_some((end, now));
            let finished = Finished { cleaned_offset: end, left_records, tombstones, settled };
            store::janitor::compaction::finish(connection, log, standing, finished).await
        });
        finish.await?;
        self.tell(&done);
        Ok(Some(done))
    }

    /// Collects the keys of the dirty rows, as far as memory allows; returns how far.
    async fn learn(
        &self,
        server: Server,
        to: Offset,
    ) -> Result<(LastOffsets, Offset), store::Error> {
        let mut last = LastOffsets::default();
        let mut end = self.candidate.standing.cleaned_offset;
        while end < to && !last.is_full() {
            let rows = self.rows(server, (end, to)).await?;
            // the rest is a hole
            let Some(behind) = rows.last().map(|row| row.end()) else { return Ok((last, to)) };
            rows.iter().for_each(|row| last.learn(row));
            end = behind;
        }
        Ok((last, end))
    }

    async fn rows(
        &self,
        server: Server,
        range: (Offset, Offset),
    ) -> Result<Vec<Arc<BatchRow>>, store::Error> {
        let (tenant, log) = self.candidate.log;
        let most = (CHUNK_BYTES, ROWS_PER_CHUNK);
        let read = self.store.run(async move |connection| {
            store::read::rows(connection, tenant, log, range, most, server).await
        });
        read.await
    }

    /// Removes the superseded records of these rows. False: the rows have changed since they were
    /// read.
    async fn clean(
        &self,
        server: Server,
        rows: &[Arc<BatchRow>],
        (last, forget_before): (&LastOffsets, Offset),
        done: &mut RoundResult,
    ) -> Result<bool, store::Error> {
        let (mut changes, mut end) = (Vec::new(), 0);
        for row in rows {
            let Cleaned { left, records, tombstones } = clean(row, last, forget_before);
            done.left_records += records;
            done.tombstones += tombstones;
            let left = match left {
                Left::All => continue,
                Left::Some(kept, lines) => Some((kept.encode(), lines)),
                Left::Nothing => None,
            };
            let left_bytes = left.as_ref().map_or(0, |(_, lines)| lines.len());
            let freed_bytes = row.lines.len() as i64 - left_bytes as i64;
            done.rows += 1;
            done.dropped_records += row.line_count() as i64 - records;
            done.freed_bytes += freed_bytes;
            end = row.end();
            let kept = row.kept.as_ref().map(Kept::encode);
            changes.push(CompactedRow { base_offset: row.base_offset, kept, left, freed_bytes });
        }
        if changes.is_empty() {
            return Ok(true);
        }
        let log = self.candidate.log;
        let change = self.store.transaction(async move |connection| {
            store::janitor::compaction::change(connection, log, server, end, changes).await
        });
        change.await
    }

    fn tell(&self, done: &RoundResult) {
        let (tenant, log) = self.candidate.log;
        let count = |number: i64| u64::try_from(number).unwrap_or_default();
        metrics::counter!(telemetry::COMPACTED_RECORDS_TOTAL)
            .increment(count(done.dropped_records));
        metrics::counter!(telemetry::COMPACTED_BYTES_TOTAL).increment(count(done.freed_bytes));
        tracing::info!(
            tenant_id = tenant.0,
            log_id = log.0,
            dropped_records = done.dropped_records,
            freed_bytes = done.freed_bytes,
            left_records = done.left_records,
            tombstones = done.tombstones,
            duration_ms = self.begun.elapsed().as_millis() as u64,
            "log compacted"
        );
    }
}
