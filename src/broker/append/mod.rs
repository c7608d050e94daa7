//! Appends: resolve the topic, place the records, submit them to the topic's lane, and answer with
//! their offsets.

pub mod batch;
pub mod dedup;
pub mod fair_queue;
pub mod lane;
pub mod linger;
pub mod load;
pub mod log_caches;
pub mod metrics;
pub mod outcome;
pub mod queue;
pub mod txn;
pub mod write;
pub mod writer;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{sync::oneshot, time::Instant};

use self::batch::{Job, Lines, Outcome, Ticket};
use super::{Broker, Error, memory_budget::Held, retry::ATTEMPTS};
use crate::{
    model::{
        Batch, Name, Partition, TenantId, Timestamp,
        append::{Append, Appended, Placed, PlacedRecord, Scope},
        settings::{Key, OwnSettings},
        topic::BatchLimits,
    },
    rules::{
        self, Refusal,
        append::{
            Request, RequestPart, Spread,
            dedup::Dedup,
            placement,
            producer_state::{Placement, RecordPlace},
        },
    },
    store::catalog::topics::StoredTopic,
};

/// Keyless topic appends rotate over the partitions in steps of the golden ratio, so that they stay
/// evenly spread whichever of them are repeats.
static TURN: AtomicU64 = AtomicU64::new(0);
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

impl Broker {
    pub async fn append(
        &self,
        tenant: TenantId,
        topic: &Name,
        scope: Scope,
        append: Append,
        held: Held,
    ) -> Result<Appended, Error> {
        let (records, bytes) = (append.batch.records.len(), append.batch.lines.len());
        let answer = self.try_append(tenant, topic, scope, append, held).await;
        let appended = self.appends.answered(records, bytes, &answer);
        self.traffic.appended(tenant, topic, appended, bytes);
        answer
    }

    async fn try_append(
        &self,
        tenant: TenantId,
        topic: &Name,
        scope: Scope,
        append: Append,
        held: Held,
    ) -> Result<Appended, Error> {
        let arrived_at = Instant::now();
        for attempt in 0..ATTEMPTS {
            let refresh = attempt > 0;
            let resolved = match scope {
                Scope::Topic => self.topics.resolve(tenant, topic, refresh).await?,
                Scope::Partition(p) => self.topics.partition(tenant, topic, p, refresh).await?,
            };
            let settings = self.settings.of(tenant).await?;
            let (mut request, lines) = to_request(&resolved, scope, &settings, &append)?;
            if request.over_limit.is_none() {
                let (key, bytes) = (Key::MaxStoredBytes, request.size_bytes());
                request.over_limit = self.quotas.full(tenant, &settings, key, bytes).await?;
            }
            let has_keys = request.dedups.iter().any(|dedup| !dedup.records.is_empty());
            let has_keys = has_keys || !append.batch.ids.is_empty();
            let (answer, answered) = oneshot::channel();
            let _held = held.clone();
            let ticket = Ticket {
                lines,
                answer,
                arrived_at,
                maybe_written: false,
                place: None,
                parked: None,
                _held,
            };
            self.lanes.submit(resolved.topic_id, Job { tenant, request, ticket })?;
            match answered.await.unwrap_or_else(|_| Outcome::Failed(Error::internal())) {
                Outcome::Placed { placement, appended_at, duplicate } => {
                    let placed = locate(scope, &placement, &append.batch, appended_at)
                        .ok_or_else(Error::internal)?;
                    let placed = if has_keys { placed.records(appended_at) } else { placed };
                    return Ok(Appended { placed, duplicate, appended_at: Some(appended_at) });
                }
                Outcome::Forgotten => {
                    let placed = without_offsets(scope, &append.batch, has_keys);
                    return Ok(Appended { placed, duplicate: true, appended_at: None });
                }
                Outcome::Refused(refusal) => return Err(refusal.into()),
                Outcome::Failed(error) => return Err(error),
                // answered to transactions only
                Outcome::Committed { .. } => return Err(Error::internal()),
                Outcome::TopicChanged => {}
            }
        }
        Err(Error::unavailable("The topic keeps changing. Nothing was appended; retry."))
    }
}

/// The append in the form that the rules decide, with the lines of its parts.
fn to_request(
    topic: &StoredTopic,
    scope: Scope,
    tenant: &OwnSettings,
    append: &Append,
) -> Result<(Request, Vec<Lines>), Error> {
    let (mut request, lines) = place(topic, scope, &append.batch);
    request.numbered = append.numbered;
    request.expected_offset = append.expected_offset;
    let own = &topic.summary.settings;
    request.over_limit = too_large(&append.batch, rules::settings::batch_limits(own, tenant));
    let policy = dedup::Policy::of(own, tenant);
    if policy.is_none() && append.request_key.is_some() {
        return Err(Error::invalid("Idempotency-Key", NO_WINDOW));
    }
    let dedup = policy.and_then(|policy| {
        dedup::dedup(topic, policy, &append.batch, &request, append.request_key)
    });
    let refuses_duplicates = append.refuses_duplicates;
    request.dedups.extend(dedup.map(|dedup| Dedup { refuses_duplicates, ..dedup }));
    Ok((request, lines))
}

