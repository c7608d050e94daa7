//! Transactions of one request: written with the appends of their pass.

use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{
    Error, Instant,
    appends::{Written, columns, written},
    statements,
};
use crate::{
    model::{Digest, TenantId, Timestamp, transaction::PlacedAppend},
    rules::{
        plan::LogWrite,
        whole::{OffsetMove, Whole},
    },
};

statements! {
    /// The write of a pass with transactions, all or nothing (its last line divides by zero). First
    /// their rows, by id: one that runs elsewhere is waited for, one that has run undoes this. Then the
    /// offsets they move: as they are expected (or less, where that is all that is known of them), and
    /// nobody's or owned by the member that moves them, since then or before, in a group of that
    /// generation or a newer one (which only grows: an old view of it does no harm). Then the heads. At the end the ids are judged: what was
    /// forgotten before a row could be made has moved the horizon as this sees it.
    APPEND_TRANSACTIONS = "with done as ( \
            insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at, ended_at, \
                append_count, appends, remembered_from) \
            select $1, t.transaction_id, 'committed', t.digest, c.now, c.now, c.now, t.append_count, t.appends, \
                greatest(c.now, oncelog.instant_of(t.transaction_id)) \
            from unnest($2::uuid[], $3::bytea[], $4::bigint[], $5::jsonb[]) as t (transaction_id, digest, append_count, appends) \
            cross join (select date_trunc('milliseconds', clock_timestamp()) as now) c \
            order by t.transaction_id \
            returning created_at), \
        moved as materialized ( \
            select * from unnest($6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $25::bigint[], $26::text[], $27::bigint[], $28::bigint[], $29::boolean[]) \
                as m (group_name, log_id, from_offset, to_offset, highest_offset, member_id, since, generation, from_below)), \
        place as materialized ( \
            select o.log_id from ( \
                select * from moved where (select count(*) from done) = cardinality($2) order by group_name collate \"C\", log_id) m \
            cross join lateral ( \
                select o.log_id from oncelog.group_offsets o \
                where o.tenant_id = $1 and o.group_name = m.group_name and o.log_id = m.log_id \
                    and o.member_id is not distinct from m.member_id and o.pinned_by is null \
                    and (o.committed_offset = m.from_offset or o.committed_offset < m.from_offset and m.from_below) \
                    and (o.owned_since > m.since) is not true \
                    and exists (select from oncelog.groups where tenant_id = $1 and name = m.group_name and generation >= m.generation) \
                    and exists (select from oncelog.logs where tenant_id = $1 and log_id = m.log_id and next_offset >= m.highest_offset) \
                for no key update of o) as o), \
        want as materialized ( \
            select * from unnest($10::bigint[], $11::bigint[], $12::bigint[], $13::timestamptz[], $14::bigint[], $15::bigint[]) \
                as w (log_id, fence, next_offset, last_appended_at, record_count, size_bytes)), \
        held as materialized ( \
            select l.log_id, l.last_appended_at from oncelog.logs l join want w on l.log_id = w.log_id \
            where l.tenant_id = $1 and l.log_id = any($10) and (w.fence is null or l.fence = w.fence) \
                and (w.next_offset is null or l.next_offset = w.next_offset) \
                and (w.last_appended_at is null or l.last_appended_at = w.last_appended_at) \
                and (select count(*) from done) = cardinality($2) and (select count(*) from place) = cardinality($6) \
            order by l.log_id for no key update of l), \
        moment as materialized ( \
            select greatest(max(last_appended_at), date_trunc('milliseconds', statement_timestamp())) as appended_at, \
                count(*) = cardinality($10) and not exists (select from oncelog.group_members gm \
                    where gm.tenant_id = $1 and gm.group_name = any(array(select group_name from moved where member_id is null))) as complete \
            from held), \
        committed as ( \
            insert into oncelog.group_offsets (tenant_id, group_name, log_id, committed_offset, committed_at) \
            select $1, m.group_name, m.log_id, m.to_offset, t.appended_at from moved m cross join moment t where t.complete \
            on conflict (tenant_id, group_name, log_id) do update \
                set committed_offset = excluded.committed_offset, metadata = null, committed_at = excluded.committed_at), \
        head as ( \
            update oncelog.logs l set next_offset = l.next_offset + w.record_count, \
                size_bytes = l.size_bytes + w.size_bytes, last_appended_at = m.appended_at \
            from want w cross join moment m \
            where l.tenant_id = $1 and l.log_id = any($10) and l.log_id = w.log_id and w.record_count > 0 and m.complete \
            returning l.log_id, l.next_offset - w.record_count as base_offset, m.appended_at), \
        row as ( \
            insert into oncelog.batches as b (tenant_id, log_id, base_offset, record_count, appended_at, producers, transaction_id, records) \
            select $1, h.log_id, h.base_offset + r.delta, r.record_count, h.appended_at, r.producers, r.transaction_id, r.records \
            from unnest($16::bigint[], $17::bigint[], $18::bigint[], $19::bytea[], $20::uuid[], $21::text[]) \
                as r (log_id, delta, record_count, producers, transaction_id, records) \
            join head h on h.log_id = r.log_id \
            returning b.log_id, b.base_offset) \
        select r.log_id, r.base_offset, m.appended_at, (select min(created_at) from done) as ended_at, 1 / (m.complete and ($22::timestamptz is null \
                or $22 >= (select oncelog.forgotten_horizon($1)) and $22 >= m.appended_at - interval '1 millisecond' * $24::bigint \
                    and $23 <= m.appended_at + interval '24 hours'))::int as guard \
        from moment m left join row r on true";
    /// An id that runs elsewhere is waited for. What is made here is finished or dropped before the
    /// database transaction ends.
    CLAIM = "insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at) \
        select $1, t.transaction_id, 'ongoing', t.digest, c.now, c.now \
        from unnest($2::uuid[], $3::bytea[]) as t (transaction_id, digest) \
        cross join (select date_trunc('milliseconds', clock_timestamp()) as now) c \
        order by t.transaction_id on conflict do nothing returning transaction_id";
    FINISH = "update oncelog.transactions t set state = 'committed', producer_id = f.producer_id, epoch = f.epoch, created_at = $7, expires_at = $7, ended_at = $7, \
            append_count = f.append_count, appends = f.appends, remembered_from = greatest($7, oncelog.instant_of(t.transaction_id)) \
        from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::jsonb[]) \
            as f (transaction_id, producer_id, epoch, append_count, appends) \
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = f.transaction_id";
    DROP_CLAIMS = "delete from oncelog.transactions where tenant_id = $1 and transaction_id = any($2)";
}

