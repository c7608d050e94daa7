//! Writes a decided batch: locks its heads (`logs`) by id, and inserts into `batches`. It takes the
//! whole plan: the parts of the plan select the statement, and no statement leaves out a part.

pub mod load;
pub mod transactions;

use std::collections::BTreeMap;

use sqlx::{
    FromRow, Postgres,
    postgres::{PgArguments, PgBindIterExt},
    query::QueryAs,
};

use super::{
    Connection, Error, Result, Server,
    dedup::{bind_keys, insert_keys},
    durable, statements,
    transaction::one_request::Ended,
};
use crate::{
    model::{LogId, Offset, TenantId, Timestamp},
    rules::append::plan::{LogWrite, Plan, PlannedRow},
};

/// The conditions on a head `l` that a batch was decided with (`w`), except the fence.
macro_rules! head_is_as_expected {
    () => {
        r"
                    and (w.next_offset is null or l.next_offset = w.next_offset)
                    and (w.last_appended_at is null or l.last_appended_at = w.last_appended_at)
                    and (w.claims is null or l.claims = w.claims)"
    };
}

/// Locks the heads in order, omits those that do not match, and advances the others if all are
/// present. `$locking`: what must hold before heads are locked, with `durable!` here or before;
/// `$complete`: further conditions before they are advanced.
macro_rules! heads_and_rows {
    ($locking:expr, $complete:literal) => {
        concat!(
            r"want as materialized (
                select * from unnest(
                        $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[],
                        $6::bigint[], $7::bigint[], $8::bigint[], $9::integer[])
                    as w (log_id, fence, next_offset, last_appended_at,
                        record_count, size_bytes, claims, rings)),
            -- `any($2)` beside the joins, here and in `head`: a plan made while the table was empty
            -- would read all heads of the tenant.
            held as materialized (
                select l.log_id, l.last_appended_at
                from oncelog.logs l join want w on l.log_id = w.log_id
                where ", $locking, r"
                    and l.tenant_id = $1 and l.log_id = any($2)
                    and (w.fence is null or l.fence = w.fence)", head_is_as_expected!(), r"
                order by l.log_id for no key update of l),
            -- All rows of the batch share one instant, which no head has passed.
            moment as materialized (
                select greatest(max(last_appended_at), date_trunc('milliseconds', statement_timestamp()))
                        as appended_at,
                    count(*) = cardinality($2)", $complete, r" as complete
                from held),
            head as (
                update oncelog.logs l
                set next_offset = l.next_offset + w.record_count,
                    size_bytes = l.size_bytes + w.size_bytes,
                    claims = l.claims + (w.rings <> 0)::int,
                    key_rings = l.key_rings | w.rings,
                    last_appended_at =
                        case when w.record_count > 0 then m.appended_at else l.last_appended_at end
                from want w cross join moment m
                where l.tenant_id = $1 and l.log_id = any($2) and l.log_id = w.log_id
                    and (w.record_count > 0 or w.rings <> 0) and m.complete
                returning l.log_id, l.next_offset - w.record_count as base_offset, m.appended_at),
            row as (
                insert into oncelog.batches as b (tenant_id, log_id, base_offset, record_count,
                    appended_at, producers, transaction_id, records)
                select $1, h.log_id, h.base_offset + r.delta, r.record_count,
                    h.appended_at, r.producers, r.transaction_id, r.records
                from unnest($10::bigint[], $11::bigint[], $12::bigint[],
                        $13::bytea[], $14::uuid[], $15::text[])
                    as r (log_id, delta, record_count, producers, transaction_id, records)
                join head h on h.log_id = r.log_id
                returning b.log_id, b.base_offset)"
        )
    };
}

/// Reserves keys. A record lies at a distance from the first offset that the batch gets in its log.
macro_rules! reserved_keys {
    ($columns:literal) => {
        concat!(
            "reserved as (",
            insert_keys!(
                r"select k.slot, $1, k.topic_id, k.key, k.digest, m.appended_at,
                    coalesce(m.appended_at + interval '1 millisecond' * k.lifetime_ms, 'infinity'),
                    k.log_id, h.base_offset + k.delta, k.answer
                from unnest(", $columns, r")
                    as k (slot, topic_id, key, digest, lifetime_ms, log_id, delta, answer)
                cross join moment m left join head h on h.log_id = k.log_id
                where m.complete"
            ),
            ")"
        )
    };
}

