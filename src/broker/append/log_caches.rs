//! The log caches of a lane, for all tenants, and their eviction. A cache can be dropped at any
//! time: it is loaded again.

use std::collections::HashMap;

use crate::{
    model::{LogId, TenantId},
    rules::append::cache::LogCaches,
};

#[derive(Default)]
pub struct TenantLogCaches {
    tenants: HashMap<TenantId, LogCaches>,
    /// The last pass that used a log.
    used_at: HashMap<(TenantId, LogId), u64>,
    passes: u64,
    /// The size at the last count, and the most that was added since.
    counted: usize,
    since: usize,
}

impl TenantLogCaches {
    pub fn of(&mut self, tenant: TenantId) -> &mut LogCaches {
        self.tenants.entry(tenant).or_default()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records that a pass over these logs has added at most `added`. Above `most` it evicts the
    /// least recently used logs until half of that is left. Returns the size as last counted.
    ///
    /// Counting visits everything, so it waits until a quarter may have been added: the cost of a
    /// pass is proportional to what it adds.
    pub fn used(
        &mut self,
        tenant: TenantId,
        logs: impl IntoIterator<Item = LogId>,
        added: usize,
        most: usize,
    ) -> usize {
        self.passes += 1;
        for log in logs {
            self.used_at.insert((tenant, log), self.passes);
        }
        self.since += added;
        if self.since > self.counted / 4 {
            self.count(most);
        }
        self.counted
    }

    fn count(&mut self, most: usize) {
        let mut logs: Vec<(u64, TenantId, LogId, usize)> = Vec::new();
        for (tenant, caches) in &self.tenants {
            for (log_id, log) in caches {
                let used_at = self.used_at.get(&(*tenant, *log_id)).copied().unwrap_or(0);
                logs.push((used_at, *tenant, *log_id, log.weight()));
            }
        }
        let mut counted: usize = logs.iter().map(|(.., weight)| weight).sum();
        if counted > most {
            logs.sort_unstable();
            for (_, tenant, log, weight) in logs {
                if counted <= most / 2 {
                    break;
                }
                self.of(tenant).remove(&log);
                counted -= weight;
            }
            self.tenants.retain(|_, caches| !caches.is_empty());
        }
        let tenants = &self.tenants;
        self.used_at.retain(|(tenant, log), _| {
            tenants.get(tenant).is_some_and(|caches| caches.contains_key(log))
        });
        (self.counted, self.since) = (counted, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::*;
    use crate::{
        model::{ProducerId, Timestamp},
        rules::append::{
            cache::{Head, LogCache, Producer},
            producer_state::ProducerState,
        },
    };

    const TENANT: TenantId = TenantId(1);

    fn log(producers: i64) -> LogCache {
        let head = Head {
            log_id: LogId(0),
            next_offset: 0,
            fence: 0,
            last_appended_at: Timestamp(0),
            snapshot_offset: 0,
            kept_offset: 0,
        };
        let mut log = LogCache::cold(&head);
        for id in 0..producers {
            let state = ProducerState::default();
            let producer = Producer { verified_fence: 0, session: None, state, registered: true };
            log.producers.insert(ProducerId(id), producer);
        }
        log
    }

    /// A pass that loads these logs, each with four producers.
    fn pass(memories: &mut TenantLogCaches, logs: RangeInclusive<i64>, most: usize) -> usize {
        let logs: Vec<LogId> = logs.map(LogId).collect();
        for id in &logs {
            memories.of(TENANT).entry(*id).or_insert_with(|| log(4));
        }
        let added = logs.len() * 5;
        memories.used(TENANT, logs, added, most)
    }

    #[test]
    fn what_was_used_last_is_kept() {
        let mut memories = TenantLogCaches::default();
        assert_eq!(pass(&mut memories, 1..=4, 40), 20);
        assert_eq!(pass(&mut memories, 5..=8, 40), 40, "at the limit");
        // the first ones are used again
        pass(&mut memories, 1..=2, 40);
        assert_eq!(pass(&mut memories, 9..=9, 40), 20, "half of the limit is left");
        let mut left: Vec<i64> = memories.of(TENANT).keys().map(|log| log.0).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 8, 9]);
        assert_eq!(memories.used_at.len(), 4);
    }

    #[test]
    fn a_log_beyond_the_limit_alone_is_forgotten() {
        let mut memories = TenantLogCaches::default();
        memories.of(TENANT).insert(LogId(1), log(100));
        assert_eq!(memories.used(TENANT, [LogId(1)], 101, 50), 0);
        assert!(memories.tenants.is_empty());
    }

    #[test]
    fn counting_waits_until_a_quarter_may_have_come() {
        let mut memories = TenantLogCaches::default();
        assert_eq!(pass(&mut memories, 1..=20, 1_000), 100);
        // three more logs, counted by nobody; with two more it is
        assert_eq!(pass(&mut memories, 21..=23, 1_000), 100);
        assert_eq!(pass(&mut memories, 24..=25, 1_000), 100);
        assert_eq!(pass(&mut memories, 26..=26, 1_000), 130);
    }
}
