//! Statements on remembered keys: record ids, and Idempotency-Keys with their responses. They are
//! stored in the tables of rings, which are emptied as a whole (`key_rings`). To remember a key in
//! a topic, a transaction locks the head of its journal.

pub mod rings;

use std::collections::HashMap;

use sqlx::postgres::PgBindIterExt;
use uuid::Uuid;

use super::{Connection, Error, Result, durable, execute, statements};
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

/// Inserts the keys of a select. A row in conflict has expired.
macro_rules! insert_keys {
    ($($select:expr),*) => {
        concat!(
            r"insert into oncelog.dedup_keys as d (slot, tenant_id, topic_id, key, digest,
                    first_seen_at, expires_at, log_id, record_offset, answer)
                ",
            $($select,)*
            r"
                on conflict (tenant_id, topic_id, key, slot) do update
                set digest = excluded.digest, first_seen_at = excluded.first_seen_at,
                    expires_at = excluded.expires_at, log_id = excluded.log_id,
                    record_offset = excluded.record_offset, answer = excluded.answer"
        )
    };
}

/// The columns of such a select that differ from key to key.
macro_rules! bind_keys {
    ($query:expr, $keys:expr) => {
        $query
            .bind($keys.iter().map(|key| key.slot).bind_iter())
            .bind($keys.iter().map(|key| key.topic_id).bind_iter())
            .bind($keys.iter().map(|key| key.key).bind_iter())
            .bind($keys.iter().map(|key| key.digest).bind_iter())
            .bind($keys.iter().map(|key| key.lifetime_ms).bind_iter())
            .bind($keys.iter().map(|key| Some(key.record?.0)).bind_iter())
            .bind($keys.iter().map(|key| Some(key.record?.1)).bind_iter())
            .bind($keys.iter().map(|key| key.answer.as_deref()).bind_iter())
    };
}
pub(super) use {bind_keys, insert_keys};

/// The wanted keys in one table of a ring.
macro_rules! keys_in_slot {
    ($slot:literal) => {
        concat!(
            r"
            select d.key, d.digest, d.first_seen_at, d.expires_at, d.answer, d.log_id, d.record_offset,
                null::uuid as transaction_id
            from unnest($3::uuid[]) as w (key) cross join lateral (
                select key, digest, first_seen_at, expires_at, answer, log_id, record_offset
                from oncelog.dedup_keys
                where slot = ", $slot, r" and tenant_id = $1 and topic_id = $2 and key = w.key
                offset 0) as d"
        )
    };
}

statements! {
    /// The reservation counters of journals, and the rings that may hold keys of their topics.
    JOURNALS = "select log_id, claims, key_rings from oncelog.logs where tenant_id = $1 and log_id = any($2)";
    /// Reads keys of one topic in the three tables of a ring, and those that prepared transactions
    /// hold, after the state of the ring itself; of duplicates the newest comes last. It also
    /// returns keys whose window has passed: a UUIDv7 must not run again as long as a trace of it
    /// is left.
    FIND = concat!(
        r"select r.slot, r.horizon, r.now, k.key, k.digest, k.first_seen_at,
            case when k.key is not null then coalesce(k.expires_at > r.now, true) end as is_live,
            k.answer, l.partition,
            case when k.record_offset >= l.log_start_offset then k.record_offset end as record_offset,
            k.transaction_id
        from (select slot, horizon, statement_timestamp() as now from oncelog.key_rings where ring = $4) r
        -- Key by key and table by table: a plan for `any`, made for empty tables, would read all
        -- keys of the topic.
        left join lateral (",
            keys_in_slot!("$5"), " union all", keys_in_slot!("$6"), " union all",
            keys_in_slot!("$7"), r"
            union all
            select h.key, h.digest, null, null, null, null, null, h.transaction_id
            from unnest($3::uuid[]) as w (key) cross join lateral (
                select key, digest, transaction_id from oncelog.held_ids
                where tenant_id = $1 and topic_id = $2 and key = w.key offset 0) as h) k on true
        left join lateral (
            select partition, log_start_offset from oncelog.logs
            where tenant_id = $1 and log_id = k.log_id offset 0) l on true
        order by is_live nulls first, k.first_seen_at nulls last"
    );
    REMEMBER = insert_keys!(
        r"select k.slot, $1, k.topic_id, k.key, k.digest, $10,
                    coalesce($10::timestamptz + interval '1 millisecond' * k.lifetime_ms, 'infinity'),
                    k.log_id, k.record_offset, k.answer
                from unnest($2::smallint[], $3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[],
                        $7::bigint[], $8::bigint[], $9::bytea[])
                    as k (slot, topic_id, key, digest, lifetime_ms, log_id, record_offset, answer)"
    );
    /// The rings that may hold keys of a tenant's calls other than appends; and the clock.
    CALL_RINGS = r"select key_rings, statement_timestamp() from oncelog.tenants
        where tenant_id = $1";
    ADD_CALL_RING = concat!(
        "update oncelog.tenants set key_rings = key_rings | $2 where ", durable!(), " and tenant_id = $1"
    );
    COMPLETE = concat!(
        "update oncelog.dedup_keys set answer = $5 where ", durable!(),
        " and tenant_id = $1 and topic_id = $2 and key = $3 and answer = $4"
    );
    /// Counts new keys in the topics of these journals, whose heads must be locked.
    CLAIMED = r"update oncelog.logs l set claims = l.claims + 1, key_rings = l.key_rings | c.rings
        from unnest($2::bigint[], $3::integer[]) as c (log_id, rings)
        where l.tenant_id = $1 and l.log_id = any($2) and l.log_id = c.log_id";
}

