//! Statements on sessions, remembered opens, and the state of a producer in every log it appended
//! to.

use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Error, Instant,
    append::load::{self, sequencing},
    catalog::topics::stored_name,
    durable, statements,
};
use crate::{
    model::{
        Epoch, LogId, Name, Partition, ProducerId, TenantId, Timestamp,
        session::{Open, REMEMBERED_OPEN_IDS, Sequencing, Session},
    },
    rules::{
        append::{
            cache::FAR_OFFSETS, encoding, producer_state::ProducerState, sequence::SessionFacts,
        },
        session::SessionRow,
    },
};

statements! {
    CLOCK = "select clock_timestamp()";
    FIND_OPEN = "select producer_id, epoch from oncelog.session_opens where tenant_id = $1 and open_id = $2";
    LOCK_BY_ID = r"select producer_id, transactional_id, epoch, closed, reset_epoch, monotonic, transaction_timeout_ms,
            open_horizon, opened_at, fencing
        from oncelog.sessions where tenant_id = $1 and producer_id = $2 for no key update";
    LOCK_BY_NAME = r"select producer_id, transactional_id, epoch, closed, reset_epoch, monotonic, transaction_timeout_ms,
            open_horizon, opened_at, fencing
        from oncelog.sessions where tenant_id = $1 and transactional_id = $2 for no key update";
    READ = r"select producer_id, transactional_id, epoch, closed, reset_epoch, monotonic, transaction_timeout_ms,
            open_horizon, opened_at, fencing
        from oncelog.sessions where tenant_id = $1 and producer_id = $2";
    LIST = r"select producer_id, transactional_id, epoch, closed, reset_epoch, monotonic, transaction_timeout_ms,
            open_horizon, opened_at, fencing
        from oncelog.sessions where tenant_id = $1 and producer_id > $2 and ($3::text is null or transactional_id = $3)
        order by producer_id limit $4";
    /// The common open in one round trip: a new producer, with its open id if it has one. No row:
    /// the name or the id is known.
    OPEN_NEW = concat!(r"with known as materialized (
            select from oncelog.session_opens where tenant_id = $1 and open_id = $5
            union all select from oncelog.sessions where tenant_id = $1 and transactional_id = $2),
        made as (
            insert into oncelog.sessions as s (tenant_id, transactional_id, monotonic, transaction_timeout_ms, opened_at)
            select $1, $2::text, $3::boolean, $4::bigint, clock_timestamp() where ", durable!(), r" and not exists (select from known)
            on conflict (tenant_id, transactional_id) do nothing
            returning s.producer_id, s.transactional_id, s.epoch, s.closed, s.reset_epoch, s.monotonic,
                s.transaction_timeout_ms, s.open_horizon, s.opened_at, s.fencing),
        remembered as (
            insert into oncelog.session_opens as o (tenant_id, open_id, producer_id, epoch)
            select $1, $5::uuid, producer_id, epoch from made where $5 is not null)
        select producer_id, transactional_id, epoch, closed, reset_epoch, monotonic, transaction_timeout_ms,
            open_horizon, opened_at, fencing from made");
    UPDATE = r"update oncelog.sessions set epoch = $3, closed = false, reset_epoch = $4, monotonic = $5,
            transaction_timeout_ms = $6, opened_at = $7, fencing = $8
        where tenant_id = $1 and producer_id = $2";
    CLOSE = r"update oncelog.sessions set epoch = epoch + 1, closed = true, fencing = $3
        where tenant_id = $1 and producer_id = $2";
    FENCED = "update oncelog.sessions set fencing = false where tenant_id = $1 and producer_id = $2 and epoch = $3";
    INSERT_OPEN = r"insert into oncelog.session_opens (tenant_id, open_id, producer_id, epoch) values ($1, $2, $3, $4)
        on conflict do nothing";
    OLD_OPENS = r"select open_id from oncelog.session_opens where tenant_id = $1 and producer_id = $2
        order by epoch desc offset $3";
    DROP_OPENS = "delete from oncelog.session_opens where tenant_id = $1 and open_id = any($2)";
    RAISE_OPEN_HORIZON = r"update oncelog.sessions set open_horizon = greatest(open_horizon, $3)
        where tenant_id = $1 and producer_id = $2";
    REGISTERED_LOGS = "select log_id from oncelog.producer_states where tenant_id = $1 and producer_id = $2 order by log_id";
    /// One statement, so that a snapshot or trim between two reads cannot open a hole: every state
    /// of the producer with the rows after it, unless these are too many to be read at once.
    STANDINGS = r"select l.log_id, t.name, l.partition, s.epoch, s.last_sequence, s.recent,
            l.next_offset - greatest(s.as_of_offset, l.snapshot_offset) > $3 as is_behind, b.base_offset, b.producers, b.appended_at
        from oncelog.producer_states s
        join oncelog.logs l on l.tenant_id = $1 and l.log_id = s.log_id
        join oncelog.topics t on t.tenant_id = $1 and t.topic_id = l.topic_id
        left join oncelog.batches b on b.tenant_id = $1 and b.log_id = s.log_id and b.producers is not null
            and b.base_offset >= greatest(s.as_of_offset, l.snapshot_offset)
            and l.next_offset - greatest(s.as_of_offset, l.snapshot_offset) <= $3
        where s.tenant_id = $1 and s.producer_id = $2
        order by t.name, coalesce(l.partition, -1), b.base_offset";
}

