//! Brings the log caches of a batch up to the current heads.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    model::{LogId, Offset, ProducerId, TenantId},
    rules::append::{
        Request,
        cache::{FAR_OFFSETS, Head, LogCache, LogCaches, Producer},
        producer_state::ProducerState,
        read_set,
        snapshot::TailRow,
    },
    store::{self, Connection, append::load::Facts},
};

/// Folds the rows that the caches lack before `heads`, loads the producers of `requests` that are
/// not cached, and reads the epochs that were last read under another fence. The heads were read
/// first, so an epoch is never older than its fence. `held` lists locked sessions, which nobody can
/// open now. Tails of more than `most_offsets` are not read.
pub async fn load(
    connection: &mut Connection,
    caches: &mut LogCaches,
    tenant: TenantId,
    heads: &[Head],
    requests: &[Request],
    held: &Facts,
    most_offsets: i64,
) -> Result<Loaded, store::Error> {
    for head in heads {
        match caches.get_mut(&head.log_id).filter(|log| log.is_prefix_of(head)) {
            Some(log) => log.see_fence(head.fence),
            None => drop(caches.insert(head.log_id, LogCache::cold(head))),
        }
    }
    let numbered = numbered(heads, requests);
    loop {
        let starts = load_strangers(connection, caches, tenant, heads, &numbered).await?;
        match load_tails(connection, caches, tenant, heads, &starts, most_offsets).await? {
            Tails::Folded => break,
            Tails::TooLong(log) => {
                // without their tails they are not what they were
                for (log, producers) in &starts {
                    caches.entry(*log).and_modify(|log| {
                        log.producers.retain(|id, _| !producers.contains_key(id));
                    });
                }
                return Ok(Loaded::Behind(log));
            }
            // cold cache is of no other history
            Tails::Foreign(head) => drop(caches.insert(head.log_id, LogCache::cold(&head))),
        }
    }
    load_partition_counts(connection, caches, tenant, heads, requests).await?;
    load_sessions(connection, caches, tenant, heads, &numbered, held).await?;
    for head in heads {
        if let Some(log) = caches.get_mut(&head.log_id)
            && log.next_offset == head.next_offset
        {
            log.last_appended_at = head.last_appended_at;
        }
    }
    Ok(Loaded::Whole)
}

/// Loads large differences before taking locks: a cache is always a prefix of its log, so under the
/// locks only the rest is read, and the heads are held for microseconds.
pub async fn load_early(
    connection: &mut Connection,
    caches: &mut LogCaches,
    tenant: TenantId,
    requests: &[Request],
) -> Result<Loaded, store::Error> {
    let dependencies = read_set::dependency_logs(requests);
    let heads = store::catalog::logs::read(connection, tenant, &dependencies).await?;
    match load(connection, caches, tenant, &heads, requests, &Facts::new(), FAR_OFFSETS).await {
        // rows were trimmed between two of its statements; under the lock that cannot happen
        Err(store::Error::Unexpected(_)) => {
            dependencies.iter().for_each(|log| drop(caches.remove(log)));
            Ok(Loaded::Whole)
        }
        loaded => loaded,
    }
}

/// The result of a load.
pub enum Loaded {
    Whole,
    /// The tail of this log, or of a producer in it, is too long to be read at once; nothing more
    /// was loaded.
    Behind(LogId),
}

enum Tails {
    Folded,
    TooLong(LogId),
    /// The cache of this log belongs to another history: its tail was lost, and other rows were
    /// appended since.
    Foreign(Head),
}

type Pair = (LogId, ProducerId);
/// The first row that a newly loaded producer counts, by log.
type Starts = BTreeMap<LogId, HashMap<ProducerId, Offset>>;

fn numbered(heads: &[Head], requests: &[Request]) -> BTreeSet<Pair> {
    let pairs = requests.iter().filter_map(|r| Some((r.home, r.numbered?.producer_id)));
    pairs.filter(|(log_id, _)| heads.iter().any(|head| head.log_id == *log_id)).collect()
}

/// A producer that is not cached with a state is its stored state plus all rows from there on,
/// never only the rows after the cache. The same holds for one whose verified fence is old: its
/// state may have been rewritten, without a row that shows it, by the session that raised the
/// fence.
async fn load_strangers(
    connection: &mut Connection,
    caches: &mut LogCaches,
    tenant: TenantId,
    heads: &[Head],
    numbered: &BTreeSet<Pair>,
) -> Result<Starts, store::Error> {
    let fences: BTreeMap<LogId, i64> = heads.iter().map(|h| (h.log_id, h.fence)).collect();
    let is_known = |(log_id, id): &Pair| {
        let producer = caches.get(log_id).and_then(|log| log.producers.get(id));
        let is_read = |p: &Producer| p.registered && Some(&p.verified_fence) == fences.get(log_id);
        producer.is_some_and(is_read)
    };
    let strangers: Vec<Pair> = numbered.iter().copied().filter(|pair| !is_known(pair)).collect();
    let mut starts = Starts::new();
    if strangers.is_empty() {
        return Ok(starts);
    }
    for (log_id, producer_id) in &strangers {
        let unknown = Producer {
            verified_fence: -1,
            session: None,
            state: ProducerState::default(),
            registered: false,
        };
        caches.entry(*log_id).and_modify(|log| {
            log.producers.insert(*producer_id, unknown);
        });
    }
    for stored in store::append::load::states(connection, tenant, &strangers).await? {
        let head = heads.iter().find(|head| head.log_id == stored.log_id);
        let log = caches.get_mut(&stored.log_id);
        let producer = log.and_then(|log| log.producers.get_mut(&stored.producer_id));
        if let (Some(head), Some(producer)) = (head, producer) {
            producer.state = stored.state;
            producer.registered = true;
            let start = stored.as_of_offset.max(head.snapshot_offset);
            starts.entry(stored.log_id).or_default().insert(stored.producer_id, start);
        }
    }
    Ok(starts)
}

