//! Looks up the dedup keys of appends: which keys they have, and what is stored under them.

use std::collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry};

use crate::{
    model::{
        Batch, LogId, Partition, TenantId, TopicId,
        batch::Line,
        dedup::{DedupKey, RequestKey, Ring, content_key, payload_digest},
        settings::{Key, OwnSettings, Value},
    },
    rules::{
        append::{
            Request, Spread,
            cache::{JournalKeys, LogCaches},
            dedup::{Dedup, Fact, KeyedRecord, Known},
            placement::partition_of,
        },
        settings::in_force,
    },
    store::{self, Connection, catalog::topics::StoredTopic},
};

/// The deduplication policy of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// None: unlimited.
    pub window_ms: Option<i64>,
    pub by_content: bool,
}

impl Policy {
    /// Returns none if the topic does not deduplicate (the window is 0).
    pub fn of(topic: &OwnSettings, tenant: &OwnSettings) -> Option<Self> {
        let levels = [topic, tenant];
        let window_ms = in_force(Key::DedupWindowMs, &levels).number();
        let by_content = in_force(Key::Dedup, &levels) == Value::Choice("content");
        (window_ms != Some(0)).then_some(Self { window_ms, by_content })
    }
}

/// The dedup data of an append; `request` is the append as placed. None: it has no keys.
pub fn dedup(
    topic: &StoredTopic,
    policy: Policy,
    batch: &Batch,
    request: &Request,
    request_key: Option<RequestKey>,
) -> Option<Dedup> {
    let has_keys = policy.by_content || !batch.ids.is_empty();
    if !has_keys && request_key.is_none() {
        return None;
    }
    Some(Dedup {
        journal: topic.journal,
        topic_id: topic.topic_id,
        window_ms: policy.window_ms,
        records: if has_keys { records(policy, batch, request) } else { Vec::new() },
        refuses_duplicates: false,
        request_key,
    })
}

fn records(policy: Policy, batch: &Batch, request: &Request) -> Vec<KeyedRecord> {
    let parts = request.parts.iter().enumerate();
    let part_of: HashMap<Partition, usize> = parts.map(|(at, part)| (part.partition, at)).collect();
    let part = |line: &Line| match request.spread {
        None => 0,
        Some(Spread { partition_count, keyless }) => {
            let partition = partition_of(line, partition_count, keyless.unwrap_or(0));
            part_of.get(&partition).copied().unwrap_or(0)
        }
    };
    let mut start = 0;
    let record = |(index, line): (usize, &Line)| {
        let end = line.end as usize;
        let content = &batch.lines[start..start + line.content_bytes as usize];
        let size_bytes = (end - start) as i64;
        start = end;
        let key = match policy.by_content {
            true => Some(content_key(content)),
            false => batch.ids.get(index).copied().flatten(),
        };
        let digest = key.map_or(0, |_| payload_digest(content.as_bytes()));
        KeyedRecord { append: None, index, part: part(line), key, digest, size_bytes }
    };
    batch.records.iter().enumerate().map(record).collect()
}

/// Merges the dedup keys of append number `append`, whose parts start at index `first_part`. There
/// is one entry per topic, in which an id occurs once.
pub fn add(dedups: &mut Vec<Dedup>, mut dedup: Dedup, append: usize, first_part: usize) {
    for record in &mut dedup.records {
        record.append = Some(append);
        record.part += first_part;
    }
    match dedups.iter_mut().find(|same| same.topic_id == dedup.topic_id) {
        Some(same) => same.records.append(&mut dedup.records),
        None => dedups.push(dedup),
    }
}

/// The journals whose heads must be locked to reserve these keys.
pub fn journals<'a>(dedups: impl Iterator<Item = &'a Dedup>) -> Vec<LogId> {
    let journals: BTreeSet<LogId> = dedups.map(|dedup| dedup.journal).collect();
    journals.into_iter().collect()
}

