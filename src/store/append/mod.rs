//! Writes a decided batch. It takes the whole plan: the parts of the plan select the statement, and
//! no statement leaves out a part of the plan.

pub mod load;

use std::collections::BTreeMap;

use sqlx::{PgConnection, Postgres, postgres::PgArguments, query::QueryAs, types::Json};

use super::{Error, Instant, Server, durable, statements, transaction::one_request::Ended};
use crate::{
    model::{LogId, Offset, TenantId, Timestamp},
    rules::{
        append::{
            plan::{LogWrite, Plan, PlannedRow},
            read_set::ExpectedHead,
            reservations::KeyReservation,
        },
        transaction::one_request::OffsetMove,
    },
};

/// Locks the heads in order, omits those that do not match, and advances the others if all are
/// present. All rows of the batch share one instant, the greatest of its heads. (`log_id = any($2)`
/// next to the joins: a plan made while the table was empty would read all of the tenant's heads.)
/// `$locking`, `$complete`: further conditions before heads are locked, and before they are
/// advanced.
macro_rules! heads_and_rows {
    ($locking:literal, $complete:literal) => {
        concat!(
            r"want as materialized (
                select * from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::bigint[], $7::bigint[], $8::bigint[], $9::integer[])
                    as w (log_id, fence, next_offset, last_appended_at, record_count, size_bytes, claims, rings)),
            held as materialized (
                select l.log_id, l.last_appended_at from oncelog.logs l join want w on l.log_id = w.log_id
                where ", durable!(), r" and l.tenant_id = $1 and l.log_id = any($2) and (w.fence is null or l.fence = w.fence)
                    and (w.next_offset is null or l.next_offset = w.next_offset)
                    and (w.last_appended_at is null or l.last_appended_at = w.last_appended_at)
                    and (w.claims is null or l.claims = w.claims)",
            $locking,
            r" order by l.log_id for no key update of l),
            moment as materialized (
                select greatest(max(last_appended_at), date_trunc('milliseconds', statement_timestamp())) as appended_at,
                    count(*) = cardinality($2)",
            $complete,
            r" as complete from held),
            head as (
                update oncelog.logs l set next_offset = l.next_offset + w.record_count,
                    size_bytes = l.size_bytes + w.size_bytes, claims = l.claims + (w.rings <> 0)::int, key_rings = l.key_rings | w.rings,
                    last_appended_at = case when w.record_count > 0 then m.appended_at else l.last_appended_at end
                from want w cross join moment m
                where l.tenant_id = $1 and l.log_id = any($2) and l.log_id = w.log_id and (w.record_count > 0 or w.rings <> 0) and m.complete
                returning l.log_id, l.next_offset - w.record_count as base_offset, m.appended_at),
            row as (
                insert into oncelog.batches as b (tenant_id, log_id, base_offset, record_count, appended_at, producers, transaction_id, records)
                select $1, h.log_id, h.base_offset + r.delta, r.record_count, h.appended_at, r.producers, r.transaction_id, r.records
                from unnest($10::bigint[], $11::bigint[], $12::bigint[], $13::bytea[], $14::uuid[], $15::text[])
                    as r (log_id, delta, record_count, producers, transaction_id, records)
                join head h on h.log_id = r.log_id
                returning b.log_id, b.base_offset)"
        )
    };
}

