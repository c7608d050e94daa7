//! The read set of a batch of appends: nothing is answered before every log in it is confirmed
//! (optimistic concurrency control).

use std::collections::BTreeMap;

use super::{
    Request,
    cache::{LogCache, LogCaches},
};
use crate::model::{LogId, Offset, Partition, Timestamp};

/// How much of a log's cache the answers of a batch depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dependency {
    Nothing,
    Fence,
    Position,
}

/// What must be unchanged in a head for the decision to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedHead {
    pub fence: i64,
    /// The fingerprint of the history. None: only the fence matters.
    pub position: Option<(Offset, Timestamp)>,
}

impl ExpectedHead {
    pub fn holds(&self, log: &LogCache) -> bool {
        let position = (log.next_offset, log.last_appended_at);
        log.fence == self.fence && self.position.is_none_or(|compared| compared == position)
    }
}

/// The read set of a batch, by log.
pub fn read_set(group: &[Request]) -> BTreeMap<LogId, Dependency> {
    let mut read_set = BTreeMap::new();
    let mut stand = |log_id, dependency: Dependency| {
        let known = read_set.entry(log_id).or_insert(dependency);
        *known = dependency.max(*known);
    };
    for request in group {
        let numbered = request.numbered.is_some();
        let home = match request.spread {
            _ if numbered || request.expected_offset.is_some() => Dependency::Position,
            Some(_) => Dependency::Fence,
            None => Dependency::Nothing,
        };
        stand(request.home, home);
        request.dedups.iter().for_each(|dedup| stand(dedup.journal, Dependency::Fence));
        let journals = request.transaction.iter().flat_map(|txn| &txn.journals);
        journals.for_each(|(journal, _)| stand(*journal, Dependency::Fence));
        // the bases of a numbered topic append go into its provenance, those of a transaction into
        // its outcome, those of a request with a key into what is remembered
        let is_placed = numbered || request.transaction.is_some() || request.is_keyed();
        let parts = if is_placed { Dependency::Position } else { Dependency::Nothing };
        request.parts.iter().for_each(|part| stand(part.log_id, parts));
    }
    read_set
}

pub fn compare(caches: &LogCaches, log_id: LogId, dependency: Dependency) -> Option<ExpectedHead> {
    let log = caches.get(&log_id)?;
    match dependency {
        Dependency::Nothing => None,
        Dependency::Fence => Some(ExpectedHead { fence: log.fence, position: None }),
        Dependency::Position => Some(ExpectedHead {
            fence: log.fence,
            position: Some((log.next_offset, log.last_appended_at)),
        }),
    }
}

/// The logs in the read set of a batch, by id.
pub fn dependency_logs(group: &[Request]) -> Vec<LogId> {
    let dependencies =
        read_set(group).into_iter().filter(|(_, dependency)| *dependency != Dependency::Nothing);
    dependencies.map(|(log_id, _)| log_id).collect()
}

/// Whether the cache has all of them.
pub fn remembers(caches: &LogCaches, group: &[Request]) -> bool {
    dependency_logs(group).iter().all(|log_id| caches.contains_key(log_id))
}

/// Every log of a batch, by id: the order in which they are locked.
pub fn touched_logs(group: &[Request]) -> Vec<LogId> {
    read_set(group).into_keys().collect()
}

/// Whether the fast path can decide this batch, and is likely to succeed: the cache has every log
/// in the read set, and every producer's epoch was read under the log's current fence.
pub fn is_known(caches: &LogCaches, group: &[Request]) -> bool {
    let likely = |log_id: &LogId| caches.get(log_id).is_some_and(|log| log.contended_passes == 0);
    dependency_logs(group).iter().all(likely) && group.iter().all(|r| is_read(caches, r))
}

/// Whether a request that arrived after the heads of a batch were locked and loaded can join it: it
/// uses no other logs, and its producer's epoch is loaded.
pub fn may_join(
    caches: &LogCaches,
    touched: &[LogId],
    dependencies: &[LogId],
    request: &Request,
) -> bool {
    let alone = std::slice::from_ref(request);
    // what a transaction stands on is taken before the heads, and keys are looked up after them
    let is_append = request.transaction.is_none() && request.dedups.is_empty();
    let within = |some: Vec<LogId>, all: &[LogId]| some.iter().all(|log_id| all.contains(log_id));
    is_append
        && within(touched_logs(alone), touched)
        && within(dependency_logs(alone), dependencies)
        && is_read(caches, request)
}

/// Whether the topic and producer of a request can be checked.
fn is_read(caches: &LogCaches, request: &Request) -> bool {
    let home = caches.get(&request.home);
    let spread_known = request
        .spread
        .is_none_or(|spread| home.is_some_and(|log| log.partition_count == spread.partition_count));
    let transaction_known = request.transaction.as_ref().is_none_or(|txn| {
        let is_as_spread = |(journal, partition_count): &(LogId, Partition)| {
            caches.get(journal).is_some_and(|log| log.partition_count == *partition_count)
        };
        request.over_limit.is_none()
            && txn.may_be_assumed()
            && txn.journals.iter().all(is_as_spread)
    });
    let producer_known = request.numbered.is_none_or(|numbered| {
        home.is_some_and(|log| {
            let producer = log.producers.get(&numbered.producer_id);
            producer.is_some_and(|p| p.registered && p.verified_fence == log.fence)
        })
    });
    // a statement confirms either what a transaction stands on or what was looked up
    let dedups_known = request.dedups.iter().all(|dedup| {
        let journal = caches.get(&dedup.journal);
        request.transaction.is_none() && journal.is_some_and(|log| log.keys.is_some())
    });
    spread_known && transaction_known && producer_known && dedups_known
}
