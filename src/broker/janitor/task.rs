//! The shape of a task, and its rounds.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::size;
use crate::{
    broker::Broker,
    store::{self, Store, Work, janitor::Chunk},
    telemetry,
};

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

/// A task with items of any type.
pub trait Rounds: Send + Sync {
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
    /// How many rounds have failed since the last that succeeded.
    failures: AtomicU32,
}

pub fn task<T: Task>(task: T) -> Box<dyn Rounds> {
    Box::new(Running { task, left: Mutex::default(), failures: AtomicU32::new(0) })
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
            self.record(begun.elapsed(), &result);
            result
        })
    }
}

impl<T: Task> Running<T> {
    fn left(&self) -> std::sync::MutexGuard<'_, VecDeque<(T::Item, i64)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a round, and logs a failure: the first one, and ever fewer of those that follow it.
    fn record(&self, took: Duration, result: &Result<(), store::Error>) {
        metrics::histogram!(telemetry::JANITOR_DURATION_SECONDS, "task" => T::NAME)
            .record(took.as_secs_f64());
        let Err(error) = result else {
            metrics::gauge!(telemetry::JANITOR_LAST_SUCCESS_TIMESTAMP_SECONDS, "task" => T::NAME)
                .set(telemetry::timestamp_seconds());
            let failures = self.failures.swap(0, Ordering::Relaxed);
            if failures > 0 {
                tracing::info!(task = T::NAME, failures, "a janitor task succeeds again");
            }
            return;
        };
        metrics::counter!(telemetry::JANITOR_FAILURES_TOTAL, "task" => T::NAME).increment(1);
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures.is_power_of_two() {
            tracing::warn!(%error, task = T::NAME, failures, "a janitor task failed; it will be retried");
        }
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
    let hurried = store.transaction(async move |connection| {
        store::janitor::hurry(connection).await?;
        work(connection).await
    });
    hurried.await
}

/// The result of a chunk, and the number of rows for the next one.
pub async fn measured(
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
