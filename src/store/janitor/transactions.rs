//! Statements of the janitor on transactions: it aborts those past their timeout, and removes
//! outcomes past their retention.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::Chunk;
use crate::{
    model::{TenantId, Timestamp},
    store::{Error, Instant, durable, statements},
};

statements! {
    /// Covers all tenants, without locks.
    LATE = r"select tenant_id, transaction_id from oncelog.transactions
        where state = 'ongoing' and expires_at <= clock_timestamp() order by expires_at limit $1";
    EXPIRE = concat!(r"with due as materialized (
            select transaction_id from oncelog.transactions
            where ", durable!(), r" and tenant_id = $1 and transaction_id = any($2) and prepared_at is null and ended_at is null
                and expires_at <= clock_timestamp()
            order by transaction_id for no key update skip locked)
        update oncelog.transactions t set state = 'aborted', reason = 'timeout', ended_at = t.expires_at, sweeping = true,
            remembered_from = greatest(t.expires_at, oncelog.instant_of(t.transaction_id))
        from due d where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = d.transaction_id");
    /// Covers many tenants, each with its own cutoff, without locks; returns those with outcomes to
    /// remove.
    DUE = r"select w.tenant_id, w.cutoff from unnest($1::bigint[], $2::timestamptz[]) as w (tenant_id, cutoff)
        where exists (select from oncelog.transactions t where t.tenant_id = w.tenant_id and t.remembered_from < w.cutoff
            and not t.sweeping)";
    RAISE_HORIZON = "update oncelog.tenants set forgotten_horizon = greatest(forgotten_horizon, $2) where tenant_id = $1";
    OUTCOMES = r"select transaction_id, producer_id, ended_at from oncelog.transactions
        where tenant_id = $1 and remembered_from < $2 and not sweeping order by remembered_from limit $3";
    HOLD_SESSIONS = r"select producer_id from oncelog.sessions where tenant_id = $1 and producer_id = any($2)
        order by producer_id for no key update";
    MOVE_ACTIVITY = r"update oncelog.sessions s set active_at = greatest(s.active_at, w.ended_at)
        from unnest($2::bigint[], $3::timestamptz[]) as w (producer_id, ended_at)
        where s.tenant_id = $1 and s.producer_id = any($2) and s.producer_id = w.producer_id";
    FORGET = r"with gone as materialized (
            select transaction_id from oncelog.transactions where tenant_id = $1 and transaction_id = any($2)
            order by transaction_id for no key update)
        delete from oncelog.transactions t using gone g
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = g.transaction_id";
}

/// Lists ongoing transactions past their timeout, by tenant.
pub async fn late(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<BTreeMap<TenantId, Vec<Uuid>>, Error> {
    let rows: Vec<(i64, Uuid)> = sqlx::query_as(LATE).bind(limit).fetch_all(connection).await?;
    let mut late: BTreeMap<TenantId, Vec<Uuid>> = BTreeMap::new();
    for (tenant, id) in rows {
        late.entry(TenantId(tenant)).or_default().push(id);
    }
    Ok(late)
}

/// Aborts those of these transactions that are past their timeout and not locked; returns how many.
pub async fn expire_unless_held(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<u64, Error> {
    let query = sqlx::query(EXPIRE).bind(tenant.0).bind(ids);
    Ok(query.execute(connection).await?.rows_affected())
}

/// The outcomes of a tenant up to an instant, which can be removed.
#[derive(Clone, Copy, Debug)]
pub struct Cutoff {
    pub tenant: TenantId,
    pub instant: Timestamp,
}

/// The tenants with outcomes to remove.
pub async fn due(connection: &mut PgConnection, cutoffs: &[Cutoff]) -> Result<Vec<Cutoff>, Error> {
    let rows: Vec<(i64, Instant)> = sqlx::query_as(DUE)
        .bind(cutoffs.iter().map(|c| c.tenant.0).collect::<Vec<_>>())
        .bind(cutoffs.iter().map(|c| c.instant.to_chrono()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    let cutoff =
        |(tenant, instant)| Cutoff { tenant: TenantId(tenant), instant: Instant::into(instant) };
    Ok(rows.into_iter().map(cutoff).collect())
}

/// Removes a chunk of a tenant's outcomes. It advances the horizon first, so that none of their ids
/// runs again, and notes that their producers were active when they ended.
pub async fn forget(
    connection: &mut PgConnection,
    cutoff: Cutoff,
    chunk: i64,
) -> Result<Chunk, Error> {
    let Cutoff { tenant, instant } = cutoff;
    let query = sqlx::query(RAISE_HORIZON).bind(tenant.0).bind(instant.to_chrono());
    query.execute(&mut *connection).await?;
    let outcomes: Vec<(Uuid, Option<i64>, Instant)> = sqlx::query_as(OUTCOMES)
        .bind(tenant.0)
        .bind(instant.to_chrono())
        .bind(chunk)
        .fetch_all(&mut *connection)
        .await?;
    let mut active: BTreeMap<i64, Instant> = BTreeMap::new();
    for (_, producer_id, ended_at) in &outcomes {
        if let Some(producer_id) = producer_id {
            let last = active.entry(*producer_id).or_insert(*ended_at);
            *last = (*last).max(*ended_at);
        }
    }
    if !active.is_empty() {
        let (producers, instants): (Vec<i64>, Vec<Instant>) = active.into_iter().unzip();
        let query = sqlx::query(HOLD_SESSIONS).bind(tenant.0).bind(&producers);
        query.execute(&mut *connection).await?;
        let query = sqlx::query(MOVE_ACTIVITY).bind(tenant.0).bind(producers).bind(instants);
        query.execute(&mut *connection).await?;
    }
    let ids: Vec<Uuid> = outcomes.iter().map(|(id, ..)| *id).collect();
    let query = sqlx::query(FORGET).bind(tenant.0).bind(ids);
    let rows = query.execute(connection).await?.rows_affected();
    Ok(Chunk { rows, more: outcomes.len() as i64 == chunk })
}
