//! Publishes changes: to this replica's watches at once, to other replicas by NOTIFY.

use std::sync::Arc;

use super::{
    notify::Signals,
    watch::{Change, WatchKey, Watches},
};
use crate::model::TenantId;

/// Publishes changes that have been committed here.
#[derive(Clone)]
pub struct Notifier {
    pub watches: Arc<Watches>,
    pub signals: Arc<Signals>,
}

impl Notifier {
    pub fn changed<K: Into<WatchKey>>(
        &self,
        tenant: TenantId,
        changes: impl IntoIterator<Item = (K, Change)>,
    ) {
        let published = changes.into_iter().map(|(key, change)| {
            let key = key.into();
            self.watches.publish(tenant, key, change);
            (tenant, key)
        });
        self.signals.changed(published);
    }
}
