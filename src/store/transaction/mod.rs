//! Statements on the rows of transactions.

pub mod end;
pub mod one_request;
pub mod record_ids;
pub mod staging;

use sqlx::{FromRow, Row as _};
use sqlx::{PgConnection, postgres::PgRow, types::Json};
use uuid::Uuid;

use super::{Error, Instant, durable, statements};
use crate::{
    model::{
        Digest, Epoch, ProducerId, TenantId, Timestamp,
        transaction::{Filter, PlacedAppend, Reason, State},
    },
    rules::transaction::TransactionRow,
};

statements! {
    READ = r"select transaction_id, state, producer_id, epoch, digest, created_at, expires_at, prepared_at, ended_at,
            reason, append_count, batch_count, next_sequence, appends
        from oncelog.transactions where tenant_id = $1 and transaction_id = $2";
    LOCK = r"select transaction_id, state, producer_id, epoch, digest, created_at, expires_at, prepared_at, ended_at,
            reason, append_count, batch_count, next_sequence, appends
        from oncelog.transactions where tenant_id = $1 and transaction_id = any($2)
        order by transaction_id for no key update";
    HORIZON = "select forgotten_horizon, clock_timestamp() from oncelog.tenants where tenant_id = $1";
    /// The common begin in one round trip: a new transaction, of a session that is current if it
    /// names one. No row: some condition does not hold. An id chosen by the client ($8) must not be
    /// so old that it may have run and been forgotten since this statement began; otherwise the
    /// statement fails.
    BEGIN_NEW = concat!(r"with session as materialized (
            select transaction_timeout_ms from oncelog.sessions
            where tenant_id = $1 and producer_id = $3 and epoch = $4 and not closed for share),
        made as (
            insert into oncelog.transactions as t (tenant_id, transaction_id, state, producer_id, epoch, digest, created_at, expires_at)
            select $1, $2, 'ongoing', $3, $4, $5, c.now, c.now + interval '1 millisecond'
                * least(coalesce($6, (select transaction_timeout_ms from session), $7), $9)
            from (select date_trunc('milliseconds', clock_timestamp()) as now) c
            where ", durable!(), r" and ($3 is null or exists (select from session))
            on conflict do nothing
            returning t.transaction_id, t.state, t.producer_id, t.epoch, t.digest, t.created_at, t.expires_at, t.prepared_at,
                t.ended_at, t.reason, t.append_count, t.batch_count, t.next_sequence, t.appends)
        select *, case when not (not $8 or oncelog.instant_of(transaction_id) between greatest(
                oncelog.forgotten_horizon($1), created_at - interval '1 millisecond' * $10::bigint)
            and created_at + interval '24 hours') then oncelog.undo_statement() else 0 end as undone from made");
    INSERT = r"insert into oncelog.transactions as t (tenant_id, transaction_id, state, producer_id, epoch, digest, created_at, expires_at)
        values ($1, $2, 'ongoing', $3, $4, $5, $6, $7) on conflict do nothing
        returning t.transaction_id, t.state, t.producer_id, t.epoch, t.digest, t.created_at, t.expires_at, t.prepared_at,
            t.ended_at, t.reason, t.append_count, t.batch_count, t.next_sequence, t.appends";
    LOCK_ONGOING = r"select transaction_id, state, producer_id, epoch, digest, created_at, expires_at, prepared_at, ended_at,
            reason, append_count, batch_count, next_sequence, appends
        from oncelog.transactions where tenant_id = $1 and producer_id = $2 and state = 'ongoing' for no key update";
    ONGOING = r"select transaction_id, state, producer_id, epoch, digest, created_at, expires_at, prepared_at, ended_at,
            reason, append_count, batch_count, next_sequence, appends
        from oncelog.transactions where tenant_id = $1 and producer_id = $2 and state = 'ongoing'";
    PREPARED = r"select transaction_id from oncelog.transactions
        where tenant_id = $1 and producer_id = $2 and state = 'prepared' order by transaction_id";
    FENCED = r"select transaction_id from oncelog.transactions
        where tenant_id = $1 and producer_id = $2 and reason = 'fenced' and ended_at = $3";
    LATE = r"select transaction_id from oncelog.transactions
        where tenant_id = $1 and state = 'ongoing' and expires_at <= clock_timestamp() order by transaction_id limit $2";
    LIST = r"select transaction_id, state, producer_id, epoch, digest, created_at, expires_at, prepared_at, ended_at,
            reason, append_count, batch_count, next_sequence, null::jsonb as appends
        from oncelog.transactions where tenant_id = $1 and transaction_id > $2 and ($3::text is null or state = $3)
            and ($4::bigint is null or created_at <= clock_timestamp() - interval '1 millisecond' * $4)
        order by transaction_id limit $5";
    LIST_OPEN = r"select transaction_id, state, producer_id, epoch, digest, created_at, expires_at, prepared_at, ended_at,
            reason, append_count, batch_count, next_sequence, null::jsonb as appends
        from oncelog.transactions
        where tenant_id = $1 and transaction_id > $2 and state in ('ongoing', 'prepared') and state = $3
            and ($4::bigint is null or created_at <= clock_timestamp() - interval '1 millisecond' * $4)
        order by transaction_id limit $5";
    LIST_OF_PRODUCER = r"select transaction_id, state, producer_id, epoch, digest, created_at, expires_at, prepared_at, ended_at,
            reason, append_count, batch_count, next_sequence, null::jsonb as appends
        from oncelog.transactions where tenant_id = $1 and transaction_id > $2 and ($3::text is null or state = $3)
            and ($4::bigint is null or created_at <= clock_timestamp() - interval '1 millisecond' * $4) and producer_id = $6
        order by transaction_id limit $5";
    /// Covers all tenants.
    OPEN = r"select state, count(*), min(coalesce(prepared_at, created_at)) from oncelog.transactions
        where state in ('ongoing', 'prepared') group by state";
}

