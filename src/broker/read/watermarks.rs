//! Reads watermarks from the heads of logs. A read gets the result of a query that started after it
//! arrived; all reads of a tenant that arrived before a query share its one statement. Everything
//! that a read asks for is in one statement, so its answer is as of one instant.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use metrics::Histogram;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    broker::Error,
    model::{GroupId, LogId, Offset, TenantId},
    store::{self, History, Store},
    telemetry,
};

/// Maximum number of heads per query, except that one read may ask for more.
const LOGS_PER_LOOK: usize = 1_000;

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

/// None: the log was deleted with its topic.
pub type SeenLog = Option<Watermarks>;

type WatermarkQuestion = (Vec<LogId>, oneshot::Sender<Result<Vec<SeenLog>, Error>>);
type Waiters = HashMap<(TenantId, When), Vec<WatermarkQuestion>>;

/// When a query starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    AtOnce,
    /// After a window, together with everything that arrives meanwhile.
    Later,
}

/// The window, in which readers that were woken together send their queries.
const CROWD_WINDOW: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub struct WatermarkReader {
    store: Store,
    /// Reads waiting for the next query of a tenant; an entry means that a task will make it.
    waiting: Arc<Mutex<Waiters>>,
    duration: Histogram,
    reads: Histogram,
}

impl WatermarkReader {
    pub fn new(store: Store) -> Self {
        Self {
            store,
            waiting: Arc::default(),
            duration: metrics::histogram!(telemetry::LOOK_DURATION_SECONDS),
            reads: metrics::histogram!(telemetry::LOOK_READS),
        }
    }

    /// The log's watermarks, as of now or later.
    pub async fn look(&self, tenant: TenantId, log: LogId) -> Result<SeenLog, Error> {
        Ok(self.look_at_all(tenant, vec![log]).await?.pop().flatten())
    }

    /// Same, for one of many reads that were woken together.
    pub async fn look_in_crowd(&self, tenant: TenantId, log: LogId) -> Result<SeenLog, Error> {
        Ok(self.ask((tenant, When::Later), vec![log]).await?.pop().flatten())
    }

    /// The watermarks of all these logs, as of one instant, now or later.
    pub async fn look_at_all(
        &self,
        tenant: TenantId,
        logs: Vec<LogId>,
    ) -> Result<Vec<SeenLog>, Error> {
        self.ask((tenant, When::AtOnce), logs).await
    }

    async fn ask(&self, queue: (TenantId, When), logs: Vec<LogId>) -> Result<Vec<SeenLog>, Error> {
        let (answer, answered) = oneshot::channel();
        let idle = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = !waiting.contains_key(&queue);
            waiting.entry(queue).or_default().push((logs, answer));
            idle
        };
        if idle {
            // not owned by this read: others wait for it as well
            tokio::spawn(self.clone().serve(queue));
        }
        answered.await.unwrap_or_else(|_| Err(Error::internal()))
    }

    async fn serve(self, queue: (TenantId, When)) {
        let (tenant, begins) = queue;
        loop {
            if begins == When::Later {
                tokio::time::sleep(CROWD_WINDOW).await;
            }
            let lot = {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                match waiting.get_mut(&queue) {
                    Some(lot) if !lot.is_empty() => {
                        let rest = lot.split_off(together(lot));
                        std::mem::replace(lot, rest)
                    }
                    _ => {
                        waiting.remove(&queue);
                        return;
                    }
                }
            };
            let mut logs: Vec<LogId> = lot.iter().flat_map(|(logs, _)| logs).copied().collect();
            logs.sort_unstable();
            logs.dedup();
            let begun = Instant::now();
            let seen = self.read(tenant, logs).await;
            self.duration.record(begun.elapsed().as_secs_f64());
            self.reads.record(lot.len() as f64);
            match seen {
                Ok(seen) => lot.into_iter().for_each(|(logs, answer)| {
                    let seen = logs.iter().map(|log| seen.get(log).copied()).collect();
                    let _ = answer.send(Ok(seen));
                }),
                Err(error) => {
                    let error = Error::from(error);
                    lot.into_iter().for_each(|(_, answer)| {
                        let _ = answer.send(Err(error.clone()));
                    });
                }
            }
        }
    }

    /// The high watermarks of the ids that are logs, and the generations of those that are groups.
    pub async fn numbers(
        &self,
        tenant: TenantId,
        watched: Vec<LogId>,
    ) -> Result<HashMap<LogId, i64>, store::Error> {
        let mut seen = HashMap::with_capacity(watched.len());
        for logs in watched.chunks(LOGS_PER_LOOK) {
            seen.extend(self.read(tenant, logs.to_vec()).await?);
        }
        let others = watched.into_iter().filter(|id| !seen.contains_key(id));
        let groups: Vec<GroupId> = others.map(|id| GroupId(id.0)).collect();
        let mut numbers: HashMap<LogId, i64> =
            seen.into_iter().map(|(log, watermarks)| (log, watermarks.high_watermark)).collect();
        if !groups.is_empty() {
            let read = self.store.run(async move |connection| {
                store::group::leases::generations(connection, tenant, &groups).await
            });
            let number = |(group, generation): (GroupId, i64)| (LogId(group.0), generation);
            numbers.extend(read.await?.into_iter().map(number));
        }
        Ok(numbers)
    }

    /// The watermarks of those logs that exist, as of one instant.
    pub async fn read(
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

/// How many of these reads share a query; at least the first.
fn together(lot: &[WatermarkQuestion]) -> usize {
    let most = lot.first().map_or(0, |(logs, _)| logs.len()).max(LOGS_PER_LOOK);
    let mut asked: BTreeSet<LogId> = BTreeSet::new();
    let fits = |(logs, _): &&WatermarkQuestion| {
        asked.extend(logs);
        asked.len() <= most
    };
    lot.iter().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_together() {
        let most = LOGS_PER_LOOK as i64;
        let table = [
            // logs that are asked for, from and to, and how many of them look together
            (vec![(0, 1)], 1),
            (vec![(0, 1); 5_000], 5_000),
            (vec![(0, most), (0, most), (5, 10)], 3),
            (vec![(0, most), (0, most + 1), (0, 1)], 1),
            (vec![(0, most - 1), (most - 1, most), (most, most + 1)], 2),
            // more than are looked at together, but by one
            (vec![(0, 9 * most), (0, 9 * most), (7, 8), (0, 9 * most + 1)], 3),
            (vec![(0, 1), (0, 9 * most)], 1),
        ];
        for (ranges, want) in table {
            let asked = |(from, to): (i64, i64)| -> WatermarkQuestion {
                ((from..to).map(LogId).collect(), oneshot::channel().0)
            };
            let lot: Vec<WatermarkQuestion> = ranges.into_iter().map(asked).collect();
            assert_eq!(together(&lot), want);
        }
    }
}
