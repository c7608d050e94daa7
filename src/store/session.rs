//! Statements on `sessions`, on remembered opens (`session_opens`), and on the state of a producer
//! in every log it appended to. They lock session rows.

use sqlx::{FromRow, Row, postgres::PgRow};
use uuid::Uuid;

use super::{Connection, Error, Result, append::load, durable, execute, statements};
use crate::{
    model::{
        Epoch, LogId, Name, Partition, ProducerId, TenantId, Timestamp,
        session::{Open, REMEMBERED_OPEN_IDS, Session},
    },
    rules::{
        append::{
            cache::FAR_OFFSETS, encoding, producer_state::ProducerState, sequence::SessionFacts,
        },
        session::SessionRow,
    },
};

/// The columns of a `SessionRow`.
macro_rules! session_columns {
    () => {
        r"producer_id, transactional_id, opened_by, epoch, closed, reset_epoch, monotonic,
            transaction_timeout_ms, open_horizon, opened_at, fencing"
    };
}
macro_rules! sessions {
    ($which:literal) => {
        concat!(
            "select ",
            session_columns!(),
            r"
        from oncelog.sessions where tenant_id = $1 and ",
            $which
        )
    };
}
pub(super) use {session_columns, sessions};

statements! {
    CLOCK = "select clock_timestamp()";
    FIND_OPEN = "select producer_id, epoch from oncelog.session_opens where tenant_id = $1 and open_id = $2";
    READ = sessions!("producer_id = $2");
    LOCK_BY_ID = sessions!("producer_id = $2 for no key update");
    LOCK_BY_NAME = sessions!("transactional_id = $2 for no key update");
    LIST = sessions!(
        r"producer_id > $2 and ($3::text is null or transactional_id = $3)
        order by producer_id limit $4"
    );
    /// The common open in one round trip: a new producer, with its open id if it has one. No row:
    /// the name or the id is known.
    OPEN_NEW = concat!(
        r"with known as materialized (
            select from oncelog.session_opens where tenant_id = $1 and open_id = $5
            union all
            select from oncelog.sessions where tenant_id = $1 and transactional_id = $2),
        made as (
            insert into oncelog.sessions
                (tenant_id, transactional_id, monotonic, transaction_timeout_ms, opened_at, opened_by)
            select $1, $2::text, $3::boolean, $4::bigint, clock_timestamp(), $6::bytea
            where ", durable!(), r" and not exists (select from known)
            on conflict (tenant_id, transactional_id) do nothing
            returning ", session_columns!(), r"),
        remembered as (
            insert into oncelog.session_opens (tenant_id, open_id, producer_id, epoch)
            select $1, $5::uuid, producer_id, epoch from made where $5 is not null)
        select * from made"
    );
    UPDATE = r"update oncelog.sessions
        set epoch = $3, closed = false, reset_epoch = $4, monotonic = $5,
            transaction_timeout_ms = $6, opened_at = $7, fencing = $8
        where tenant_id = $1 and producer_id = $2";
    CLOSE = r"update oncelog.sessions set epoch = epoch + 1, closed = true, fencing = $3
        where tenant_id = $1 and producer_id = $2";
    FENCED = r"update oncelog.sessions set fencing = false
        where tenant_id = $1 and producer_id = $2 and epoch = $3";
    INSERT_OPEN = r"insert into oncelog.session_opens (tenant_id, open_id, producer_id, epoch)
        values ($1, $2, $3, $4) on conflict do nothing";
    OLD_OPENS = r"select open_id from oncelog.session_opens where tenant_id = $1 and producer_id = $2
        order by epoch desc offset $3";
    DROP_OPENS = "delete from oncelog.session_opens where tenant_id = $1 and open_id = any($2)";
    RAISE_OPEN_HORIZON = r"update oncelog.sessions set open_horizon = greatest(open_horizon, $3)
        where tenant_id = $1 and producer_id = $2";
    REGISTERED_LOGS = r"select log_id from oncelog.producer_states
        where tenant_id = $1 and producer_id = $2
        order by log_id";
    /// One statement, so that a snapshot or trim between two reads cannot open a hole: every state
    /// of the producer with the rows after it, unless these are too many to be read at once.
    STANDINGS = r"select l.log_id, t.name, l.partition, s.epoch, s.last_sequence, s.recent,
            l.next_offset - greatest(s.as_of_offset, l.snapshot_offset) > $3 as is_behind,
            b.base_offset, b.producers, b.appended_at
        from oncelog.producer_states s
        join oncelog.logs l on l.tenant_id = $1 and l.log_id = s.log_id
        join oncelog.topics t on t.tenant_id = $1 and t.topic_id = l.topic_id
        left join oncelog.batches b on b.tenant_id = $1 and b.log_id = s.log_id
            and b.producers is not null
            and b.base_offset >= greatest(s.as_of_offset, l.snapshot_offset)
            and l.next_offset - greatest(s.as_of_offset, l.snapshot_offset) <= $3
        where s.tenant_id = $1 and s.producer_id = $2
        order by t.name, coalesce(l.partition, -1), b.base_offset";
}

