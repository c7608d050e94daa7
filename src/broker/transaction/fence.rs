//! The effect of opening or ending a session on its transactions.

use uuid::Uuid;

use crate::{
    model::{ProducerId, TenantId, Timestamp, transaction::Reason},
    store::{self, Connection},
};

/// The effect of an open on the transactions of its producer, and those it left prepared.
#[derive(Default)]
pub struct FencedTransactions {
    pub aborted: Option<Uuid>,
    pub prepared: Vec<Uuid>,
}

/// Aborts the ongoing transaction of a locked session whose epoch is about to be raised; returns
/// the time.
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

/// Returns which of the producer's transactions the open at this instant aborted, and which are
/// prepared.
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