/// Remembers keys. A conflicting row has expired.
macro_rules! keys {
    ($slot:literal, $topic:literal, $key:literal, $digest:literal, $lifetime:literal, $log:literal, $delta:literal, $answer:literal) => {
        concat!(
            r"key as (
                insert into oncelog.dedup_keys as d (slot, tenant_id, topic_id, key, digest, first_seen_at, expires_at, log_id, record_offset, answer)
                select k.slot, $1, k.topic_id, k.key, k.digest, m.appended_at,
                    coalesce(m.appended_at + interval '1 millisecond' * k.lifetime_ms, 'infinity'), k.log_id, h.base_offset + k.delta, k.answer
                from unnest(", $slot, "::smallint[], ", $topic, "::bigint[], ", $key, "::uuid[], ", $digest, "::bigint[], ",
                    $lifetime, "::bigint[], ", $log, "::bigint[], ", $delta, "::bigint[], ", $answer, r"::bytea[])
                    as k (slot, topic_id, key, digest, lifetime_ms, log_id, delta, answer)
                cross join moment m left join head h on h.log_id = k.log_id
                where m.complete
                on conflict (tenant_id, topic_id, key, slot) do update set digest = excluded.digest, first_seen_at = excluded.first_seen_at,
                    expires_at = excluded.expires_at, log_id = excluded.log_id, record_offset = excluded.record_offset, answer = excluded.answer)"
        )
    };
}

/// Commits one-request transactions, all or none. First their rows, by id: it waits for an id that
/// runs elsewhere, and an id that has run undoes the statement. Then the offsets they move: these
/// must be as expected (or less, if only that is known), and have no owner, or be owned by the
/// member that moves them, since the named generation or earlier, in a group of that generation or
/// a newer one (generations only grow, so an old view is safe). Then the heads.
macro_rules! transactions {
    () => {
        concat!(
            r"done as (
                insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at, ended_at,
                    append_count, appends, remembered_from)
                select $1, t.transaction_id, 'committed', t.digest, c.now, c.now, c.now, t.append_count, t.appends,
                    greatest(c.now, oncelog.instant_of(t.transaction_id))
                from unnest($16::uuid[], $17::bytea[], $18::bigint[], $19::jsonb[]) as t (transaction_id, digest, append_count, appends)
                cross join (select date_trunc('milliseconds', clock_timestamp()) as now) c
                where ", durable!(), r#"
                order by t.transaction_id
                returning created_at),
            moved as materialized (
                select * from unnest($20::text[], $21::bigint[], $22::bigint[], $23::bigint[], $24::bigint[], $25::text[], $26::bigint[], $27::bigint[], $28::boolean[])
                    as m (group_name, log_id, from_offset, to_offset, highest_offset, member_id, since, generation, from_below)),
            place as materialized (
                select o.log_id from (
                    select * from moved where (select count(*) from done) = cardinality($16) order by group_name collate "C", log_id) m
                cross join lateral (
                    select o.log_id from oncelog.group_offsets o
                    where o.tenant_id = $1 and o.group_name = m.group_name and o.log_id = m.log_id
                        and o.member_id is not distinct from m.member_id and o.pinned_by is null
                        and (o.committed_offset = m.from_offset or o.committed_offset < m.from_offset and m.from_below)
                        and (o.owned_since > m.since) is not true
                        and exists (select from oncelog.groups where tenant_id = $1 and name = m.group_name and generation >= m.generation)
                        and exists (select from oncelog.logs where tenant_id = $1 and log_id = m.log_id and next_offset >= m.highest_offset)
                    for no key update of o) as o), "#,
            heads_and_rows!(
                " and (select count(*) from done) = cardinality($16) and (select count(*) from place) = cardinality($20)",
                r" and not exists (select from oncelog.group_members gm where gm.tenant_id = $1
                    and gm.group_name = any(array(select group_name from moved where member_id is null)))"
            ),
            r", committed as (
                insert into oncelog.group_offsets (tenant_id, group_name, log_id, committed_offset, committed_at)
                select $1, m.group_name, m.log_id, m.to_offset, t.appended_at from moved m cross join moment t where t.complete
                on conflict (tenant_id, group_name, log_id) do update
                    set committed_offset = excluded.committed_offset, metadata = null, committed_at = excluded.committed_at)"
        )
    };
}

