//! Statements of the janitor on `transactions`: it aborts those past their timeout, and removes
//! outcomes past their retention. It locks sessions before transactions, both by id.

use std::collections::BTreeMap;

use sqlx::{FromRow, postgres::PgBindIterExt};
use uuid::Uuid;

use super::Chunk;
use crate::{
    model::{ProducerId, TenantId, Timestamp},
    store::{
        Connection, Result, durable, execute, statements, transaction::end::expire_transactions,
    },
};

statements! {
    /// Covers all tenants, without locks.
    LATE = r"select tenant_id, transaction_id from oncelog.transactions
        where state = 'ongoing' and expires_at <= clock_timestamp()
        order by expires_at limit $1";
    EXPIRE = expire_transactions!(" skip locked");
    /// Covers many tenants, each with its own cutoff, without locks; returns those with outcomes to
    /// remove.
    DUE = r"select w.tenant_id, w.cutoff
        from unnest($1::bigint[], $2::timestamptz[]) as w (tenant_id, cutoff)
        where exists (
            select from oncelog.transactions t
            where t.tenant_id = w.tenant_id and t.remembered_from < w.cutoff and not t.sweeping)";
    RAISE_HORIZON = r"update oncelog.tenants set forgotten_horizon = greatest(forgotten_horizon, $2)
        where tenant_id = $1";
    OUTCOMES = r"select transaction_id, producer_id, ended_at from oncelog.transactions
        where tenant_id = $1 and remembered_from < $2 and not sweeping
        order by remembered_from limit $3";
    HOLD_SESSIONS = r"select producer_id from oncelog.sessions
        where tenant_id = $1 and producer_id = any($2)
        order by producer_id for no key update";
    MOVE_ACTIVITY = r"update oncelog.sessions s set active_at = greatest(s.active_at, w.ended_at)
        from unnest($2::bigint[], $3::timestamptz[]) as w (producer_id, ended_at)
        where s.tenant_id = $1 and s.producer_id = any($2) and s.producer_id = w.producer_id";
    FORGET = r"with gone as materialized (
            select transaction_id from oncelog.transactions
            where tenant_id = $1 and transaction_id = any($2)
            order by transaction_id for no key update)
        delete from oncelog.transactions t using gone g
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = g.transaction_id";
}

/// Lists ongoing transactions past their timeout, by tenant.
pub async fn late(conn: &mut Connection, limit: i64) -> Result<BTreeMap<TenantId, Vec<Uuid>>> {
    let rows: Vec<_> = sqlx::query_as(LATE).bind(limit).fetch_all(conn).await?;
    let mut late: BTreeMap<TenantId, Vec<Uuid>> = BTreeMap::new();
    for (tenant, id) in rows {
        late.entry(tenant).or_default().push(id);
    }
    Ok(late)
}

/// Aborts those of these transactions that are past their timeout and not locked; returns how many.
pub async fn expire_unless_held(
    conn: &mut Connection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<u64> {
    let query = sqlx::query(EXPIRE).bind(tenant).bind(ids);
    Ok(query.execute(conn).await?.rows_affected())
}

/// The outcomes of a tenant up to an instant, which can be removed.
#[derive(Clone, Copy, Debug, FromRow)]
pub struct Cutoff {
    #[sqlx(rename = "tenant_id")]
    pub tenant: TenantId,
    #[sqlx(rename = "cutoff")]
    pub instant: Timestamp,
}

/// The tenants with outcomes to remove.
pub async fn due(conn: &mut Connection, cutoffs: &[Cutoff]) -> Result<Vec<Cutoff>> {
    let query = sqlx::query_as(DUE)
        .bind(cutoffs.iter().map(|cutoff| cutoff.tenant).bind_iter())
        .bind(cutoffs.iter().map(|cutoff| cutoff.instant).bind_iter());
    Ok(query.fetch_all(conn).await?)
}

/// Removes a chunk of a tenant's outcomes. It advances the horizon first, so that none of their ids
/// runs again, and notes that their producers were active when they ended.
pub async fn forget(conn: &mut Connection, cutoff: Cutoff, chunk: i64) -> Result<Chunk> {
    let Cutoff { tenant, instant } = cutoff;
    let query = sqlx::query(RAISE_HORIZON).bind(tenant).bind(instant);
    execute(conn, query).await?;
    let query = sqlx::query_as(OUTCOMES).bind(tenant).bind(instant).bind(chunk);
    let outcomes: Vec<(Uuid, Option<ProducerId>, Timestamp)> = query.fetch_all(&mut *conn).await?;
    let mut active: BTreeMap<ProducerId, Timestamp> = BTreeMap::new();
    for (_, producer, ended_at) in &outcomes {
        if let Some(producer) = producer {
            let last = active.entry(*producer).or_insert(*ended_at);
            *last = (*last).max(*ended_at);
        }
    }
    if !active.is_empty() {
        let query = sqlx::query(HOLD_SESSIONS).bind(tenant).bind(active.keys().bind_iter());
        execute(conn, query).await?;
        let query = sqlx::query(MOVE_ACTIVITY).bind(tenant);
        let query = query.bind(active.keys().bind_iter()).bind(active.values().bind_iter());
        execute(conn, query).await?;
    }
    let ids: Vec<Uuid> = outcomes.iter().map(|(id, ..)| *id).collect();
    let query = sqlx::query(FORGET).bind(tenant).bind(ids);
    let rows = query.execute(conn).await?.rows_affected();
    Ok(Chunk { rows, more: outcomes.len() as i64 == chunk })
}
