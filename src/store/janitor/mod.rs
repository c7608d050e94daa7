//! Statements of the janitor: small chunks, `skip locked`, no leader. It finds due work over all
//! tenants without locks, and then works tenant by tenant.

pub mod compaction;
pub mod deleted_tenants;
pub mod measure;
pub mod producers;
pub mod retention;
pub mod snapshots;
pub mod transactions;

use uuid::Uuid;

use super::{Connection, Result, execute, statements};
use crate::model::{LogId, Offset, TenantId};

/// How many rows are gone, and the staged data that they referred to.
macro_rules! gone {
    ($columns:literal) => {
        concat!(
            "select count(*), ",
            $columns,
            r"
            coalesce(array_agg(transaction_id) filter (where staged_ordinal is not null), '{}'),
            coalesce(array_agg(staged_ordinal) filter (where staged_ordinal is not null), '{}')
        from gone"
        )
    };
}

/// A journal keeps no rows before its snapshot; a partition none before its start either.
macro_rules! trimmable_offset {
    () => {
        r"case when partition is null then snapshot_offset
            else least(snapshot_offset, log_start_offset) end"
    };
}

statements! {
    DOOMED = "select tenant_id, log_id from oncelog.doomed_logs order by doomed_at limit $1";
    LOCK_DOOMED = r"select log_id from oncelog.doomed_logs where tenant_id = $1 and log_id = $2
        for update skip locked";
    DROP_ROWS = concat!(
        r"with gone as (
            delete from oncelog.batches
            -- A range, found first: with arbitrary offsets, a plan for a short log would read all
            -- of it for each chunk.
            where tenant_id = $1 and log_id = $2 and base_offset <= (
                select max(base_offset) from (
                    select base_offset from oncelog.batches where tenant_id = $1 and log_id = $2
                    order by base_offset limit $3) c)
            returning transaction_id, staged_ordinal)
        ", gone!("")
    );
    DROP_STATES = r"delete from oncelog.producer_states
        where tenant_id = $1 and log_id = $2 and producer_id = any (array(
            select producer_id from oncelog.producer_states where tenant_id = $1 and log_id = $2
            order by producer_id limit $3))";
    /// Locked in order, as by commits in flight.
    DROP_OFFSETS = r"delete from oncelog.group_offsets
        where tenant_id = $1 and log_id = $2 and group_name in (
            select group_name from oncelog.group_offsets where tenant_id = $1 and log_id = $2
            order by group_name limit $3 for no key update)";
    DROP_COMPACTION = "delete from oncelog.compactions where tenant_id = $1 and log_id = $2";
    DROP_DOOMED = "delete from oncelog.doomed_logs where tenant_id = $1 and log_id = $2";
    TRIMMABLE = concat!(
        "select tenant_id, log_id from oncelog.logs where kept_offset < ", trimmable_offset!(),
        " limit $1"
    );
    /// It waits for the lock, because a log with constant appends is hardly ever free.
    LOCK_TRIMMABLE = concat!(
        "select ", trimmable_offset!(), r", kept_offset
        from oncelog.logs where tenant_id = $1 and log_id = $2 for no key update"
    );
    /// Deletes whole rows before an offset, oldest first; returns where the last of them ends.
    TRIM_ROWS = concat!(
        r"with first as materialized (
            -- Rows that were deleted before are not scanned.
            select coalesce((
                select base_offset from oncelog.batches
                where tenant_id = $1 and log_id = $2 and base_offset <= (
                    select kept_offset from oncelog.logs where tenant_id = $1 and log_id = $2)
                order by base_offset desc limit 1), 0) as base_offset),
        last as materialized (
            select max(base_offset) as base_offset from (
                select base_offset from oncelog.batches
                where tenant_id = $1 and log_id = $2
                    and base_offset >= (select base_offset from first)
                    and base_offset < $3 and base_offset + record_count <= $3
                order by base_offset limit $4) c),
        gone as (
            delete from oncelog.batches
            where tenant_id = $1 and log_id = $2
                and base_offset >= (select base_offset from first)
                and base_offset <= (select base_offset from last)
            returning base_offset + record_count as end_offset, octet_length(records) as size_bytes,
                transaction_id, staged_ordinal)
        ", gone!("max(end_offset), coalesce(sum(size_bytes), 0)::bigint,")
    );
    /// Deletes the staged data that rows referred to, one item each; returns its size.
    DROP_STAGED = r"with gone as (
            delete from oncelog.staged_batches s
            using unnest($2::uuid[], $3::bigint[]) as p (transaction_id, ordinal)
            where s.tenant_id = $1 and s.transaction_id = p.transaction_id and s.ordinal = p.ordinal
            returning octet_length(s.records) as size_bytes)
        select coalesce(sum(size_bytes), 0)::bigint from gone";
    MOVE_KEPT = r"update oncelog.logs set kept_offset = $3, size_bytes = size_bytes - $4
        where tenant_id = $1 and log_id = $2";
    OUTGROWN = r"select exists (
        select from pg_class
        where relnamespace = 'oncelog'::regnamespace and relname = any ('{
                topics,logs,sessions,session_opens,producer_states,transactions,
                transaction_keys,staged_batches,staged_offsets,groups,group_members,group_offsets,held_ids}'::name[])
            and pg_relation_size(oid) / current_setting('block_size')::bigint
                > 10 * greatest(relpages, 1))";
    /// Applies to this transaction: others wait for the locks it holds.
    HURRY = "select set_config('lock_timeout', '20ms', true)";
    /// A trim by hand waits for a snapshot.
    UNSNAPPED_TRIMS = r"select tenant_id, log_id from oncelog.logs
        where partition is not null and snapshot_offset < log_start_offset limit $1";
    /// Lists the next logs, and whether more than the limit lies after their snapshots.
    UNFOLDED = r"select tenant_id, log_id, next_offset - snapshot_offset > $3 from oncelog.logs
        where (tenant_id, log_id) > ($1, $2)
        order by tenant_id, log_id limit $4";
}