/// The result of a batch with transactions. An incomplete one undoes all of it. Their ids are
/// checked last: what was forgotten before a row could be inserted has advanced the horizon, which
/// is visible here.
macro_rules! undone_unless_complete {
    () => {
        r" select r.log_id, r.base_offset, m.appended_at, pg_postmaster_start_time() as started_at, (select min(created_at) from done) as ended_at,
            case when not (m.complete and ($29::timestamptz is null
                or $29 >= (select oncelog.forgotten_horizon($1)) and $29 >= m.appended_at - interval '1 millisecond' * $31::bigint
                    and $30 <= m.appended_at + interval '24 hours')) then oncelog.undo_statement() else 0 end as undone
        from moment m left join row r on true"
    };
}

macro_rules! if_complete {
    () => {
        " select r.log_id, r.base_offset, m.appended_at, pg_postmaster_start_time() as started_at from moment m left join row r on true where m.complete"
    };
}

statements! {
    /// One log, one row: the common case. Scalars take 0.85-0.9 of the time of arrays.
    APPEND_ROW = concat!(r"with head as (
            update oncelog.logs set next_offset = next_offset + $6, size_bytes = size_bytes + $7,
                last_appended_at = greatest(last_appended_at, date_trunc('milliseconds', statement_timestamp()))
            where ", durable!(), r" and tenant_id = $1 and log_id = $2 and ($3::bigint is null or fence = $3)
                and ($4::bigint is null or next_offset = $4) and ($5::timestamptz is null or last_appended_at = $5)
            returning next_offset - $6 as base_offset, last_appended_at)
        insert into oncelog.batches as b (tenant_id, log_id, base_offset, record_count, appended_at, producers, records)
        select $1, $2, base_offset, $6, last_appended_at, $8, $9 from head
        returning b.log_id, b.base_offset, b.appended_at, pg_postmaster_start_time() as started_at");
    /// Several logs or rows.
    APPEND_ROWS = concat!("with ", heads_and_rows!("", ""), if_complete!());
    /// The same with reserved keys.
    APPEND_CLAIMING = concat!(
        "with ", heads_and_rows!("", ""), ", ",
        keys!("$16", "$17", "$18", "$19", "$20", "$21", "$22", "$23"),
        if_complete!(),
    );
    /// The same with transactions.
    APPEND_TRANSACTIONS = concat!("with ", transactions!(), undone_unless_complete!());
    /// The same with transactions and reserved keys.
    APPEND_TRANSACTIONS_CLAIMING = concat!(
        "with ", transactions!(), ", ",
        keys!("$32", "$33", "$34", "$35", "$36", "$37", "$38", "$39"),
        undone_unless_complete!(),
    );
    /// Checks the read set of a batch that writes nothing.
    CONFIRM = r"select count(*) from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::bigint[])
            as w (log_id, fence, next_offset, last_appended_at, claims)
        join oncelog.logs l on l.tenant_id = $1 and l.log_id = w.log_id
        where l.log_id = any($2) and l.fence = w.fence and (w.next_offset is null or l.next_offset = w.next_offset)
            and (w.last_appended_at is null or l.last_appended_at = w.last_appended_at)
            and (w.claims is null or l.claims = w.claims)";
}

/// The result of a successful write: its instant, and the first offset in each log.
pub struct Written {
    pub appended_at: Timestamp,
    pub bases: BTreeMap<LogId, Offset>,
    /// The server it was written on. None: nothing was written to any log.
    pub server: Option<Server>,
    /// When its transactions ended, if at another instant.
    pub ended_at: Option<Timestamp>,
}

impl Written {
    /// Nothing was written to any log.
    pub fn at(appended_at: Timestamp) -> Self {
        Self { appended_at, bases: BTreeMap::new(), server: None, ended_at: None }
    }
}

type Query<'q, O> = QueryAs<'q, Postgres, O, PgArguments>;
/// A returned row: its log, offset and instant, and when its server was started.
type Returned = (Option<i64>, Option<i64>, Instant, Instant);