/// A row as returned by the statements above.
pub struct TransactionColumns(pub TransactionRow);

impl<'r> FromRow<'r, PgRow> for TransactionColumns {
    fn from_row(row: &'r PgRow) -> Result<Self, sqlx::Error> {
        let unknown = |what: &str| sqlx::Error::Decode(format!("an unknown {what}").into());
        let instant = |name: &str| -> Result<Option<Timestamp>, sqlx::Error> {
            Ok(row.try_get::<Option<Instant>, _>(name)?.map(Timestamp::from))
        };
        let session: (Option<i64>, Option<Epoch>) =
            (row.try_get("producer_id")?, row.try_get("epoch")?);
        let state: &str = row.try_get("state")?;
        let reason: Option<&str> = row.try_get("reason")?;
        let digest: &[u8] = row.try_get("digest")?;
        let appends: Option<Json<Vec<PlacedAppend>>> = row.try_get("appends")?;
        Ok(Self(TransactionRow {
            transaction_id: row.try_get("transaction_id")?,
            state: State::parse(state).ok_or_else(|| unknown("state"))?,
            session: session.0.map(ProducerId).zip(session.1),
            digest: digest.try_into().map_err(|_| unknown("digest"))?,
            created_at: row.try_get::<Instant, _>("created_at")?.into(),
            expires_at: row.try_get::<Instant, _>("expires_at")?.into(),
            prepared_at: instant("prepared_at")?,
            ended_at: instant("ended_at")?,
            reason: reason
                .map(|text| Reason::parse(text).ok_or_else(|| unknown("reason")))
                .transpose()?,
            append_count: row.try_get("append_count")?,
            batch_count: row.try_get("batch_count")?,
            next_sequence: row.try_get("next_sequence")?,
            appends: appends.map(|appends| appends.0),
        }))
    }
}

/// Reads the row without a lock.
pub async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: Uuid,
) -> Result<Option<TransactionRow>, Error> {
    let query = sqlx::query_as(READ).bind(tenant.0).bind(id);
    Ok(query.fetch_optional(connection).await?.map(|TransactionColumns(row)| row))
}

