//! Loads what the slow path needs: producer states, tails of logs, session facts. It locks session
//! rows, shared.

use std::collections::HashMap;

use sqlx::{
    FromRow, Row,
    postgres::{PgBindIterExt, PgRow},
};

use crate::{
    model::{Epoch, LogId, Offset, ProducerId, TenantId, Timestamp, session::Sequencing},
    rules::append::{
        encoding, producer_state::ProducerState, sequence::SessionFacts, snapshot::TailRow,
    },
    store::{Connection, Result, execute, statements},
};

macro_rules! session_facts {
    () => {
        r"select producer_id, epoch, closed, reset_epoch, monotonic from oncelog.sessions
        where tenant_id = $1 and producer_id = any($2)"
    };
}

statements! {
    STATES = r"select s.log_id, s.producer_id, s.epoch, s.last_sequence, s.recent, s.as_of_offset
        from unnest($2::bigint[], $3::bigint[]) as w (log_id, producer_id)
        -- `offset 0` forces lookups: a plain join planned while the table was empty would read all
        -- rows of the tenant, and that plan would be kept.
        cross join lateral (
            select log_id, producer_id, epoch, last_sequence, recent, as_of_offset
            from oncelog.producer_states
            where tenant_id = $1 and log_id = w.log_id and producer_id = w.producer_id
            offset 0) as s";
    TAILS = r"select b.log_id, b.base_offset, b.record_count, b.appended_at, b.producers
        from unnest($2::bigint[], $3::bigint[]) as w (log_id, from_offset)
        cross join lateral (
            -- The row before identifies the history.
            (select log_id, base_offset, record_count, appended_at, null::bytea as producers, kept
                from oncelog.batches
                where tenant_id = $1 and log_id = w.log_id and base_offset < w.from_offset
                order by base_offset desc limit 1)
            union all
            (select log_id, base_offset, record_count, appended_at, producers, kept
                from oncelog.batches
                where tenant_id = $1 and log_id = w.log_id and base_offset >= w.from_offset
                offset 0)) as b
        -- A compacted row counts as a hole: the states cover its requests.
        where b.kept is null
        order by b.log_id, b.base_offset";
    SESSION_FACTS = session_facts!();
    /// Makes an open of these producers wait until this batch has registered them.
    SHARE_SESSIONS = concat!(session_facts!(), " order by producer_id for share");
    /// States that no row implies: they cover every row before the log's next offset.
    WRITE_STATES = r"insert into oncelog.producer_states as s (tenant_id, log_id, producer_id,
            epoch, last_sequence, recent, as_of_offset, last_appended_at)
        select $1, w.*, $8
        from unnest($2::bigint[], $3::bigint[],
                $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[])
            as w (log_id, producer_id, epoch, last_sequence, recent, as_of_offset)
        on conflict (tenant_id, log_id, producer_id) do update
        set epoch = excluded.epoch, last_sequence = excluded.last_sequence,
            recent = excluded.recent, as_of_offset = excluded.as_of_offset,
            last_appended_at = excluded.last_appended_at";
    REGISTER = r"insert into oncelog.producer_states
            (tenant_id, log_id, producer_id, epoch, as_of_offset)
        select $1, log_id, producer_id, 0, as_of_offset
        from unnest($2::bigint[], $3::bigint[], $4::bigint[]) as w (log_id, producer_id, as_of_offset)
        order by producer_id, log_id on conflict do nothing";
}

/// A producer's snapshot in a log.
pub struct StoredState {
    pub log_id: LogId,
    pub producer_id: ProducerId,
    pub state: ProducerState,
    /// It covers every row before this offset.
    pub as_of_offset: Offset,
}

/// A row's provenance.
#[derive(FromRow)]
pub struct StoredRow {
    pub log_id: LogId,
    pub base_offset: Offset,
    pub record_count: i64,
    pub appended_at: Timestamp,
    pub producers: Option<Vec<u8>>,
}

impl FromRow<'_, PgRow> for StoredState {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(StoredState {
            log_id: row.try_get("log_id")?,
            producer_id: row.try_get("producer_id")?,
            state: state(row)?,
            as_of_offset: row.try_get("as_of_offset")?,
        })
    }
}