use {head_is_as_expected, heads_and_rows, reserved_keys};

/// The result of a batch; no row if a condition failed.
macro_rules! written_if_complete {
    () => {
        r"
            select r.log_id, r.base_offset, m.appended_at, pg_postmaster_start_time() as started_at
            from moment m left join row r on true
            where m.complete"
    };
}

statements! {
    /// One log, one row: the common case. Scalars take 0.85-0.9 of the time of arrays.
    APPEND_ROW = concat!(
        r"with head as (
            update oncelog.logs
            set next_offset = next_offset + $6, size_bytes = size_bytes + $7,
                last_appended_at =
                    greatest(last_appended_at, date_trunc('milliseconds', statement_timestamp()))
            where ", durable!(), r"
                and tenant_id = $1 and log_id = $2
                and ($3::bigint is null or fence = $3)
                and ($4::bigint is null or next_offset = $4)
                and ($5::timestamptz is null or last_appended_at = $5)
            returning next_offset - $6 as base_offset, last_appended_at)
        insert into oncelog.batches as b
            (tenant_id, log_id, base_offset, record_count, appended_at, producers, records)
        select $1, $2, base_offset, $6, last_appended_at, $8, $9 from head
        returning b.log_id, b.base_offset, b.appended_at, pg_postmaster_start_time() as started_at"
    );
    /// Several logs or rows.
    APPEND_ROWS = concat!("with ", heads_and_rows!(durable!(), ""), written_if_complete!());
    /// The same with reserved keys.
    APPEND_CLAIMING = concat!(
        "with ", heads_and_rows!(durable!(), ""), ", ",
        reserved_keys!(
            r"$16::smallint[], $17::bigint[], $18::uuid[], $19::bigint[],
                        $20::bigint[], $21::bigint[], $22::bigint[], $23::bytea[]"
        ),
        written_if_complete!(),
    );
    /// Checks the read set of a batch that writes nothing.
    CONFIRM = concat!(
        r"select count(*)
            from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::bigint[])
                as w (log_id, fence, next_offset, last_appended_at, claims)
            join oncelog.logs l on l.tenant_id = $1 and l.log_id = w.log_id
            where l.log_id = any($2) and l.fence = w.fence", head_is_as_expected!(),
    );
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

/// A row that was written, if any.
#[derive(FromRow)]
struct WrittenRow {
    log_id: Option<LogId>,
    base_offset: Option<Offset>,
    appended_at: Timestamp,
    started_at: Server,
    #[sqlx(default)]
    ended_at: Option<Timestamp>,
}

type Query<'q> = QueryAs<'q, Postgres, WrittenRow, PgArguments>;