/// Locks rows in the order of their ids; omits missing ones.
pub async fn lock(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<Vec<TransactionRow>, Error> {
    rows(sqlx::query_as(LOCK).bind(tenant.0).bind(ids).fetch_all(connection).await?)
}

/// Converts the rows of statements.
pub fn rows(stored: Vec<TransactionColumns>) -> Result<Vec<TransactionRow>, Error> {
    Ok(stored.into_iter().map(|TransactionColumns(row)| row).collect())
}

/// The horizon: ids without a row and with an earlier timestamp may have run; and the clock.
pub async fn horizon(
    connection: &mut PgConnection,
    tenant: TenantId,
) -> Result<(Timestamp, Timestamp), Error> {
    let query = sqlx::query_as(HORIZON).bind(tenant.0);
    let (horizon, now): (Instant, Instant) = query.fetch_one(connection).await?;
    Ok((horizon.into(), now.into()))
}

/// A transaction to begin.
pub struct New {
    pub id: Uuid,
    /// The client chose the id: it may have run before.
    pub chosen: bool,
    pub session: Option<(ProducerId, Epoch)>,
    pub digest: Digest,
}

/// The settings that limit it.
pub struct Limits {
    pub asked_timeout_ms: Option<i64>,
    pub default_timeout_ms: i64,
    pub max_timeout_ms: i64,
    pub retention_ms: i64,
}

/// Begins a transaction in one statement. None if its id is known, its session is not current or
/// has an ongoing transaction, or its id is not allowed.
pub async fn begin_new(
    connection: &mut PgConnection,
    tenant: TenantId,
    new: &New,
    limits: &Limits,
) -> Result<Option<TransactionRow>, Error> {
    let (producer_id, epoch) = new.session.unzip();
    let made: Result<Option<TransactionColumns>, sqlx::Error> = sqlx::query_as(BEGIN_NEW)
        .bind(tenant.0)
        .bind(new.id)
        .bind(producer_id.map(|id| id.0))
        .bind(epoch)
        .bind(new.digest)
        .bind(limits.asked_timeout_ms)
        .bind(limits.default_timeout_ms)
        .bind(new.chosen)
        .bind(limits.max_timeout_ms)
        .bind(limits.retention_ms)
        .fetch_optional(connection)
        .await;
    match made.map_err(Error::from) {
        Ok(made) => Ok(made.map(|TransactionColumns(row)| row)),
        Err(Error::Contended(_)) => Ok(None),
        Err(error) => Err(error.of_a_write()),
    }
}

/// Begins a transaction; none if its id is known, or its session has an ongoing one. The caller
/// checks afterwards (`horizon`) whether the id is allowed, because only then what was forgotten
/// before is visible.
pub async fn insert(
    connection: &mut PgConnection,
    tenant: TenantId,
    new: &New,
    created_at: Timestamp,
    expires_at: Timestamp,
) -> Result<Option<TransactionRow>, Error> {
    let (producer_id, epoch) = new.session.unzip();
    let made: Option<TransactionColumns> = sqlx::query_as(INSERT)
        .bind(tenant.0)
        .bind(new.id)
        .bind(producer_id.map(|id| id.0))
        .bind(epoch)
        .bind(new.digest)
        .bind(created_at.to_chrono())
        .bind(expires_at.to_chrono())
        .fetch_optional(connection)
        .await?;
    Ok(made.map(|TransactionColumns(row)| row))
}

/// The ongoing transaction of a producer.
pub async fn ongoing(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<TransactionRow>, Error> {
    let query = sqlx::query_as(ONGOING).bind(tenant.0).bind(producer.0);
    Ok(query.fetch_optional(connection).await?.map(|TransactionColumns(row)| row))
}

/// Locks the ongoing transaction of a producer whose session is locked, so that no other can begin.
pub async fn lock_ongoing(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<TransactionRow>, Error> {
    let query = sqlx::query_as(LOCK_ONGOING).bind(tenant.0).bind(producer.0);
    Ok(query.fetch_optional(connection).await?.map(|TransactionColumns(row)| row))
}

/// The prepared transactions of a producer.
pub async fn prepared(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Vec<Uuid>, Error> {
    let query = sqlx::query_scalar(PREPARED).bind(tenant.0).bind(producer.0);
    Ok(query.fetch_all(connection).await?)
}

/// The transaction that an open at this instant aborted.
pub async fn fenced_at(
    connection: &mut PgConnection,
    tenant: TenantId,
    producer: ProducerId,
    instant: Timestamp,
) -> Result<Option<Uuid>, Error> {
    let query = sqlx::query_scalar(FENCED).bind(tenant.0).bind(producer.0);
    Ok(query.bind(instant.to_chrono()).fetch_optional(connection).await?)
}

/// Lists ongoing transactions past their timeout.
pub async fn late(
    connection: &mut PgConnection,
    tenant: TenantId,
    limit: i64,
) -> Result<Vec<Uuid>, Error> {
    let query = sqlx::query_scalar(LATE).bind(tenant.0).bind(limit);
    Ok(query.fetch_all(connection).await?)
}

/// Lists the transactions after an id, by id, without the locations of their appends.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
    filter: Filter,
    after: Uuid,
    limit: i64,
) -> Result<Vec<TransactionRow>, Error> {
    let is_open = matches!(filter.state, Some(State::Ongoing | State::Prepared));
    let sql = match filter.producer_id {
        Some(_) => LIST_OF_PRODUCER,
        None if is_open => LIST_OPEN,
        None => LIST,
    };
    let mut query = sqlx::query_as(sql)
        .bind(tenant.0)
        .bind(after)
        .bind(filter.state.map(State::as_str))
        .bind(filter.older_than_ms)
        .bind(limit);
    if let Some(producer) = filter.producer_id {
        query = query.bind(producer.0);
    }
    rows(query.fetch_all(connection).await?)
}

/// Counts ongoing and prepared transactions of all tenants, with the age of the oldest.
pub async fn open(connection: &mut PgConnection) -> Result<Vec<(State, i64, Timestamp)>, Error> {
    let rows: Vec<(String, i64, Instant)> = sqlx::query_as(OPEN).fetch_all(connection).await?;
    let open = |(state, count, since): (String, i64, Instant)| {
        Some((State::parse(&state)?, count, since.into()))
    };
    Ok(rows.into_iter().filter_map(open).collect())
}
