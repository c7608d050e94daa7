//! Statements on rings of tables for keys (`key_rings`), and on their rotation, which locks a ring.

use sqlx::postgres::PgBindIterExt;

use crate::{
    model::{Timestamp, dedup::Ring},
    rules::key_rings::RingRow,
    store::{Connection, Result, execute, statements},
};

macro_rules! rings {
    ($which:literal) => {
        concat!(
            "select ring, period_ms, slot, turned_at, clock_timestamp() from oncelog.key_rings ",
            $which
        )
    };
}

statements! {
    READ = rings!("order by ring");
    LOCK = rings!("where ring = $1 for no key update skip locked");
    /// Keys in the emptied table were reserved before the ring last rotated.
    TURN = r"update oncelog.key_rings set slot = $2, horizon = greatest(horizon, turned_at), turned_at = $3
        where ring = $1";
    /// Whether a table ever had a row (if not, it need not be emptied), and an estimate of its
    /// rows.
    FILLED = r"select pg_relation_size(oid) > 0, greatest(reltuples::bigint, pg_stat_get_live_tuples(oid), 0)
        from pg_class where oid = to_regclass('oncelog.dedup_keys_' || $1::smallint)";
    EMPTY = "select oncelog.empty_slot($1)";
    /// Estimated rows, and bytes, of each ring with its tables.
    MEASURE = r"select s.ring, sum(greatest(c.reltuples::bigint, pg_stat_get_live_tuples(c.oid), 0))::bigint,
            sum(pg_total_relation_size(c.oid))::bigint
        from (
            select distinct ring, slot from unnest($1::smallint[], $2::smallint[]) as s (ring, slot)) s
        join pg_class c on c.oid = to_regclass('oncelog.dedup_keys_' || s.slot)
        group by s.ring";
}

type RingColumns = (Ring, Option<i64>, i16, Timestamp, Timestamp);

/// A ring, and the current time.
fn ring_row((ring, period_ms, slot, turned_at, now): RingColumns) -> (RingRow, Timestamp) {
    (RingRow { ring, period_ms, slot, turned_at }, now)
}

/// All rings.
pub async fn read(conn: &mut Connection) -> Result<Vec<(RingRow, Timestamp)>> {
    let rows: Vec<RingColumns> = sqlx::query_as(READ).fetch_all(conn).await?;
    Ok(rows.into_iter().map(ring_row).collect())
}

/// Locks a ring. None if another replica is rotating it.
pub async fn lock(conn: &mut Connection, ring: Ring) -> Result<Option<(RingRow, Timestamp)>> {
    let row: Option<RingColumns> = sqlx::query_as(LOCK).bind(ring).fetch_optional(conn).await?;
    Ok(row.map(ring_row))
}

/// Rotates a locked ring to an emptied table; returns an estimate of the rows it had. It empties
/// last, because from then on nobody else can look up keys until the commit.
pub async fn turn(conn: &mut Connection, ring: Ring, slot: i16, now: Timestamp) -> Result<u64> {
    execute(conn, sqlx::query(TURN).bind(ring).bind(slot).bind(now)).await?;
    let query = sqlx::query_as(FILLED).bind(slot);
    let (filled, rows): (bool, i64) = query.fetch_one(&mut *conn).await?;
    if !filled {
        return Ok(0);
    }
    execute(conn, sqlx::query(EMPTY).bind(slot)).await?;
    Ok(rows.unsigned_abs())
}

/// The size of a ring, expired keys included.
pub struct Size {
    pub ring: Ring,
    /// An estimate.
    pub keys: i64,
    pub bytes: i64,
}

pub async fn measure(conn: &mut Connection) -> Result<Vec<Size>> {
    let slots = || Ring::all().flat_map(|ring| ring.slots().map(|slot| (ring, slot)));
    let query = sqlx::query_as(MEASURE).bind(slots().map(|(ring, _)| ring).bind_iter());
    let query = query.bind(slots().map(|(_, slot)| slot).bind_iter());
    let rows: Vec<(Ring, i64, i64)> = query.fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(ring, keys, bytes)| Size { ring, keys, bytes }).collect())
}
