//! Watches of waiting reads. A read registers its watch before it queries the watermarks, or it
//! could miss a change in between. Commits of this replica wake it at once; notices and the slow
//! poll only trigger a query.
//!
//! A group is watched like a log: its generation only grows.
//!
//! Known positions only grow, with one exception: a later query sees less. Then the database has
//! lost its last commits, and a read that waits beyond the end would wait in vain.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    broker::read::watermarks::WatermarkReader,
    model::{GroupId, LogId, Offset, TenantId},
    store,
};

/// How often watched heads are polled without any notice; covers lost notices.
const POLL_INTERVAL: Duration = Duration::from_millis(1_000);

/// Maximum number of heads per statement of a poll.
const LOGS_PER_POLL: usize = 1_000;

/// From this many waiting readers on, a new one waits with them and shares their next watermark
/// query.
const CROWD: usize = 16;

/// The last change that a watch knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The log extends at least up to here; the topic of a journal has at least this many
    /// partitions; the generation of a group is at least this.
    HighWatermark(Offset),
    /// The log's topic, or the group, was deleted.
    Gone,
}

/// How this replica learned of a change.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    Commit,
    Notice,
    Poll,
}

/// A change, with its source and time.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    pub change: Change,
    pub source: Source,
    pub since: Instant,
}

impl Observed {
    /// Whether it changes what is known.
    fn updates(&self, known: &Self) -> bool {
        let grows = match (known.change, self.change) {
            (Change::Gone, _) => false,
            (Change::HighWatermark(_), Change::Gone) => true,
            (Change::HighWatermark(known), Change::HighWatermark(new)) => new > known,
        };
        // a commit is published after it was done, so queries may see it, and more, before
        let is_query = !matches!(self.source, Source::Commit);
        grows || is_query && self.since > known.since && self.change != known.change
    }
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchKey {
    Log(LogId),
    Group(GroupId),
}

impl From<LogId> for WatchKey {
    fn from(log: LogId) -> Self {
        Self::Log(log)
    }
}

impl From<GroupId> for WatchKey {
    fn from(group: GroupId) -> Self {
        Self::Group(group)
    }
}

pub struct Watches {
    watermarks: WatermarkReader,
    watched: Mutex<HashMap<(TenantId, WatchKey), Watched>>,
}

/// A watched log or group. It stays until a poll finds no watches on it, because readers return.
struct Watched {
    sender: watch::Sender<Observed>,
    /// The maximum number of concurrent watches since a poll.
    most: usize,
}

impl Watched {
    fn watch(&mut self) -> Watch {
        let receiver = self.sender.subscribe();
        self.most = self.most.max(self.sender.receiver_count());
        Watch { receiver }
    }
}

/// A registered interest in a log or group.
pub struct Watch {
    receiver: watch::Receiver<Observed>,
}

impl Watch {
    /// Waits for a change that this watch has not seen.
    async fn changed(&mut self) -> Observed {
        // the sender lives in `Watches` as long as this watch does
        let _ = self.receiver.changed().await;
        *self.receiver.borrow_and_update()
    }

    /// Waits until the log has grown past an offset seen at an instant, was deleted, or no longer
    /// extends that far.
    pub async fn beyond(&mut self, offset: Offset, seen_at: Instant) -> Observed {
        loop {
            let observed = self.changed().await;
            let is_lost = |now| now < offset && observed.since > seen_at;
            match observed.change {
                Change::HighWatermark(now) if now <= offset && !is_lost(now) => {}
                _ => return observed,
            }
        }
    }
}

impl Watches {
    pub fn new(watermarks: WatermarkReader) -> Self {
        Self { watermarks, watched: Mutex::default() }
    }

    pub fn watch(&self, tenant: TenantId, key: impl Into<WatchKey>) -> Watch {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = watched.entry((tenant, key.into())).or_insert_with(|| {
            let (change, source) = (Change::HighWatermark(0), Source::Poll);
            let known = Observed { change, source, since: Instant::now() };
            Watched { sender: watch::Sender::new(known), most: 0 }
        });
        watched.watch()
    }

    /// A watch beside many others, if as many wait where the log, as far as known, ends.
    pub fn watch_in_crowd(&self, tenant: TenantId, log: LogId, end: Offset) -> Option<Watch> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = watched.get_mut(&(tenant, log.into()))?;
        let known = watched.sender.borrow().change;
        let is_crowd = watched.most >= CROWD && known == Change::HighWatermark(end);
        is_crowd.then(|| watched.watch())
    }

    /// Publishes a commit of this replica.
    pub fn publish(&self, tenant: TenantId, key: WatchKey, change: Change) {
        let (source, since) = (Source::Commit, Instant::now());
        self.observe(tenant, key, Observed { change, source, since });
    }

    fn observe(&self, tenant: TenantId, key: WatchKey, observed: Observed) {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(watched) = watched.get(&(tenant, key)) else { return };
        watched.sender.send_if_modified(|known| {
            let is_change = observed.updates(known);
            if is_change {
                *known = observed;
            }
            is_change
        });
    }

