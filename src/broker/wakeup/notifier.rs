//! Watches of waiting reads. A read registers its watch before it queries the watermarks, or it
//! could miss a change in between. Commits of this replica wake it at once; notices and the slow
//! poll only trigger a query.
//!
//! A group is watched like a log: its generation only grows, and its id is never a log's.
//!
//! Known positions only grow, with one exception: a later query sees less. Then the database has
//! lost its last commits, and a read that waits beyond the end would wait in vain.

use std::sync::Arc;

use super::{
    notify::Signals,
    watch::{Change, Watches, number},
};
use crate::model::{GroupId, LogId, TenantId};

/// A change, with its source and time.
#[derive(Clone)]
pub struct Notifier {
    pub watches: Arc<Watches>,
    pub signals: Arc<Signals>,
}

impl Notifier {
    pub fn logs_changed(&self, tenant: TenantId, news: &[(LogId, Change)]) {
        for (log_id, news) in news {
            self.watches.tell(tenant, *log_id, *news);
        }
        self.signals.changed(news.iter().map(|(log_id, _)| (tenant, *log_id)));
    }

    pub fn group_changed(&self, tenant: TenantId, group: GroupId, generation: i64) {
        self.logs_changed(tenant, &[(number(group), Change::HighWatermark(generation))]);
    }
}
