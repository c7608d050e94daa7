//! The janitor: all background maintenance (expiry, removal, snapshots, measurements) in one
//! framework.
//!
//! A `Task` finds due items without locks, a limited number at a time, and processes them in
//! chunks. A chunk is one database transaction (`transaction`): it locks its item, or skips one
//! that is locked (`skip locked`; where locks are nearly permanent, it waits very briefly), checks
//! again whether it is due, and processes a limited number of rows. So every replica runs a janitor
//! and there is no leader: two on one item do the same as one.
//!
//! ```text
//! every 500 ms   members
//! every second   transactions, staged, outcomes, trim, ... one after the other
//! every 15 s     compaction
//!
//! a round of a task:   items the last round left, then due items       [a b c]
//!                      a chunk of each in turn, until none is left     a b c a c a
//!                      or the time is up: the next round does the rest
//! ```
//!
//! - A chunk lasts as long as any lock that it holds, and waits only briefly for more. (Except
//!   compaction, which covers a whole log in short transactions of its own.) The first chunk of an
//!   item is small, and the next grows or shrinks with the time it took (`size`), so rows of a
//!   megabyte and slow disks get small chunks.
//! - No task takes more than `TASK_TIME` of a round (compaction: `PATIENT_TASK_TIME`), and no item
//!   more than its turn.
//! - An item that cannot be locked in time is counted and found again. Any other failure ends the
//!   round of its task: the items after it are processed in the next round, so no item blocks the
//!   others.
//! - Every task has the same metrics, labelled with its name.
//!
//! To add a task: implement `Task` for a struct, which holds its state if it needs any (`Tenants`
//! to iterate over all tenants, `Seldom` to run less often); add it to the list in `Janitor::new`,
//! and its name to the label `task` in `telemetry::table`.

pub mod compaction;
pub mod deleted_tenants;
mod deleted_topics;
pub mod groups;
mod key_rings;
pub mod lags;
mod members;
pub mod producers;
pub mod retention;
mod size;
mod snapshots;
mod statistics;
mod tenants;
mod throttle;
pub mod transactions;
mod trim;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

pub use self::{snapshots::snapshot, tenants::Tenants, throttle::Throttle};
use super::{Broker, ServiceConfig};
use crate::{
    store::{self, Store, Work, janitor::Chunk},
    telemetry,
};

/// Time limit of a task per round, not counting the end of its last chunk.
const TASK_TIME: Duration = Duration::from_millis(250);
/// Time limit of a task that nothing else waits for.
const PATIENT_TASK_TIME: Duration = Duration::from_secs(10);

/// How often a task runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// Something waits for it.
    HalfSecond,
    Second,
    /// It may take its time; nothing else waits for it.
    QuarterMinute,
}

/// A task of the janitor.
pub trait Task: Send + Sync + 'static {
    /// The label of its metrics.
    const NAME: &'static str;
    const EVERY: Every = Every::Second;
    /// The unit of work, processed in chunks.
    type Item: Clone + Send;

    /// Finds due items without locks: at most as many as a round can process.
    fn due(
        &self,
        broker: &Broker,
    ) -> impl Future<Output = Result<Vec<Self::Item>, store::Error>> + Send;

    /// Processes about this many rows of an item if it is still due and not locked.
    fn chunk(
        &self,
        broker: &Broker,
        item: Self::Item,
        rows: i64,
    ) -> impl Future<Output = Result<Chunk, store::Error>> + Send;
}

/// The tasks of a replica, in the order of a round.
pub struct Janitor(Vec<Box<dyn Rounds>>);

impl Janitor {
    pub fn new(settings: &ServiceConfig) -> Self {
        Self(vec![
            task(members::Members),
            task(transactions::Late),
            task(transactions::Staged),
            task(transactions::Outcomes::default()),
            task(transactions::Open),
            task(retention::Retention::default()),
            task(compaction::Compaction::default()),
            task(trim::Trim),
            task(snapshots::Snapshots::default()),
            task(deleted_topics::DoomedLogs),
            task(deleted_topics::DoomedTopics),
            task(deleted_tenants::DeletedTenants::default()),
            task(producers::Producers::default()),
            task(producers::OpenIds),
            task(groups::Groups::default()),
            task(lags::Lags::new(settings.max_lag_series)),
            task(key_rings::KeyRings),
            task(key_rings::KeySizes::default()),
            task(statistics::Statistics),
        ])
    }

    /// Runs one round of everything that is due, however long it takes. A failing task does not
    /// block the others.
    pub async fn sweep(&self, broker: &Broker) -> Result<(), store::Error> {
        let mut swept = Ok(());
        for task in &self.0 {
            swept = swept.and(task.round(broker, Duration::MAX).await);
        }
        swept
    }
}

