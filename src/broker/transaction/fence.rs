//! What opening or ending a session does to its transactions.

use uuid::Uuid;

use crate::{
    model::{ProducerId, TenantId, Timestamp, transaction::Reason},
    store::{self, Connection},
};

/// What an open did to the transactions of its producer, and which it left.
#[derive(Default)]
pub struct FencedTransactions {
    pub aborted: Option<Uuid>,
    pub prepared: Vec<Uuid>,
}

/// Aborts the ongoing transaction of a locked session, whose epoch is about to be raised; answers
/// when.
pub async fn abort_ongoing(
    connection: &mut Connection,
    tenant: TenantId,
    id: ProducerId,
) -> Result<Timestamp, store::Error> {
    let now = store::session::clock(connection).await?;
    let Some(ongoing) = store::transaction::lock_ongoing(connection, tenant, id).await? else {
        return Ok(now);
    };
    // a commit may have held it, and so this
    let now = store::session::clock(connection).await?;
    let id = ongoing.transaction_id;
    if ongoing.has_expired(now) {
        store::transaction::end::expire(connection, tenant, &[id]).await?;
    } else {
        store::transaction::end::abort(connection, tenant, id, Reason::Fenced, now).await?;
    }
    Ok(now)
}

/// What the open at this instant did to the producer's transactions, and which are prepared.
pub async fn transactions(
    connection: &mut Connection,
    tenant: TenantId,
    id: ProducerId,
    opened_at: Timestamp,
) -> Result<FencedTransactions, store::Error> {
    let aborted = store::transaction::fenced_at(connection, tenant, id, opened_at).await?;
    let prepared = store::transaction::prepared(connection, tenant, id).await?;
    Ok(FencedTransactions { aborted, prepared })
}
