//! Waits for changes of logs without a connection, however many logs there are.

pub mod notifier;
pub mod notify;
pub mod permits;
pub mod watch;

use std::{future::Future, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout_at};

use self::watch::{Change, Observed, Watch};
use super::{Broker, Error, read::metrics::Waited};
use crate::{
    model::{Code, Offset, TenantId},
    telemetry,
};

/// How soon a woken read retries while the database is unavailable.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// A waiting read takes one permit per this many logs.
const LOGS_PER_SEAT: usize = 16;

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
    Log(usize, Observed),
    /// The time is over, the server drains, or the permits were revoked for others.
    Nothing,
}

impl Broker {
    /// Waits until one of the logs has grown or is gone.
    pub(super) async fn wait(
        &self,
        tenant: TenantId,
        logs: &mut [Awaited],
        deadline: Instant,
    ) -> Result<Wake, Error> {
        let Some(seat) = self.waiting_reads.take(tenant, logs.len().div_ceil(LOGS_PER_SEAT)) else {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "waiting_reads")
                .increment(1);
            return Err(Error::unavailable("Too many reads are waiting on this replica; retry."));
        };
        let _counted = self.reads.waiting();
        let begun = Instant::now();
        let news = logs.iter_mut().enumerate().map(|(index, log)| async move {
            (index, log.watch.beyond(log.beyond, log.seen_at).await)
        });
        let mut news: FuturesUnordered<_> = news.collect();
        let news = seat.revoked.run_until_cancelled(news.next());
        let woken = timeout_at(deadline, self.drain.run_until_cancelled(news)).await;
        let woken = match woken.ok().flatten().flatten().flatten() {
            Some((index, heard)) => Wake::Log(index, heard),
            None => Wake::Nothing,
        };
        let how = match woken {
            Wake::Log(_, Observed { news: Change::HighWatermark(_), .. }) => Waited::Records,
            Wake::Log(_, Observed { news: Change::Gone, .. }) => Waited::Gone,
            Wake::Nothing => Waited::Nothing,
        };
        self.reads.waited(begun, &how);
        Ok(woken)
    }
}

/// A read that may still wait does not fail just because the database is unavailable.
pub async fn patient<T, F: Future<Output = Result<T, Error>>>(
    deadline: Instant,
    attempt: impl Fn() -> F,
) -> Result<T, Error> {
    loop {
        match attempt().await {
            Err(error) if error.code == Code::Unavailable && Instant::now() < deadline => {
                tokio::time::sleep(RETRY_AFTER).await;
            }
            result => return result,
        }
    }
}
