//! Statements on the heads of logs: reading, locking, fencing.

use sqlx::PgConnection;

use crate::{
    model::{LogId, Offset, TenantId},
    rules::append::cache::Head,
    store::{Error, Instant, Server, statements},
};

statements! {
    READ = r"select log_id, next_offset, fence, last_appended_at, snapshot_offset, greatest(kept_offset, compacted_offset)
        from oncelog.logs where tenant_id = $1 and log_id = any($2) order by log_id";
    LOCK = r"select log_id, next_offset, fence, last_appended_at, snapshot_offset, greatest(kept_offset, compacted_offset)
        from oncelog.logs where tenant_id = $1 and log_id = any($2) order by log_id for no key update";
    /// Blocks nobody but the deletion of a topic, and does not wait for one.
    HOLD = r"select log_id from oncelog.logs where tenant_id = $1 and log_id = any($2)
        order by log_id for key share skip locked";
    /// Fences come from the clock: after a failover that has lost the last fences, a new one must
    /// not equal one of those.
    RAISE_FENCES = r"update oncelog.logs set fence = greatest(fence + 1, (extract(epoch from statement_timestamp()) * 1000000)::bigint)
        where tenant_id = $1 and log_id = any($2)";
    PARTITION_COUNTS = r"select l.log_id, t.partition_count from oncelog.logs l
        join oncelog.topics t on t.tenant_id = $1 and t.topic_id = l.topic_id
        where l.tenant_id = $1 and l.log_id = any($2)";
    /// A journal has no readers; for it the watched number, which also only grows, is the partition
    /// count of its topic.
    WATERMARKS = r"select log_id, log_start_offset, case when partition is not null then next_offset
            else (select t.partition_count from oncelog.topics t
                where t.tenant_id = $1 and t.topic_id = l.topic_id) end, pg_postmaster_start_time()
        from oncelog.logs l where tenant_id = $1 and log_id = any($2)";
}

type HeadRow = (i64, i64, i64, Instant, i64, i64);

/// Reads heads without locks; omits those that no longer exist.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<Head>, Error> {
    heads(connection, READ, tenant, logs).await
}

/// Locks heads in the order of their ids; omits those that no longer exist.
pub async fn lock(
    connection: &mut PgConnection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<Head>, Error> {
    heads(connection, LOCK, tenant, logs).await
}

async fn heads(
    connection: &mut PgConnection,
    sql: &'static str,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<Head>, Error> {
    let rows: Vec<HeadRow> =
        sqlx::query_as(sql).bind(tenant.0).bind(numbers(logs)).fetch_all(connection).await?;
    let head =
        |(log_id, next_offset, fence, last_appended_at, snapshot_offset, kept_offset)| Head {
            log_id: LogId(log_id),
            next_offset,
            fence,
            last_appended_at: Instant::into(last_appended_at),
            snapshot_offset,
            kept_offset,
        };
    Ok(rows.into_iter().map(head).collect())
}

/// Keeps logs from being deleted until the transaction ends, without waiting. False if one is
/// deleted or being deleted.
pub async fn hold(
    connection: &mut PgConnection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<bool, Error> {
    let query = sqlx::query(HOLD).bind(tenant.0).bind(numbers(logs));
    Ok(query.fetch_all(connection).await?.len() == logs.len())
}

/// Raises the fences of locked heads.
pub async fn raise_fences(
    connection: &mut PgConnection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<(), Error> {
    sqlx::query(RAISE_FENCES).bind(tenant.0).bind(numbers(logs)).execute(connection).await?;
    Ok(())
}

/// The partition counts of the topics of these logs; the heads of their journals must be locked.
pub async fn partition_counts(
    connection: &mut PgConnection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<(LogId, i32)>, Error> {
    let rows: Vec<(i64, i32)> = sqlx::query_as(PARTITION_COUNTS)
        .bind(tenant.0)
        .bind(numbers(logs))
        .fetch_all(connection)
        .await?;
    Ok(rows.into_iter().map(|(log_id, count)| (LogId(log_id), count)).collect())
}

/// (log start offset, high watermark) of a log, as read from this server; for a journal the
/// partition count of its topic replaces the latter.
pub type Watermarks = (LogId, Offset, Offset, Server);

/// Reads the watermarks of logs as one snapshot; omits those that no longer exist.
pub async fn watermarks(
    connection: &mut PgConnection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<Watermarks>, Error> {
    let rows: Vec<(i64, i64, i64, Instant)> =
        sqlx::query_as(WATERMARKS).bind(tenant.0).bind(numbers(logs)).fetch_all(connection).await?;
    let watermarks =
        |(id, start, end, started_at)| (LogId(id), start, end, Server::started_at(started_at));
    Ok(rows.into_iter().map(watermarks).collect())
}

/// Ids as a Postgres array.
pub fn numbers(logs: &[LogId]) -> Vec<i64> {
    logs.iter().map(|log_id| log_id.0).collect()
}