/// What one chunk did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chunk {
    pub rows: u64,
    /// Whether there may be more work.
    pub more: bool,
}

/// Tables with several indexes that start with the tenant, or that are joined: only statistics tell
/// the planner which index is right.
const ANALYZE: &str = "analyze oncelog.topics, oncelog.logs, oncelog.sessions, oncelog.session_opens, \
    oncelog.producer_states, oncelog.transactions, oncelog.transaction_keys, \
    oncelog.staged_batches, oncelog.staged_offsets, oncelog.groups, oncelog.group_members, \
    oncelog.group_offsets, oncelog.held_ids";

/// Whether a table has grown far beyond its statistics, and so beyond the assumptions of all plans.
pub async fn outgrown(conn: &mut Connection) -> Result<bool> {
    Ok(sqlx::query_scalar(OUTGROWN).fetch_one(conn).await?)
}

/// Refreshes the statistics, and with them the plans of all connections. (A role that does not own
/// the tables leaves this to autovacuum.)
pub async fn analyze(conn: &mut Connection) -> Result<()> {
    sqlx::raw_sql(ANALYZE).execute(conn).await?;
    Ok(())
}

/// Limits lock waits in this transaction to a few milliseconds.
pub async fn hurry(conn: &mut Connection) -> Result<()> {
    execute(conn, sqlx::query(HURRY)).await
}

/// A log, with its tenant.
pub type Due = (TenantId, LogId);

async fn due(conn: &mut Connection, sql: &'static str, limit: i64) -> Result<Vec<Due>> {
    Ok(sqlx::query_as(sql).bind(limit).fetch_all(conn).await?)
}

/// Lists logs of deleted topics.
pub async fn doomed(conn: &mut Connection, limit: i64) -> Result<Vec<Due>> {
    due(conn, DOOMED, limit).await
}

/// Lists logs with rows before their start.
pub async fn trimmable(conn: &mut Connection, limit: i64) -> Result<Vec<Due>> {
    due(conn, TRIMMABLE, limit).await
}

