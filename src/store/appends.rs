//! The write of a pass: one statement that holds only where the memory was right. A statement that
//! waited for a head's lock judges its conditions anew on the newest version of the row: that makes
//! it a compare-and-set. All or nothing over its logs.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use super::{Error, Instant, durable, statements};
use crate::{
    model::{LogId, Offset, TenantId, Timestamp},
    rules::{
        claims::Claim,
        ground::Compare,
        plan::{LogWrite, Row},
    },
};

statements! {
    /// One log, one row: the common pass. Scalars take 0.85-0.9 of the time of arrays.
    APPEND_ROW = concat!("with head as ( \
            update oncelog.logs set next_offset = next_offset + $6, size_bytes = size_bytes + $7, \
                last_appended_at = greatest(last_appended_at, date_trunc('milliseconds', statement_timestamp())) \
            where ", durable!(), " and tenant_id = $1 and log_id = $2 and ($3::bigint is null or fence = $3) \
                and ($4::bigint is null or next_offset = $4) and ($5::timestamptz is null or last_appended_at = $5) \
            returning next_offset - $6 as base_offset, last_appended_at) \
        insert into oncelog.batches as b (tenant_id, log_id, base_offset, record_count, appended_at, producers, records) \
        select $1, $2, base_offset, $6, last_appended_at, $8, $9 from head \
        returning b.log_id, b.base_offset, b.appended_at");
    /// Many logs or rows. (`log_id = any($2)` beside the joins: a plan made while the table was empty
    /// would read all of the tenant's heads.) `held` locks the heads in order and leaves out what does not compare;
    /// all rows of the pass share one instant, the greatest of its heads.
    APPEND_ROWS = concat!("with want as materialized ( \
            select * from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::bigint[], $7::bigint[]) \
                as w (log_id, fence, next_offset, last_appended_at, record_count, size_bytes)), \
        held as materialized ( \
            select l.log_id, l.last_appended_at from oncelog.logs l join want w on l.log_id = w.log_id \
            where ", durable!(), " and l.tenant_id = $1 and l.log_id = any($2) and (w.fence is null or l.fence = w.fence) \
                and (w.next_offset is null or l.next_offset = w.next_offset) \
                and (w.last_appended_at is null or l.last_appended_at = w.last_appended_at) \
            order by l.log_id for no key update of l), \
        moment as materialized ( \
            select greatest(max(last_appended_at), date_trunc('milliseconds', statement_timestamp())) as appended_at, \
                count(*) = cardinality($2) as complete from held), \
        head as ( \
            update oncelog.logs l set next_offset = l.next_offset + w.record_count, \
                size_bytes = l.size_bytes + w.size_bytes, last_appended_at = m.appended_at \
            from want w cross join moment m \
            where l.tenant_id = $1 and l.log_id = any($2) and l.log_id = w.log_id and w.record_count > 0 and m.complete \
            returning l.log_id, l.next_offset - w.record_count as base_offset, m.appended_at) \
        insert into oncelog.batches as b (tenant_id, log_id, base_offset, record_count, appended_at, producers, transaction_id, records) \
        select $1, h.log_id, h.base_offset + r.delta, r.record_count, h.appended_at, r.producers, r.transaction_id, r.records \
        from unnest($8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::uuid[], $13::text[]) \
            as r (log_id, delta, record_count, producers, transaction_id, records) \
        join head h on h.log_id = r.log_id \
        returning b.log_id, b.base_offset, b.appended_at");
    /// The same where keys are claimed: their journals compare by what was claimed before as well. What a
    /// key finds in its place has expired.
    APPEND_CLAIMING = concat!("with want as materialized ( \
            select * from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::bigint[], $7::bigint[], $14::bigint[], $15::integer[]) \
                as w (log_id, fence, next_offset, last_appended_at, record_count, size_bytes, claims, rings)), \
        held as materialized ( \
            select l.log_id, l.last_appended_at from oncelog.logs l join want w on l.log_id = w.log_id \
            where ", durable!(), " and l.tenant_id = $1 and l.log_id = any($2) and (w.fence is null or l.fence = w.fence) \
                and (w.next_offset is null or l.next_offset = w.next_offset) \
                and (w.last_appended_at is null or l.last_appended_at = w.last_appended_at) \
                and (w.claims is null or l.claims = w.claims) \
            order by l.log_id for no key update of l), \
        moment as materialized ( \
            select greatest(max(last_appended_at), date_trunc('milliseconds', statement_timestamp())) as appended_at, \
                count(*) = cardinality($2) as complete from held), \
        head as ( \
            update oncelog.logs l set next_offset = l.next_offset + w.record_count, \
                size_bytes = l.size_bytes + w.size_bytes, claims = l.claims + (w.rings <> 0)::int, key_rings = l.key_rings | w.rings, \
                last_appended_at = case when w.record_count > 0 then m.appended_at else l.last_appended_at end \
            from want w cross join moment m \
            where l.tenant_id = $1 and l.log_id = any($2) and l.log_id = w.log_id and (w.record_count > 0 or w.rings <> 0) and m.complete \
            returning l.log_id, l.next_offset - w.record_count as base_offset, m.appended_at), \
        row as ( \
            insert into oncelog.batches as b (tenant_id, log_id, base_offset, record_count, appended_at, producers, transaction_id, records) \
            select $1, h.log_id, h.base_offset + r.delta, r.record_count, h.appended_at, r.producers, r.transaction_id, r.records \
            from unnest($8::bigint[], $9::bigint[], $10::bigint[], $11::bytea[], $12::uuid[], $13::text[]) \
                as r (log_id, delta, record_count, producers, transaction_id, records) \
            join head h on h.log_id = r.log_id \
            returning b.log_id, b.base_offset), \
        key as ( \
            insert into oncelog.dedup_keys as d (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at, log_id, record_offset, answer) \
            select k.slot, $1, k.topic_id, k.key, k.digest, m.appended_at, \
                coalesce(m.appended_at + interval '1 millisecond' * k.lifetime_ms, 'infinity'), k.log_id, h.base_offset + k.delta, k.answer \
            from unnest($16::smallint[], $17::bigint[], $18::uuid[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[], $23::bytea[]) \
                as k (slot, topic_id, key, digest, lifetime_ms, log_id, delta, answer) \
            cross join moment m left join head h on h.log_id = k.log_id \
            where m.complete \
            on conflict (tenant_id, topic_id, key, slot) do update set digest = excluded.digest, first_seen_at = excluded.first_seen_at, \
                expires_at = excluded.expires_at, log_id = excluded.log_id, record_offset = excluded.record_offset, answer = excluded.answer) \
        select r.log_id, r.base_offset, m.appended_at from moment m left join row r on true where m.complete");
    /// What a pass that writes nothing stands on.
    CONFIRM = "select count(*) from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::bigint[]) \
            as w (log_id, fence, next_offset, last_appended_at, claims) \
        join oncelog.logs l on l.tenant_id = $1 and l.log_id = w.log_id \
        where l.log_id = any($2) and l.fence = w.fence and (w.next_offset is null or l.next_offset = w.next_offset) \
            and (w.last_appended_at is null or l.last_appended_at = w.last_appended_at) \
            and (w.claims is null or l.claims = w.claims)";
}

