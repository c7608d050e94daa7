//! Statements on producers that were idle too long (`sessions`, `producer_states`), and on the open
//! ids they leave behind (`session_opens`). They lock one session, unless it is locked.

use sqlx::postgres::PgBindIterExt;
use uuid::Uuid;

use super::Chunk;
use crate::{
    model::{LogId, Offset, ProducerId, TenantId, Timestamp},
    rules::{append::encoding, expiry::Activity, session::SessionRow},
    store::{
        Connection, Result, durable, execute,
        session::{session_columns, sessions},
        statements,
    },
};

statements! {
    /// Covers many tenants, each with its own limits, without locks; those due for longest come
    /// first.
    IDLE = r"select w.tenant_id, s.producer_id
        from unnest($1::bigint[], $2::boolean[], $3::timestamptz[]) as w (tenant_id, named, idle_since)
        cross join lateral (
            select s.producer_id, s.active_at from oncelog.sessions s
            where s.tenant_id = w.tenant_id and (s.transactional_id is not null) = w.named
                and s.active_at < w.idle_since
            order by s.active_at limit $4) s
        order by s.active_at limit $4";
    LOCK = sessions!("producer_id = $2 for no key update skip locked");
    /// Reads the noted activity, whether a transaction is open, and when the one with the newest id
    /// was begun or ended.
    TRANSACTED = r"select s.active_at,
            exists (
                select from oncelog.transactions t
                where t.tenant_id = $1 and t.producer_id = $2 and t.state in ('ongoing', 'prepared')),
            (select greatest(t.created_at, t.ended_at) from oncelog.transactions t
                where t.tenant_id = $1 and t.producer_id = $2
                order by t.transaction_id desc limit 1)
        from oncelog.sessions s where s.tenant_id = $1 and s.producer_id = $2";
    LAST_TRANSACTED_AT = r"select max(greatest(created_at, ended_at)) from oncelog.transactions
        where tenant_id = $1 and producer_id = $2";
    SNAPSHOT_APPENDED_AT = r"select max(last_appended_at) from oncelog.producer_states
        where tenant_id = $1 and producer_id = $2";
    /// Rows after the snapshots, no older than an instant, that may be the producer's.
    TAILS = r"select b.base_offset, b.appended_at, b.producers
        from oncelog.producer_states s
        join oncelog.logs l on l.tenant_id = $1 and l.log_id = s.log_id and l.last_appended_at >= $4
        join oncelog.batches b on b.tenant_id = $1 and b.log_id = s.log_id and b.producers is not null
            and b.base_offset >= greatest(s.as_of_offset, l.snapshot_offset) and b.appended_at >= $4
        where s.tenant_id = $1 and s.producer_id = $2 and s.log_id = any($3)";
    MOVE_ACTIVITY = "update oncelog.sessions set active_at = $3 where tenant_id = $1 and producer_id = $2";
    DROP_STATES = "delete from oncelog.producer_states where tenant_id = $1 and producer_id = $2";
    ORPHAN_OPENS = "update oncelog.session_opens set orphaned = true where tenant_id = $1 and producer_id = $2";
    DROP_SESSION = "delete from oncelog.sessions where tenant_id = $1 and producer_id = $2";
    /// Covers all tenants. A UUIDv7 sorts by its timestamp.
    ORPHANED = r"select tenant_id, open_id from oncelog.session_opens where orphaned and open_id < $1
        order by open_id limit $2";
    DROP_ORPHANED = concat!(
        "delete from oncelog.session_opens where ", durable!(),
        " and tenant_id = $1 and open_id = $2 and orphaned"
    );
}

/// The maximum number of logs whose tails one statement reads, to bound memory.
const LOGS_READ_AT_ONCE: usize = 200;

/// The producers of a tenant and kind that are idle if they were last active before an instant.
pub struct IdleSince {
    pub tenant: TenantId,
    /// Whether they have a transactional id.
    pub named: bool,
    pub instant: Timestamp,
}