/// A transaction that is committed with a pass.
pub struct Ended<'a> {
    pub whole: &'a Whole,
    pub digest: Digest,
    pub appends: Vec<PlacedAppend>,
}

/// Writes a pass with transactions of which nothing is known but what they expect; None: something
/// is not as expected, nothing is written. `records` as in `append_if`.
pub async fn append_if(
    connection: &mut PgConnection,
    tenant: TenantId,
    writes: &[LogWrite],
    records: &[Option<&str>],
    ended: &[Ended<'_>],
    offsets: &[OffsetMove],
) -> Result<Option<Written>, Error> {
    let compares: Vec<_> = writes.iter().map(|write| columns(write.compare)).collect();
    let rows = || writes.iter().flat_map(|w| w.rows.iter().map(move |row| (w.log_id.0, row)));
    let owners = || offsets.iter().map(|moved| moved.owner.as_ref());
    let chosen = || ended.iter().filter(|ended| ended.whole.chosen);
    let instants = || chosen().filter_map(|e| Timestamp::of_uuid(&e.whole.transaction_id));
    let retention_ms = chosen().map(|ended| ended.whole.retention_ms).min();
    type Row = (i64, i64, Instant, Instant, i32);
    let returned: Result<Vec<Row>, sqlx::Error> = sqlx::query_as(APPEND_TRANSACTIONS)
        .bind(tenant.0)
        .bind(ended.iter().map(|e| e.whole.transaction_id).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| e.digest).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| e.whole.append_count).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| Json(&e.appends)).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.place.group.as_str()).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.place.log_id.0).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.from).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.to).collect::<Vec<_>>())
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
        .bind(instants().min().map(Timestamp::to_chrono))
        .bind(instants().max().map(Timestamp::to_chrono))
        .bind(retention_ms)
        .bind(offsets.iter().map(|o| o.highest).collect::<Vec<_>>())
        .bind(owners().map(|owner| Some(owner?.0.as_str())).collect::<Vec<_>>())
        .bind(owners().map(|owner| Some(owner?.1)).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.generation).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.from_below).collect::<Vec<_>>())
        .fetch_all(connection)
        .await;
    match returned.map_err(Error::from) {
        Ok(rows) => {
            let ended_at = rows.first().map(|(.., ended_at, _)| Timestamp::from(*ended_at));
            let row = |(log_id, base, at, ..): Row| (Some(log_id), Some(base), at);
            let written = written(rows.into_iter().map(row));
            Ok(written.map(|written| Written { ended_at, ..written }))
        }
        Err(Error::Contended(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes rows for these ids, if there are none; answers those made. They must be finished or dropped.
pub async fn claim(
    connection: &mut PgConnection,
    tenant: TenantId,
    wholes: &[(Uuid, Digest)],
) -> Result<Vec<Uuid>, Error> {
    let (ids, digests): (Vec<Uuid>, Vec<Digest>) = wholes.iter().copied().unzip();
    let query = sqlx::query_scalar(CLAIM).bind(tenant.0).bind(ids).bind(digests);
    Ok(query.fetch_all(connection).await?)
}

/// Commits claimed ones: all of them, or nothing was to be appended.
pub async fn finish(
    connection: &mut PgConnection,
    tenant: TenantId,
    ended: &[Ended<'_>],
    ended_at: Timestamp,
) -> Result<(), Error> {
    let session = |e: &Ended<'_>| e.whole.session;
    let finished = sqlx::query(FINISH)
        .bind(tenant.0)
        .bind(ended.iter().map(|e| e.whole.transaction_id).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| session(e).map(|(id, _)| id.0)).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| session(e).map(|(_, epoch)| epoch)).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| e.whole.append_count).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| Json(&e.appends)).collect::<Vec<_>>())
        .bind(ended_at.to_chrono())
        .execute(connection)
        .await?;
    if finished.rows_affected() == ended.len() as u64 { Ok(()) } else { Err(Error::overtaken()) }
}

/// Their ids are free again.
pub async fn drop_claims(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<(), Error> {
    sqlx::query(DROP_CLAIMS).bind(tenant.0).bind(ids).execute(connection).await?;
    Ok(())
}