/// The reason to refuse an `Idempotency-Key`.
const NO_WINDOW: &str = "this topic remembers no keys, as its dedup_window_ms is 0; omit the key, \
                         or send a sequence in a session (producer_id, epoch, sequence)";

/// The first limit that a batch exceeds.
pub fn too_large(batch: &Batch, limits: BatchLimits) -> Option<Refusal> {
    let checks = [
        ("max_batch_records", limits.max_batch_records, batch.record_count()),
        ("max_batch_bytes", limits.max_batch_bytes, batch.size_bytes()),
        ("max_record_bytes", limits.max_record_bytes, batch.largest_record_bytes()),
    ];
    checks.into_iter().find_map(|(limit_name, limit, received)| {
        (received > limit).then_some(Refusal::BatchTooLarge { limit_name, limit, received })
    })
}

/// Which lines go to which log.
pub fn place(topic: &StoredTopic, scope: Scope, batch: &Arc<Batch>) -> (Request, Vec<Lines>) {
    let (home, spread, parts, lines) = match scope {
        Scope::Partition(partition) => {
            let part = part(topic, partition, batch.records.len(), batch.lines.len());
            let lines = vec![Lines::All(batch.clone())];
            (topic.logs[partition as usize], None, vec![part], lines)
        }
        Scope::Topic => {
            let (spread, parts, lines) = spread_out(topic, batch);
            (topic.journal, Some(spread), parts, lines)
        }
    };
    let request = Request {
        home,
        numbered: None,
        digest: batch.digest,
        expected_offset: None,
        parts,
        spread,
        over_limit: None,
        transaction: None,
        dedups: Vec::new(),
    };
    (request, lines)
}

fn part(topic: &StoredTopic, partition: Partition, records: usize, bytes: usize) -> RequestPart {
    RequestPart {
        log_id: topic.logs[partition as usize],
        partition,
        record_count: records as i64,
        size_bytes: bytes as i64,
    }
}

/// The records of each partition, ordered by each partition's first record.
fn spread_out(topic: &StoredTopic, batch: &Arc<Batch>) -> (Spread, Vec<RequestPart>, Vec<Lines>) {
    let partition_count = topic.summary.partition_count;
    let has_keyless = batch.records.iter().any(|line| line.key_hash.is_none());
    let turn = TURN.fetch_add(u64::from(has_keyless), Ordering::Relaxed);
    let point = turn.wrapping_mul(GOLDEN_RATIO) >> 32;
    let keyless = (point % u64::from(partition_count.unsigned_abs())) as Partition;
    let spread = Spread { partition_count, keyless: has_keyless.then_some(keyless) };

    let mut order: Vec<(Partition, usize, String)> = Vec::new();
    let mut index: HashMap<Partition, usize> = HashMap::new();
    let mut start = 0;
    for line in &batch.records {
        let partition = placement::partition_of(line, partition_count, keyless);
        let at = *index.entry(partition).or_insert_with(|| {
            order.push((partition, 0, String::new()));
            order.len() - 1
        });
        let end = line.end as usize;
        order[at].1 += 1;
        order[at].2.push_str(&batch.lines[start..end]);
        start = end;
    }
    if let [(partition, records, _)] = order.as_slice() {
        let part = part(topic, *partition, *records, batch.lines.len());
        return (spread, vec![part], vec![Lines::All(batch.clone())]);
    }
    let parts = order.iter().map(|(p, records, lines)| part(topic, *p, *records, lines.len()));
    let parts = parts.collect();
    (spread, parts, order.into_iter().map(|(.., lines)| Lines::Part(lines)).collect())
}

/// The locations of the records. None: the placement does not match these records. `appended_at`
/// applies to new records.
fn locate(
    scope: Scope,
    placement: &Placement,
    batch: &Batch,
    appended_at: Timestamp,
) -> Option<Placed> {
    let record_count = batch.records.len() as i64;
    match (scope, placement) {
        (Scope::Topic, Placement::Topic { partition_count, keyless, bases }) => {
            let offsets = placement::offsets(&batch.records, *partition_count, *keyless, bases)?;
            Some(Placed::Topic(Some(offsets)))
        }
        (Scope::Partition(partition), Placement::Partition { base_offset }) => {
            Some(Placed::Partition { partition, base_offset: Some(*base_offset), record_count })
        }
        (_, Placement::Records(places)) if places.len() == batch.records.len() => {
            let record = |place: &RecordPlace| PlacedRecord {
                partition: place.partition,
                offset: place.offset,
                duplicate: place.known.is_some(),
                first_seen_at: place.known.flatten().unwrap_or(appended_at),
            };
            let new = || places.iter().filter(|place| place.known.is_none());
            Some(Placed::Records {
                records: Some(places.iter().map(record).collect()),
                base_offset: new().find_map(|place| place.offset),
                record_count: new().count() as i64,
            })
        }
        _ => None,
    }
}

/// The answer to a duplicate whose offsets are forgotten.
fn without_offsets(scope: Scope, batch: &Batch, has_keys: bool) -> Placed {
    let record_count = batch.records.len() as i64;
    match scope {
        _ if has_keys => Placed::Records { records: None, base_offset: None, record_count },
        Scope::Topic => Placed::Topic(None),
        Scope::Partition(partition) => {
            Placed::Partition { partition, base_offset: None, record_count }
        }
    }
}