/// The result of a lookup of a topic's keys in one ring.
pub struct FoundKeys {
    /// The table for new keys.
    pub slot: i16,
    /// Keys with an earlier timestamp may have been forgotten.
    pub horizon: Timestamp,
    pub now: Timestamp,
    /// The newest entry of each key that is remembered, or in conflict.
    pub facts: HashMap<DedupKey, Fact>,
}

/// A key to remember.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    pub slot: i16,
    pub topic_id: TopicId,
    pub key: DedupKey,
    pub digest: PayloadDigest,
    /// None: no expiry.
    pub lifetime_ms: Option<i64>,
    /// The location of its record.
    pub record: Option<(LogId, Offset)>,
    /// The response to its request.
    pub answer: Option<Vec<u8>>,
}

/// Reads the counters of journals; omits those that no longer exist. A lookup after this is
/// complete as long as the counters stay the same.
pub async fn journals(
    conn: &mut Connection,
    tenant: TenantId,
    journals: &[LogId],
) -> Result<HashMap<LogId, JournalKeys>> {
    let query = sqlx::query_as(JOURNALS).bind(tenant).bind(journals);
    let rows: Vec<(LogId, i64, i32)> = query.fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(id, claims, rings)| (id, JournalKeys { claims, rings })).collect())
}

/// Looks up keys of a topic in a ring. `now` is the database's clock. Expired record ids are
/// omitted; expired requests are not.
pub async fn find(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
    ring: Ring,
    keys: &[DedupKey],
) -> Result<FoundKeys> {
    let [one, two, three] = ring.slots();
    let rows: Vec<FoundRow> = sqlx::query_as(FIND)
        .bind(tenant)
        .bind(topic)
        .bind(keys)
        .bind(ring)
        .bind(one)
        .bind(two)
        .bind(three)
        .fetch_all(conn)
        .await?;
    let first = rows.first().ok_or_else(|| Error::Unexpected(format!("no ring {}", ring.0)))?;
    let mut found = FoundKeys {
        slot: first.slot,
        horizon: first.horizon,
        now: first.now,
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
    horizon: Timestamp,
    now: Timestamp,
    key: Option<Uuid>,
    digest: Option<i64>,
    first_seen_at: Option<Timestamp>,
    is_live: Option<bool>,
    answer: Option<Vec<u8>>,
    partition: Option<i32>,
    record_offset: Option<i64>,
    transaction_id: Option<Uuid>,
}

impl FoundRow {
    /// None: it is no longer remembered, or there is none.
    fn fact(self) -> Option<(DedupKey, Fact)> {
        let (key, digest) = self.key.zip(self.digest)?;
        if let Some(transaction_id) = self.transaction_id {
            return Some((key, Fact::Held { digest, transaction_id }));
        }
        let first_seen_at = self.first_seen_at?;
        if let Some(answer) = self.answer {
            let is_live = self.is_live?;
            return Some((key, Fact::Request { digest, answer, first_seen_at, is_live }));
        }
        let seen =
            KnownRecord { partition: self.partition?, offset: self.record_offset, first_seen_at };
        self.is_live?.then_some((key, Fact::Record { digest, seen }))
    }
}

/// Stores keys that are new, or whose windows have passed; the caller holds the lock that
/// serialises them.
pub async fn remember(
    conn: &mut Connection,
    tenant: TenantId,
    keys: &[NewKey],
    first_seen_at: Timestamp,
) -> Result<()> {
    let query = bind_keys!(sqlx::query(REMEMBER).bind(tenant), keys);
    execute(conn, query.bind(first_seen_at)).await
}

/// Announces to all lookups in these journals' topics that there are new keys, in these rings; the
/// journals' heads must be locked.
pub async fn claimed(
    conn: &mut Connection,
    tenant: TenantId,
    journals: &[(LogId, i32)],
) -> Result<()> {
    let query = sqlx::query(CLAIMED).bind(tenant);
    let query = query.bind(journals.iter().map(|(log_id, _)| log_id).bind_iter());
    execute(conn, query.bind(journals.iter().map(|(_, rings)| rings).bind_iter())).await
}

/// The rings that may hold keys of a tenant's calls other than appends, one bit each; and the
/// database's clock.
pub async fn call_rings(conn: &mut Connection, tenant: TenantId) -> Result<(i32, Timestamp)> {
    Ok(sqlx::query_as(CALL_RINGS).bind(tenant).fetch_one(conn).await?)
}

/// Notes that a ring may hold keys of the tenant's calls. Locks the tenant's row.
pub async fn add_call_ring(conn: &mut Connection, tenant: TenantId, ring: Ring) -> Result<()> {
    execute(conn, sqlx::query(ADD_CALL_RING).bind(tenant).bind(ring.bit())).await
}

/// Replaces the response of a key if it is unchanged.
pub async fn complete(
    conn: &mut Connection,
    tenant: TenantId,
    (topic, key): (TopicId, DedupKey),
    answer: &[u8],
    whole: &[u8],
) -> Result<bool> {
    let query = sqlx::query(COMPLETE).bind(tenant).bind(topic).bind(key);
    let done = query.bind(answer).bind(whole).execute(conn).await?;
    Ok(done.rows_affected() > 0)
}
