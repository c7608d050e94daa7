//! Reading rows of a partition's log below its high watermark, which never change.

use std::sync::Arc;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{Error, Instant, statements};
use crate::model::{LogId, Offset, TenantId, Timestamp, transfer::Row};

statements! {
    /// The rows of [$3, $4), from the one that holds $3, as long as the lines before a row are
    /// fewer than $5 bytes. Offsets are dense, so $4 bounds the rows as well. `octet_length` does
    /// not decompress.
    ROWS = "select base_offset, record_count, appended_at, transaction_id, records from ( \
            select base_offset, record_count, appended_at, transaction_id, records, \
                sum(octet_length(records)) over (order by base_offset) - octet_length(records) as size_before \
            from oncelog.batches \
            where tenant_id = $1 and log_id = $2 and base_offset < $4 and base_offset >= coalesce( \
                (select max(base_offset) from oncelog.batches where tenant_id = $1 and log_id = $2 and base_offset <= $3), $3) \
        ) as page where size_before < $5 order by base_offset";
    /// Binary search for the first row appended at or after an instant: `appended_at` never
    /// decreases along a log. The answer lies in [low, high].
    SEARCH = "with recursive search (low, high) as ( \
            select $3::bigint, $4::bigint \
            union all \
            select case when m.appended_at < $5 then m.base_offset + m.record_count else s.low end, \
                case when m.appended_at < $5 then s.high else greatest(m.base_offset, s.low) end \
            from search s cross join lateral ( \
                select b.base_offset, b.record_count, b.appended_at from oncelog.batches b \
                where b.tenant_id = $1 and b.log_id = $2 and b.base_offset <= (s.low + s.high) / 2 \
                order by b.base_offset desc limit 1) as m \
            where s.low < s.high) \
        select low from search where low >= high";
}

/// The rows that hold `[from, to)`, from the row of `from` on, until about `max_bytes` of lines
/// have come (the first row always comes).
pub async fn rows(
    connection: &mut PgConnection,
    tenant: TenantId,
    log: LogId,
    from: Offset,
    to: Offset,
    max_bytes: i64,
) -> Result<Vec<Arc<Row>>, Error> {
    let rows: Vec<(i64, i64, Instant, Option<Uuid>, String)> = sqlx::query_as(ROWS)
        .bind(tenant.0)
        .bind(log.0)
        .bind(from)
        .bind(to)
        .bind(max_bytes)
        .fetch_all(connection)
        .await?;
    let row = |(base_offset, record_count, appended_at, transaction_id, lines)| {
        let appended_at = Instant::into(appended_at);
        Arc::new(Row { base_offset, record_count, appended_at, transaction_id, lines })
    };
    Ok(rows.into_iter().map(row).collect())
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
