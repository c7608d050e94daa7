//! Statements on the rows of `transactions`, which are locked by id.

pub mod end;
pub mod one_request;
pub mod record_ids;
pub mod staging;

use std::collections::HashMap;

use sqlx::{FromRow, Row, postgres::PgRow, types::Json};
use uuid::Uuid;

use super::{Connection, Error, Result, durable, statements};
use crate::{
    model::{
        Digest, Epoch, Name, ProducerId, TenantId, Timestamp,
        scopes::{Reach, SessionOwner, Subject},
        transaction::{Filter, PlacedAppend, RepeatedBy, State},
    },
    rules::transaction::TransactionRow,
};

/// The columns of a `TransactionRow`, except `appends`, of the table as `t`.
macro_rules! transaction_columns {
    () => {
        r"t.transaction_id, t.state, t.producer_id, t.epoch, t.digest, t.created_at, t.expires_at,
            t.prepared_at, t.ended_at, t.reason, t.append_count, t.batch_count, t.next_sequence"
    };
}

macro_rules! transaction_rows {
    ($which:literal) => {
        concat!(
            "select ",
            transaction_columns!(),
            r", t.appends
        from oncelog.transactions t where tenant_id = $1 and ",
            $which
        )
    };
}

/// A page of a list, without the locations of appends.
macro_rules! page {
    ($condition:literal) => {
        concat!(
            "select ", transaction_columns!(), r", null::jsonb as appends
        from oncelog.transactions t
        where tenant_id = $1 and transaction_id > $2 and ", $condition, r"
            -- ages that no timestamp has are too great for all
            and ($4::bigint is null or extract(epoch from clock_timestamp() - created_at) * 1000 >= $4)
        order by transaction_id limit $5"
        )
    };
}

statements! {
    READ = transaction_rows!("transaction_id = $2");
    /// What a token must cover to handle transactions. What an aborted one has staged is gone, as
    /// are the offsets of a committed one.
    REACH = r"select t.transaction_id, s.producer_id is not null, s.transactional_id, s.opened_by,
            case when t.ended_at is null then array(
                    select distinct p.name
                    from oncelog.staged_batches b
                    cross join lateral (
                        select topic_id from oncelog.logs where tenant_id = $1 and log_id = b.log_id
                        offset 0) l
                    cross join lateral (
                        select name from oncelog.topics where tenant_id = $1 and topic_id = l.topic_id
                        offset 0) p
                    where b.tenant_id = $1 and b.transaction_id = t.transaction_id)
                else array(select distinct a ->> 'topic' from jsonb_array_elements(t.appends) a)
            end,
            case when t.ended_at is null then array(
                    select distinct o.group_name from oncelog.staged_offsets o
                    where o.tenant_id = $1 and o.transaction_id = t.transaction_id)
                else '{}' end
        -- Each is looked up by its key, whatever the tables were like when this was planned.
        from unnest($2::uuid[]) as w (transaction_id)
        cross join lateral (
            select transaction_id, producer_id, ended_at, appends from oncelog.transactions
            where tenant_id = $1 and transaction_id = w.transaction_id offset 0) t
        left join lateral (
            select producer_id, transactional_id, opened_by from oncelog.sessions
            where tenant_id = $1 and producer_id = t.producer_id offset 0) s on true";
    LOCK = transaction_rows!("transaction_id = any($2) order by transaction_id for no key update");
    /// A row with a key has ended, and changes no more.
    READ_BY_KEY = transaction_rows!(
        r"transaction_id = (
            select transaction_id from oncelog.transaction_keys where tenant_id = $1 and key = $2)"
    );
    HORIZON = "select forgotten_horizon, clock_timestamp() from oncelog.tenants where tenant_id = $1";
    /// The common begin in one round trip: a new transaction, of a session that is current if it
    /// names one. No row: some condition does not hold.
    BEGIN_NEW = concat!(
        r"with session as materialized (
            select transaction_timeout_ms from oncelog.sessions
            where tenant_id = $1 and producer_id = $3 and epoch = $4 and not closed for share),
        made as (
            insert into oncelog.transactions as t
                (tenant_id, transaction_id, state, producer_id, epoch, digest, created_at, expires_at)
            select $1, $2, 'ongoing', $3, $4, $5, c.now, c.now + interval '1 millisecond'
                * least(coalesce($6, (select transaction_timeout_ms from session), $7), $9)
            from (select date_trunc('milliseconds', clock_timestamp()) as now) c
            where ", durable!(), r" and ($3 is null or exists (select from session))
            on conflict do nothing
            returning ", transaction_columns!(), r", t.appends)
        select *,
            -- An id chosen by the client ($8) must not be so old that it may have run and been
            -- forgotten since this statement began. The function has a snapshot of its own.
            case when not (not $8 or oncelog.instant_of(transaction_id)
                    between greatest(oncelog.forgotten_horizon($1),
                        created_at - interval '1 millisecond' * $10::bigint)
                    and created_at + interval '24 hours')
                then oncelog.undo_statement() else 0 end as undone
        from made"
    );
    INSERT = concat!(
        r"with named as materialized (
            insert into oncelog.transaction_keys (tenant_id, key, transaction_id, instant)
            select $1, $8, $2, $9 where $8::uuid is not null on conflict do nothing
            returning key)
        insert into oncelog.transactions as t
            (tenant_id, transaction_id, state, producer_id, epoch, digest, created_at, expires_at)
        select $1, $2, 'ongoing', $3, $4, $5, $6, $7
        where $8 is null or exists (select from named) on conflict do nothing
        returning ", transaction_columns!(), ", t.appends"
    );
    ONGOING = transaction_rows!("producer_id = $2 and state = 'ongoing'");
    LOCK_ONGOING = transaction_rows!("producer_id = $2 and state = 'ongoing' for no key update");
    PREPARED = r"select transaction_id from oncelog.transactions
        where tenant_id = $1 and producer_id = $2 and state = 'prepared'
        order by transaction_id";
    FENCED = r"select transaction_id from oncelog.transactions
        where tenant_id = $1 and producer_id = $2 and reason = 'fenced' and ended_at = $3";
    LATE = r"select transaction_id from oncelog.transactions
        where tenant_id = $1 and state = 'ongoing' and expires_at <= clock_timestamp()
        order by transaction_id limit $2";
    LIST = page!("($3::text is null or state = $3)");
    LIST_OPEN = page!("state in ('ongoing', 'prepared') and state = $3");
    LIST_OF_PRODUCER = page!("($3::text is null or state = $3) and producer_id = $6");
    /// Covers all tenants.
    OPEN = r"select state, count(*), min(coalesce(prepared_at, created_at)) from oncelog.transactions
        where state in ('ongoing', 'prepared')
        group by state";
}
use transaction_columns;

