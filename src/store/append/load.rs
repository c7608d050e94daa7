//! Loads what the slow path needs: states, tails, session facts.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::{
    model::{LogId, Offset, ProducerId, TenantId, Timestamp, session::Sequencing},
    rules::append::{
        encoding, producer_state::ProducerState, sequence::SessionFacts, snapshot::TailRow,
    },
    store::{Error, Instant, catalog::logs::numbers, statements},
};

statements! {
    /// `offset 0` forces lookups: a plain join planned while the table was empty would read all of
    /// the tenant's rows, and that plan would be kept.
    STATES = r"select s.log_id, s.producer_id, s.epoch, s.last_sequence, s.recent, s.as_of_offset
        from unnest($2::bigint[], $3::bigint[]) as w (log_id, producer_id)
        cross join lateral (
            select log_id, producer_id, epoch, last_sequence, recent, as_of_offset from oncelog.producer_states
            where tenant_id = $1 and log_id = w.log_id and producer_id = w.producer_id offset 0) as s";
    /// With the row before, which identifies the history. A compacted row counts as a hole: the
    /// states cover its requests.
    TAILS = r"select b.log_id, b.base_offset, b.record_count, b.appended_at, b.producers
        from unnest($2::bigint[], $3::bigint[]) as w (log_id, from_offset)
        cross join lateral (
            (select log_id, base_offset, record_count, appended_at, null::bytea as producers, kept from oncelog.batches
                where tenant_id = $1 and log_id = w.log_id and base_offset < w.from_offset order by base_offset desc limit 1)
            union all
            (select log_id, base_offset, record_count, appended_at, producers, kept from oncelog.batches
                where tenant_id = $1 and log_id = w.log_id and base_offset >= w.from_offset offset 0)) as b
        where b.kept is null order by b.log_id, b.base_offset";
    SESSION_FACTS = r"select producer_id, epoch, closed, reset_epoch, monotonic from oncelog.sessions
        where tenant_id = $1 and producer_id = any($2)";
    /// Makes an open of these producers wait until this batch has registered them.
    SHARE_SESSIONS = r"select producer_id, epoch, closed, reset_epoch, monotonic from oncelog.sessions
        where tenant_id = $1 and producer_id = any($2) order by producer_id for share";
    /// States that no row implies: they cover every row before the log's next offset.
    WRITE_STATES = r"insert into oncelog.producer_states as s (tenant_id, log_id, producer_id, epoch, last_sequence, recent, as_of_offset, last_appended_at)
        select $1, w.*, $8 from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[])
            as w (log_id, producer_id, epoch, last_sequence, recent, as_of_offset)
        on conflict (tenant_id, log_id, producer_id) do update set epoch = excluded.epoch, last_sequence = excluded.last_sequence,
            recent = excluded.recent, as_of_offset = excluded.as_of_offset, last_appended_at = excluded.last_appended_at";
    REGISTER = r"insert into oncelog.producer_states (tenant_id, log_id, producer_id, epoch, as_of_offset)
        select $1, log_id, producer_id, 0, as_of_offset from unnest($2::bigint[], $3::bigint[], $4::bigint[])
            as w (log_id, producer_id, as_of_offset)
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
pub struct StoredRow {
    pub log_id: LogId,
    pub base_offset: Offset,
    pub record_count: i64,
    pub appended_at: Timestamp,
    pub producers: Option<Vec<u8>>,
}

/// `log_id, producer_id, epoch, last_sequence, recent, as_of_offset`.
pub type StateRow = (i64, i64, i64, Option<i64>, Vec<u8>, i64);

/// A row of `producer_states`.
pub fn stored_state(row: StateRow) -> Result<StoredState, Error> {
    let (log_id, producer_id, epoch, last_sequence, recent, as_of_offset) = row;
    Ok(StoredState {
        log_id: LogId(log_id),
        producer_id: ProducerId(producer_id),
        state: state(epoch, last_sequence, &recent)?,
        as_of_offset,
    })
}

pub async fn states(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: &[(LogId, ProducerId)],
) -> Result<Vec<StoredState>, Error> {
    let (logs, producers): (Vec<i64>, Vec<i64>) = wanted.iter().map(|(l, p)| (l.0, p.0)).unzip();
    let query = sqlx::query_as(STATES).bind(tenant.0).bind(logs).bind(producers);
    query.fetch_all(connection).await?.into_iter().map(stored_state).collect()
}

