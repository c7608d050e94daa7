//! Reads rows of a partition's log (`batches`) below its high watermark, where they never change,
//! and what open transactions have staged for it. Nothing is locked.

use std::sync::Arc;

use uuid::Uuid;

use super::{Connection, Error, Result, Server, statements};
use crate::model::{
    LogId, Offset, TenantId, Timestamp,
    read::{BatchRow, Staged},
    survivors::Kept,
    transaction::State,
};

statements! {
    /// Reads the rows of [$3, $4), starting with the one that contains $3, while the lines before a
    /// row are below $5 bytes. With dense offsets $4 also bounds the number of rows, otherwise $6
    /// does. A row with a dangling reference is returned, and reported as corrupt.
    ROWS = r"select base_offset, record_count, appended_at, transaction_id, kept, records from (
            select base_offset, record_count, appended_at, transaction_id, kept, records,
                -- octet_length does not decompress.
                sum(octet_length(records)) over (order by base_offset) - octet_length(records)
                    as size_before
            from (
                select base_offset, record_count, appended_at, transaction_id, kept,
                    -- A row of a committed transaction may refer to its lines: they are looked up
                    -- by key, and only for such a row (a join would cost every row a fifth more).
                    coalesce(records, (
                        select s.records from oncelog.staged_batches s
                        where s.tenant_id = $1 and s.transaction_id = b.transaction_id
                            and s.ordinal = b.staged_ordinal)) as records
                from oncelog.batches b
                where tenant_id = $1 and log_id = $2 and base_offset < $4
                    and base_offset >= coalesce((
                        select max(base_offset) from oncelog.batches
                        where tenant_id = $1 and log_id = $2 and base_offset <= $3), $3)
                    and base_offset + record_count > $3
                order by base_offset limit $6
            ) as found
        ) as page
        where coalesce(size_before, 0) < $5
            -- On another server than the intended one the statement fails, instead of returning
            -- nothing.
            and (select case when pg_postmaster_start_time() = $7 then true
                else oncelog.undo_statement() = 0 end)
        order by base_offset";
    /// Reads what ongoing and prepared transactions have staged for a log, while the lines before a
    /// row are below $3 bytes. A row has at least one record, so $4 also bounds the rows.
    STAGED = r"select transaction_id, state, (
            select s.records from oncelog.staged_batches s
            where s.tenant_id = $1 and s.transaction_id = open.transaction_id
                and s.ordinal = open.ordinal)
        -- Only sizes are carried until the wanted rows are known, and the join goes from the
        -- transactions to their rows, never the other way: committed ones have far more of them.
        from (
            select t.transaction_id, t.state, s.ordinal,
                sum(s.size_bytes) over (order by t.transaction_id, s.ordinal) - s.size_bytes as size_before
            from oncelog.transactions t cross join lateral (
                select s.ordinal, octet_length(s.records) as size_bytes from oncelog.staged_batches s
                where s.tenant_id = $1 and s.transaction_id = t.transaction_id and s.log_id = $2
                    and s.record_count > 0
                order by s.ordinal) s
            where t.tenant_id = $1 and t.state in ('ongoing', 'prepared')
                -- An ongoing transaction past its timeout counts as aborted.
                and (t.state = 'prepared' or t.expires_at > statement_timestamp())
        ) as open
        where size_before < $3
        order by transaction_id, ordinal limit $4";
    /// Whether there may be holes from an untrimmed offset on, on the intended server.
    IS_COMPACTED = r"select exists (select from oncelog.logs where tenant_id = $1 and log_id = $2
        and log_start_offset <= $3 and compacted_offset > $3 and pg_postmaster_start_time() = $4)";
    /// Binary search for the first row appended at or after an instant: `appended_at` never
    /// decreases within a log. The answer lies in [low, high]. If the middle is in a hole, the row
    /// before it decides; if there is none, the middle is before all remaining rows.
    SEARCH = r"with recursive search (low, high) as (
            select $3::bigint, $4::bigint
            union all
            select case when m.appended_at >= $5 then s.low
                    else greatest(m.base_offset + m.record_count, (s.low + s.high) / 2 + 1) end,
                case when m.appended_at >= $5 then greatest(m.base_offset, s.low) else s.high end
            from search s left join lateral (
                select b.base_offset, b.record_count, b.appended_at from oncelog.batches b
                where b.tenant_id = $1 and b.log_id = $2 and b.base_offset <= (s.low + s.high) / 2
                order by b.base_offset desc limit 1) as m on true
            where s.low < s.high)
        select s.low from search s
        where s.low >= s.high and exists (
            select from oncelog.logs l
            where l.tenant_id = $1 and l.log_id = $2 and l.log_start_offset <= $3)";
}