impl FromRow<'_, PgRow> for TransactionRow {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let producer_id: Option<ProducerId> = row.try_get("producer_id")?;
        let appends: Option<Json<Vec<PlacedAppend>>> = row.try_get("appends")?;
        Ok(TransactionRow {
            transaction_id: row.try_get("transaction_id")?,
            state: row.try_get("state")?,
            session: producer_id.zip(row.try_get("epoch")?),
            digest: row.try_get("digest")?,
            created_at: row.try_get("created_at")?,
            expires_at: row.try_get("expires_at")?,
            prepared_at: row.try_get("prepared_at")?,
            ended_at: row.try_get("ended_at")?,
            reason: row.try_get("reason")?,
            append_count: row.try_get("append_count")?,
            batch_count: row.try_get("batch_count")?,
            next_sequence: row.try_get("next_sequence")?,
            appends: appends.map(|Json(appends)| appends),
        })
    }
}

/// Reads the row without a lock.
pub async fn read(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
) -> Result<Option<TransactionRow>> {
    Ok(sqlx::query_as(READ).bind(tenant).bind(id).fetch_optional(conn).await?)
}

/// Reads the row of a repeat: by its key, or else its id.
pub async fn read_repeated(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    by: &RepeatedBy,
) -> Result<Option<TransactionRow>> {
    let (sql, name) = by.key().map_or((READ, id), |key| (READ_BY_KEY, key.key));
    Ok(sqlx::query_as(sql).bind(tenant).bind(name).fetch_optional(conn).await?)
}

/// What a token must cover to handle these transactions; omits missing ones.
pub async fn reach(
    conn: &mut Connection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<HashMap<Uuid, Reach>> {
    type Found = (Uuid, bool, Option<Name>, Option<Subject>, Vec<Name>, Vec<Name>);
    let rows: Vec<Found> = sqlx::query_as(REACH).bind(tenant).bind(ids).fetch_all(conn).await?;
    let reach = |(id, has_session, transactional_id, opened_by, topics, groups): Found| {
        let session = has_session.then_some(SessionOwner { transactional_id, opened_by });
        (id, Reach { session, topics, groups })
    };
    Ok(rows.into_iter().map(reach).collect())
}

/// Locks rows in the order of their ids; omits missing ones.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<Vec<TransactionRow>> {
    Ok(sqlx::query_as(LOCK).bind(tenant).bind(ids).fetch_all(conn).await?)
}

/// The horizon: ids without a row and with an earlier timestamp may have run; and the clock.
pub async fn horizon(conn: &mut Connection, tenant: TenantId) -> Result<(Timestamp, Timestamp)> {
    Ok(sqlx::query_as(HORIZON).bind(tenant).fetch_one(conn).await?)
}

