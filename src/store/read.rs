//! Reading rows of a partition's log below its high watermark, which never change.

use std::sync::Arc;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{Error, Instant, Server, statements};
use crate::model::{
    LogId, Offset, TenantId, Timestamp,
    read::{BatchRow, Staged},
    survivors::Kept,
    transaction::State,
};

statements! {
    /// The rows of [$3, $4), from the one that holds $3, as long as the lines before a row are
    /// fewer than $5 bytes. Where offsets are dense $4 bounds the rows as well, elsewhere $6 does.
    /// `octet_length` does not decompress. A row of a committed transaction may point to its lines: they are looked up
    /// by key, and only for such a row (a join would cost every row a fifth more). One that points
    /// to nothing is kept, and told as corrupt. Another server than the one that is meant ($7) fails, as
    /// it divides by zero: it never answers that there is nothing.
    ROWS = "select base_offset, record_count, appended_at, transaction_id, kept, records from ( \
            select base_offset, record_count, appended_at, transaction_id, kept, records, \
                sum(octet_length(records)) over (order by base_offset) - octet_length(records) as size_before \
            from ( \
                select base_offset, record_count, appended_at, transaction_id, kept, \
                    coalesce(records, (select s.records from oncelog.staged_batches s \
                        where s.tenant_id = $1 and s.transaction_id = b.transaction_id \
                            and s.ordinal = b.staged_ordinal)) as records \
                from oncelog.batches b \
                where tenant_id = $1 and log_id = $2 and base_offset < $4 and base_offset >= coalesce( \
                    (select max(base_offset) from oncelog.batches where tenant_id = $1 and log_id = $2 and base_offset <= $3), $3) \
                    and base_offset + record_count > $3 \
                order by base_offset limit $6 \
            ) as found \
        ) as page where coalesce(size_before, 0) < $5 \
            and 1 / (pg_postmaster_start_time() = $7)::integer = 1 \
        order by base_offset";
    /// What ongoing and prepared transactions have staged for a log, as long as the lines before a
    /// row are fewer than $3 bytes. An ongoing one past its deadline is an aborted one. A row has a
    /// record at least, so $4 bounds those as well. Nothing but sizes is carried until it is known
    /// which rows are wanted; and from the transactions to their rows, never the other way: what is
    /// staged of committed ones is far more.
    STAGED = "select transaction_id, state, (select s.records from oncelog.staged_batches s \
                where s.tenant_id = $1 and s.transaction_id = open.transaction_id and s.ordinal = open.ordinal) \
        from ( \
            select t.transaction_id, t.state, s.ordinal, \
                sum(s.size_bytes) over (order by t.transaction_id, s.ordinal) - s.size_bytes as size_before \
            from oncelog.transactions t cross join lateral ( \
                select s.ordinal, octet_length(s.records) as size_bytes from oncelog.staged_batches s \
                where s.tenant_id = $1 and s.transaction_id = t.transaction_id and s.log_id = $2 and s.record_count > 0 \
                order by s.ordinal) s \
            where t.tenant_id = $1 and t.state in ('ongoing', 'prepared') \
                and (t.state = 'prepared' or t.expires_at > statement_timestamp()) \
        ) as open where size_before < $3 order by transaction_id, ordinal limit $4";
    /// Whether there may be holes at an offset and behind it, which has not been trimmed, on the
    /// server that is meant.
    IS_COMPACTED = "select exists (select from oncelog.logs where tenant_id = $1 and log_id = $2 \
        and log_start_offset <= $3 and compacted_offset > $3 and pg_postmaster_start_time() = $4)";
    /// Binary search for the first row appended at or after an instant: `appended_at` never
    /// decreases along a log. The answer lies in [low, high]. Where the middle is in a hole, the row
    /// before tells of it; where there is none, it is before all that is left.
    SEARCH = "with recursive search (low, high) as ( \
            select $3::bigint, $4::bigint \
            union all \
            select case when m.appended_at >= $5 then s.low \
                    else greatest(m.base_offset + m.record_count, (s.low + s.high) / 2 + 1) end, \
                case when m.appended_at >= $5 then greatest(m.base_offset, s.low) else s.high end \
            from search s left join lateral ( \
                select b.base_offset, b.record_count, b.appended_at from oncelog.batches b \
                where b.tenant_id = $1 and b.log_id = $2 and b.base_offset <= (s.low + s.high) / 2 \
                order by b.base_offset desc limit 1) as m on true \
            where s.low < s.high) \
        select s.low from search s where s.low >= s.high and exists (select from oncelog.logs l \
            where l.tenant_id = $1 and l.log_id = $2 and l.log_start_offset <= $3)";
}