async fn load_tails(
    connection: &mut Connection,
    caches: &mut LogCaches,
    tenant: TenantId,
    heads: &[Head],
    starts: &Starts,
    most_offsets: i64,
) -> Result<Tails, store::Error> {
    let mut from: Vec<(&Head, Offset)> = Vec::new();
    for head in heads {
        let Some(log) = caches.get(&head.log_id) else { continue };
        let starts = starts.get(&head.log_id).into_iter().flat_map(HashMap::values).copied();
        let first = starts.clone().fold(log.next_offset, Offset::min);
        // before the lock a state may be newer than the head that was read: the cache goes as far,
        // or the rows it counts already would be counted again under the lock
        let last = starts.fold(head.next_offset, Offset::max);
        if last - first > most_offsets {
            return Ok(Tails::TooLong(head.log_id));
        }
        if first < last {
            from.push((head, first));
        }
    }
    if from.is_empty() {
        return Ok(Tails::Folded);
    }
    let offsets: Vec<(LogId, Offset)> = from.iter().map(|(head, at)| (head.log_id, *at)).collect();
    let rows = store::append::load::tails(connection, tenant, &offsets).await?;
    let none = HashMap::new();
    for (head, first) in from {
        let Some(log) = caches.get_mut(&head.log_id) else { continue };
        let of_log = rows.iter().filter(|row| row.log_id == head.log_id);
        let tail: Vec<TailRow<'_>> = of_log.map(store::append::load::StoredRow::as_tail).collect();
        if log.next_offset < head.next_offset && !log.ends_in(&tail) {
            return Ok(Tails::Foreign(*head));
        }
        let since = tail.partition_point(|row| row.base_offset < first);
        log.fold(first, &tail[since..], starts.get(&head.log_id).unwrap_or(&none))?;
    }
    Ok(Tails::Folded)
}

/// Loads the partition counts that journals have under their fence, where they are needed.
async fn load_partition_counts(
    connection: &mut Connection,
    caches: &mut LogCaches,
    tenant: TenantId,
    heads: &[Head],
    requests: &[Request],
) -> Result<(), store::Error> {
    let is_journal = |log_id| {
        requests.iter().any(|r| {
            let mut journals = r.transaction.iter().flat_map(|txn| &txn.journals);
            (r.home == log_id && r.spread.is_some()) || journals.any(|(id, _)| *id == log_id)
        })
    };
    let is_unread =
        |head: &&Head| caches.get(&head.log_id).is_some_and(|log| log.partition_count == 0);
    let journals: Vec<LogId> = heads
        .iter()
        .filter(|head| is_journal(head.log_id))
        .filter(is_unread)
        .map(|head| head.log_id)
        .collect();
    if journals.is_empty() {
        return Ok(());
    }
    for (log_id, count) in
        store::catalog::logs::partition_counts(connection, tenant, &journals).await?
    {
        caches.entry(log_id).and_modify(|log| log.partition_count = count);
    }
    Ok(())
}

/// Reads epochs again where the fence has moved since they were read.
async fn load_sessions(
    connection: &mut Connection,
    caches: &mut LogCaches,
    tenant: TenantId,
    heads: &[Head],
    numbered: &BTreeSet<Pair>,
    held: &Facts,
) -> Result<(), store::Error> {
    let fences: BTreeMap<LogId, i64> = heads.iter().map(|h| (h.log_id, h.fence)).collect();
    let is_unread = |(log_id, id): &&Pair| {
        let producer = caches.get(log_id).and_then(|log| log.producers.get(id));
        producer.is_some_and(|producer| Some(&producer.verified_fence) != fences.get(log_id))
    };
    let unread: Vec<Pair> = numbered.iter().filter(is_unread).copied().collect();
    if unread.is_empty() {
        return Ok(());
    }
    let producers = unread.iter().map(|(_, id)| *id).filter(|id| !held.contains_key(id));
    let producers: BTreeSet<ProducerId> = producers.collect();
    let producers: Vec<ProducerId> = producers.into_iter().collect();
    let read = if producers.is_empty() {
        Facts::new()
    } else {
        store::append::load::session_facts(connection, tenant, &producers).await?
    };
    for (log_id, producer_id) in unread {
        let log = caches.get_mut(&log_id);
        let producer = log.and_then(|log| log.producers.get_mut(&producer_id));
        if let (Some(producer), Some(fence)) = (producer, fences.get(&log_id)) {
            producer.session = held.get(&producer_id).or(read.get(&producer_id)).copied();
            producer.verified_fence = *fence;
        }
    }
    Ok(())
}