/// Writes a batch if every head matches and its transactions are as expected; None, with nothing
/// written, otherwise (or if something no longer exists). `records` holds the lines of every row
/// that has some, in the order of the writes and their rows. `ended`: the transactions of the plan,
/// except those whose rows, groups and offsets are locked: `one_request::finish` and
/// `group::offsets::commit` write them. (Similarly, on the slow path, `load::register` and
/// `write_states` write states; the fast path registers no producer.)
pub async fn append_if(
    conn: &mut Connection,
    tenant: TenantId,
    plan: &Plan,
    records: &[Option<&str>],
    ended: &[Ended<'_>],
) -> Result<Option<Written>> {
    let Plan { writes, claims, offsets, .. } = plan;
    let begun = |sql: &'static str| -> Query<'_> { sqlx::query_as(sql).bind(tenant) };
    let query: Query<'_> = match (writes.as_slice(), claims.as_slice(), ended) {
        ([write], [], []) if write.rows.len() == 1 && write.rows[0].transaction_id.is_none() => {
            bind_row(begun(APPEND_ROW), write, &write.rows[0], records[0])
        }
        (_, [], []) => bind_writes(begun(APPEND_ROWS), writes, records),
        (_, claims, []) => bind_keys!(bind_writes(begun(APPEND_CLAIMING), writes, records), claims),
        (_, claims, ended) => {
            let query = begun(transactions::statement(!claims.is_empty()));
            let query = bind_writes(query, writes, records);
            let query = transactions::bind(query, ended, offsets);
            if claims.is_empty() { query } else { bind_keys!(query, claims) }
        }
    };
    match query.fetch_all(conn).await.map_err(Error::from) {
        Ok(rows) => Ok(written(rows)),
        // a statement with transactions undoes itself if a condition fails
        Err(Error::Contended(_)) if !ended.is_empty() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Interprets the returned rows; None without rows, because a condition failed.
fn written(rows: Vec<WrittenRow>) -> Option<Written> {
    let mut written: Option<Written> = None;
    for WrittenRow { log_id, base_offset, appended_at, started_at, ended_at } in rows {
        let written = written.get_or_insert(Written::at(appended_at));
        (written.server, written.ended_at) = (Some(started_at), ended_at);
        let Some((log_id, base_offset)) = log_id.zip(base_offset) else { continue };
        let base = written.bases.entry(log_id).or_insert(base_offset);
        *base = base_offset.min(*base);
    }
    written
}

/// $2 to $9: of `APPEND_ROW`.
fn bind_row<'q>(
    query: Query<'q>,
    write: &'q LogWrite,
    row: &'q PlannedRow,
    records: Option<&'q str>,
) -> Query<'q> {
    let (fence, next_offset, last_appended_at) = expected(write);
    query
        .bind(write.log_id)
        .bind(fence)
        .bind(next_offset)
        .bind(last_appended_at)
        .bind(write.record_count)
        .bind(write.size_bytes)
        .bind(row.producers.as_deref())
        .bind(records)
}

/// $2 to $15: of `heads_and_rows`.
fn bind_writes<'q>(
    query: Query<'q>,
    writes: &'q [LogWrite],
    records: &'q [Option<&'q str>],
) -> Query<'q> {
    let rows = || writes.iter().flat_map(|w| w.rows.iter().map(move |row| (w.log_id, row)));
    query
        .bind(writes.iter().map(|w| w.log_id).bind_iter())
        .bind(writes.iter().map(|w| expected(w).0).bind_iter())
        .bind(writes.iter().map(|w| expected(w).1).bind_iter())
        .bind(writes.iter().map(|w| expected(w).2).bind_iter())
        .bind(writes.iter().map(|w| w.record_count).bind_iter())
        .bind(writes.iter().map(|w| w.size_bytes).bind_iter())
        .bind(writes.iter().map(|w| w.claims).bind_iter())
        .bind(writes.iter().map(|w| w.claimed_rings).bind_iter())
        .bind(rows().map(|(log_id, _)| log_id).bind_iter())
        .bind(rows().map(|(_, row)| row.delta).bind_iter())
        .bind(rows().map(|(_, row)| row.record_count).bind_iter())
        .bind(rows().map(|(_, row)| row.producers.as_deref()).bind_iter())
        .bind(rows().map(|(_, row)| row.transaction_id).bind_iter())
        .bind(records)
}

/// Whether every compared head matches the cache, without a lock: enough for a batch that writes
/// nothing, if it starts after its requests arrived.
pub async fn confirm(conn: &mut Connection, tenant: TenantId, writes: &[LogWrite]) -> Result<bool> {
    let compared = || writes.iter().filter(|write| write.compare.is_some());
    let matching: i64 = sqlx::query_scalar(CONFIRM)
        .bind(tenant)
        .bind(compared().map(|w| w.log_id).bind_iter())
        .bind(compared().map(|w| expected(w).0).bind_iter())
        .bind(compared().map(|w| expected(w).1).bind_iter())
        .bind(compared().map(|w| expected(w).2).bind_iter())
        .bind(compared().map(|w| w.claims).bind_iter())
        .fetch_one(conn)
        .await?;
    Ok(matching == compared().count() as i64)
}

/// (fence, next_offset, last_appended_at) of the head; nulls are not compared.
fn expected(write: &LogWrite) -> (Option<i64>, Option<Offset>, Option<Timestamp>) {
    let (next_offset, last_appended_at) = write.compare.and_then(|head| head.position).unzip();
    (write.compare.map(|head| head.fence), next_offset, last_appended_at)
}
