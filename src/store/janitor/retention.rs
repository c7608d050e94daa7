//! Statements of retention: finds logs with rows that may be too old or too many, and advances
//! their start. They lock one head (`logs`).

use sqlx::{FromRow, Row, postgres::PgRow};

use super::Due;
use crate::{
    model::{LogId, Offset, TenantId, Timestamp, settings::OwnSettings},
    rules::retention::{Log, LogRow},
    store::{Connection, Result, execute, statements},
};

statements! {
    /// Lists partitions of many tenants, without locks, each with the row at its start.
    PAGE = r"select l.tenant_id, l.log_id, t.settings, l.next_offset, l.size_bytes,
            b.end_offset, b.appended_at
        -- The page is selected before anything else about a log.
        from (
            select tenant_id, log_id, topic_id, partition, log_start_offset, next_offset, size_bytes
            from oncelog.logs
            where (tenant_id, log_id) > ($1, $2)
            order by tenant_id, log_id limit $3) l
        cross join lateral (
            select settings from oncelog.topics t
            where t.tenant_id = l.tenant_id and t.topic_id = l.topic_id offset 0) t
        -- Looked up by key, and only if there are records.
        left join lateral (
            select b.base_offset + b.record_count as end_offset, b.appended_at from oncelog.batches b
            where b.tenant_id = l.tenant_id and b.log_id = l.log_id and b.base_offset >= coalesce((
                select s.base_offset from oncelog.batches s
                where s.tenant_id = l.tenant_id and s.log_id = l.log_id
                    and s.base_offset <= l.log_start_offset
                order by s.base_offset desc limit 1), 0)
            order by b.base_offset limit 1) b
            on l.partition is not null and l.log_start_offset < l.next_offset
        order by l.tenant_id, l.log_id";
    /// Waits for appends: in a log with constant appends a `skip locked` would never succeed.
    LOCK = "select log_id from oncelog.logs where tenant_id = $1 and log_id = $2 for no key update";
    /// Reads a locked head.
    FACTS = r"select t.settings, l.log_start_offset, l.next_offset, l.size_bytes, l.kept_offset,
            l.snapshot_offset, (
                -- What prepared transactions hold is pinned.
                select min(o.committed_offset) from oncelog.pins p cross join lateral (
                    select s.committed_offset from oncelog.staged_offsets s
                    where s.tenant_id = $1 and s.transaction_id = p.transaction_id and s.log_id = $2
                    offset 0) o
                where p.tenant_id = $1 and p.log_id = $2) as held_offset,
            clock_timestamp() as now
        from oncelog.logs l cross join lateral (
            select settings from oncelog.topics t where t.tenant_id = $1 and t.topic_id = l.topic_id
            offset 0) t
        where l.tenant_id = $1 and l.log_id = $2";
    OLDEST = r"select base_offset + record_count, appended_at,
            -- Sizes are known without reading the data; what a row refers to is looked up by key.
            coalesce(octet_length(records), (
                select octet_length(s.records) from oncelog.staged_batches s
                where s.tenant_id = $1 and s.transaction_id = b.transaction_id
                    and s.ordinal = b.staged_ordinal), 0)::bigint
        from oncelog.batches b
        -- Starts at the row that contains $3, so as not to scan removed rows.
        where tenant_id = $1 and log_id = $2 and base_offset >= coalesce((
            select base_offset from oncelog.batches
            where tenant_id = $1 and log_id = $2 and base_offset <= $3
            order by base_offset desc limit 1), 0)
        order by base_offset limit $4";
    MOVE = "update oncelog.logs set log_start_offset = $3 where tenant_id = $1 and log_id = $2";
}

/// A log according to its head.
pub struct HeadSizes {
    pub log: Due,
    pub settings: OwnSettings,
    pub next_offset: Offset,
    pub size_bytes: i64,
    /// The row at its start, without its size; none if there are no records, or the log is a
    /// journal.
    pub oldest: Option<LogRow>,
}

/// Lists the logs after one, by tenant and id.
pub async fn page(
    conn: &mut Connection,
    (after_tenant, after_log): Due,
    limit: i64,
) -> Result<Vec<HeadSizes>> {
    type Found = (TenantId, LogId, OwnSettings, Offset, i64, Option<Offset>, Option<Timestamp>);
    let query = sqlx::query_as(PAGE).bind(after_tenant).bind(after_log).bind(limit);
    let rows: Vec<Found> = query.fetch_all(conn).await?;
    let head = |(tenant, log, settings, next_offset, size_bytes, end, appended_at): Found| {
        let oldest = end.zip(appended_at);
        let oldest = oldest.map(|(end_offset, appended_at)| LogRow {
            end_offset,
            appended_at,
            size_bytes: 0,
        });
        HeadSizes { log: (tenant, log), settings, next_offset, size_bytes, oldest }
    };
    Ok(rows.into_iter().map(head).collect())
}

/// A locked head.
pub struct LockedHead {
    /// The settings of its topic.
    pub settings: OwnSettings,
    pub log: Log,
    /// Rows before this offset are deleted.
    pub kept_offset: Offset,
    /// Rows before this offset may be deleted.
    pub snapshot_offset: Offset,
    pub now: Timestamp,
}

/// Locks a head. None if it no longer exists.
pub async fn lock(conn: &mut Connection, (tenant, log): Due) -> Result<Option<LockedHead>> {
    execute(conn, sqlx::query(LOCK).bind(tenant).bind(log)).await?;
    Ok(sqlx::query_as(FACTS).bind(tenant).bind(log).fetch_optional(conn).await?)
}

impl FromRow<'_, PgRow> for LockedHead {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(LockedHead {
            settings: row.try_get("settings")?,
            log: Log {
                log_start_offset: row.try_get("log_start_offset")?,
                next_offset: row.try_get("next_offset")?,
                size_bytes: row.try_get("size_bytes")?,
                held_offset: row.try_get("held_offset")?,
            },
            kept_offset: row.try_get("kept_offset")?,
            snapshot_offset: row.try_get("snapshot_offset")?,
            now: row.try_get("now")?,
        })
    }
}

/// Lists the oldest existing rows of a log before an offset.
pub async fn oldest(
    conn: &mut Connection,
    (tenant, log): Due,
    kept_offset: Offset,
    limit: i64,
) -> Result<Vec<LogRow>> {
    let query = sqlx::query_as(OLDEST).bind(tenant).bind(log).bind(kept_offset).bind(limit);
    let rows: Vec<(Offset, Timestamp, i64)> = query.fetch_all(conn).await?;
    let row =
        |(end_offset, appended_at, size_bytes)| LogRow { end_offset, appended_at, size_bytes };
    Ok(rows.into_iter().map(row).collect())
}

/// Advances the start of a locked log.
pub async fn move_start(
    conn: &mut Connection,
    (tenant, log): Due,
    log_start_offset: Offset,
) -> Result<()> {
    execute(conn, sqlx::query(MOVE).bind(tenant).bind(log).bind(log_start_offset)).await
}
