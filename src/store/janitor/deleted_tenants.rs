//! Removes the data of deleted tenants in chunks, and the unexpiring keys of deleted topics.
//!
//! Rows are found by tenant and deleted by `ctid`: one lookup per row, whatever the table was like
//! when the statement was planned. (`is true` keeps the planner from an index on the tenant,
//! through which it would read all of its rows.) Locked rows are skipped, so that nothing waits.

use uuid::Uuid;

use super::Chunk;
use crate::{
    model::{LogId, Partition, ProducerId, TenantId, TopicId},
    store::{Connection, Result, catalog::topics, execute, statements},
};

/// Deletes the first rows of a tenant in the order of a key. `$only`: those of a kind.
macro_rules! drop_first {
    ($table:literal, $key:literal $(, $only:literal)?) => {
        concat!(
            "delete from oncelog.", $table, r" where (tenant_id = $1) is true and ctid = any (array(
            select ctid from oncelog.", $table, " where tenant_id = $1", $($only,)? r"
            order by tenant_id, ", $key, " limit $2 for no key update skip locked))"
        )
    };
}

macro_rules! tables_left {
    ($($table:literal),*) => {
        concat!(
            "select array_remove(array[",
            $("case when exists (select from oncelog.", $table, " where tenant_id = $1) then '",
                $table, "' end, ",)*
            "null], null)"
        )
    };
}

statements! {
    /// Covers all tenants.
    DELETED = r"select tenant_id from oncelog.tenants where deleted_at is not null and tenant_id > $1
        order by tenant_id limit $2";
    /// The tables that still have rows of a tenant.
    LEFT = tables_left!(
        "topics", "logs", "doomed_logs", "batches", "compactions", "transactions",
        "transaction_keys", "staged_batches", "staged_offsets", "pins", "held_ids",
        "group_members", "group_offsets", "groups",
        "session_opens", "producer_states", "sessions", "doomed_topics", "dedup_keys"
    );
    PREPARED = r"select transaction_id from oncelog.transactions where tenant_id = $1 and state = 'prepared'
        order by transaction_id limit $2";
    LOCK_TOPIC = r"select topic_id, partition_count from oncelog.topics where tenant_id = $1
        order by topic_id limit 1 for no key update skip locked";
    /// Locks the heads of the journal and of the partitions from $3 on, as a deletion of the topic
    /// does.
    LOCK_LAST_LOGS = r"select log_id, partition from oncelog.logs
        where tenant_id = $1 and topic_id = $2 and (partition is null or partition >= $3)
        order by log_id for update";
    DROP_LOGS = "delete from oncelog.logs where tenant_id = $1 and log_id = any($2)";
    SHRINK = r"update oncelog.topics set partition_count = $3
        where tenant_id = $1 and topic_id = $2";
    /// Applies to the statements of this transaction, which are planned in it: they read the first
    /// rows in the order of a key instead of sorting all rows.
    READ_IN_ORDER = r"select set_config('enable_sort', 'off', true),
        set_config('enable_bitmapscan', 'off', true)";
    DROP_STAGED = drop_first!("staged_batches", "transaction_id, ordinal");
    DROP_STAGED_OFFSETS = drop_first!("staged_offsets", "transaction_id, group_name, log_id");
    DROP_PINS = drop_first!("pins", "transaction_id, log_id");
    DROP_HELD_IDS = drop_first!("held_ids", "topic_id, key");
    DROP_TRANSACTION_KEYS = drop_first!("transaction_keys", "key");
    /// Prepared transactions are aborted first.
    DROP_TRANSACTIONS = drop_first!("transactions", "transaction_id", " and state <> 'prepared'");
    DROP_MEMBERS = drop_first!("group_members", "group_name, member_id");
    DROP_OFFSETS = drop_first!("group_offsets", "group_name, log_id");
    /// Nobody can create a member or an offset in them meanwhile.
    LOCK_GROUPS = r"select name from oncelog.groups where tenant_id = $1
        order by tenant_id, name limit $2 for update skip locked";
    DROP_GROUPS = r"delete from oncelog.groups g where tenant_id = $1 and name = any($2)
        and not exists (select from oncelog.group_members where tenant_id = $1 and group_name = g.name)
        and not exists (select from oncelog.group_offsets where tenant_id = $1 and group_name = g.name)";
    DROP_OPENS = drop_first!("session_opens", "open_id");
    DROP_STATES = drop_first!("producer_states", "log_id, producer_id");
    /// No producer can register meanwhile.
    LOCK_SESSIONS = r"select producer_id from oncelog.sessions where tenant_id = $1
        order by tenant_id, producer_id limit $2 for update skip locked";
    DROP_SESSIONS = r"delete from oncelog.sessions s where tenant_id = $1 and producer_id = any($2)
        and not exists (select from oncelog.producer_states where tenant_id = $1 and producer_id = s.producer_id)";
    DROP_DOOMED_TOPICS = drop_first!("doomed_topics", "topic_id");
    /// Finds a slot that has keys of a tenant.
    SLOT = "select slot from oncelog.dedup_keys where tenant_id = $1 limit 1";
    /// Places are those in one partition.
    DROP_KEYS = r"delete from oncelog.dedup_keys
        where slot = $3 and (tenant_id = $1) is true and ctid = any (array(
            select ctid from oncelog.dedup_keys where slot = $3 and tenant_id = $1
            order by tenant_id, topic_id, key limit $2 for no key update skip locked))";
    DROP_BATCHES = drop_first!("batches", "log_id, base_offset");
    DROP_COMPACTIONS = drop_first!("compactions", "log_id");
    /// A tenant that was deleted at least $2 milliseconds ago. By then every row that refers to it,
    /// from requests in flight at the deletion, is visible.
    LOCK_TENANT = r"select name from oncelog.tenants
        where tenant_id = $1 and deleted_at <= now() - interval '1 millisecond' * $2::bigint
        for update skip locked";
    DROP_TENANT = r"with gone as (
            delete from oncelog.tenants where tenant_id = $1 returning name, deleted_at)
        insert into oncelog.tenant_tombstones (name, deleted_at)
        select name, deleted_at from gone on conflict (name) do nothing";
    /// Covers all tenants.
    DOOMED_TOPICS = "select tenant_id, topic_id from oncelog.doomed_topics order by doomed_at limit $1";
    LOCK_DOOMED_TOPIC = r"select topic_id from oncelog.doomed_topics
        where tenant_id = $1 and topic_id = $2 for no key update skip locked";
    /// The keys of the slot that is never truncated.
    DROP_TOPIC_KEYS = r"delete from oncelog.dedup_keys
        where slot = 18 and tenant_id = $1 and topic_id = $2 and key = any (array(
            select key from oncelog.dedup_keys where slot = 18 and tenant_id = $1 and topic_id = $2
            order by key limit $3))";
    DROP_DOOMED_TOPIC = "delete from oncelog.doomed_topics where tenant_id = $1 and topic_id = $2";
}

