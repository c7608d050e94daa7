//! Statements that end transactions: commit, prepare, abort. They lock rows of `transactions` by
//! id, then the heads of all logs that these have staged records for, by id.

use sqlx::{
    FromRow, Row,
    postgres::{PgBindIterExt, PgRow},
};
use uuid::Uuid;

use super::transaction_columns;
use crate::{
    model::{Epoch, LogId, Offset, ProducerId, TenantId, Timestamp, transaction::Reason},
    rules::transaction::TransactionRow,
    store::{Connection, Error, Result, durable, execute, statements},
};

/// Aborts transactions past their timeout. `$waiting`: for those that are locked, or not.
macro_rules! expire_transactions {
    ($waiting:literal) => {
        concat!(
            r"with due as materialized (
            select transaction_id from oncelog.transactions
            where ", durable!(), r"
                and tenant_id = $1 and transaction_id = any($2)
                and prepared_at is null and ended_at is null and expires_at <= clock_timestamp()
            order by transaction_id for no key update", $waiting, r")
        update oncelog.transactions t
        set state = 'aborted', reason = 'timeout', ended_at = t.expires_at, sweeping = true,
            remembered_from = greatest(t.expires_at, oncelog.instant_of(t.transaction_id))
        from due d
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = d.transaction_id"
        )
    };
}
pub(in crate::store) use expire_transactions;

statements! {
    /// Commits many transactions, each on its own: assigns offsets to what they staged, and inserts
    /// rows in the log that refer to it. A transaction is committed only if everything it depends
    /// on is still as seen here: a concurrent call that stages, a deleted head or an expired
    /// timeout exclude it.
    COMMIT = concat!(
        r"with t as materialized (
            select t.transaction_id, t.batch_count, t.expires_at, t.prepared_at from (
                select * from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[])
                    as w (transaction_id, producer_id, epoch, expected_appends)
                where ", durable!(), r" order by transaction_id) w
            -- Concurrent changes are only visible in the columns of the locked row, so each call
            -- that stages is counted there.
            cross join lateral (
                select transaction_id, batch_count, expires_at, prepared_at from oncelog.transactions
                where tenant_id = $1 and transaction_id = w.transaction_id
                    and ended_at is null and (prepared_at is null or $6)
                    and producer_id is not distinct from w.producer_id
                    and epoch is not distinct from w.epoch
                    and (w.expected_appends is null or append_count = w.expected_appends) and ($6 or id_count = 0)
                for no key update skip locked) t),
        -- Sizes are determined before anything is sorted: the cost of a commit is that of its
        -- batches, not of their bytes.
        piece as materialized (
            select t.transaction_id, s.ordinal, s.log_id, s.record_count, s.size_bytes
            from t cross join lateral (
                select ordinal, log_id, record_count, octet_length(records) as size_bytes
                from oncelog.staged_batches
                where tenant_id = $1 and transaction_id = t.transaction_id offset 0) s),
        held as materialized (
            select l.log_id, l.last_appended_at from oncelog.logs l
            where l.tenant_id = $1 and l.log_id = any (array (select distinct log_id from piece))
            order by l.log_id for no key update of l),
        moment as materialized (
            select greatest(max(last_appended_at), date_trunc('milliseconds', clock_timestamp())) as ended_at,
                clock_timestamp() as now
            from held),
        -- A full join is never a nested loop over thousands of batches and logs.
        seen as materialized (
            select p.transaction_id, count(*) as batch_count, count(h.log_id) as found_count
            from piece p full join held h on h.log_id = p.log_id
            group by p.transaction_id),
        good as materialized (
            select t.transaction_id
            from t cross join moment m left join seen s on s.transaction_id = t.transaction_id
            where coalesce(s.batch_count, 0) = t.batch_count and coalesce(s.found_count, 0) = t.batch_count
                and (t.prepared_at is not null or m.now < t.expires_at)),
        staged as materialized (
            select transaction_id, ordinal, log_id, record_count, size_bytes,
                (sum(record_count) over (partition by log_id order by transaction_id, ordinal)
                    - record_count)::bigint as delta
            from piece where transaction_id = any (array (select transaction_id from good))),
        want as materialized (
            select log_id, sum(record_count)::bigint as record_count, sum(size_bytes)::bigint as size_bytes
            from staged group by log_id),
        head as (
            update oncelog.logs l
            set next_offset = l.next_offset + w.record_count,
                size_bytes = l.size_bytes + w.size_bytes, last_appended_at = m.ended_at
            from want w cross join moment m
            where l.tenant_id = $1 and l.log_id = any (array (select log_id from want))
                and l.log_id = w.log_id
            returning l.log_id, l.next_offset - w.record_count as base_offset, l.next_offset, l.partition,
                m.ended_at, (select p.name from oncelog.topics p
                    where p.tenant_id = $1 and p.topic_id = l.topic_id) as topic),
        placed as materialized (
            select s.transaction_id, s.ordinal, s.log_id, h.base_offset + s.delta as base_offset,
                s.record_count, h.ended_at, h.topic, h.partition
            from staged s full join head h on h.log_id = s.log_id),
        -- A batch that is stored elsewhere as a whole gets no row.
        pointer as (
            insert into oncelog.batches (tenant_id, log_id, base_offset, record_count, appended_at,
                transaction_id, staged_ordinal)
            select $1, log_id, base_offset, record_count, ended_at, transaction_id, ordinal
            from placed where record_count > 0),
        answer as materialized (
            select transaction_id, jsonb_agg(jsonb_build_object(
                    'topic', topic, 'partition', partition,
                    'base_offset', case when record_count > 0 then base_offset end,
                    'record_count', record_count) order by ordinal) as appends
            from placed group by transaction_id)
        update oncelog.transactions t
        set state = 'committed', ended_at = m.ended_at,
            remembered_from = greatest(m.ended_at, oncelog.instant_of(t.transaction_id)),
            appends = coalesce(a.appends, '[]')
        from good g cross join moment m left join answer a on a.transaction_id = g.transaction_id
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = g.transaction_id
        returning ", transaction_columns!(), r", t.appends,
            (select array_agg(log_id) from head) as logs,
            (select array_agg(next_offset) from head) as next_offsets"
    );
    PREPARE = r"update oncelog.transactions set state = 'prepared', prepared_at = $3
        where tenant_id = $1 and transaction_id = $2";
    ABORT = r"update oncelog.transactions
        set state = 'aborted', reason = $3, ended_at = $4, sweeping = true,
            remembered_from = greatest($4, oncelog.instant_of(transaction_id))
        where tenant_id = $1 and transaction_id = $2";
    EXPIRE = expire_transactions!("");
}

