//! Keys that are remembered: ids of records, and Idempotency-Keys with what was answered. They lie in
//! the partitions of rings, which are emptied whole (`key_rings`). Who remembers one in a topic holds
//! the head of its journal.

pub mod rings;

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{Error, Instant, catalog::logs::numbers, durable, statements};
use crate::{
    model::{
        LogId, Offset, TenantId, Timestamp, TopicId,
        dedup::{DedupKey, PayloadDigest, Ring},
    },
    rules::append::{
        cache::JournalKeys,
        dedup::{Fact, KnownRecord},
    },
};

statements! {
    /// How often journals were claimed in, and in which rings their topics' keys may lie.
    JOURNALS = "select log_id, claims, key_rings from oncelog.logs where tenant_id = $1 and log_id = any($2)";
    /// Keys of one topic in the three partitions of a ring, and those that prepared transactions hold,
    /// behind what is to be known of the ring itself; of one key the newest last. (A key whose window is
    /// over is told as well: a UUIDv7 must not run again as long as anything of it is left. Key by key,
    /// and partition by partition: the plan for `any` is made while the partitions are empty, and reads
    /// all of the topic's.)
    FIND = "select r.slot, r.horizon, r.now, k.key, k.digest, k.first_seen_at, \
            case when k.key is not null then coalesce(k.expires_at > r.now, true) end as is_live, k.answer, l.partition, \
            case when k.record_offset >= l.log_start_offset then k.record_offset end as record_offset, k.transaction_id \
        from (select slot, horizon, statement_timestamp() as now from oncelog.key_rings where ring = $4) r \
        left join lateral ( \
            select d.key, d.digest, d.first_seen_at, d.expires_at, d.answer, d.log_id, d.record_offset, null::uuid as transaction_id \
            from unnest($3::uuid[]) as w (key) cross join lateral ( \
                select key, digest, first_seen_at, expires_at, answer, log_id, record_offset from oncelog.dedup_keys \
                where slot = $5 and tenant_id = $1 and topic_id = $2 and key = w.key offset 0) as d \
            union all \
            select d.key, d.digest, d.first_seen_at, d.expires_at, d.answer, d.log_id, d.record_offset, null::uuid as transaction_id \
            from unnest($3::uuid[]) as w (key) cross join lateral ( \
                select key, digest, first_seen_at, expires_at, answer, log_id, record_offset from oncelog.dedup_keys \
                where slot = $6 and tenant_id = $1 and topic_id = $2 and key = w.key offset 0) as d \
            union all \
            select d.key, d.digest, d.first_seen_at, d.expires_at, d.answer, d.log_id, d.record_offset, null::uuid as transaction_id \
            from unnest($3::uuid[]) as w (key) cross join lateral ( \
                select key, digest, first_seen_at, expires_at, answer, log_id, record_offset from oncelog.dedup_keys \
                where slot = $7 and tenant_id = $1 and topic_id = $2 and key = w.key offset 0) as d \
            union all \
            select h.key, h.digest, null, null, null, null, null, h.transaction_id \
            from unnest($3::uuid[]) as w (key) cross join lateral ( \
                select key, digest, transaction_id from oncelog.held_ids \
                where tenant_id = $1 and topic_id = $2 and key = w.key offset 0) as h) k on true \
        left join lateral ( \
            select partition, log_start_offset from oncelog.logs \
            where tenant_id = $1 and log_id = k.log_id offset 0) l on true \
        order by is_live nulls first, k.first_seen_at nulls last";
    /// What a later window's key finds in its place has expired.
    REMEMBER = "insert into oncelog.dedup_keys as d (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at, log_id, record_offset, answer) \
        select k.slot, $1, k.topic_id, k.key, k.digest, $10, coalesce($10::timestamptz + interval '1 millisecond' * k.lifetime_ms, 'infinity'), \
            k.log_id, k.record_offset, k.answer \
        from unnest($2::smallint[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bytea[]) \
            as k (slot, topic_id, key, digest, lifetime_ms, log_id, record_offset, answer) \
        on conflict (tenant_id, topic_id, key, slot) do update set digest = excluded.digest, first_seen_at = excluded.first_seen_at, \
            expires_at = excluded.expires_at, log_id = excluded.log_id, record_offset = excluded.record_offset, answer = excluded.answer";
    /// Where keys of a tenant's calls may lie that are no appends; and the clock.
    CALL_RINGS = "select key_rings, statement_timestamp() from oncelog.tenants where tenant_id = $1";
    ADD_CALL_RING = concat!("update oncelog.tenants set key_rings = key_rings | $2 where ", durable!(), " and tenant_id = $1");
    COMPLETE = concat!("update oncelog.dedup_keys set answer = $5 \
        where ", durable!(), " and tenant_id = $1 and topic_id = $2 and key = $3 and answer = $4");
    /// Keys were remembered in the topics of these journals, whose heads must be locked.
    CLAIMED = "update oncelog.logs l set claims = l.claims + 1, key_rings = l.key_rings | c.rings \
        from unnest($2::bigint[], $3::integer[]) as c (log_id, rings) \
        where l.tenant_id = $1 and l.log_id = any($2) and l.log_id = c.log_id";
}

/// What was found of a topic's keys in one ring.
pub struct FoundKeys {
    /// The partition that takes new keys.
    pub slot: i16,
    /// Keys with an instant before it may have been forgotten.
    pub horizon: Timestamp,
    pub now: Timestamp,
    /// The newest of each key that is still remembered, or in the way.
    pub facts: HashMap<DedupKey, Fact>,
}