/// Lists logs trimmed by hand beyond their snapshot.
pub async fn unsnapped(conn: &mut Connection, limit: i64) -> Result<Vec<Due>> {
    due(conn, UNSNAPPED_TRIMS, limit).await
}

/// Lists the logs after one, by tenant and id, each with whether more than the given number of
/// offsets lies after its snapshot.
pub async fn unfolded(
    conn: &mut Connection,
    (after_tenant, after_log): Due,
    offsets: i64,
    limit: i64,
) -> Result<Vec<(Due, bool)>> {
    let query = sqlx::query_as(UNFOLDED).bind(after_tenant).bind(after_log).bind(offsets);
    let rows: Vec<(TenantId, LogId, bool)> = query.bind(limit).fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(tenant, log, is_due)| ((tenant, log), is_due)).collect())
}

/// Deletes one chunk of a deleted log, unless another replica is working on it.
pub async fn remove_doomed(conn: &mut Connection, (tenant, log): Due, chunk: i64) -> Result<Chunk> {
    let query = sqlx::query(LOCK_DOOMED).bind(tenant).bind(log);
    if query.fetch_optional(&mut *conn).await?.is_none() {
        return Ok(Chunk::default());
    }
    let query = sqlx::query_as(DROP_ROWS).bind(tenant).bind(log).bind(chunk);
    let (count, transactions, ordinals): (i64, Vec<Uuid>, Vec<i64>) =
        query.fetch_one(&mut *conn).await?;
    if count > 0 {
        drop_staged(conn, tenant, transactions, ordinals).await?;
        return Ok(Chunk { rows: count.unsigned_abs(), more: true });
    }
    for sql in [DROP_STATES, DROP_OFFSETS] {
        let query = sqlx::query(sql).bind(tenant).bind(log).bind(chunk);
        let rows = query.execute(&mut *conn).await?.rows_affected();
        if rows > 0 {
            return Ok(Chunk { rows, more: true });
        }
    }
    for sql in [DROP_COMPACTION, DROP_DOOMED] {
        execute(conn, sqlx::query(sql).bind(tenant).bind(log)).await?;
    }
    Ok(Chunk::default())
}

/// Locks a head for trimming and returns (rows before this can be deleted, rows before this are
/// deleted). None if it no longer exists.
pub async fn lock_trimmable(
    conn: &mut Connection,
    (tenant, log): Due,
) -> Result<Option<(Offset, Offset)>> {
    let query = sqlx::query_as(LOCK_TRIMMABLE).bind(tenant).bind(log);
    Ok(query.fetch_optional(conn).await?)
}

/// Deletes one chunk of whole rows before `before` from a locked log.
pub async fn trim_rows(
    conn: &mut Connection,
    (tenant, log): Due,
    before: Offset,
    chunk: i64,
) -> Result<Chunk> {
    let query = sqlx::query_as(TRIM_ROWS).bind(tenant).bind(log).bind(before).bind(chunk);
    type Gone = (i64, Option<i64>, i64, Vec<Uuid>, Vec<i64>);
    let (count, end, own_bytes, transactions, ordinals): Gone = query.fetch_one(&mut *conn).await?;
    let size_bytes = own_bytes + drop_staged(conn, tenant, transactions, ordinals).await?;
    let more = count == chunk;
    // a row that reaches past `before` stays; nothing else before it is left
    let kept_offset = if more { end.unwrap_or(before) } else { before };
    let query = sqlx::query(MOVE_KEPT).bind(tenant).bind(log).bind(kept_offset).bind(size_bytes);
    execute(conn, query).await?;
    Ok(Chunk { rows: count.unsigned_abs(), more })
}

/// Deletes the staged data of deleted rows, one pair each. Returns its size in bytes.
pub(super) async fn drop_staged(
    conn: &mut Connection,
    tenant: TenantId,
    transactions: Vec<Uuid>,
    ordinals: Vec<i64>,
) -> Result<i64> {
    if transactions.is_empty() {
        return Ok(0);
    }
    let query = sqlx::query_scalar(DROP_STAGED).bind(tenant).bind(transactions).bind(ordinals);
    Ok(query.fetch_one(conn).await?)
}