/// What a commit depends on.
#[derive(Clone, Copy)]
pub struct Commit {
    pub id: Uuid,
    pub session: Option<(ProducerId, Epoch)>,
    pub expected_appends: Option<i64>,
}

/// Transactions that were committed together, with the next offsets of all their logs.
pub struct CommittedTransactions {
    pub rows: Vec<TransactionRow>,
    pub high_watermarks: Vec<(LogId, Offset)>,
}

/// Commits those of these transactions for which all assumptions hold, in one statement; the others
/// are unchanged. `judged`: they are locked, and everything but assigning offsets is done; this
/// also covers prepared ones and those with offsets.
pub async fn commit(
    conn: &mut Connection,
    tenant: TenantId,
    commits: &[Commit],
    judged: bool,
) -> Result<CommittedTransactions> {
    let returned: Result<Vec<PgRow>, sqlx::Error> = sqlx::query(COMMIT)
        .bind(tenant)
        .bind(commits.iter().map(|c| c.id).bind_iter())
        .bind(commits.iter().map(|c| Some(c.session?.0)).bind_iter())
        .bind(commits.iter().map(|c| Some(c.session?.1)).bind_iter())
        .bind(commits.iter().map(|c| c.expected_appends).bind_iter())
        .bind(judged)
        .fetch_all(conn)
        .await;
    let returned = returned.map_err(|error| Error::from(error).of_a_write())?;
    let mut high_watermarks = Vec::new();
    if let Some(first) = returned.first() {
        let logs: Option<Vec<LogId>> = first.try_get("logs")?;
        let next_offsets: Option<Vec<Offset>> = first.try_get("next_offsets")?;
        high_watermarks =
            logs.into_iter().flatten().zip(next_offsets.into_iter().flatten()).collect();
    }
    let rows: Result<_, sqlx::Error> = returned.iter().map(TransactionRow::from_row).collect();
    Ok(CommittedTransactions { rows: rows?, high_watermarks })
}

/// Marks a locked transaction as prepared.
pub async fn prepare(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    prepared_at: Timestamp,
) -> Result<()> {
    execute(conn, sqlx::query(PREPARE).bind(tenant).bind(id).bind(prepared_at)).await
}

/// Aborts a locked transaction.
pub async fn abort(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    reason: Reason,
    ended_at: Timestamp,
) -> Result<()> {
    let query = sqlx::query(ABORT).bind(tenant).bind(id).bind(reason).bind(ended_at);
    execute(conn, query).await
}

/// Aborts those of these transactions that are past their timeout; returns how many.
pub async fn expire(conn: &mut Connection, tenant: TenantId, ids: &[Uuid]) -> Result<u64> {
    let query = sqlx::query(EXPIRE).bind(tenant).bind(ids);
    Ok(query.execute(conn).await?.rows_affected())
}