/// The rows that hold `[from, to)`, from the row of `from` on, until about `max_bytes` of lines
/// have come (the first row always comes), or `limit` rows. `Contended`: another server than `server`
/// answers.
pub async fn rows(
    connection: &mut PgConnection,
    tenant: TenantId,
    log: LogId,
    (from, to): (Offset, Offset),
    (max_bytes, limit): (i64, i64),
    server: Server,
) -> Result<Vec<Arc<BatchRow>>, Error> {
    let rows: Vec<BatchColumns> = sqlx::query_as(ROWS)
        .bind(tenant.0)
        .bind(log.0)
        .bind(from)
        .bind(to)
        .bind(max_bytes)
        .bind(limit)
        .bind(server.to_chrono())
        .fetch_all(connection)
        .await?;
    rows.into_iter().map(row).collect()
}

/// `base_offset, record_count, appended_at, transaction_id, kept, records`.
type BatchColumns = (i64, i64, Instant, Option<Uuid>, Option<Vec<u8>>, String);

fn row(stored: BatchColumns) -> Result<Arc<BatchRow>, Error> {
    let (base_offset, record_count, appended_at, transaction_id, kept, lines) = stored;
    let decode = |bytes: Vec<u8>| {
        let kept = Kept::decode(&bytes, record_count);
        let line_count = memchr::memchr_iter(b'\n', lines.as_bytes()).count();
        let of_lines = kept.filter(|kept| kept.count() == line_count);
        let what = || format!("what is left of the row at {base_offset} is not what it holds");
        of_lines.ok_or_else(|| Error::Unexpected(what()))
    };
    let kept = kept.map(decode).transpose()?;
    let appended_at = Instant::into(appended_at);
    Ok(Arc::new(BatchRow { base_offset, record_count, appended_at, transaction_id, kept, lines }))
}

/// Whether an offset without a record, and what is missing behind it, may be a hole; if not, the log
/// has been trimmed or deleted.
pub async fn is_compacted(
    connection: &mut PgConnection,
    tenant: TenantId,
    log: LogId,
    offset: Offset,
    server: Server,
) -> Result<bool, Error> {
    let query = sqlx::query_scalar(IS_COMPACTED).bind(tenant.0).bind(log.0).bind(offset);
    Ok(query.bind(server.to_chrono()).fetch_one(connection).await?)
}

/// What open transactions have staged for a log, by transaction and ordinal, until about
/// `max_bytes` of lines, or `limit` rows, have come: an item a row.
pub async fn staged(
    connection: &mut PgConnection,
    tenant: TenantId,
    log: LogId,
    max_bytes: i64,
    limit: i64,
) -> Result<Vec<Staged>, Error> {
    let rows: Vec<(Uuid, String, String)> = sqlx::query_as(STAGED)
        .bind(tenant.0)
        .bind(log.0)
        .bind(max_bytes)
        .bind(limit)
        .fetch_all(connection)
        .await?;
    let staged = |(transaction_id, state, lines): (Uuid, String, String)| {
        let known = State::parse(&state);
        let state =
            known.ok_or_else(|| Error::Unexpected(format!("a transaction is {state:?}")))?;
        Ok(Staged { transaction_id, state, lines })
    };
    rows.into_iter().map(staged).collect()
}

/// The first offset in `[start, end]` whose record was appended at or after `instant`. None: rows
/// of that range are gone since it was seen.
pub async fn search(
    connection: &mut PgConnection,
    tenant: TenantId,
    log: LogId,
    start: Offset,
    end: Offset,
    instant: Timestamp,
) -> Result<Option<Offset>, Error> {
    let found = sqlx::query_scalar(SEARCH)
        .bind(tenant.0)
        .bind(log.0)
        .bind(start)
        .bind(end)
        .bind(instant.to_chrono())
        .fetch_optional(connection)
        .await?;
    Ok(found)
}
