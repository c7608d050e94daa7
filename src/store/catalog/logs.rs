//! Statements on the heads of logs (`logs`): reading, locking in the order of their ids, fencing.

use crate::{
    model::{LogId, Offset, TenantId, Timestamp},
    rules::append::cache::Head,
    store::{Connection, Result, Server, execute, statements},
};

macro_rules! heads {
    () => {
        r"select log_id, next_offset, fence, last_appended_at, snapshot_offset,
            greatest(kept_offset, compacted_offset)
        from oncelog.logs where tenant_id = $1 and log_id = any($2) order by log_id"
    };
}

statements! {
    READ = heads!();
    LOCK = concat!(heads!(), " for no key update");
    /// Blocks nobody but the deletion of a topic, and does not wait for one.
    HOLD = r"select log_id from oncelog.logs where tenant_id = $1 and log_id = any($2)
        order by log_id for key share skip locked";
    /// Fences come from the clock: after a failover that has lost the last fences, a new one must
    /// not equal one of those.
    RAISE_FENCES = r"update oncelog.logs
        set fence = greatest(fence + 1, (extract(epoch from statement_timestamp()) * 1000000)::bigint)
        where tenant_id = $1 and log_id = any($2)";
    PARTITION_COUNTS = r"select l.log_id, t.partition_count from oncelog.logs l
        join oncelog.topics t on t.tenant_id = $1 and t.topic_id = l.topic_id
        where l.tenant_id = $1 and l.log_id = any($2)";
    /// A journal has no readers; for it the watched number, which also only grows, is the partition
    /// count of its topic.
    WATERMARKS = r"select log_id, log_start_offset,
            case when partition is not null then next_offset
                else (select t.partition_count from oncelog.topics t
                    where t.tenant_id = $1 and t.topic_id = l.topic_id) end,
            pg_postmaster_start_time()
        from oncelog.logs l where tenant_id = $1 and log_id = any($2)";
}

/// Reads heads without locks; omits those that no longer exist.
pub async fn read(conn: &mut Connection, tenant: TenantId, logs: &[LogId]) -> Result<Vec<Head>> {
    heads(conn, READ, tenant, logs).await
}

/// Locks heads in the order of their ids; omits those that no longer exist.
pub async fn lock(conn: &mut Connection, tenant: TenantId, logs: &[LogId]) -> Result<Vec<Head>> {
    heads(conn, LOCK, tenant, logs).await
}

async fn heads(
    conn: &mut Connection,
    sql: &'static str,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<Head>> {
    let query = sqlx::query_as(sql).bind(tenant).bind(logs);
    let rows: Vec<(LogId, Offset, i64, Timestamp, Offset, Offset)> = query.fetch_all(conn).await?;
    let heads = rows.into_iter().map(
        |(log_id, next_offset, fence, last_appended_at, snapshot_offset, kept_offset)| Head {
            log_id,
            next_offset,
            fence,
            last_appended_at,
            snapshot_offset,
            kept_offset,
        },
    );
    Ok(heads.collect())
}

/// Keeps logs from being deleted until the transaction ends, without waiting. False if one is
/// deleted or being deleted.
pub async fn hold(conn: &mut Connection, tenant: TenantId, logs: &[LogId]) -> Result<bool> {
    let query = sqlx::query(HOLD).bind(tenant).bind(logs);
    Ok(query.fetch_all(conn).await?.len() == logs.len())
}

/// Raises the fences of locked heads.
pub async fn raise_fences(conn: &mut Connection, tenant: TenantId, logs: &[LogId]) -> Result<()> {
    execute(conn, sqlx::query(RAISE_FENCES).bind(tenant).bind(logs)).await
}

/// The partition counts of the topics of these logs; the heads of their journals must be locked.
pub async fn partition_counts(
    conn: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<(LogId, i32)>> {
    Ok(sqlx::query_as(PARTITION_COUNTS).bind(tenant).bind(logs).fetch_all(conn).await?)
}

/// (log start offset, high watermark) of a log, as read from this server; for a journal the
/// partition count of its topic replaces the latter.
pub type Watermarks = (LogId, Offset, Offset, Server);

/// Reads the watermarks of logs as one snapshot; omits those that no longer exist.
pub async fn watermarks(
    conn: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<Watermarks>> {
    Ok(sqlx::query_as(WATERMARKS).bind(tenant).bind(logs).fetch_all(conn).await?)
}
