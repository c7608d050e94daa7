//! Statements that count what a tenant has of that which its settings limit. They lock nothing.

use uuid::Uuid;

use super::{Connection, Result, statements};
use crate::model::{Name, TenantId, settings::Key};

/// The records that open transactions have staged.
macro_rules! staged_bytes {
    () => {
        r"(select coalesce(sum(octet_length(b.records)), 0)::bigint
            from oncelog.transactions t
            cross join lateral (
                select records from oncelog.staged_batches
                where tenant_id = $1 and transaction_id = t.transaction_id offset 0) b
            where t.tenant_id = $1 and t.state in ('ongoing', 'prepared'))"
    };
}

statements! {
    // Each stops counting at $2.
    SESSIONS = r"select count(*) from (
        select from oncelog.sessions where tenant_id = $1 and not closed limit $2) s";
    GROUPS = r"select count(*) from (
        select from oncelog.groups where tenant_id = $1 limit $2) g";
    ONGOING = r"select count(*) from (
        select from oncelog.transactions where tenant_id = $1 and state = 'ongoing' limit $2) t";
    PREPARED = r"select count(*) from (
        select from oncelog.transactions where tenant_id = $1 and state = 'prepared' limit $2) t";
    STAGED_BYTES = concat!("select least($2, ", staged_bytes!(), ")");
    STORED_BYTES = concat!(
        r"select least($2, ", staged_bytes!(), r" + (
            select coalesce(sum(size_bytes), 0)::bigint from oncelog.logs where tenant_id = $1))"
    );
    /// Of these groups those that are neither there nor staged by the transaction.
    NEW_GROUPS = r"select count(*) from unnest($2::text[]) as w (name)
        where not exists (select from oncelog.groups where tenant_id = $1 and name = w.name)
            and not exists (
                select from oncelog.staged_offsets
                where tenant_id = $1 and transaction_id = $3 and group_name = w.name)";
}

/// How much of what the setting limits the tenant has; no more than `most`, where counting stops.
pub async fn used(conn: &mut Connection, tenant: TenantId, key: Key, most: i64) -> Result<i64> {
    let sql = match key {
        Key::MaxSessions => SESSIONS,
        Key::MaxGroups => GROUPS,
        Key::MaxOpenTransactions => ONGOING,
        Key::MaxPreparedTransactions => PREPARED,
        Key::MaxStagedBytes => STAGED_BYTES,
        Key::MaxStoredBytes => STORED_BYTES,
        _ => return Ok(0),
    };
    Ok(sqlx::query_scalar(sql).bind(tenant).bind(most).fetch_one(conn).await?)
}

/// How many of these groups a commit of the transaction would create that was not to create them
/// before.
pub async fn new_groups(
    conn: &mut Connection,
    tenant: TenantId,
    transaction: Uuid,
    groups: &[&Name],
) -> Result<i64> {
    let query = sqlx::query_scalar(NEW_GROUPS).bind(tenant).bind(groups).bind(transaction);
    Ok(query.fetch_one(conn).await?)
}
