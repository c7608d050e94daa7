//! Notices between replicas about changed logs: coalesced, sent on a connection of their own, and
//! never within an append (NOTIFY takes a database-wide lock at commit). A lost notice delays
//! readers, but never makes an answer wrong.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

use super::watch::{Source, WatchKey, Watches};
use crate::{
    model::{GroupId, LogId, TenantId},
    store::{self, Store},
    telemetry::{self, Counted},
};

/// Minimum interval between notices.
const NOTICE_INTERVAL: Duration = Duration::from_millis(2);
/// PostgreSQL limits payloads to less than 8,000 bytes; a notice that would be longer says
/// "everything".
const MAX_NOTICE_BYTES: usize = 7_500;
const EVERYTHING: &str = "*";
/// Distinguishes the id of a group from that of a log.
const GROUP: char = 'g';
/// How often a replica announces itself until it receives its own notice.
const GREETING_INTERVAL: Duration = Duration::from_secs(1);
const RECONNECT_AFTER: Duration = Duration::from_millis(250);

pub struct Signals {
    store: Store,
    /// Distinguishes this replica's notices from others'.
    replica: String,
    changed: Mutex<BTreeSet<(TenantId, WatchKey)>>,
    wake: Notify,
    /// Whether this replica listens but has not received its own notice yet.
    unconfirmed: AtomicBool,
}

impl Signals {
    pub fn new(store: Store) -> Self {
        let replica = uuid::Uuid::now_v7().simple().to_string();
        Self {
            store,
            replica,
            changed: Mutex::default(),
            wake: Notify::new(),
            unconfirmed: AtomicBool::new(false),
        }
    }

    /// Notifies other replicas within milliseconds.
    pub fn changed(&self, keys: impl IntoIterator<Item = (TenantId, WatchKey)>) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
        self.wake.notify_one();
    }

    /// Waits until there is something to send: a change, or just an announcement while this replica
    /// has not received its own notice.
    async fn wait(&self) {
        if self.unconfirmed.load(Ordering::Relaxed) {
            let _ = timeout(GREETING_INTERVAL, self.wake.notified()).await;
        } else {
            self.wake.notified().await;
        }
    }

    fn take(&self) -> Option<String> {
        let changed =
            std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
        if changed.is_empty() && !self.unconfirmed.load(Ordering::Relaxed) {
            return None;
        }
        let mut payload = self.replica.clone();
        for (TenantId(tenant), key) in changed {
            payload.push_str(&match key {
                WatchKey::Log(LogId(log)) => format!(" {tenant}:{log}"),
                WatchKey::Group(GroupId(group)) => format!(" {tenant}:{GROUP}{group}"),
            });
            if payload.len() > MAX_NOTICE_BYTES {
                return Some(format!("{} {EVERYTHING}", self.replica));
            }
        }
        Some(payload)
    }

    /// Starts or stops listening; notices received before no longer count.
    fn listens(&self, listens: bool) {
        self.unconfirmed.store(listens, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

/// Sends changes until stopped.
pub async fn send(signals: Arc<Signals>, stop: CancellationToken) {
    let sent = metrics::counter!(telemetry::NOTICES_TOTAL, "direction" => "sent");
    let mut connection = None;
    while stop.run_until_cancelled(signals.wait()).await.is_some() {
        if connection.is_none() {
            connection = signals.store.connection().await.ok();
        }
        let (Some(open), Some(payload)) = (&mut connection, signals.take()) else { continue };
        match store::notify::notify(open, &payload).await {
            Ok(()) => sent.increment(1),
            Err(error) => {
                tracing::debug!(%error, "could not send a notice; other replicas will poll");
                connection = None;
            }
        }
        tokio::time::sleep(NOTICE_INTERVAL).await;
    }
}

/// Receives notices of other replicas until stopped. After a lost connection, everything may have
/// changed. Listening is reported only after receiving an own notice: a successful LISTEN proves
/// nothing behind a pooler.
pub async fn listen(signals: Arc<Signals>, watches: Arc<Watches>, stop: CancellationToken) {
    let gauge = metrics::gauge!(telemetry::LISTENING);
    gauge.set(0.0);
    while !stop.is_cancelled() {
        let mut listener = match store::notify::listen(&signals.store).await {
            Ok(Some(listener)) => listener,
            Ok(None) => {
                tracing::warn!(
                    "a connection pooler shares connections between transactions: reads that wait \
                     for records of other replicas depend on the slow poll, unless \
                     notify_database_url names a direct connection"
                );
                return;
            }
            Err(_) => {
                stop.run_until_cancelled(tokio::time::sleep(RECONNECT_AFTER)).await;
                continue;
            }
        };
        signals.listens(true);
        let mut listening = None;
        watches.refresh_all(Source::Poll).await;
        while let Some(received) = stop.run_until_cancelled(listener.try_recv()).await {
            // None and Err alike: the connection was lost, and notices with it
            let Ok(Some(notice)) = received else { break };
            if notice.payload().starts_with(&signals.replica) {
                signals.unconfirmed.store(false, Ordering::Relaxed);
                listening.get_or_insert_with(|| Counted::new(&gauge));
            } else {
                receive(&watches, notice.payload()).await;
            }
        }
        signals.listens(false);
    }
}

/// Queries what another replica's notice says has changed.
async fn receive(watches: &Watches, payload: &str) {
    metrics::counter!(telemetry::NOTICES_TOTAL, "direction" => "received").increment(1);
    let words: Vec<&str> = payload.split(' ').skip(1).collect();
    if words.contains(&EVERYTHING) {
        return watches.refresh_all(Source::Notice).await;
    }
    let key = |word: &str| {
        let (tenant, id) = word.split_once(':')?;
        let key = match id.strip_prefix(GROUP) {
            Some(group) => WatchKey::Group(GroupId(group.parse().ok()?)),
            None => WatchKey::Log(LogId(id.parse().ok()?)),
        };
        Some((TenantId(tenant.parse().ok()?), key))
    };
    watches.refresh(words.into_iter().filter_map(key)).await;
}