impl FromRow<'_, PgRow> for SessionRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(SessionRow {
            producer_id: row.try_get("producer_id")?,
            transactional_id: row.try_get("transactional_id")?,
            opened_by: row.try_get("opened_by")?,
            facts: SessionFacts {
                epoch: row.try_get("epoch")?,
                closed: row.try_get("closed")?,
                reset_epoch: row.try_get("reset_epoch")?,
                sequencing: row.try_get("monotonic")?,
            },
            transaction_timeout_ms: row.try_get("transaction_timeout_ms")?,
            open_horizon: row.try_get("open_horizon")?,
            opened_at: row.try_get("opened_at")?,
            fencing: row.try_get("fencing")?,
        })
    }
}

/// The database's clock.
pub async fn clock(conn: &mut Connection) -> Result<Timestamp> {
    Ok(sqlx::query_scalar(CLOCK).fetch_one(conn).await?)
}

/// The producer and epoch that an open id created, if it is remembered.
pub async fn find_open(
    conn: &mut Connection,
    tenant: TenantId,
    open_id: Uuid,
) -> Result<Option<(ProducerId, Epoch)>> {
    Ok(sqlx::query_as(FIND_OPEN).bind(tenant).bind(open_id).fetch_optional(conn).await?)
}

/// Locks a session row against appends that register, and against other opens.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<SessionRow>> {
    Ok(sqlx::query_as(LOCK_BY_ID).bind(tenant).bind(producer).fetch_optional(conn).await?)
}

pub async fn lock_by_name(
    conn: &mut Connection,
    tenant: TenantId,
    transactional_id: &Name,
) -> Result<Option<SessionRow>> {
    let query = sqlx::query_as(LOCK_BY_NAME).bind(tenant).bind(transactional_id);
    Ok(query.fetch_optional(conn).await?)
}