/// Writes a batch if every head matches and its transactions are as expected; None, with nothing
/// written, otherwise (or if something no longer exists). `records` holds the lines of every row
/// that has some, in the order of the writes and their rows. `ended`: the transactions of the plan,
/// except those whose rows, groups and offsets are locked: `one_request::finish` and
/// `group::offsets::commit` write them. (Similarly, on the slow path, `load::register` and
/// `write_states` write states; the fast path registers no producer.)
pub async fn append_if(
    connection: &mut PgConnection,
    tenant: TenantId,
    plan: &Plan,
    records: &[Option<&str>],
    ended: &[Ended<'_>],
) -> Result<Option<Written>, Error> {
    let Plan { writes, claims, offsets, .. } = plan;
    let returned: Vec<Returned> = match (writes.as_slice(), claims.as_slice(), ended) {
        ([write], [], []) if write.rows.len() == 1 && write.rows[0].transaction_id.is_none() => {
            let query = bind_row(
                sqlx::query_as(APPEND_ROW).bind(tenant.0),
                write,
                &write.rows[0],
                records[0],
            );
            query.fetch_all(connection).await?
        }
        (_, [], []) => {
            let query = bind_writes(sqlx::query_as(APPEND_ROWS).bind(tenant.0), writes, records);
            query.fetch_all(connection).await?
        }
        (_, claims, []) => {
            let query =
                bind_writes(sqlx::query_as(APPEND_CLAIMING).bind(tenant.0), writes, records);
            bind_claims(query, claims).fetch_all(connection).await?
        }
        (_, claims, ended) => {
            let sql =
                if claims.is_empty() { APPEND_TRANSACTIONS } else { APPEND_TRANSACTIONS_CLAIMING };
            let query = bind_writes(sqlx::query_as(sql).bind(tenant.0), writes, records);
            let query = bind_transactions(query, ended, offsets);
            let query = if claims.is_empty() { query } else { bind_claims(query, claims) };
            return transactions_written(query.fetch_all(connection).await.map_err(Error::from));
        }
    };
    Ok(written(returned.into_iter()))
}

/// Interprets the returned rows; None without rows, because a condition failed.
fn written(rows: impl Iterator<Item = Returned>) -> Option<Written> {
    let mut written: Option<Written> = None;
    for (log_id, base_offset, appended_at, started_at) in rows {
        let written = written.get_or_insert(Written::at(appended_at.into()));
        written.server = Some(Server::started_at(started_at));
        let Some((log_id, base_offset)) = log_id.zip(base_offset) else { continue };
        let base = written.bases.entry(LogId(log_id)).or_insert(base_offset);
        *base = base_offset.min(*base);
    }
    written
}

/// The same with the instant at which the transactions ended; a failed condition is an error.
type ReturnedEnded = (Option<i64>, Option<i64>, Instant, Instant, Instant, i32);

fn transactions_written(
    returned: Result<Vec<ReturnedEnded>, Error>,
) -> Result<Option<Written>, Error> {
    match returned {
        Ok(rows) => {
            let ended_at = rows.first().map(|(.., ended_at, _)| Timestamp::from(*ended_at));
            let row =
                |(log_id, base, at, started_at, ..): ReturnedEnded| (log_id, base, at, started_at);
            let written = written(rows.into_iter().map(row));
            Ok(written.map(|written| Written { ended_at, ..written }))
        }
        Err(Error::Contended(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// $2 to $9: of `APPEND_ROW`.
fn bind_row<'q, O>(
    query: Query<'q, O>,
    write: &'q LogWrite,
    row: &'q PlannedRow,
    records: Option<&'q str>,
) -> Query<'q, O> {
    let (fence, next_offset, last_appended_at) = columns(write.compare);
    query
        .bind(write.log_id.0)
        .bind(fence)
        .bind(next_offset)
        .bind(last_appended_at)
        .bind(write.record_count)
        .bind(write.size_bytes)
        .bind(row.producers.as_deref())
        .bind(records)
}

/// $2 to $15: of `heads_and_rows`.
fn bind_writes<'q, O>(
    query: Query<'q, O>,
    writes: &'q [LogWrite],
    records: &'q [Option<&'q str>],
) -> Query<'q, O> {
    let compares: Vec<_> = writes.iter().map(|write| columns(write.compare)).collect();
    let rows = || writes.iter().flat_map(|w| w.rows.iter().map(move |row| (w.log_id.0, row)));
    query
        .bind(writes.iter().map(|w| w.log_id.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.1).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.2).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.record_count).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.size_bytes).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.claims).collect::<Vec<_>>())
        .bind(writes.iter().map(|w| w.claimed_rings).collect::<Vec<_>>())
        .bind(rows().map(|(log_id, _)| log_id).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.delta).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.record_count).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.producers.as_deref()).collect::<Vec<_>>())
        .bind(rows().map(|(_, row)| row.transaction_id).collect::<Vec<_>>())
        .bind(records)
}