/// A table whose rows of a tenant are removed directly, not as part of a topic.
#[derive(Clone, Copy, Debug)]
pub struct Swept {
    pub table: &'static str,
    how: How,
    /// Usually removed together with their logs.
    pub with_logs: bool,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Rows(&'static str),
    Groups,
    Sessions,
    Keys,
}

const fn rows(table: &'static str, sql: &'static str) -> Swept {
    special(table, How::Rows(sql))
}

const fn of_logs(table: &'static str, sql: &'static str) -> Swept {
    Swept { with_logs: true, ..rows(table, sql) }
}

const fn special(table: &'static str, how: How) -> Swept {
    Swept { table, how, with_logs: false }
}

/// The order of removal: rows that refer to others before those.
pub const SWEPT: [Swept; 16] = [
    rows("staged_batches", DROP_STAGED),
    rows("staged_offsets", DROP_STAGED_OFFSETS),
    rows("pins", DROP_PINS),
    rows("held_ids", DROP_HELD_IDS),
    rows("transaction_keys", DROP_TRANSACTION_KEYS),
    rows("transactions", DROP_TRANSACTIONS),
    rows("group_members", DROP_MEMBERS),
    rows("group_offsets", DROP_OFFSETS),
    special("groups", How::Groups),
    rows("session_opens", DROP_OPENS),
    rows("producer_states", DROP_STATES),
    special("sessions", How::Sessions),
    rows("doomed_topics", DROP_DOOMED_TOPICS),
    special("dedup_keys", How::Keys),
    of_logs("compactions", DROP_COMPACTIONS),
    of_logs("batches", DROP_BATCHES),
];

/// Lists the deleted tenants after one, by id.
pub async fn deleted(conn: &mut Connection, after: TenantId, limit: i64) -> Result<Vec<TenantId>> {
    Ok(sqlx::query_scalar(DELETED).bind(after).bind(limit).fetch_all(conn).await?)
}

/// Lists the tables that still have rows of a tenant, except its own; call it in a transaction.
pub async fn left(conn: &mut Connection, tenant: TenantId) -> Result<Vec<String>> {
    execute(conn, sqlx::query(READ_IN_ORDER)).await?;
    Ok(sqlx::query_scalar(LEFT).bind(tenant).fetch_one(conn).await?)
}

/// Lists prepared transactions, up to a limit.
pub async fn prepared(conn: &mut Connection, tenant: TenantId, limit: i64) -> Result<Vec<Uuid>> {
    Ok(sqlx::query_scalar(PREPARED).bind(tenant).bind(limit).fetch_all(conn).await?)
}

/// Locks any topic that is not locked.
pub async fn lock_topic(
    conn: &mut Connection,
    tenant: TenantId,
) -> Result<Option<(TopicId, Partition)>> {
    Ok(sqlx::query_as(LOCK_TOPIC).bind(tenant).fetch_optional(conn).await?)
}

/// Locks the journal of a locked topic, and the heads of its partitions from a given one on, to
/// delete these.
pub async fn lock_last_logs(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
    from: Partition,
) -> Result<(Vec<LogId>, Vec<LogId>)> {
    let query = sqlx::query_as(LOCK_LAST_LOGS).bind(tenant).bind(topic).bind(from);
    let rows: Vec<(LogId, Option<Partition>)> = query.fetch_all(conn).await?;
    let (journal, last): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(_, p)| p.is_none());
    let ids = |rows: Vec<(LogId, _)>| rows.into_iter().map(|(log_id, _)| log_id).collect();
    Ok((ids(journal), ids(last)))
}

