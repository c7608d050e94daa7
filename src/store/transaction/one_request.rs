//! Statements on rows of `transactions`, for one-request transactions whose ids a batch has
//! reserved. (A batch on the fast path writes them with its appends.)

use sqlx::{postgres::PgBindIterExt, types::Json};
use uuid::Uuid;

use crate::{
    model::{
        Digest, TenantId, Timestamp,
        transaction::{PlacedAppend, RepeatedBy},
    },
    rules::transaction::one_request::SingleRequestTxn,
    store::{Connection, Error, Result, execute, statements},
};

statements! {
    /// Waits for an id or key that runs elsewhere, in one order everywhere. A row inserted here is
    /// finished or deleted before the database transaction ends.
    CLAIM = r"with named as materialized (
            insert into oncelog.transaction_keys (tenant_id, key, transaction_id, instant)
            select $1, k.key, k.transaction_id, k.instant
            from unnest($2::uuid[], $4::uuid[], $5::timestamptz[]) as k (transaction_id, key, instant)
            where k.key is not null
            order by k.key on conflict do nothing
            returning transaction_id)
        insert into oncelog.transactions
            (tenant_id, transaction_id, state, digest, created_at, expires_at)
        select $1, t.transaction_id, 'ongoing', t.digest, c.now, c.now
        from unnest($2::uuid[], $3::bytea[], $4::uuid[]) as t (transaction_id, digest, key)
        cross join (select date_trunc('milliseconds', clock_timestamp()) as now) c
        where t.key is null or t.transaction_id in (select transaction_id from named)
        order by t.transaction_id on conflict do nothing
        returning transaction_id";
    FINISH = r"update oncelog.transactions t
        set state = 'committed', producer_id = f.producer_id, epoch = f.epoch,
            created_at = $7, expires_at = $7, ended_at = $7,
            append_count = f.append_count, appends = f.appends,
            remembered_from = greatest($7, oncelog.instant_of(t.transaction_id), f.key_instant)
        from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::jsonb[], $8::timestamptz[])
            as f (transaction_id, producer_id, epoch, append_count, appends, key_instant)
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = f.transaction_id";
    REMEMBER_FROM = r"update oncelog.transactions
        set remembered_from = greatest(remembered_from, $3)
        where tenant_id = $1 and transaction_id = $2";
    DROP_CLAIMS = "delete from oncelog.transactions where tenant_id = $1 and transaction_id = any($2)";
}

/// A transaction that is committed with a batch.
pub struct Ended<'a> {
    pub transaction: &'a SingleRequestTxn,
    pub digest: Digest,
    pub appends: Vec<PlacedAppend>,
}

/// A transaction whose id, and key, are to be claimed.
#[derive(Clone, Copy)]
pub struct Claim {
    pub id: Uuid,
    pub repeated_by: RepeatedBy,
    pub digest: Digest,
}

/// Inserts placeholder rows, unless the ids or keys exist; returns the ids of those inserted, which
/// must be finished or deleted.
pub async fn insert_placeholders(
    conn: &mut Connection,
    tenant: TenantId,
    claims: &[Claim],
) -> Result<Vec<Uuid>> {
    let keys = || claims.iter().map(|claim| claim.repeated_by.key());
    let query = sqlx::query_scalar(CLAIM).bind(tenant);
    let query = query.bind(claims.iter().map(|claim| claim.id).bind_iter());
    let query = query.bind(claims.iter().map(|claim| claim.digest).bind_iter());
    let query = query.bind(keys().map(|key| Some(key?.key)).bind_iter());
    let query = query.bind(keys().map(|key| key?.instant).bind_iter());
    Ok(query.fetch_all(conn).await?)
}

/// Commits transactions with placeholders: either all of them, or nothing was to be appended.
pub async fn finish(
    conn: &mut Connection,
    tenant: TenantId,
    ended: &[Ended<'_>],
    ended_at: Timestamp,
) -> Result<()> {
    let finished = sqlx::query(FINISH)
        .bind(tenant)
        .bind(ended.iter().map(|e| e.transaction.transaction_id).bind_iter())
        .bind(ended.iter().map(|e| Some(e.transaction.session?.0)).bind_iter())
        .bind(ended.iter().map(|e| Some(e.transaction.session?.1)).bind_iter())
        .bind(ended.iter().map(|e| e.transaction.append_count).bind_iter())
        .bind(ended.iter().map(|e| Json(&e.appends)).bind_iter())
        .bind(ended_at)
        .bind(ended.iter().map(|e| e.transaction.repeated_by.key()?.instant).bind_iter())
        .execute(conn)
        .await?;
    if finished.rows_affected() == ended.len() as u64 { Ok(()) } else { Err(Error::overtaken()) }
}

/// Remembers a committed transaction from the instant in its key on, if that is later.
pub async fn remember_from(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    instant: Timestamp,
) -> Result<()> {
    execute(conn, sqlx::query(REMEMBER_FROM).bind(tenant).bind(id).bind(instant)).await
}

/// Deletes placeholders, so that their ids and keys are free again.
pub async fn drop_claims(conn: &mut Connection, tenant: TenantId, ids: &[Uuid]) -> Result<()> {
    execute(conn, sqlx::query(DROP_CLAIMS).bind(tenant).bind(ids)).await
}