/// Reads the rows of `[from, to)`, starting with the one that contains `from`, until about
/// `max_bytes` of lines (the first row is always returned), or `limit` rows. `Contended` if another
/// server than `server` answers.
pub async fn rows(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    (from, to): (Offset, Offset),
    (max_bytes, limit): (i64, i64),
    server: Server,
) -> Result<Vec<Arc<BatchRow>>> {
    let rows: Vec<BatchColumns> = sqlx::query_as(ROWS)
        .bind(tenant)
        .bind(log)
        .bind(from)
        .bind(to)
        .bind(max_bytes)
        .bind(limit)
        .bind(server)
        .fetch_all(conn)
        .await?;
    rows.into_iter().map(row).collect()
}

/// `base_offset, record_count, appended_at, transaction_id, kept, records`.
type BatchColumns = (Offset, i64, Timestamp, Option<Uuid>, Option<Vec<u8>>, String);

fn row(stored: BatchColumns) -> Result<Arc<BatchRow>> {
    let (base_offset, record_count, appended_at, transaction_id, kept, lines) = stored;
    let decode = |bytes: Vec<u8>| {
        let kept = Kept::decode(&bytes, record_count);
        let line_count = memchr::memchr_iter(b'\n', lines.as_bytes()).count();
        let of_lines = kept.filter(|kept| kept.count() == line_count);
        let what = || format!("what is left of the row at {base_offset} is not what it holds");
        of_lines.ok_or_else(|| Error::Unexpected(what()))
    };
    let kept = kept.map(decode).transpose()?;
    Ok(Arc::new(BatchRow { base_offset, record_count, appended_at, transaction_id, kept, lines }))
}

/// Whether an offset without a record, and what is missing after it, may be a hole; if not, the log
/// has been trimmed or deleted.
pub async fn is_compacted(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    offset: Offset,
    server: Server,
) -> Result<bool> {
    let query = sqlx::query_scalar(IS_COMPACTED).bind(tenant).bind(log).bind(offset);
    Ok(query.bind(server).fetch_one(conn).await?)
}

/// Reads what open transactions have staged for a log, by transaction and ordinal, until about
/// `max_bytes` of lines, or `limit` rows; one item per row.
pub async fn staged(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    max_bytes: i64,
    limit: i64,
) -> Result<Vec<Staged>> {
    let query = sqlx::query_as(STAGED).bind(tenant).bind(log).bind(max_bytes).bind(limit);
    let rows: Vec<(Option<Uuid>, State, String)> = query.fetch_all(conn).await?;
    let staged = |(transaction_id, state, lines)| Staged { transaction_id, state, lines };
    Ok(rows.into_iter().map(staged).collect())
}

/// The first offset in `[start, end]` whose record was appended at or after `instant`. None if rows
/// of that range were deleted meanwhile.
pub async fn search(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    start: Offset,
    end: Offset,
    instant: Timestamp,
) -> Result<Option<Offset>> {
    let query = sqlx::query_scalar(SEARCH).bind(tenant).bind(log).bind(start).bind(end);
    Ok(query.bind(instant).fetch_optional(conn).await?)
}