/// Lists candidates, up to a limit.
pub async fn idle(
    conn: &mut Connection,
    wanted: &[IdleSince],
    limit: i64,
) -> Result<Vec<(TenantId, ProducerId)>> {
    let query = sqlx::query_as(IDLE)
        .bind(wanted.iter().map(|w| w.tenant).bind_iter())
        .bind(wanted.iter().map(|w| w.named).bind_iter())
        .bind(wanted.iter().map(|w| w.instant).bind_iter())
        .bind(limit);
    Ok(query.fetch_all(conn).await?)
}

/// Locks a session as an open does. None if it no longer exists, or is locked and so not idle.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<SessionRow>> {
    Ok(sqlx::query_as(LOCK).bind(tenant).bind(producer).fetch_optional(conn).await?)
}

/// Reads what is known of the producer of a locked session, except its rows. It checks the
/// transaction with the newest id first, because an active producer may have millions. That need
/// not be the latest transaction, as clients choose the ids; so all of them count before the
/// producer is found idle.
pub async fn transacted(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
    since: Timestamp,
) -> Result<Activity> {
    let query = sqlx::query_as(TRANSACTED).bind(tenant).bind(producer);
    let (noted_at, in_transaction, mut last): (_, bool, Option<Timestamp>) =
        query.fetch_one(&mut *conn).await?;
    if !in_transaction && last.is_some_and(|last| last < since) {
        let query = sqlx::query_scalar(LAST_TRANSACTED_AT).bind(tenant).bind(producer);
        last = query.fetch_one(conn).await?;
    }
    Ok(Activity { last_appended_at: None, last_transacted_at: last, in_transaction, noted_at })
}

/// The time of the producer's last append if it is not older than `since`; older ones only as far
/// as known.
pub async fn last_appended_at(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
    logs: &[LogId],
    since: Timestamp,
) -> Result<Option<Timestamp>> {
    let query = sqlx::query_scalar(SNAPSHOT_APPENDED_AT).bind(tenant).bind(producer);
    let mut last: Option<Timestamp> = query.fetch_one(&mut *conn).await?;
    for logs in logs.chunks(LOGS_READ_AT_ONCE) {
        let rows: Vec<(Offset, Timestamp, Vec<u8>)> = sqlx::query_as(TAILS)
            .bind(tenant)
            .bind(producer)
            .bind(logs)
            .bind(since)
            .fetch_all(&mut *conn)
            .await?;
        for (base_offset, appended_at, producers) in rows {
            let entries = encoding::decode_entries(base_offset, &producers)?;
            if entries.iter().any(|entry| entry.producer_id == producer) {
                last = last.max(Some(appended_at));
            }
        }
    }
    Ok(last)
}

/// Notes activity of a locked session: it is not checked again before its limit has passed since.
pub async fn move_activity(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
    active_at: Timestamp,
) -> Result<()> {
    let query = sqlx::query(MOVE_ACTIVITY).bind(tenant).bind(producer).bind(active_at);
    execute(conn, query).await
}

/// Removes a locked producer as a whole; the heads of its logs must be locked, too. Its open ids
/// stay.
pub async fn forget(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Chunk> {
    execute(conn, sqlx::query(ORPHAN_OPENS).bind(tenant).bind(producer)).await?;
    let mut rows = 0;
    for sql in [DROP_STATES, DROP_SESSION] {
        let query = sqlx::query(sql).bind(tenant).bind(producer);
        rows += query.execute(&mut *conn).await?.rows_affected();
    }
    Ok(Chunk { rows, more: false })
}

/// Lists open ids of expired producers from before an instant.
pub async fn orphaned_opens(
    conn: &mut Connection,
    made_before: Timestamp,
    limit: i64,
) -> Result<Vec<(TenantId, Uuid)>> {
    let first = Uuid::from_u128(u128::from(made_before.0.max(0).unsigned_abs()) << 80);
    Ok(sqlx::query_as(ORPHANED).bind(first).bind(limit).fetch_all(conn).await?)
}

pub async fn drop_orphaned_open(
    conn: &mut Connection,
    tenant: TenantId,
    open_id: Uuid,
) -> Result<Chunk> {
    let query = sqlx::query(DROP_ORPHANED).bind(tenant).bind(open_id);
    Ok(Chunk { rows: query.execute(conn).await?.rows_affected(), more: false })
}