/// The state in a row of `producer_states`.
pub fn state(row: &PgRow) -> Result<ProducerState, sqlx::Error> {
    let recent = encoding::decode_recent(row.try_get("recent")?);
    Ok(ProducerState {
        epoch: row.try_get("epoch")?,
        last_sequence: row.try_get("last_sequence")?,
        recent: recent.map_err(|_| sqlx::Error::Decode("unreadable provenance".into()))?.into(),
    })
}

pub async fn states(
    conn: &mut Connection,
    tenant: TenantId,
    wanted: &[(LogId, ProducerId)],
) -> Result<Vec<StoredState>> {
    let query = sqlx::query_as(STATES).bind(tenant);
    let query = query.bind(wanted.iter().map(|(log_id, _)| log_id).bind_iter());
    let query = query.bind(wanted.iter().map(|(_, producer)| producer).bind_iter());
    Ok(query.fetch_all(conn).await?)
}

/// Reads every row of each log from its offset on, and the one before, in order.
pub async fn tails(
    conn: &mut Connection,
    tenant: TenantId,
    from: &[(LogId, Offset)],
) -> Result<Vec<StoredRow>> {
    let query = sqlx::query_as(TAILS).bind(tenant);
    let query = query.bind(from.iter().map(|(log_id, _)| log_id).bind_iter());
    let query = query.bind(from.iter().map(|(_, offset)| offset).bind_iter());
    Ok(query.fetch_all(conn).await?)
}

/// Reads session rows; omits producers that do not exist.
pub async fn session_facts(
    conn: &mut Connection,
    tenant: TenantId,
    producers: &[ProducerId],
) -> Result<Facts> {
    facts(conn, SESSION_FACTS, tenant, producers).await
}

/// Locks session rows in the order of their ids, shared with other appends, against opens: they do
/// not change until the transaction ends.
pub async fn share_sessions(
    conn: &mut Connection,
    tenant: TenantId,
    producers: &[ProducerId],
) -> Result<Facts> {
    facts(conn, SHARE_SESSIONS, tenant, producers).await
}

/// Session rows by producer.
pub type Facts = HashMap<ProducerId, SessionFacts>;

async fn facts(
    conn: &mut Connection,
    sql: &'static str,
    tenant: TenantId,
    producers: &[ProducerId],
) -> Result<Facts> {
    let query = sqlx::query_as(sql).bind(tenant).bind(producers);
    let rows: Vec<(ProducerId, Epoch, bool, Epoch, Sequencing)> = query.fetch_all(conn).await?;
    let facts = rows.into_iter().map(|(id, epoch, closed, reset_epoch, sequencing)| {
        (id, SessionFacts { epoch, closed, reset_epoch, sequencing })
    });
    Ok(facts.collect())
}

/// Registers these producers, so that an open of them fences these logs. The offset is the log's
/// next one.
pub async fn register(
    conn: &mut Connection,
    tenant: TenantId,
    registrations: &[(LogId, ProducerId, Offset)],
) -> Result<()> {
    let query = sqlx::query(REGISTER)
        .bind(tenant)
        .bind(registrations.iter().map(|(log_id, ..)| log_id).bind_iter())
        .bind(registrations.iter().map(|(_, producer, _)| producer).bind_iter())
        .bind(registrations.iter().map(|(.., next_offset)| next_offset).bind_iter());
    execute(conn, query).await
}

/// Writes states that no row implies; their heads must be locked, and their fences raised.
pub async fn write_states(
    conn: &mut Connection,
    tenant: TenantId,
    states: &[(LogId, ProducerId, Offset, ProducerState)],
    last_appended_at: Timestamp,
) -> Result<()> {
    let query = sqlx::query(WRITE_STATES)
        .bind(tenant)
        .bind(states.iter().map(|(log_id, ..)| log_id).bind_iter())
        .bind(states.iter().map(|(_, producer, ..)| producer).bind_iter())
        .bind(states.iter().map(|(.., state)| state.epoch).bind_iter())
        .bind(states.iter().map(|(.., state)| state.last_sequence).bind_iter())
        .bind(states.iter().map(|(.., state)| encoding::encode_recent(&state.recent)).bind_iter())
        .bind(states.iter().map(|(.., offset, _)| offset).bind_iter())
        .bind(last_appended_at);
    execute(conn, query).await
}

impl StoredRow {
    /// The row in the form that the rules replay.
    pub fn as_tail(&self) -> TailRow<'_> {
        TailRow {
            base_offset: self.base_offset,
            record_count: self.record_count,
            appended_at: self.appended_at,
            producers: self.producers.as_deref(),
        }
    }
}