/// A key to be remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    pub slot: i16,
    pub topic_id: TopicId,
    pub key: DedupKey,
    pub digest: PayloadDigest,
    /// None: for ever.
    pub lifetime_ms: Option<i64>,
    /// Where its record lies.
    pub record: Option<(LogId, Offset)>,
    /// What its request is answered.
    pub answer: Option<Vec<u8>>,
}

/// Of journals; vanished ones are left out. What is looked up after this is complete as long as the
/// claims stay as they are.
pub async fn journals(
    connection: &mut PgConnection,
    tenant: TenantId,
    journals: &[LogId],
) -> Result<HashMap<LogId, JournalKeys>, Error> {
    let query = sqlx::query_as(JOURNALS).bind(tenant.0).bind(numbers(journals));
    let rows: Vec<(i64, i64, i32)> = query.fetch_all(connection).await?;
    Ok(rows
        .into_iter()
        .map(|(id, claims, rings)| (LogId(id), JournalKeys { claims, rings }))
        .collect())
}

/// What is known of keys of a topic in a ring. `now` is the database's clock. Expired ids of records
/// are left out; expired requests are not.
pub async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    topic: TopicId,
    ring: Ring,
    keys: &[DedupKey],
) -> Result<FoundKeys, Error> {
    let [one, two, three] = ring.slots();
    let rows: Vec<FoundRow> = sqlx::query_as(FIND)
        .bind(tenant.0)
        .bind(topic.0)
        .bind(keys)
        .bind(ring.0)
        .bind(one)
        .bind(two)
        .bind(three)
        .fetch_all(connection)
        .await?;
    let first = rows.first().ok_or_else(|| Error::Unexpected(format!("no ring {}", ring.0)))?;
    let mut found = FoundKeys {
        slot: first.slot,
        horizon: first.horizon.into(),
        now: first.now.into(),
        facts: HashMap::new(),
    };
    for row in rows {
        found.facts.extend(row.fact());
    }
    Ok(found)
}

#[derive(sqlx::FromRow)]
struct FoundRow {
    slot: i16,
    horizon: Instant,
    now: Instant,
    key: Option<Uuid>,
    digest: Option<i64>,
    first_seen_at: Option<Instant>,
    is_live: Option<bool>,
    answer: Option<Vec<u8>>,
    partition: Option<i32>,
    record_offset: Option<i64>,
    transaction_id: Option<Uuid>,
}

impl FoundRow {
    /// None: it is not remembered any more, or there is none.
    fn fact(self) -> Option<(DedupKey, Fact)> {
        let (key, digest) = self.key.zip(self.digest)?;
        if let Some(transaction_id) = self.transaction_id {
            return Some((key, Fact::Held { digest, transaction_id }));
        }
        let first_seen_at = self.first_seen_at?.into();
        if let Some(answer) = self.answer {
            let is_live = self.is_live?;
            return Some((key, Fact::Request { digest, answer, first_seen_at, is_live }));
        }
        let seen =
            KnownRecord { partition: self.partition?, offset: self.record_offset, first_seen_at };
        self.is_live?.then_some((key, Fact::Record { digest, seen }))
    }
}

/// Remembers keys that are new, or whose windows are over; who does so holds what serialises them.
pub async fn remember(
    connection: &mut PgConnection,
    tenant: TenantId,
    keys: &[NewKey],
    first_seen_at: Timestamp,
) -> Result<(), Error> {
    let record = |key: &NewKey| key.record.unzip();
    sqlx::query(REMEMBER)
        .bind(tenant.0)
        .bind(keys.iter().map(|key| key.slot).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.topic_id.0).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.key).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.digest).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.lifetime_ms).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| record(key).0.map(|log_id| log_id.0)).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| record(key).1).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.answer.as_deref()).collect::<Vec<_>>())
        .bind(first_seen_at.to_chrono())
        .execute(connection)
        .await?;
    Ok(())
}

/// Tells all who look keys up in these journals' topics that there are new ones, in these rings; the
/// journals' heads must be locked.
pub async fn claimed(
    connection: &mut PgConnection,
    tenant: TenantId,
    journals: &[(LogId, i32)],
) -> Result<(), Error> {
    let (logs, rings): (Vec<i64>, Vec<i32>) = journals.iter().map(|(l, r)| (l.0, *r)).unzip();
    let query = sqlx::query(CLAIMED).bind(tenant.0).bind(logs).bind(rings);
    query.execute(connection).await?;
    Ok(())
}

/// The rings in which keys of a tenant's calls may lie that are no appends, a bit each; and the
/// database's clock.
pub async fn call_rings(
    connection: &mut PgConnection,
    tenant: TenantId,
) -> Result<(i32, Timestamp), Error> {
    let query = sqlx::query_as(CALL_RINGS).bind(tenant.0);
    let (rings, now): (i32, Instant) = query.fetch_one(connection).await?;
    Ok((rings, now.into()))
}

/// Keys of the tenant's calls may lie there from now on. Locks the tenant's row.
pub async fn add_call_ring(
    connection: &mut PgConnection,
    tenant: TenantId,
    ring: Ring,
) -> Result<(), Error> {
    sqlx::query(ADD_CALL_RING).bind(tenant.0).bind(ring.bit()).execute(connection).await?;
    Ok(())
}

/// Replaces the answer of a key, if it is still this one.
pub async fn complete(
    connection: &mut PgConnection,
    tenant: TenantId,
    (topic, key): (TopicId, DedupKey),
    answer: &[u8],
    whole: &[u8],
) -> Result<bool, Error> {
    let query = sqlx::query(COMPLETE).bind(tenant.0).bind(topic.0).bind(key);
    let done = query.bind(answer).bind(whole).execute(connection).await?;
    Ok(done.rows_affected() > 0)
}