/// Of `keys`.
fn bind_claims<'q, O>(query: Query<'q, O>, claims: &'q [KeyReservation]) -> Query<'q, O> {
    let record = |claim: &KeyReservation| claim.record.unzip();
    query
        .bind(claims.iter().map(|c| c.slot).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.topic_id.0).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.key).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.digest).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.lifetime_ms).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| record(c).0.map(|log_id| log_id.0)).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| record(c).1).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.answer.as_deref()).collect::<Vec<_>>())
}

/// $16 to $31: of `transactions` and `undone_unless_complete`.
fn bind_transactions<'q, O>(
    query: Query<'q, O>,
    ended: &'q [Ended<'q>],
    offsets: &'q [OffsetMove],
) -> Query<'q, O> {
    let owners = || offsets.iter().map(|moved| moved.owner.as_ref());
    let chosen = || ended.iter().filter(|ended| ended.whole.chosen);
    let instants = || chosen().filter_map(|e| Timestamp::of_uuid(&e.whole.transaction_id));
    query
        .bind(ended.iter().map(|e| e.whole.transaction_id).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| e.digest).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| e.whole.append_count).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| Json(&e.appends)).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.place.group.as_str()).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.place.log_id.0).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.from).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.to).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.highest).collect::<Vec<_>>())
        .bind(owners().map(|owner| Some(owner?.0.as_str())).collect::<Vec<_>>())
        .bind(owners().map(|owner| Some(owner?.1)).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.generation).collect::<Vec<_>>())
        .bind(offsets.iter().map(|o| o.from_below).collect::<Vec<_>>())
        .bind(instants().min().map(Timestamp::to_chrono))
        .bind(instants().max().map(Timestamp::to_chrono))
        .bind(chosen().map(|ended| ended.whole.retention_ms).min())
}

/// Whether every compared head matches the cache, without a lock: enough for a batch that writes
/// nothing, if it starts after its requests arrived.
pub async fn confirm(
    connection: &mut PgConnection,
    tenant: TenantId,
    writes: &[LogWrite],
) -> Result<bool, Error> {
    let compared: Vec<_> = writes.iter().filter(|write| write.compare.is_some()).collect();
    let compares: Vec<_> = compared.iter().map(|write| columns(write.compare)).collect();
    let held: i64 = sqlx::query_scalar(CONFIRM)
        .bind(tenant.0)
        .bind(compared.iter().map(|w| w.log_id.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.0).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.1).collect::<Vec<_>>())
        .bind(compares.iter().map(|c| c.2).collect::<Vec<_>>())
        .bind(compared.iter().map(|w| w.claims).collect::<Vec<_>>())
        .fetch_one(connection)
        .await?;
    Ok(held == compared.len() as i64)
}

/// (fence, next_offset, last_appended_at) to compare; nulls are not compared.
fn columns(compare: Option<ExpectedHead>) -> (Option<i64>, Option<Offset>, Option<Instant>) {
    let position = compare.and_then(|compare| compare.position);
    (
        compare.map(|compare| compare.fence),
        position.map(|(next_offset, _)| next_offset),
        position.map(|(_, last_appended_at)| last_appended_at.to_chrono()),
    )
}