/// A state in its columns.
pub fn state(
    epoch: i64,
    last_sequence: Option<i64>,
    recent: &[u8],
) -> Result<ProducerState, Error> {
    let recent = encoding::decode_recent(recent)?.into();
    Ok(ProducerState { epoch, last_sequence, recent })
}

/// Reads every row of each log from its offset on, and the one before, in order.
pub async fn tails(
    connection: &mut PgConnection,
    tenant: TenantId,
    from: &[(LogId, Offset)],
) -> Result<Vec<StoredRow>, Error> {
    let (logs, offsets): (Vec<i64>, Vec<i64>) = from.iter().map(|(l, o)| (l.0, *o)).unzip();
    let query = sqlx::query_as(TAILS).bind(tenant.0).bind(logs).bind(offsets);
    let row = |(log_id, base_offset, record_count, appended_at, producers)| StoredRow {
        log_id: LogId(log_id),
        base_offset,
        record_count,
        appended_at: Instant::into(appended_at),
        producers,
    };
    Ok(query.fetch_all(connection).await?.into_iter().map(row).collect())
}

/// Reads session rows; omits producers that do not exist.
pub async fn session_facts(
    connection: &mut PgConnection,
    tenant: TenantId,
    producers: &[ProducerId],
) -> Result<Facts, Error> {
    facts(connection, SESSION_FACTS, tenant, producers).await
}

/// Locks session rows in the order of their ids, shared with other appends, against opens: they do
/// not change until the transaction ends.
pub async fn share_sessions(
    connection: &mut PgConnection,
    tenant: TenantId,
    producers: &[ProducerId],
) -> Result<Facts, Error> {
    facts(connection, SHARE_SESSIONS, tenant, producers).await
}

/// Session rows by producer.
pub type Facts = HashMap<ProducerId, SessionFacts>;

async fn facts(
    connection: &mut PgConnection,
    sql: &'static str,
    tenant: TenantId,
    producers: &[ProducerId],
) -> Result<Facts, Error> {
    let query = sqlx::query_as(sql).bind(tenant.0).bind(ids(producers));
    let rows: Vec<(i64, i64, bool, i64, bool)> = query.fetch_all(connection).await?;
    let facts = |(id, epoch, closed, reset_epoch, monotonic)| {
        let sequencing = sequencing(monotonic);
        (ProducerId(id), SessionFacts { epoch, closed, reset_epoch, sequencing })
    };
    Ok(rows.into_iter().map(facts).collect())
}

/// Registers these producers, so that an open of them fences these logs. The offset is the log's
/// next one.
pub async fn register(
    connection: &mut PgConnection,
    tenant: TenantId,
    registrations: &[(LogId, ProducerId, Offset)],
) -> Result<(), Error> {
    let logs: Vec<LogId> = registrations.iter().map(|(log_id, ..)| *log_id).collect();
    let producers: Vec<ProducerId> = registrations.iter().map(|(_, id, _)| *id).collect();
    let offsets: Vec<Offset> = registrations.iter().map(|(.., offset)| *offset).collect();
    sqlx::query(REGISTER)
        .bind(tenant.0)
        .bind(numbers(&logs))
        .bind(ids(&producers))
        .bind(offsets)
        .execute(connection)
        .await?;
    Ok(())
}

/// Writes states that no row implies; their heads must be locked, and their fences raised.
pub async fn write_states(
    connection: &mut PgConnection,
    tenant: TenantId,
    states: &[(LogId, ProducerId, Offset, ProducerState)],
    last_appended_at: Timestamp,
) -> Result<(), Error> {
    let recent = |state: &ProducerState| encoding::encode_recent(&state.recent);
    sqlx::query(WRITE_STATES)
        .bind(tenant.0)
        .bind(states.iter().map(|(log_id, ..)| log_id.0).collect::<Vec<_>>())
        .bind(states.iter().map(|(_, id, ..)| id.0).collect::<Vec<_>>())
        .bind(states.iter().map(|(.., state)| state.epoch).collect::<Vec<_>>())
        .bind(states.iter().map(|(.., state)| state.last_sequence).collect::<Vec<_>>())
        .bind(states.iter().map(|(.., state)| recent(state)).collect::<Vec<_>>())
        .bind(states.iter().map(|(.., offset, _)| *offset).collect::<Vec<_>>())
        .bind(last_appended_at.to_chrono())
        .execute(connection)
        .await?;
    Ok(())
}

pub fn sequencing(monotonic: bool) -> Sequencing {
    if monotonic { Sequencing::Monotonic } else { Sequencing::Contiguous }
}

fn ids(producers: &[ProducerId]) -> Vec<i64> {
    producers.iter().map(|id| id.0).collect()
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
