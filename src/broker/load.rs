//! Bringing the memory of a group's logs up to their heads.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    model::{LogId, Offset, ProducerId, TenantId},
    rules::{
        append::Request,
        fold::ProducerState,
        memory::{Head, LogMemory, Memory, Producer, TailRow},
    },
    store::{self, Connection, loading::Facts},
};

/// Folds what the memory lacks of the rows before `heads`, loads the producers of `requests` it does
/// not know, and reads the epochs that were last read under another fence. The heads were read
/// before: an epoch read after its fence is never older than it. `held`: of sessions that nobody
/// can open now.
pub async fn load(
    connection: &mut Connection,
    memory: &mut Memory,
    tenant: TenantId,
    heads: &[Head],
    requests: &[Request],
    held: &Facts,
) -> Result<(), store::Error> {
    for head in heads {
        if memory.get(&head.log_id).is_none_or(|log| !log.is_prefix_of(head)) {
            memory.insert(head.log_id, LogMemory::cold(head));
        }
    }
    let numbered = numbered(heads, requests);
    let starts = load_strangers(connection, memory, tenant, heads, &numbered).await?;
    load_tails(connection, memory, tenant, heads, &starts).await?;
    load_partition_counts(connection, memory, tenant, heads, requests).await?;
    load_sessions(connection, memory, tenant, heads, &numbered, held).await?;
    for head in heads {
        if let Some(log) = memory.get_mut(&head.log_id) {
            log.fence = head.fence;
            if log.next_offset == head.next_offset {
                log.last_appended_at = head.last_appended_at;
            }
        }
    }
    Ok(())
}

type Pair = (LogId, ProducerId);
/// From which row on a producer loaded now counts rows, by log.
type Starts = BTreeMap<LogId, HashMap<ProducerId, Offset>>;

fn numbered(heads: &[Head], requests: &[Request]) -> BTreeSet<Pair> {
    let pairs = requests.iter().filter_map(|r| Some((r.home, r.numbered?.producer_id)));
    pairs.filter(|(log_id, _)| heads.iter().any(|head| head.log_id == *log_id)).collect()
}

/// A producer that is not in the memory with a state is its stored state plus all rows from there
/// on, never only those behind the memory. Nor is one whose mark is old: its state may have been
/// written anew, without a row that says so, by who has raised the fence.
async fn load_strangers(
    connection: &mut Connection,
    memory: &mut Memory,
    tenant: TenantId,
    heads: &[Head],
    numbered: &BTreeSet<Pair>,
) -> Result<Starts, store::Error> {
    let fences: BTreeMap<LogId, i64> = heads.iter().map(|h| (h.log_id, h.fence)).collect();
    let is_known = |(log_id, id): &Pair| {
        let producer = memory.get(log_id).and_then(|log| log.producers.get(id));
        let is_read = |p: &Producer| p.registered && Some(&p.mark) == fences.get(log_id);
        producer.is_some_and(is_read)
    };
    let strangers: Vec<Pair> = numbered.iter().copied().filter(|pair| !is_known(pair)).collect();
    let mut starts = Starts::new();
    if strangers.is_empty() {
        return Ok(starts);
    }
    for (log_id, producer_id) in &strangers {
        let unknown = Producer {
            mark: -1,
            session: None,
            state: ProducerState::default(),
            registered: false,
        };
        memory.entry(*log_id).and_modify(|log| {
            log.producers.insert(*producer_id, unknown);
        });
    }
    for stored in store::loading::states(connection, tenant, &strangers).await? {
        let head = heads.iter().find(|head| head.log_id == stored.log_id);
        let log = memory.get_mut(&stored.log_id);
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
    memory: &mut Memory,
    tenant: TenantId,
    heads: &[Head],
    starts: &Starts,
) -> Result<(), store::Error> {
    let mut from: Vec<(LogId, Offset)> = Vec::new();
    for head in heads {
        let Some(log) = memory.get(&head.log_id) else { continue };
        let starts = starts.get(&head.log_id).into_iter().flat_map(HashMap::values).copied();
        let first = starts.clone().fold(log.next_offset, Offset::min);
        // before the lock a state may be newer than the head that was read: the memory goes as far,
        // or the rows it counts already would be counted again under the lock
        let last = starts.fold(head.next_offset, Offset::max);
        if first < last {
            from.push((head.log_id, first));
        }
    }
    if from.is_empty() {
        return Ok(());
    }
    let rows = store::loading::tails(connection, tenant, &from).await?;
    let none = HashMap::new();
    for (log_id, first) in from {
        let Some(log) = memory.get_mut(&log_id) else { continue };
        let tail: Vec<TailRow<'_>> = rows
            .iter()
            .filter(|row| row.log_id == log_id)
            .map(store::loading::StoredRow::as_tail)
            .collect();
        log.fold(first, &tail, starts.get(&log_id).unwrap_or(&none))?;
    }
    Ok(())
}

/// Journals know how many partitions their topic has under their fence.
async fn load_partition_counts(
    connection: &mut Connection,
    memory: &mut Memory,
    tenant: TenantId,
    heads: &[Head],
    requests: &[Request],
) -> Result<(), store::Error> {
    let is_journal = |log_id| {
        requests.iter().any(|r| {
            let mut journals = r.whole.iter().flat_map(|whole| &whole.journals);
            (r.home == log_id && r.spread.is_some()) || journals.any(|(id, _)| *id == log_id)
        })
    };
    let is_stale = |head: &&Head| {
        let log = memory.get(&head.log_id);
        log.is_some_and(|log| log.partition_count == 0 || log.fence != head.fence)
    };
    let journals: Vec<LogId> = heads
        .iter()
        .filter(|head| is_journal(head.log_id))
        .filter(is_stale)
        .map(|head| head.log_id)
        .collect();
    if journals.is_empty() {
        return Ok(());
    }
    for (log_id, count) in store::logs::partition_counts(connection, tenant, &journals).await? {
        memory.entry(log_id).and_modify(|log| log.partition_count = count);
    }
    Ok(())
}

/// Epochs are read anew where the fence has moved since they were read.
async fn load_sessions(
    connection: &mut Connection,
    memory: &mut Memory,
    tenant: TenantId,
    heads: &[Head],
    numbered: &BTreeSet<Pair>,
    held: &Facts,
) -> Result<(), store::Error> {
    let fences: BTreeMap<LogId, i64> = heads.iter().map(|h| (h.log_id, h.fence)).collect();
    let is_unread = |(log_id, id): &&Pair| {
        let producer = memory.get(log_id).and_then(|log| log.producers.get(id));
        producer.is_some_and(|producer| Some(&producer.mark) != fences.get(log_id))
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
        store::loading::session_facts(connection, tenant, &producers).await?
    };
    for (log_id, producer_id) in unread {
        let log = memory.get_mut(&log_id);
        let producer = log.and_then(|log| log.producers.get_mut(&producer_id));
        if let (Some(producer), Some(fence)) = (producer, fences.get(&log_id)) {
            producer.session = held.get(&producer_id).or(read.get(&producer_id)).copied();
            producer.mark = *fence;
        }
    }
    Ok(())
}