/// Looks up the keys in all rings that may contain them. `of_journal` is what was read of their
/// journals before.
pub async fn look_up(
    connection: &mut Connection,
    tenant: TenantId,
    dedups: impl Iterator<Item = &Dedup> + Clone,
    of_journal: impl Fn(LogId) -> JournalKeys,
) -> Result<Known, store::Error> {
    let mut wanted: BTreeMap<(TopicId, Ring), Vec<DedupKey>> = BTreeMap::new();
    for dedup in dedups.clone() {
        let rings = of_journal(dedup.journal).rings;
        let records = dedup.records.iter().filter_map(|record| record.key);
        let keys: Vec<DedupKey> =
            records.chain(dedup.request_key.map(|request| request.key)).collect();
        // where new ones will lie as well
        let is_wanted = |ring: &Ring| rings & ring.bit() != 0 || *ring == Ring::of(dedup.window_ms);
        for ring in Ring::all().filter(is_wanted) {
            wanted.entry((dedup.topic_id, ring)).or_default().extend(&keys);
        }
    }
    loop {
        let stored = fetch(connection, tenant, &wanted).await?;
        // a key with an instant ahead will lie with longer windows
        let ahead = dedups.clone().filter_map(|dedup| {
            let request = dedup.request_key?;
            let ring = Ring::of(request.lifetime_ms(dedup.window_ms, stored.now));
            (!stored.slots.contains_key(&ring))
                .then_some(((dedup.topic_id, ring), vec![request.key]))
        });
        let ahead: Vec<_> = ahead.collect();
        if ahead.is_empty() {
            return Ok(stored);
        }
        wanted.extend(ahead);
    }
}

/// Reads the stored keys from these rings.
pub async fn fetch(
    connection: &mut Connection,
    tenant: TenantId,
    wanted: &BTreeMap<(TopicId, Ring), Vec<DedupKey>>,
) -> Result<Known, store::Error> {
    let mut stored = Known::default();
    for ((topic, ring), keys) in wanted {
        let found = store::dedup::find(connection, tenant, *topic, *ring, keys).await?;
        stored.now = found.now;
        stored.slots.insert(*ring, found.slot);
        let horizon = stored.horizons.entry(*topic).or_default();
        *horizon = found.horizon.max(*horizon);
        for (key, fact) in found.facts {
            // one in a longer ring may be over, and one in a shorter ring not
            let is_over = matches!(fact, Fact::Request { is_live: false, .. });
            let place = stored.facts.entry((*topic, key));
            if !is_over || matches!(place, Entry::Vacant(_)) {
                place.insert_entry(fact);
            }
        }
    }
    Ok(stored)
}

/// Returns what is known of the keys, provided that the cached state of their journals is current.
pub async fn look_up_cached(
    connection: &mut Connection,
    tenant: TenantId,
    caches: &LogCaches,
    requests: &[Request],
) -> Result<Known, store::Error> {
    let of_journal = |journal| caches.get(&journal).and_then(|log| log.keys).unwrap_or_default();
    look_up(connection, tenant, dedups(requests), of_journal).await
}

/// Looks up the keys under the locks of their journals' heads: the cache is updated, and nobody
/// else can reserve these keys meanwhile.
pub async fn refresh_and_look_up(
    connection: &mut Connection,
    tenant: TenantId,
    caches: &mut LogCaches,
    requests: &[Request],
) -> Result<Known, store::Error> {
    let journals = journals(dedups(requests));
    if journals.is_empty() {
        return Ok(Known::default());
    }
    for (journal, keys) in store::dedup::journals(connection, tenant, &journals).await? {
        caches.entry(journal).and_modify(|log| log.keys = Some(keys));
    }
    look_up_cached(connection, tenant, caches, requests).await
}

fn dedups(requests: &[Request]) -> impl Iterator<Item = &Dedup> + Clone {
    requests.iter().flat_map(|request| &request.dedups)
}
