//! Statements on the record ids of transactions, which are read and reserved at prepare or commit.
//! The transaction's row is locked, so its staged data does not change.

use std::collections::HashMap;

use sqlx::postgres::PgBindIterExt;
use uuid::Uuid;

use crate::{
    model::{LogId, TenantId, TopicId, settings::OwnSettings},
    rules::transaction::record_ids::{IdTopic, NewId, StagedRow, unpack},
    store::{Connection, Error, Result, execute, statements},
};

statements! {
    IDS = r"select ordinal, log_id, ids from oncelog.staged_batches
        where tenant_id = $1 and transaction_id = $2 and ids is not null order by ordinal";
    TOPICS = r"select l.log_id, l.topic_id, l.journal, t.settings from (
            select w.log_id, f.topic_id, j.log_id as journal from unnest($2::bigint[]) as w (log_id)
            cross join lateral (
                select topic_id from oncelog.logs where tenant_id = $1 and log_id = w.log_id
                offset 0) f
            cross join lateral (
                select log_id from oncelog.logs
                where tenant_id = $1 and topic_id = f.topic_id and coalesce(partition, -1) = -1
                offset 0) j) l
        cross join lateral (
            select settings from oncelog.topics where tenant_id = $1 and topic_id = l.topic_id
            offset 0) t";
    LINES = r"select ordinal, records from oncelog.staged_batches
        where tenant_id = $1 and transaction_id = $2 and ordinal = any($3)";
    /// The packed ids stay unchanged: what is held or remembered says what has become of them.
    KEEP = r"update oncelog.staged_batches s set record_count = k.record_count, records = k.records
        from unnest($3::bigint[], $4::bigint[], $5::text[]) as k (ordinal, record_count, records)
        where s.tenant_id = $1 and s.transaction_id = $2 and s.ordinal = any($3) and s.ordinal = k.ordinal";
    /// No row of the log refers to them.
    DROP_EMPTY = "delete from oncelog.staged_batches where tenant_id = $1 and transaction_id = $2 and record_count = 0";
    HOLD = r"insert into oncelog.held_ids (tenant_id, transaction_id, topic_id, key, digest, ordinal, position)
        select $1, $2, h.* from unnest($3::bigint[], $4::uuid[], $5::bigint[], $6::bigint[], $7::integer[]) as h";
    RELEASE = r"with released as (
            delete from oncelog.held_ids where tenant_id = $1 and transaction_id = $2
            returning topic_id, key, digest, ordinal, position)
        select r.topic_id, r.key, r.digest, s.log_id, r.ordinal, r.position from released r cross join lateral (
            select log_id from oncelog.staged_batches
            where tenant_id = $1 and transaction_id = $2 and ordinal = r.ordinal offset 0) s";
}

/// The topic of a log.
pub struct TopicOf {
    pub topic_id: TopicId,
    pub journal: LogId,
    pub settings: OwnSettings,
}

/// Reads the rows of a transaction whose records have ids, by ordinal, if they belong to these
/// logs.
pub async fn read(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    topics: &HashMap<LogId, IdTopic>,
) -> Result<Vec<StagedRow>> {
    let rows: Vec<(i64, LogId, Vec<u8>)> =
        sqlx::query_as(IDS).bind(tenant).bind(id).fetch_all(conn).await?;
    let mut staged = Vec::new();
    for (ordinal, log_id, packed) in rows {
        let Some(topic) = topics.get(&log_id).copied() else { continue };
        let corrupt = |_| Error::Unexpected(format!("ids of row {ordinal} of transaction {id}"));
        let (append, ids) = unpack(&packed).map_err(corrupt)?;
        staged.push(StagedRow { ordinal, log_id, topic, append, ids });
    }
    Ok(staged)
}

/// The topics of these logs; omits those that no longer exist.
pub async fn topics(
    conn: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<HashMap<LogId, TopicOf>> {
    let query = sqlx::query_as(TOPICS).bind(tenant).bind(logs);
    let rows: Vec<(LogId, TopicId, LogId, OwnSettings)> = query.fetch_all(conn).await?;
    let topics = rows.into_iter().map(|(log_id, topic_id, journal, settings)| {
        (log_id, TopicOf { topic_id, journal, settings })
    });
    Ok(topics.collect())
}

/// The records of rows, by ordinal.
pub async fn lines(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    ordinals: &[i64],
) -> Result<HashMap<i64, String>> {
    let query = sqlx::query_as(LINES).bind(tenant).bind(id).bind(ordinals);
    let rows: Vec<(i64, String)> = query.fetch_all(conn).await?;
    Ok(rows.into_iter().collect())
}

/// The remaining records of rows: ordinal, record count and records.
pub async fn keep(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    rows: &[(i64, i64, String)],
) -> Result<()> {
    let query = sqlx::query(KEEP)
        .bind(tenant)
        .bind(id)
        .bind(rows.iter().map(|(ordinal, ..)| ordinal).bind_iter())
        .bind(rows.iter().map(|(_, record_count, _)| record_count).bind_iter())
        .bind(rows.iter().map(|(.., records)| records).bind_iter());
    execute(conn, query).await
}

/// Deletes the rows of a committed transaction without remaining records.
pub async fn drop_empty(conn: &mut Connection, tenant: TenantId, id: Uuid) -> Result<()> {
    execute(conn, sqlx::query(DROP_EMPTY).bind(tenant).bind(id)).await
}

/// Notes that a prepared transaction holds these ids; the heads of their topics' journals must be
/// locked.
pub async fn hold(conn: &mut Connection, tenant: TenantId, id: Uuid, ids: &[NewId]) -> Result<()> {
    let query = sqlx::query(HOLD)
        .bind(tenant)
        .bind(id)
        .bind(ids.iter().map(|id| id.topic_id).bind_iter())
        .bind(ids.iter().map(|id| id.key).bind_iter())
        .bind(ids.iter().map(|id| id.digest).bind_iter())
        .bind(ids.iter().map(|id| id.ordinal).bind_iter())
        .bind(ids.iter().map(|id| id.position).bind_iter());
    execute(conn, query).await
}

/// Ends a prepared transaction: its held ids become free, or remembered.
pub async fn release(conn: &mut Connection, tenant: TenantId, id: Uuid) -> Result<Vec<NewId>> {
    let query = sqlx::query_as(RELEASE).bind(tenant).bind(id);
    let rows: Vec<(TopicId, Uuid, i64, LogId, i64, i32)> = query.fetch_all(conn).await?;
    let released = rows.into_iter().map(|(topic_id, key, digest, log_id, ordinal, position)| {
        NewId { topic_id, key, digest, log_id, ordinal, position }
    });
    Ok(released.collect())
}
