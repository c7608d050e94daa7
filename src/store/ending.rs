//! Ending transactions: commit, prepare, abort.

use sqlx::{FromRow, PgConnection, Row as _, postgres::PgRow};
use uuid::Uuid;

use super::{Error, statements, transactions::Stored};
use crate::{
    model::{
        Epoch, LogId, Offset, ProducerId, TenantId, Timestamp,
        transaction::{Reason, State},
    },
    rules::transaction::Row,
};

statements! {
    /// Numbers what was staged and makes the log point to it, as one statement: the transaction's row
    /// is locked first, then the heads in order. It does so only if all it goes by is still as it sees
    /// it: a call that was staging meanwhile, a vanished head or a passed deadline make it do nothing.
    /// (The sizes are taken before anything is sorted: a commit's cost is that of its batches, not of
    /// their bytes. A full join is never a nested loop over thousands of batches and logs; where `head` is there,
    /// it is all of them.)
    COMMIT = "with t as materialized ( \
            select transaction_id, batch_count, expires_at, state from oncelog.transactions \
            where tenant_id = $1 and transaction_id = $2 and state = any($3) \
                and producer_id is not distinct from $4 and epoch is not distinct from $5 \
                and ($6::bigint is null or append_count = $6) for no key update), \
        staged as materialized ( \
            select ordinal, log_id, record_count, size_bytes, \
                (sum(record_count) over (partition by log_id order by ordinal) - record_count)::bigint as delta \
            from (select ordinal, log_id, record_count, octet_length(records) as size_bytes from oncelog.staged_batches \
                where tenant_id = $1 and transaction_id = $2 and exists (select from t) offset 0) s), \
        want as materialized ( \
            select log_id, sum(record_count)::bigint as record_count, sum(size_bytes)::bigint as size_bytes from staged group by log_id), \
        held as materialized ( \
            select l.log_id, l.last_appended_at from oncelog.logs l \
            where l.tenant_id = $1 and l.log_id = any (array (select log_id from want)) \
            order by l.log_id for no key update of l), \
        moment as materialized ( \
            select greatest(max(last_appended_at), date_trunc('milliseconds', clock_timestamp())) as ended_at, \
                count(*) = (select count(*) from want) and (select count(*) from staged) = (select batch_count from t) \
                    and (select state = 'prepared' or clock_timestamp() < expires_at from t) \
                    and ($7 or not exists (select from oncelog.staged_offsets where tenant_id = $1 and transaction_id = $2)) \
                    as complete \
            from held), \
        head as ( \
            update oncelog.logs l set next_offset = l.next_offset + w.record_count, \
                size_bytes = l.size_bytes + w.size_bytes, last_appended_at = m.ended_at \
            from want w cross join moment m \
            where l.tenant_id = $1 and l.log_id = any (array (select log_id from want)) and l.log_id = w.log_id and m.complete \
            returning l.log_id, l.next_offset - w.record_count as base_offset, l.next_offset, l.partition, m.ended_at, \
                (select p.name from oncelog.topics p where p.tenant_id = $1 and p.topic_id = l.topic_id) as topic), \
        placed as materialized ( \
            select s.ordinal, s.log_id, h.base_offset + s.delta as base_offset, s.record_count, h.ended_at, h.topic, h.partition \
            from staged s full join head h on h.log_id = s.log_id where coalesce(h.log_id, 0) > 0), \
        pointer as ( \
            insert into oncelog.batches (tenant_id, log_id, base_offset, record_count, appended_at, transaction_id, staged_ordinal) \
            select $1, log_id, base_offset, record_count, ended_at, $2, ordinal from placed), \
        answer as ( \
            select coalesce(jsonb_agg(jsonb_build_object('topic', topic, 'partition', partition, \
                'base_offset', base_offset, 'record_count', record_count) order by ordinal), '[]') as appends from placed) \
        update oncelog.transactions t set state = 'committed', ended_at = m.ended_at, \
            remembered_from = greatest(m.ended_at, oncelog.instant_of(t.transaction_id)), appends = a.appends \
        from moment m cross join answer a \
        where t.tenant_id = $1 and t.transaction_id = $2 and m.complete \
        returning t.transaction_id, t.state, t.producer_id, t.epoch, t.digest, t.created_at, t.expires_at, t.prepared_at, \
            t.ended_at, t.reason, t.append_count, t.batch_count, t.next_sequence, t.appends, \
            (select array_agg(log_id) from head) as logs, (select array_agg(next_offset) from head) as next_offsets";
    PREPARE = "update oncelog.transactions set state = 'prepared', prepared_at = $3 where tenant_id = $1 and transaction_id = $2";
    ABORT = "update oncelog.transactions set state = 'aborted', reason = $3, ended_at = $4, sweeping = true, \
            remembered_from = greatest($4, oncelog.instant_of(transaction_id)) \
        where tenant_id = $1 and transaction_id = $2";
    /// Writes down what time has done already.
    EXPIRE = "with due as materialized ( \
            select transaction_id from oncelog.transactions \
            where tenant_id = $1 and transaction_id = any($2) and prepared_at is null and ended_at is null \
                and expires_at <= clock_timestamp() \
            order by transaction_id for no key update) \
        update oncelog.transactions t set state = 'aborted', reason = 'timeout', ended_at = t.expires_at, sweeping = true, \
            remembered_from = greatest(t.expires_at, oncelog.instant_of(t.transaction_id)) \
        from due d where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = d.transaction_id";
}

