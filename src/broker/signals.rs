//! Notices between replicas: which logs have changed, coalesced, from a connection of their own and
//! never inside an append (NOTIFY takes a database-wide lock at commit). A lost notice costs time,
//! never truth.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::watches::{Source, Watches};
use crate::{
    model::{LogId, TenantId},
    store::{self, Store},
    telemetry::{self, Counted},
};

/// At most one notice in this time.
const NOTICE_INTERVAL: Duration = Duration::from_millis(2);
/// Postgres takes less than 8,000 bytes; beyond this a notice says "everything".
const MAX_NOTICE_BYTES: usize = 7_500;
const EVERYTHING: &str = "*";
const RECONNECT_AFTER: Duration = Duration::from_millis(250);

type Key = (TenantId, LogId);

pub struct Signals {
    store: Store,
    /// Tells this replica's notices from others'.
    replica: String,
    changed: Mutex<BTreeSet<Key>>,
    wake: Notify,
}

impl Signals {
    pub fn new(store: Store) -> Self {
        let replica = uuid::Uuid::now_v7().simple().to_string();
        Self { store, replica, changed: Mutex::default(), wake: Notify::new() }
    }

    /// Other replicas learn of it within milliseconds.
    pub fn changed(&self, keys: impl IntoIterator<Item = Key>) {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
        self.wake.notify_one();
    }

    fn take(&self) -> Option<String> {
        let changed =
            std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
        if changed.is_empty() {
            return None;
        }
        let mut payload = self.replica.clone();
        for (tenant, log) in changed {
            payload.push_str(&format!(" {}:{}", tenant.0, log.0));
            if payload.len() > MAX_NOTICE_BYTES {
                return Some(format!("{} {EVERYTHING}", self.replica));
            }
        }
        Some(payload)
    }
}

/// Sends what has changed, until stopped.
pub async fn send(signals: Arc<Signals>, stop: CancellationToken) {
    let sent = metrics::counter!(telemetry::NOTICES_TOTAL, "direction" => "sent");
    let mut connection = None;
    while stop.run_until_cancelled(signals.wake.notified()).await.is_some() {
        if connection.is_none() {
            connection = signals.store.connection().await.ok();
        }
        let (Some(open), Some(payload)) = (&mut connection, signals.take()) else { continue };
        match store::notices::notify(open, &payload).await {
            Ok(()) => sent.increment(1),
            Err(error) => {
                tracing::debug!(%error, "a notice was not sent; readers elsewhere wait for their poll");
                connection = None;
            }
        }
        tokio::time::sleep(NOTICE_INTERVAL).await;
    }
}

/// Hears other replicas, until stopped. After a lost connection everything may have changed.
pub async fn listen(signals: Arc<Signals>, watches: Arc<Watches>, stop: CancellationToken) {
    let listening = metrics::gauge!(telemetry::LISTENING);
    while !stop.is_cancelled() {
        let Ok(mut listener) = store::notices::listen(&signals.store).await else {
            stop.run_until_cancelled(tokio::time::sleep(RECONNECT_AFTER)).await;
            continue;
        };
        let _listening = Counted::new(&listening);
        watches.refresh_all(Source::Poll).await;
        while let Some(heard) = stop.run_until_cancelled(listener.try_recv()).await {
            // None and Err alike: the connection was lost, and notices with it
            let Ok(Some(notice)) = heard else { break };
            hear(&signals, &watches, notice.payload()).await;
        }
    }
}

async fn hear(signals: &Signals, watches: &Watches, payload: &str) {
    let mut words = payload.split(' ');
    if words.next() == Some(&signals.replica) {
        return;
    }
    metrics::counter!(telemetry::NOTICES_TOTAL, "direction" => "received").increment(1);
    let words: Vec<&str> = words.collect();
    if words.contains(&EVERYTHING) {
        return watches.refresh_all(Source::Notice).await;
    }
    let key = |word: &str| {
        let (tenant, log) = word.split_once(':')?;
        Some((TenantId(tenant.parse().ok()?), LogId(log.parse().ok()?)))
    };
    watches.refresh(words.into_iter().filter_map(key)).await;
}