/// A pass that held: when, and where each log's first row of it starts.
pub struct Written {
    pub appended_at: Timestamp,
    pub bases: BTreeMap<LogId, Offset>,
    /// When its transactions ended, if that is another instant.
    pub ended_at: Option<Timestamp>,
}

impl Written {
    /// Nothing in any log.
    pub fn at(appended_at: Timestamp) -> Self {
        Self { appended_at, bases: BTreeMap::new(), ended_at: None }
    }
}

/// Writes a pass, if every head compares; None: one did not (or has vanished), nothing is written.
/// `records` holds the lines of every row that has some, in the order of the writes and their rows.
pub async fn append_if(
    connection: &mut PgConnection,
    tenant: TenantId,
    writes: &[LogWrite],
    records: &[Option<&str>],
    claims: &[Claim],
) -> Result<Option<Written>, Error> {
    let returned = match writes {
        _ if !claims.is_empty() => {
            append_claiming(connection, tenant, writes, records, claims).await?
        }
        [write] if write.rows.len() == 1 && write.rows[0].transaction_id.is_none() => {
            append_row(connection, tenant, write, &write.rows[0], records[0]).await?
        }
        _ => append_rows(connection, tenant, writes, records).await?,
    };
    Ok(written(returned.into_iter()))
}

/// What is returned of a row: its log and offset, and when.
type Returned = (Option<i64>, Option<i64>, Instant);

