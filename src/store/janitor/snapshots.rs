//! Takes snapshots: replays the rows since the last one into `producer_states`, so that cold starts
//! are bounded and rows can be trimmed. It locks one head (`logs`), then states by producer.

use sqlx::postgres::PgBindIterExt;

use crate::{
    model::{LogId, Offset, ProducerId, TenantId, Timestamp},
    store::{
        Connection, Result,
        append::load::{StoredRow, StoredState},
        execute, statements,
    },
};

statements! {
    LOCK = r"select snapshot_offset, next_offset from oncelog.logs
        where tenant_id = $1 and log_id = $2 for no key update";
    /// Reads the rows from the database, not from a cache; none if no producer is registered, and
    /// nothing is to be folded. Rows without provenance count as well: the limit bounds how long
    /// the head is locked.
    ROWS = r"select log_id, base_offset, record_count, appended_at, producers from oncelog.batches
        where tenant_id = $1 and log_id = $2 and base_offset >= $3 and base_offset < $4
            and exists (select from oncelog.producer_states where tenant_id = $1 and log_id = $2)
        order by base_offset limit $5";
    STATES = r"select log_id, producer_id, epoch, last_sequence, recent, as_of_offset
        from oncelog.producer_states
        where tenant_id = $1 and log_id = $2 and producer_id = any($3)
        order by producer_id for no key update";
    /// Updates registered states only, and only forward; it never inserts one.
    UPDATE_STATES = r"update oncelog.producer_states s
        set epoch = w.epoch, last_sequence = w.last_sequence, recent = w.recent,
            as_of_offset = $7, last_appended_at = w.last_appended_at
        from unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $8::timestamptz[])
            as w (producer_id, epoch, last_sequence, recent, last_appended_at)
        where s.tenant_id = $1 and s.log_id = $2 and s.producer_id = w.producer_id
            and s.as_of_offset < $7";
    MOVE = "update oncelog.logs set snapshot_offset = $3 where tenant_id = $1 and log_id = $2";
}

/// Locks a head and returns (snapshot offset, next offset); none if it no longer exists.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
) -> Result<Option<(Offset, Offset)>> {
    let query = sqlx::query_as(LOCK).bind(tenant).bind(log);
    Ok(query.fetch_optional(conn).await?)
}

/// The first `limit` rows of `[from, to)`, if they matter to a producer; the head must be locked,
/// so that none is registered meanwhile.
pub async fn rows(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    from: Offset,
    to: Offset,
    limit: i64,
) -> Result<Vec<StoredRow>> {
    let query = sqlx::query_as(ROWS).bind(tenant).bind(log).bind(from).bind(to).bind(limit);
    Ok(query.fetch_all(conn).await?)
}

/// The states of these producers in the log, locked.
pub async fn states(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    producers: &[ProducerId],
) -> Result<Vec<StoredState>> {
    let query = sqlx::query_as(STATES).bind(tenant).bind(log).bind(producers);
    Ok(query.fetch_all(conn).await?)
}

/// A producer state as of the snapshot at `as_of_offset`.
pub struct FoldedState {
    pub producer_id: ProducerId,
    pub epoch: i64,
    pub last_sequence: Option<i64>,
    pub recent: Vec<u8>,
    /// The time of its last append to this log.
    pub last_appended_at: Timestamp,
}

/// Writes the states and advances the snapshot; the head must be locked.
pub async fn write(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    as_of_offset: Offset,
    states: &[FoldedState],
) -> Result<()> {
    if !states.is_empty() {
        let query = sqlx::query(UPDATE_STATES)
            .bind(tenant)
            .bind(log)
            .bind(states.iter().map(|state| state.producer_id).bind_iter())
            .bind(states.iter().map(|state| state.epoch).bind_iter())
            .bind(states.iter().map(|state| state.last_sequence).bind_iter())
            .bind(states.iter().map(|state| state.recent.as_slice()).bind_iter())
            .bind(as_of_offset)
            .bind(states.iter().map(|state| state.last_appended_at).bind_iter());
        execute(conn, query).await?;
    }
    execute(conn, sqlx::query(MOVE).bind(tenant).bind(log).bind(as_of_offset)).await
}