    /// Queries what is watched here, after a notice that it has changed.
    pub async fn refresh(&self, changed: impl IntoIterator<Item = (TenantId, WatchKey)>) {
        let keys: Vec<_> = {
            let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            changed.into_iter().filter(|key| watched.contains_key(key)).collect()
        };
        self.query(keys, Source::Notice).await;
    }

    pub async fn refresh_all(&self, source: Source) {
        let keys = {
            let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            watched.retain(|_, watched| {
                watched.most = watched.sender.receiver_count();
                watched.most > 0
            });
            watched.keys().copied().collect()
        };
        self.query(keys, source).await;
    }

    async fn query(&self, keys: Vec<(TenantId, WatchKey)>, source: Source) {
        let since = Instant::now();
        let mut by_tenant: HashMap<TenantId, Vec<WatchKey>> = HashMap::new();
        for (tenant, key) in keys {
            by_tenant.entry(tenant).or_default().push(key);
        }
        for (tenant, keys) in by_tenant {
            // unavailable: the next poll queries again
            let Ok(seen) = self.numbers(tenant, &keys).await else { return };
            for key in keys {
                let change = seen.get(&key).map_or(Change::Gone, |now| Change::HighWatermark(*now));
                self.observe(tenant, key, Observed { change, source, since });
            }
        }
    }

    /// The high watermarks of the logs, and the generations of the groups.
    async fn numbers(
        &self,
        tenant: TenantId,
        keys: &[WatchKey],
    ) -> Result<HashMap<WatchKey, i64>, store::Error> {
        let (mut logs, mut groups) = (Vec::new(), Vec::new());
        for key in keys {
            match key {
                WatchKey::Log(log) => logs.push(*log),
                WatchKey::Group(group) => groups.push(*group),
            }
        }
        let mut numbers = HashMap::with_capacity(keys.len());
        for logs in logs.chunks(LOGS_PER_POLL) {
            let seen = self.watermarks.query(tenant, logs.to_vec()).await?;
            numbers.extend(seen.into_iter().map(|(log, seen)| (log.into(), seen.high_watermark)));
        }
        if !groups.is_empty() {
            let generations = self.watermarks.generations(tenant, groups).await?.into_iter();
            numbers.extend(generations.map(|(group, generation)| (group.into(), generation)));
        }
        Ok(numbers)
    }
}

/// The slow poll.
pub async fn poll(watches: Arc<Watches>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        watches.refresh_all(Source::Poll).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_is_known_shrinks_only_by_a_later_query() {
        use {
            Change::{Gone, HighWatermark},
            Source::{Commit, Notice, Poll},
        };
        let begun = Instant::now();
        let observed = |change, source, after_ms| Observed {
            change,
            source,
            since: begun + Duration::from_millis(after_ms),
        };
        let table = [
            // known at 5, what is observed, and whether it changes that
            (HighWatermark(7), HighWatermark(8), Commit, 9, true),
            (HighWatermark(7), HighWatermark(8), Poll, 1, true),
            (HighWatermark(7), HighWatermark(7), Poll, 9, false),
            (HighWatermark(7), HighWatermark(6), Commit, 9, false),
            (HighWatermark(7), HighWatermark(6), Poll, 4, false),
            (HighWatermark(7), HighWatermark(6), Poll, 5, false),
            (HighWatermark(7), HighWatermark(6), Poll, 6, true),
            (HighWatermark(7), HighWatermark(6), Notice, 6, true),
            (HighWatermark(7), Gone, Commit, 1, true),
            (HighWatermark(7), Gone, Poll, 1, true),
            (Gone, Gone, Poll, 9, false),
            (Gone, HighWatermark(7), Commit, 9, false),
            (Gone, HighWatermark(7), Poll, 4, false),
            (Gone, HighWatermark(7), Poll, 6, true),
        ];
        for (known, change, source, after_ms, want) in table {
            let updates = observed(change, source, after_ms).updates(&observed(known, Poll, 5));
            assert_eq!(updates, want, "{known:?}, {change:?} by {source:?} at {after_ms}");
        }
    }

    #[tokio::test]
    async fn who_waits_learns_that_the_log_became_shorter() {
        let store = crate::store::Store::new(Default::default(), 1);
        let watches = Watches::new(WatermarkReader::new(store));
        let (tenant, log, earlier) = (TenantId(1), LogId(1), Instant::now());
        let mut watch = watches.watch(tenant, log);
        let seen_at = Instant::now();
        let observe = |now, since| {
            let (change, source) = (Change::HighWatermark(now), Source::Poll);
            watches.observe(tenant, log.into(), Observed { change, source, since });
        };
        observe(3, earlier);
        assert!(watch.beyond(5, seen_at).now_or_never().is_none(), "it was so before");
        observe(4, Instant::now());
        assert_eq!(watch.beyond(5, seen_at).await.change, Change::HighWatermark(4));
        observe(6, Instant::now());
        assert_eq!(watch.beyond(5, seen_at).await.change, Change::HighWatermark(6));
    }
}