/// What the rows returned tell; None: there are none, as nothing held.
pub fn written(rows: impl Iterator<Item = Returned>) -> Option<Written> {
    let mut written: Option<Written> = None;
    for (log_id, base_offset, appended_at) in rows {
        let written = written.get_or_insert(Written::at(appended_at.into()));
        let Some((log_id, base_offset)) = log_id.zip(base_offset) else { continue };
        let base = written.bases.entry(LogId(log_id)).or_insert(base_offset);
        *base = base_offset.min(*base);
    }
    written
}

async fn append_row(
    connection: &mut PgConnection,
    tenant: TenantId,
    write: &LogWrite,
    row: &Row,
    records: Option<&str>,
) -> Result<Vec<Returned>, Error> {
    let (fence, next_offset, last_appended_at) = columns(write.compare);
    let returned = sqlx::query_as(APPEND_ROW)
        .bind(tenant.0)
        .bind(write.log_id.0)
        .bind(fence)
        .bind(next_offset)
        .bind(last_appended_at)
        .bind(write.record_count)
        .bind(write.size_bytes)
        .bind(row.producers.as_deref())
        .bind(records)
        .fetch_all(connection)
        .await?;
    Ok(returned)
}

async fn append_rows(
    connection: &mut PgConnection,
    tenant: TenantId,
    writes: &[LogWrite],
    records: &[Option<&str>],
) -> Result<Vec<Returned>, Error> {
    let compares: Vec<_> = writes.iter().map(|write| columns(write.compare)).collect();
    let rows = || writes.iter().flat_map(|w| w.rows.iter().map(move |row| (w.log_id.0, row)));
    let returned = sqlx::query_as(APPEND_ROWS)
        .bind(tenant.0)
        .bind(writes.iter().map(|w| w.log_id.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.1).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.2).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.record_count).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.size_bytes).collect::<Vec<_>>())
        .bind(rows().map(|(log_id, _)| log_id).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.delta).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.record_count).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.producers.as_deref()).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.transaction_id).collect::<Vec<_>>())
        .bind(records)
        .fetch_all(connection)
        .await?;
    Ok(returned)
}

async fn append_claiming(
    connection: &mut PgConnection,
    tenant: TenantId,
    writes: &[LogWrite],
    records: &[Option<&str>],
    claims: &[Claim],
) -> Result<Vec<Returned>, Error> {
    let compares: Vec<_> = writes.iter().map(|write| columns(write.compare)).collect();
    let rows = || writes.iter().flat_map(|w| w.rows.iter().map(move |row| (w.log_id.0, row)));
    let record = |claim: &Claim| claim.record.unzip();
    let returned = sqlx::query_as(APPEND_CLAIMING)
        .bind(tenant.0)
        .bind(writes.iter().map(|w| w.log_id.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.1).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.2).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.record_count).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.size_bytes).collect::<Vec<_>>())
        .bind(rows().map(|(log_id, _)| log_id).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.delta).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.record_count).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.producers.as_deref()).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.transaction_id).collect::<Vec<_>>())
        .bind(records)
        .bind(writes.iter().map(|w| w.claims).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.claimed_rings).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.slot).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.topic_id.0).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.key).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.digest).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.lifetime_ms).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| record(c).0.map(|log_id| log_id.0)).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| record(c).1).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.answer.as_deref()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(returned)
}

/// Whether every compared head is as the memory says, without a lock: enough for a pass that
/// writes nothing, if it begins after its requests arrived.
pub async fn confirm(
    connection: &mut PgConnection,
    tenant: TenantId,
    writes: &[LogWrite],
) -> Result<bool, Error> {
    let compared: Vec<_> = writes.iter().filter(|write| write.compare.is_some()).collect();
    let compares: Vec<_> = compared.iter().map(|write| columns(write.compare)).collect();
    let held: i64 = sqlx::query_scalar(CONFIRM)
        .bind(tenant.0)
        .bind(compared.iter().map(|w| w.log_id.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.1).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.2).collect::<Vec<_>>())
        .bind(compared.iter().map(|w| w.claims).collect::<Vec<_>>())
        .fetch_one(connection)
        .await?;
    Ok(held == compared.len() as i64)
}

/// (fence, next_offset, last_appended_at) to compare; nulls are not compared.
pub fn columns(compare: Option<Compare>) -> (Option<i64>, Option<Offset>, Option<Instant>) {
    let position = compare.and_then(|compare| compare.position);
    (
        compare.map(|compare| compare.fence),
        position.map(|(next_offset, _)| next_offset),
        position.map(|(_, last_appended_at)| last_appended_at.to_chrono()),
    )
}