/// A transaction to begin.
pub struct New {
    pub id: Uuid,
    pub repeated_by: RepeatedBy,
    pub session: Option<(ProducerId, Epoch)>,
    pub digest: Digest,
}

/// The settings that limit it.
pub struct Limits {
    pub requested_timeout_ms: Option<i64>,
    pub default_timeout_ms: i64,
    pub max_timeout_ms: i64,
    pub retention_ms: i64,
}

/// Begins a transaction in one statement. None if its id is known, its session is not current or
/// has an ongoing transaction, or its id is not allowed.
pub async fn begin_new(
    conn: &mut Connection,
    tenant: TenantId,
    new: &New,
    limits: &Limits,
) -> Result<Option<TransactionRow>> {
    let (producer_id, epoch) = new.session.unzip();
    let begun = sqlx::query_as(BEGIN_NEW)
        .bind(tenant)
        .bind(new.id)
        .bind(producer_id)
        .bind(epoch)
        .bind(new.digest)
        .bind(limits.requested_timeout_ms)
        .bind(limits.default_timeout_ms)
        .bind(new.repeated_by == RepeatedBy::Id)
        .bind(limits.max_timeout_ms)
        .bind(limits.retention_ms)
        .fetch_optional(conn)
        .await;
    match begun.map_err(Error::from) {
        Err(Error::Contended(_)) => Ok(None),
        begun => begun.map_err(Error::of_a_write),
    }
}

/// Begins a transaction; none if its id or key is known, or its session has an ongoing one. The
/// caller checks afterwards (`horizon`) whether the id is allowed, because only then what was
/// forgotten before is visible.
pub async fn insert(
    conn: &mut Connection,
    tenant: TenantId,
    new: &New,
    created_at: Timestamp,
    expires_at: Timestamp,
) -> Result<Option<TransactionRow>> {
    let (producer_id, epoch) = new.session.unzip();
    let query = sqlx::query_as(INSERT).bind(tenant).bind(new.id).bind(producer_id).bind(epoch);
    let query = query.bind(new.digest).bind(created_at).bind(expires_at);
    let key = new.repeated_by.key();
    let query = query.bind(key.map(|key| key.key)).bind(key.and_then(|key| key.instant));
    Ok(query.fetch_optional(conn).await?)
}

/// The ongoing transaction of a producer.
pub async fn ongoing(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<TransactionRow>> {
    Ok(sqlx::query_as(ONGOING).bind(tenant).bind(producer).fetch_optional(conn).await?)
}

/// Locks the ongoing transaction of a producer whose session is locked, so that no other can begin.
pub async fn lock_ongoing(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Option<TransactionRow>> {
    Ok(sqlx::query_as(LOCK_ONGOING).bind(tenant).bind(producer).fetch_optional(conn).await?)
}

/// The prepared transactions of a producer.
pub async fn prepared(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
) -> Result<Vec<Uuid>> {
    Ok(sqlx::query_scalar(PREPARED).bind(tenant).bind(producer).fetch_all(conn).await?)
}

/// The transaction that an open at this instant aborted.
pub async fn fenced_at(
    conn: &mut Connection,
    tenant: TenantId,
    producer: ProducerId,
    instant: Timestamp,
) -> Result<Option<Uuid>> {
    let query = sqlx::query_scalar(FENCED).bind(tenant).bind(producer);
    Ok(query.bind(instant).fetch_optional(conn).await?)
}

/// Lists ongoing transactions past their timeout.
pub async fn late(conn: &mut Connection, tenant: TenantId, limit: i64) -> Result<Vec<Uuid>> {
    Ok(sqlx::query_scalar(LATE).bind(tenant).bind(limit).fetch_all(conn).await?)
}

/// Lists the transactions after an id, by id, without the locations of their appends.
pub async fn list(
    conn: &mut Connection,
    tenant: TenantId,
    filter: Filter,
    after: Uuid,
    limit: i64,
) -> Result<Vec<TransactionRow>> {
    let is_open = matches!(filter.state, Some(State::Ongoing | State::Prepared));
    let sql = match filter.producer_id {
        Some(_) => LIST_OF_PRODUCER,
        None if is_open => LIST_OPEN,
        None => LIST,
    };
    let mut query = sqlx::query_as(sql)
        .bind(tenant)
        .bind(after)
        .bind(filter.state)
        .bind(filter.older_than_ms)
        .bind(limit);
    if let Some(producer) = filter.producer_id {
        query = query.bind(producer);
    }
    Ok(query.fetch_all(conn).await?)
}

/// Counts ongoing and prepared transactions of all tenants, with the age of the oldest.
pub async fn open(conn: &mut Connection) -> Result<Vec<(State, i64, Timestamp)>> {
    Ok(sqlx::query_as(OPEN).fetch_all(conn).await?)
}
