//! Statements on rows of `transactions`, for one-request transactions whose ids a batch has
//! reserved. (A batch on the fast path writes them with its appends.)

use sqlx::{postgres::PgBindIterExt, types::Json};
use uuid::Uuid;

use crate::{
    model::{Digest, TenantId, Timestamp, transaction::PlacedAppend},
    rules::transaction::one_request::SingleRequestTxn,
    store::{Connection, Error, Result, execute, statements},
};

statements! {
    /// Waits for an id that runs elsewhere. A row inserted here is finished or deleted before the
    /// database transaction ends.
    CLAIM = r"insert into oncelog.transactions
            (tenant_id, transaction_id, state, digest, created_at, expires_at)
        select $1, t.transaction_id, 'ongoing', t.digest, c.now, c.now
        from unnest($2::uuid[], $3::bytea[]) as t (transaction_id, digest)
        cross join (select date_trunc('milliseconds', clock_timestamp()) as now) c
        order by t.transaction_id on conflict do nothing
        returning transaction_id";
    FINISH = r"update oncelog.transactions t
        set state = 'committed', producer_id = f.producer_id, epoch = f.epoch,
            created_at = $7, expires_at = $7, ended_at = $7,
            append_count = f.append_count, appends = f.appends,
            remembered_from = greatest($7, oncelog.instant_of(t.transaction_id))
        from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::jsonb[])
            as f (transaction_id, producer_id, epoch, append_count, appends)
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = f.transaction_id";
    DROP_CLAIMS = "delete from oncelog.transactions where tenant_id = $1 and transaction_id = any($2)";
}

/// A transaction that is committed with a batch.
pub struct Ended<'a> {
    pub transaction: &'a SingleRequestTxn,
    pub digest: Digest,
    pub appends: Vec<PlacedAppend>,
}

/// Inserts placeholder rows for these ids, unless they exist; returns those inserted, which must be
/// finished or deleted.
pub async fn insert_placeholders(
    conn: &mut Connection,
    tenant: TenantId,
    transactions: &[(Uuid, Digest)],
) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar(CLAIM).bind(tenant);
    let query = query.bind(transactions.iter().map(|(id, _)| id).bind_iter());
    let query = query.bind(transactions.iter().map(|(_, digest)| *digest).bind_iter());
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
        .execute(conn)
        .await?;
    if finished.rows_affected() == ended.len() as u64 { Ok(()) } else { Err(Error::overtaken()) }
}

/// Deletes placeholders, so that their ids are free again.
pub async fn drop_claims(conn: &mut Connection, tenant: TenantId, ids: &[Uuid]) -> Result<()> {
    execute(conn, sqlx::query(DROP_CLAIMS).bind(tenant).bind(ids)).await
}
