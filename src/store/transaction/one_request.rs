//! Statements on one-request transactions whose ids a batch has reserved. (A batch on the fast path
//! writes them with its appends.)

use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use crate::{
    model::{Digest, TenantId, Timestamp, transaction::PlacedAppend},
    rules::transaction::one_request::SingleRequestTxn,
    store::{Error, statements},
};

statements! {
    /// Waits for an id that runs elsewhere. A row inserted here is finished or deleted before the
    /// database transaction ends.
    CLAIM = r"insert into oncelog.transactions (tenant_id, transaction_id, state, digest, created_at, expires_at)
        select $1, t.transaction_id, 'ongoing', t.digest, c.now, c.now
        from unnest($2::uuid[], $3::bytea[]) as t (transaction_id, digest)
        cross join (select date_trunc('milliseconds', clock_timestamp()) as now) c
        order by t.transaction_id on conflict do nothing returning transaction_id";
    FINISH = r"update oncelog.transactions t set state = 'committed', producer_id = f.producer_id, epoch = f.epoch, created_at = $7, expires_at = $7, ended_at = $7,
            append_count = f.append_count, appends = f.appends, remembered_from = greatest($7, oncelog.instant_of(t.transaction_id))
        from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::jsonb[])
            as f (transaction_id, producer_id, epoch, append_count, appends)
        where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = f.transaction_id";
    DROP_CLAIMS = "delete from oncelog.transactions where tenant_id = $1 and transaction_id = any($2)";
}

/// A transaction that is committed with a batch.
pub struct Ended<'a> {
    pub whole: &'a SingleRequestTxn,
    pub digest: Digest,
    pub appends: Vec<PlacedAppend>,
}

/// Inserts placeholder rows for these ids, unless they exist; returns those inserted, which must be
/// finished or deleted.
pub async fn insert_placeholders(
    connection: &mut PgConnection,
    tenant: TenantId,
    wholes: &[(Uuid, Digest)],
) -> Result<Vec<Uuid>, Error> {
    let (ids, digests): (Vec<Uuid>, Vec<Digest>) = wholes.iter().copied().unzip();
    let query = sqlx::query_scalar(CLAIM).bind(tenant.0).bind(ids).bind(digests);
    Ok(query.fetch_all(connection).await?)
}

/// Commits transactions with placeholders: either all of them, or nothing was to be appended.
pub async fn finish(
    connection: &mut PgConnection,
    tenant: TenantId,
    ended: &[Ended<'_>],
    ended_at: Timestamp,
) -> Result<(), Error> {
    let session = |e: &Ended<'_>| e.whole.session;
    let finished = sqlx::query(FINISH)
        .bind(tenant.0)
        .bind(ended.iter().map(|e| e.whole.transaction_id).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| session(e).map(|(id, _)| id.0)).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| session(e).map(|(_, epoch)| epoch)).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| e.whole.append_count).collect::<Vec<_>>())
        .bind(ended.iter().map(|e| Json(&e.appends)).collect::<Vec<_>>())
        .bind(ended_at.to_chrono())
        .execute(connection)
        .await?;
    if finished.rows_affected() == ended.len() as u64 { Ok(()) } else { Err(Error::overtaken()) }
}

/// Deletes placeholders, so that their ids are free again.
pub async fn drop_claims(
    connection: &mut PgConnection,
    tenant: TenantId,
    ids: &[Uuid],
) -> Result<(), Error> {
    sqlx::query(DROP_CLAIMS).bind(tenant.0).bind(ids).execute(connection).await?;
    Ok(())
}