/// Runs rounds until it is dropped. Urgent tasks do not wait for the others.
pub async fn run(broker: Arc<Broker>) {
    let half_second = rounds(&broker, Every::HalfSecond, Duration::from_millis(500));
    let second = rounds(&broker, Every::Second, Duration::from_millis(1_000));
    let quarter = rounds(&broker, Every::QuarterMinute, Duration::from_secs(15));
    tokio::join!(half_second, second, quarter);
}

async fn rounds(broker: &Broker, every: Every, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let time = if every == Every::QuarterMinute { PATIENT_TASK_TIME } else { TASK_TIME };
    loop {
        ticks.tick().await;
        for task in broker.janitor.0.iter().filter(|task| task.every() == every) {
            // what failed was logged, and will be tried again
            let _ = task.round(broker, time).await;
        }
    }
}

/// A task with items of any type.
trait Rounds: Send + Sync {
    fn every(&self) -> Every;
    fn round<'a>(
        &'a self,
        broker: &'a Broker,
        time: Duration,
    ) -> BoxFuture<'a, Result<(), store::Error>>;
}

struct Running<T: Task> {
    task: T,
    /// Items left by the last round, each with the size of its next chunk.
    left: Mutex<VecDeque<(T::Item, i64)>>,
}

fn task<T: Task>(task: T) -> Box<dyn Rounds> {
    Box::new(Running { task, left: Mutex::default() })
}

impl<T: Task> Rounds for Running<T> {
    fn every(&self) -> Every {
        T::EVERY
    }

    fn round<'a>(
        &'a self,
        broker: &'a Broker,
        time: Duration,
    ) -> BoxFuture<'a, Result<(), store::Error>> {
        Box::pin(async move {
            let begun = Instant::now();
            let mut left = std::mem::take(&mut *self.left());
            let result = self.work_off(broker, &mut left, begun, time).await;
            self.left().append(&mut left);
            tell(T::NAME, begun.elapsed(), &result);
            result
        })
    }
}

impl<T: Task> Running<T> {
    fn left(&self) -> std::sync::MutexGuard<'_, VecDeque<(T::Item, i64)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work_off(
        &self,
        broker: &Broker,
        queue: &mut VecDeque<(T::Item, i64)>,
        begun: Instant,
        time: Duration,
    ) -> Result<(), store::Error> {
        let mut looked = false;
        loop {
            let Some((item, rows)) = queue.pop_front() else {
                if looked {
                    return Ok(());
                }
                looked = true;
                let due = self.task.due(broker).await?;
                metrics::counter!(telemetry::JANITOR_DUE_TOTAL, "task" => T::NAME)
                    .increment(due.len() as u64);
                queue.extend(due.into_iter().map(|item| (item, size::FIRST)));
                continue;
            };
            let chunk = self.task.chunk(broker, item.clone(), rows);
            match measured(T::NAME, rows, chunk).await {
                Ok((Chunk { more: true, .. }, next)) => queue.push_back((item, next)),
                Ok(_) => {}
                // somebody is at it
                Err(store::Error::Contended(_)) => {
                    metrics::counter!(telemetry::JANITOR_CONTENDED_TOTAL, "task" => T::NAME)
                        .increment(1);
                }
                Err(error) => return Err(error),
            }
            if begun.elapsed() >= time {
                return Ok(());
            }
        }
    }
}

/// Runs one database transaction, which waits for a lock no longer than others may wait for its
/// own.
pub async fn transaction<T: Send + 'static>(
    store: &Store,
    work: impl Work<T, store::Error>,
) -> Result<T, store::Error> {
    let hurried = store.transaction(move |connection| {
        Box::pin(async move {
            store::janitor::hurry(connection).await?;
            work(connection).await
        })
    });
    hurried.await
}

/// The result of a chunk, and the number of rows for the next one.
async fn measured(
    task: &'static str,
    rows: i64,
    chunk: impl Future<Output = Result<Chunk, store::Error>>,
) -> Result<(Chunk, i64), store::Error> {
    let begun = Instant::now();
    let result = chunk.await;
    let took = begun.elapsed();
    metrics::histogram!(telemetry::JANITOR_CHUNK_DURATION_SECONDS, "task" => task)
        .record(took.as_secs_f64());
    let chunk = result?;
    metrics::counter!(telemetry::JANITOR_ROWS_TOTAL, "task" => task).increment(chunk.rows);
    Ok((chunk, size::next(rows, took)))
}

fn tell(task: &'static str, took: Duration, result: &Result<(), store::Error>) {
    metrics::histogram!(telemetry::JANITOR_DURATION_SECONDS, "task" => task)
        .record(took.as_secs_f64());
    match result {
        Ok(()) => {
            metrics::gauge!(telemetry::JANITOR_LAST_SUCCESS_TIMESTAMP_SECONDS, "task" => task)
                .set(telemetry::timestamp_seconds())
        }
        Err(error) => {
            metrics::counter!(telemetry::JANITOR_FAILURES_TOTAL, "task" => task).increment(1);
            tracing::debug!(%error, task, "a janitor task will be retried");
        }
    }
}

#[cfg(test)]
mod tests;