/// A row of `sessions`.
pub type SessionColumns = (i64, Option<String>, i64, bool, i64, bool, i64, Instant, Instant, bool);

pub fn session_row(row: SessionColumns) -> Result<SessionRow, Error> {
    let (
        producer_id,
        name,
        epoch,
        closed,
        reset_epoch,
        monotonic,
        timeout_ms,
        horizon,
        opened_at,
        fencing,
    ) = row;
    Ok(SessionRow {
        producer_id: ProducerId(producer_id),
        transactional_id: name.map(|name| stored_name(&name)).transpose()?,
        facts: SessionFacts { epoch, closed, reset_epoch, sequencing: sequencing(monotonic) },
        transaction_timeout_ms: timeout_ms,
        open_horizon: horizon.into(),
        opened_at: opened_at.into(),
        fencing,
    })
}

/// The database's clock.
pub async fn clock(connection: &mut PgConnection) -> Result<Timestamp, Error> {
    let now: Instant = sqlx::query_scalar(CLOCK).fetch_one(connection).await?;
    Ok(now.into())
}

/// The producer and epoch that an open id created, if it is remembered.
pub async fn find_open(
    connection: &mut PgConnection,
    tenant: TenantId,
    open_id: Uuid,
) -> Result<Option<(ProducerId, Epoch)>, Error> {
    let query = sqlx::query_as(FIND_OPEN).bind(tenant.0).bind(open_id);
    let found: Option<(i64, i64)> = query.fetch_optional(connection).await?;
    Ok(found.map(|(producer_id, epoch)| (ProducerId(producer_id), epoch)))
}

/// Locks a session row against appends that register, and against other opens.
pub async fn lock(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<SessionRow>, Error> {
    let query = sqlx::query_as(LOCK_BY_ID).bind(tenant.0).bind(producer.0);
    query.fetch_optional(connection).await?.map(session_row).transpose()
}

pub async fn lock_by_name(
    connection: &mut PgConnection,
    tenant: TenantId,
    transactional_id: &Name,
) -> Result<Option<SessionRow>, Error> {
    let query = sqlx::query_as(LOCK_BY_NAME).bind(tenant.0).bind(transactional_id.as_str());
    query.fetch_optional(connection).await?.map(session_row).transpose()
}

pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<SessionRow>, Error> {
    let query = sqlx::query_as(READ).bind(tenant.0).bind(producer.0);
    query.fetch_optional(connection).await?.map(session_row).transpose()
}

/// Lists sessions after a producer id, by id; those of one transactional id, if given.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
    transactional_id: Option<&Name>,
    after: i64,
    limit: i64,
) -> Result<Vec<Session>, Error> {
    let rows: Vec<SessionColumns> = sqlx::query_as(LIST)
        .bind(tenant.0)
        .bind(after)
        .bind(transactional_id.map(Name::as_str))
        .bind(limit)
        .fetch_all(connection)
        .await?;
    rows.into_iter().map(|row| Ok(session(session_row(row)?))).collect()
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
    }
}

/// Creates a producer at epoch 0, and remembers its open. None if its name or open id is known, or
/// is just being stored.
pub async fn open_new(
    connection: &mut PgConnection,
    tenant: TenantId,
    open: &Open,
    transaction_timeout_ms: i64,
) -> Result<Option<SessionRow>, Error> {
    let made: Result<Option<SessionColumns>, sqlx::Error> = sqlx::query_as(OPEN_NEW)
        .bind(tenant.0)
        .bind(open.transactional_id.as_ref().map(Name::as_str))
        .bind(open.sequencing == Sequencing::Monotonic)
        .bind(transaction_timeout_ms)
        .bind(open.open_id)
        .fetch_optional(connection)
        .await;
    match made.map_err(Error::from) {
        Ok(made) => made.map(session_row).transpose(),
        Err(Error::Contended(_)) => Ok(None),
        Err(Error::Unavailable(error)) => Err(Error::OutcomeUnknown(error)),
        Err(error) => Err(error),
    }
}

