//! Long polls: reads that wait for changes of logs without a connection, however many logs there
//! are.

pub mod notifier;
pub mod notify;
pub mod permits;
pub mod watch;

use std::{fmt::Display, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep, timeout_at};

use self::watch::{Change, Observed, Watch};
use super::{Broker, Error, read::metrics::Waited};
use crate::{
    model::{Code, Name, Offset, TenantId, settings::Key},
    rules::settings::in_force,
    store,
};

/// How often a read starts again because its rows were trimmed meanwhile.
const READ_ATTEMPTS: usize = 5;
/// How soon a read tries again while the database is unavailable.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// A waiting read takes one permit per this many logs.
const LOGS_PER_PERMIT: usize = 16;

/// A log that is awaited until it extends beyond an offset, which was its end when last seen.
pub struct Awaited {
    pub watch: Watch,
    pub beyond: Offset,
    /// The time before that query.
    pub seen_at: Instant,
}

/// The outcome of a wait.
#[derive(Clone, Copy, Debug)]
pub enum Wake {
    /// The log with this index has grown, was deleted, or has lost its end.
    Log(usize, Change),
    /// The time is over, the server drains, or the permits were revoked for others.
    Nothing,
}

/// A read that may wait. If the database is unavailable, its first query fails at once. After the
/// first answer, and after every wait, it waits for the database as well.
pub struct LongPoll<'a> {
    broker: &'a Broker,
    tenant: TenantId,
    pub deadline: Instant,
    waits_for_database: bool,
    /// The number of attempts since the last wait.
    attempts: usize,
    /// The records that ended its last wait.
    woken: Option<Observed>,
}

impl<'a> LongPoll<'a> {
    pub fn new(broker: &'a Broker, tenant: TenantId, wait_ms: u64) -> Self {
        let deadline = Instant::now() + Duration::from_millis(wait_ms);
        Self { broker, tenant, deadline, waits_for_database: false, attempts: 0, woken: None }
    }

    /// Begins an attempt. One that finds its rows removed since its watermark query is followed by
    /// another; `log` names what lacks them when there were too many.
    pub fn begin_attempt(&mut self, log: impl Display) -> Result<(), Error> {
        if self.attempts == READ_ATTEMPTS {
            let what = format!("{log} lacks expected rows");
            return Err(Error::from(store::Error::Unexpected(what)));
        }
        self.attempts += 1;
        Ok(())
    }

    /// What was before counts neither as an attempt nor as the records that end the wait.
    pub fn start_over(&mut self) {
        (self.attempts, self.woken) = (0, None);
    }

    /// Whether the read has to answer now.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline || self.broker.draining()
    }

    /// Runs a query, until the database is available if the read waits for it.
    pub async fn query<T, F: Future<Output = Result<T, Error>>>(
        &mut self,
        query: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            match query().await {
                Ok(found) => {
                    self.waits_for_database = true;
                    return Ok(found);
                }
                Err(error) => self.retry_after(error).await?,
            }
        }
    }

    /// Returns the error, unless the database is unavailable and the read waits for it: then it
    /// waits a moment, and the query may be repeated. What a fetch writes (a lease, a handover) may
    /// be written twice.
    pub async fn retry_after(&mut self, error: Error) -> Result<(), Error> {
        let is_unavailable = matches!(error.code, Code::Unavailable | Code::OutcomeUnknown);
        if !is_unavailable || !self.waits_for_database || self.is_over() {
            return Err(error);
        }
        sleep(RETRY_AFTER).await;
        self.attempts = 0;
        Ok(())
    }

    /// Waits until one of the logs has grown or is gone.
    pub async fn wait(&mut self, logs: &mut [Awaited], until: Instant) -> Result<Wake, Error> {
        let Broker { reads, waiting_reads, drain, .. } = self.broker;
        // as the admission of the request found it: a wait does not depend on the database
        let known = self.broker.settings.last_known(self.tenant).await;
        let own_limit =
            known.and_then(|known| in_force(Key::MaxWaitingReads, &[&known.settings]).number());
        let count = logs.len().div_ceil(LOGS_PER_PERMIT);
        let permit = waiting_reads.take(self.tenant, count, own_limit)?;
        let _counted = reads.waiting();
        let begun = Instant::now();
        let changes = logs.iter_mut().enumerate().map(|(index, log)| async move {
            (index, log.watch.beyond(log.beyond, log.seen_at).await)
        });
        let mut changes: FuturesUnordered<_> = changes.collect();
        let change = permit.revoked.run_until_cancelled(changes.next());
        let change = timeout_at(until, drain.run_until_cancelled(change)).await;
        let change = change.ok().flatten().flatten().flatten();
        let (outcome, woken) = match change {
            Some((_, observed @ Observed { change: Change::HighWatermark(_), .. })) => {
                (Waited::Records, Some(observed))
            }
            Some((_, Observed { change: Change::Gone, .. })) => (Waited::Gone, None),
            None => (Waited::Nothing, None),
        };
        reads.waited(begun, &outcome);
        self.start_over();
        (self.waits_for_database, self.woken) = (true, woken);
        Ok(change.map_or(Wake::Nothing, |(index, observed)| Wake::Log(index, observed.change)))
    }

    /// Counts the answer: records and bytes, by topic.
    pub fn answered<'t>(&self, parts: impl Iterator<Item = (&'t Name, u64, usize)>) {
        let Broker { reads, traffic, .. } = self.broker;
        let (mut all_records, mut all_bytes) = (0, 0);
        for (topic, records, bytes) in parts {
            traffic.read(self.tenant, topic, records, bytes);
            (all_records, all_bytes) = (all_records + records, all_bytes + bytes);
        }
        reads.answered(all_records, all_bytes);
        if let Some(Observed { source, since, .. }) = self.woken {
            reads.woken(source, since);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::broker::ServiceConfig;

    /// Runs a query that fails so often; returns its result, and how often it ran.
    async fn query(poll: &mut LongPoll<'_>, failures: u32) -> (Result<(), Error>, u32) {
        let runs = Cell::new(0);
        let query = || async {
            runs.set(runs.get() + 1);
            if runs.get() > failures { Ok(()) } else { Err(Error::unavailable("it is away")) }
        };
        (poll.query(query).await, runs.get())
    }

    #[tokio::test]
    async fn only_the_first_query_of_a_read_fails_at_once() {
        let store = store::Store::new(Default::default(), 1);
        let broker = Broker::start_without_janitor(store, ServiceConfig::default());
        let failed = || Err(Error::unavailable("it is away"));

        let mut answered = LongPoll::new(&broker, TenantId(1), 60_000);
        assert_eq!(query(&mut answered, 1).await, (failed(), 1));
        assert_eq!(query(&mut answered, 0).await, (Ok(()), 1));
        assert_eq!(query(&mut answered, 2).await, (Ok(()), 3));

        let mut waited = LongPoll::new(&broker, TenantId(1), 60_000);
        waited.wait(&mut [], Instant::now()).await.unwrap();
        assert_eq!(query(&mut waited, 2).await, (Ok(()), 3));

        let mut over = LongPoll::new(&broker, TenantId(1), 0);
        assert_eq!(query(&mut over, 0).await, (Ok(()), 1));
        assert_eq!(query(&mut over, 1).await, (failed(), 1));

        broker.drain();
        assert_eq!(query(&mut waited, 1).await, (failed(), 1));
        broker.stop().await;
    }
}