pub async fn read(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<SessionRow>> {
    Ok(sqlx::query_as(READ).bind(tenant).bind(producer).fetch_optional(conn).await?)
}

/// Lists sessions after a producer id, by id; those of one transactional id, if given.
pub async fn list(
    conn: &mut Connection,
    tenant: TenantId,
    transactional_id: Option<&Name>,
    after: i64,
    limit: i64,
) -> Result<Vec<Session>> {
    let query = sqlx::query_as(LIST).bind(tenant).bind(after).bind(transactional_id).bind(limit);
    let rows: Vec<SessionRow> = query.fetch_all(conn).await?;
    Ok(rows.into_iter().map(session).collect())
}

/// A session as a client sees it.
pub fn session(row: SessionRow) -> Session {
    Session {
        producer_id: row.producer_id,
        epoch: row.facts.epoch,
        closed: row.facts.closed,
        transactional_id: row.transactional_id,
        sequencing: row.facts.sequencing,
        transaction_timeout_ms: row.transaction_timeout_ms,
        opened_at: row.opened_at,
        opened_by: row.opened_by,
    }
}

/// Creates a producer at epoch 0, and remembers its open. None if its name or open id is known, or
/// is just being stored.
pub async fn open_new(
    conn: &mut Connection,
    tenant: TenantId,
    open: &Open,
    transaction_timeout_ms: i64,
) -> Result<Option<SessionRow>> {
    let opened = sqlx::query_as(OPEN_NEW)
        .bind(tenant)
        .bind(&open.transactional_id)
        .bind(open.sequencing)
        .bind(transaction_timeout_ms)
        .bind(open.open_id)
        .bind(open.opened_by())
        .fetch_optional(conn)
        .await;
    match opened.map_err(Error::from) {
        Err(Error::Contended(_)) => Ok(None),
        opened => opened.map_err(Error::of_a_write),
    }
}

/// Writes the new epoch of a locked session.
pub async fn advance(conn: &mut Connection, tenant: TenantId, row: &SessionRow) -> Result<()> {
    let query = sqlx::query(UPDATE)
        .bind(tenant)
        .bind(row.producer_id)
        .bind(row.facts.epoch)
        .bind(row.facts.reset_epoch)
        .bind(row.facts.sequencing)
        .bind(row.transaction_timeout_ms)
        .bind(row.opened_at)
        .bind(row.fencing);
    execute(conn, query).await
}

/// Closes a locked session: the next epoch has no owner.
pub async fn close(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
    fencing: bool,
) -> Result<()> {
    execute(conn, sqlx::query(CLOSE).bind(tenant).bind(producer).bind(fencing)).await
}

/// Notes that every log has been fenced for this epoch.
pub async fn fenced(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
    epoch: Epoch,
) -> Result<()> {
    execute(conn, sqlx::query(FENCED).bind(tenant).bind(producer).bind(epoch)).await
}

/// Remembers an open of a locked session, and forgets the oldest; false if the id is known already.
pub async fn remember_open(
    conn: &mut Connection,
    tenant: TenantId,
    open_id: Uuid,
    producer: ProducerId,
    epoch: Epoch,
) -> Result<bool> {
    let query = sqlx::query(INSERT_OPEN).bind(tenant).bind(open_id).bind(producer).bind(epoch);
    if query.execute(&mut *conn).await?.rows_affected() == 0 {
        return Ok(false);
    }
    let query = sqlx::query_scalar(OLD_OPENS).bind(tenant).bind(producer);
    let old: Vec<Uuid> = query.bind(REMEMBERED_OPEN_IDS).fetch_all(&mut *conn).await?;
    if let Some(horizon) = old.iter().filter_map(Timestamp::of_uuid).max() {
        let query = sqlx::query(RAISE_OPEN_HORIZON).bind(tenant).bind(producer).bind(horizon);
        execute(conn, query).await?;
        execute(conn, sqlx::query(DROP_OPENS).bind(tenant).bind(old)).await?;
    }
    Ok(true)
}

/// The logs that an open of this producer must fence, by id.
pub async fn registered_logs(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Vec<LogId>> {
    Ok(sqlx::query_scalar(REGISTERED_LOGS).bind(tenant).bind(producer).fetch_all(conn).await?)
}

/// The state of a producer in one scope.
pub struct ScopePosition {
    pub topic: Name,
    pub partition: Option<Partition>,
    pub state: ProducerState,
}

/// The state of a producer in all its scopes.
pub enum Standings {
    /// Ordered by topic and partition.
    Known(Vec<ScopePosition>),
    /// The snapshots of these logs must be advanced first.
    Behind(Vec<LogId>),
}

pub async fn standings(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Standings> {
    let query = sqlx::query(STANDINGS).bind(tenant).bind(producer).bind(FAR_OFFSETS);
    let mut standings: Vec<(LogId, ScopePosition)> = Vec::new();
    let mut behind: Vec<LogId> = Vec::new();
    for row in query.fetch_all(conn).await? {
        let log_id: LogId = row.try_get("log_id")?;
        if row.try_get("is_behind")? {
            behind.push(log_id);
        }
        if standings.last().is_none_or(|(last, _)| *last != log_id) {
            let (topic, partition) = (row.try_get("name")?, row.try_get("partition")?);
            standings.push((log_id, ScopePosition { topic, partition, state: load::state(&row)? }));
        }
        let (base_offset, appended_at) = (row.try_get("base_offset")?, row.try_get("appended_at")?);
        let (Some(base_offset), Some(appended_at)) = (base_offset, appended_at) else { continue };
        let Some((_, standing)) = standings.last_mut() else { continue };
        for entry in encoding::decode_entries(base_offset, row.try_get("producers")?)? {
            if entry.producer_id == producer {
                standing.state.apply(&entry, appended_at);
            }
        }
    }
    if behind.is_empty() {
        Ok(Standings::Known(standings.into_iter().map(|(_, standing)| standing).collect()))
    } else {
        Ok(Standings::Behind(behind))
    }
}