/// Deletes the last partitions of a locked topic, whose heads are locked; the janitor deletes their
/// rows later.
pub async fn shrink(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
    partition_count: Partition,
    last: &[LogId],
) -> Result<()> {
    topics::doom(conn, tenant, last).await?;
    execute(conn, sqlx::query(DROP_LOGS).bind(tenant).bind(last)).await?;
    execute(conn, sqlx::query(SHRINK).bind(tenant).bind(topic).bind(partition_count)).await
}

/// Removes a tenant's rows from a table, up to a limit; returns how many.
pub async fn sweep(
    conn: &mut Connection,
    tenant: TenantId,
    swept: Swept,
    chunk: i64,
) -> Result<u64> {
    execute(conn, sqlx::query(READ_IN_ORDER)).await?;
    let query = match swept.how {
        How::Rows(sql) => sqlx::query(sql).bind(tenant).bind(chunk),
        How::Groups => {
            let query = sqlx::query_scalar(LOCK_GROUPS).bind(tenant).bind(chunk);
            let names: Vec<String> = query.fetch_all(&mut *conn).await?;
            sqlx::query(DROP_GROUPS).bind(tenant).bind(names)
        }
        How::Sessions => {
            let query = sqlx::query_scalar(LOCK_SESSIONS).bind(tenant).bind(chunk);
            let ids: Vec<ProducerId> = query.fetch_all(&mut *conn).await?;
            sqlx::query(DROP_SESSIONS).bind(tenant).bind(ids)
        }
        How::Keys => {
            let query = sqlx::query_scalar(SLOT).bind(tenant);
            let slot: Option<i16> = query.fetch_optional(&mut *conn).await?;
            sqlx::query(DROP_KEYS).bind(tenant).bind(chunk).bind(slot)
        }
    };
    Ok(query.execute(conn).await?.rows_affected())
}

/// Locks a tenant that was deleted long enough ago, and returns its name. None if it is younger,
/// already removed, or locked.
pub async fn lock_tenant(
    conn: &mut Connection,
    tenant: TenantId,
    age_ms: i64,
) -> Result<Option<String>> {
    let query = sqlx::query_scalar(LOCK_TENANT).bind(tenant).bind(age_ms);
    Ok(query.fetch_optional(conn).await?)
}

/// Removes the locked row of a tenant without other data.
pub async fn drop_tenant(conn: &mut Connection, tenant: TenantId) -> Result<()> {
    execute(conn, sqlx::query(DROP_TENANT).bind(tenant)).await
}

/// A topic of some tenant.
pub type Doomed = (TenantId, TopicId);

/// Lists deleted topics with unexpiring keys to remove.
pub async fn doomed_topics(conn: &mut Connection, limit: i64) -> Result<Vec<Doomed>> {
    Ok(sqlx::query_as(DOOMED_TOPICS).bind(limit).fetch_all(conn).await?)
}

/// Removes one chunk of a deleted topic's unexpiring keys, unless another replica is working on it.
pub async fn remove_keys(
    conn: &mut Connection,
    (tenant, topic): Doomed,
    chunk: i64,
) -> Result<Chunk> {
    let query = sqlx::query(LOCK_DOOMED_TOPIC).bind(tenant).bind(topic);
    if query.fetch_optional(&mut *conn).await?.is_none() {
        return Ok(Chunk { rows: 0, more: false });
    }
    execute(conn, sqlx::query(READ_IN_ORDER)).await?;
    let query = sqlx::query(DROP_TOPIC_KEYS).bind(tenant).bind(topic).bind(chunk);
    let rows = query.execute(&mut *conn).await?.rows_affected();
    let more = rows == chunk.unsigned_abs();
    if !more {
        execute(conn, sqlx::query(DROP_DOOMED_TOPIC).bind(tenant).bind(topic)).await?;
    }
    Ok(Chunk { rows, more })
}