/// What a commit goes by.
#[derive(Clone, Copy)]
pub struct Commit {
    pub id: Uuid,
    pub session: Option<(ProducerId, Epoch)>,
    pub expected_appends: Option<i64>,
    /// Everything but numbering is done: also prepared ones, and those with offsets.
    pub judged: bool,
}

/// A transaction that was committed, and where its logs' next offsets are.
pub struct Committed {
    pub row: Row,
    pub high_watermarks: Vec<(LogId, Offset)>,
}

/// Commits in one statement. None: something is not as usual, nothing was done.
pub async fn commit(
    connection: &mut PgConnection,
    tenant: TenantId,
    commit: Commit,
) -> Result<Option<Committed>, Error> {
    let (producer_id, epoch) = commit.session.unzip();
    let states: &[State] =
        if commit.judged { &[State::Ongoing, State::Prepared] } else { &[State::Ongoing] };
    let row: Result<Option<PgRow>, sqlx::Error> = sqlx::query(COMMIT)
        .bind(tenant.0)
        .bind(commit.id)
        .bind(states.iter().map(|state| state.as_str()).collect::<Vec<_>>())
        .bind(producer_id.map(|id| id.0))
        .bind(epoch)
        .bind(commit.expected_appends)
        .bind(commit.judged)
        .fetch_optional(connection)
        .await;
    let Some(row) = row.map_err(|error| Error::from(error).of_a_write())? else { return Ok(None) };
    let logs: Option<Vec<i64>> = row.try_get("logs")?;
    let next_offsets: Option<Vec<Offset>> = row.try_get("next_offsets")?;
    let logs = logs.unwrap_or_default().into_iter().map(LogId);
    Ok(Some(Committed {
        row: Stored::from_row(&row)?.0,
        high_watermarks: logs.zip(next_offsets.unwrap_or_default()).collect(),
    }))
}

/// Makes a locked one prepared.
pub async fn prepare(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: Uuid,
    prepared_at: Timestamp,
) -> Result<(), Error> {
    let query = sqlx::query(PREPARE).bind(tenant.0).bind(id).bind(prepared_at.to_chrono());
    query.execute(connection).await?;
    Ok(())
}

/// Aborts a locked one.
pub async fn abort(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: Uuid,
    reason: Reason,
    ended_at: Timestamp,
) -> Result<(), Error> {
    let query = sqlx::query(ABORT).bind(tenant.0).bind(id).bind(reason.as_str());
    query.bind(ended_at.to_chrono()).execute(connection).await?;
    Ok(())
}

/// Aborts those of these that are past their deadlines; tells how many.
pub async fn expire(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<u64, Error> {
    let query = sqlx::query(EXPIRE).bind(tenant.0).bind(ids);
    Ok(query.execute(connection).await?.rows_affected())
}
