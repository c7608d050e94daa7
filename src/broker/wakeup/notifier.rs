//! Publishes changes: to this replica's watches at once, to other replicas by NOTIFY.

use std::sync::Arc;

use super::{
    notify::Signals,
    watch::{Change, Watches, watch_id},
};
use crate::model::{GroupId, LogId, TenantId};

/// A change, with its source and time.
#[derive(Clone)]
pub struct Notifier {
    pub watches: Arc<Watches>,
    pub signals: Arc<Signals>,
}

impl Notifier {
    pub fn logs_changed(&self, tenant: TenantId, changes: &[(LogId, Change)]) {
        for (log_id, change) in changes {
            self.watches.publish(tenant, *log_id, *change);
        }
        self.signals.changed(changes.iter().map(|(log_id, _)| (tenant, *log_id)));
    }

    pub fn group_changed(&self, tenant: TenantId, group: GroupId, generation: i64) {
        self.logs_changed(tenant, &[(watch_id(group), Change::HighWatermark(generation))]);
    }
}