/// Writes the new epoch of a locked session.
pub async fn advance(
    connection: &mut PgConnection,
    tenant: TenantId,
    row: &SessionRow,
) -> Result<(), Error> {
    sqlx::query(UPDATE)
        .bind(tenant.0)
        .bind(row.producer_id.0)
        .bind(row.facts.epoch)
        .bind(row.facts.reset_epoch)
        .bind(row.facts.sequencing == Sequencing::Monotonic)
        .bind(row.transaction_timeout_ms)
        .bind(row.opened_at.to_chrono())
        .bind(row.fencing)
        .execute(connection)
        .await?;
    Ok(())
}

/// Closes a locked session: the next epoch has no owner.
pub async fn close(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
    fencing: bool,
) -> Result<(), Error> {
    let query = sqlx::query(CLOSE).bind(tenant.0).bind(producer.0).bind(fencing);
    query.execute(connection).await?;
    Ok(())
}

/// Notes that every log has been fenced for this epoch.
pub async fn fenced(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
    epoch: Epoch,
) -> Result<(), Error> {
    let query = sqlx::query(FENCED).bind(tenant.0).bind(producer.0).bind(epoch);
    query.execute(connection).await?;
    Ok(())
}

/// Remembers an open of a locked session, and forgets the oldest; false if the id is known already.
pub async fn remember_open(
    connection: &mut PgConnection,
    tenant: TenantId,
    open_id: Uuid,
    producer: ProducerId,
    epoch: Epoch,
) -> Result<bool, Error> {
    let query = sqlx::query(INSERT_OPEN).bind(tenant.0).bind(open_id).bind(producer.0).bind(epoch);
    if query.execute(&mut *connection).await?.rows_affected() == 0 {
        return Ok(false);
    }
    let query = sqlx::query_scalar(OLD_OPENS).bind(tenant.0).bind(producer.0);
    let old: Vec<Uuid> = query.bind(REMEMBERED_OPEN_IDS).fetch_all(&mut *connection).await?;
    if let Some(horizon) = old.iter().filter_map(Timestamp::of_uuid).max() {
        let query = sqlx::query(RAISE_OPEN_HORIZON).bind(tenant.0).bind(producer.0);
        query.bind(horizon.to_chrono()).execute(&mut *connection).await?;
        sqlx::query(DROP_OPENS).bind(tenant.0).bind(old).execute(connection).await?;
    }
    Ok(true)
}

/// The logs that an open of this producer must fence, by id.
pub async fn registered_logs(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Vec<LogId>, Error> {
    let query = sqlx::query_scalar(REGISTERED_LOGS).bind(tenant.0).bind(producer.0);
    let ids: Vec<i64> = query.fetch_all(connection).await?;
    Ok(ids.into_iter().map(LogId).collect())
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
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Standings, Error> {
    type Found = (
        i64,
        String,
        Option<i32>,
        i64,
        Option<i64>,
        Vec<u8>,
        bool,
        Option<i64>,
        Option<Vec<u8>>,
        Option<Instant>,
    );
    let query = sqlx::query_as(STANDINGS).bind(tenant.0).bind(producer.0).bind(FAR_OFFSETS);
    let rows: Vec<Found> = query.fetch_all(connection).await?;
    let mut standings: Vec<(i64, ScopePosition)> = Vec::new();
    let mut behind: Vec<LogId> = Vec::new();
    for row in rows {
        let (log_id, topic, partition, epoch, last, recent, is_behind, base, producers, at) = row;
        if is_behind {
            behind.push(LogId(log_id));
        }
        if standings.last().is_none_or(|(last, _)| *last != log_id) {
            let state = load::state(epoch, last, &recent)?;
            standings
                .push((log_id, ScopePosition { topic: stored_name(&topic)?, partition, state }));
        }
        let (Some(base), Some(producers), Some(at)) = (base, producers, at) else { continue };
        let Some((_, standing)) = standings.last_mut() else { continue };
        for entry in encoding::decode_entries(base, &producers)? {
            if entry.producer_id == producer {
                standing.state.apply(&entry, at.into());
            }
        }
    }
    if behind.is_empty() {
        Ok(Standings::Known(standings.into_iter().map(|(_, standing)| standing).collect()))
    } else {
        Ok(Standings::Behind(behind))
    }
}
