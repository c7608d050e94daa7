//! Statements on `topics` and their `logs`. They lock rows of topics by name, and heads by id.

use uuid::Uuid;

use crate::{
    model::{
        LogId, Name, Offset, Partition, TenantId, Timestamp, TopicId,
        settings::OwnSettings,
        topic::{PartitionDescription, TopicSummary},
    },
    store::{Connection, Error, Result, Server, durable, execute, statements},
};

/// The logs of a topic, by id: the order in which they are locked.
macro_rules! logs_of_topic {
    () => {
        "select log_id from oncelog.logs where tenant_id = $1 and topic_id = $2 "
    };
}

statements! {
    FIND = r"select t.topic_id, t.partition_count, t.settings, t.created_at,
            array_agg(l.log_id order by coalesce(l.partition, -1)), pg_postmaster_start_time()
        from oncelog.topics t join oncelog.logs l on l.tenant_id = $1 and l.topic_id = t.topic_id
        where t.tenant_id = $1 and t.name = $2
        group by t.tenant_id, t.topic_id";
    LOCK = r"select topic_id, partition_count, settings from oncelog.topics
        where tenant_id = $1 and name = $2 for no key update";
    COUNT = r"select count(*), coalesce(sum(partition_count), 0)::bigint from oncelog.topics
        where tenant_id = $1";
    INSERT = r"insert into oncelog.topics (tenant_id, name, partition_count, settings)
        values ($1, $2, $3, $4)
        returning topic_id";
    ADD_JOURNAL = "insert into oncelog.logs (tenant_id, topic_id) values ($1, $2)";
    ADD_PARTITIONS = r"insert into oncelog.logs (tenant_id, topic_id, partition)
        select $1, $2, generate_series($3::integer, $4::integer - 1)";
    UPDATE = r"update oncelog.topics set partition_count = $3, settings = $4
        where tenant_id = $1 and topic_id = $2";
    LOG_IDS = concat!(logs_of_topic!(), "order by log_id");
    /// Locks `for update`, which conflicts with the key share that a prepare holds, and in the
    /// order in which everybody locks heads. No foreign key refers to heads, so nothing else holds
    /// a key share.
    LOCK_LOGS = concat!(logs_of_topic!(), "order by log_id for update");
    PINNED_BY = r"select transaction_id from oncelog.pins where tenant_id = $1 and log_id = any($2)
        order by transaction_id limit 1";
    DOOM_LOGS = "insert into oncelog.doomed_logs (tenant_id, log_id) select $1, unnest($2::bigint[])";
    /// Keys without an expiry, if there may be any (the bit of the last ring): all others expire
    /// with their ring's partitions.
    DOOM_KEYS = r"insert into oncelog.doomed_topics (tenant_id, topic_id)
        select $1, topic_id from oncelog.logs
        where tenant_id = $1 and topic_id = $2 and coalesce(partition, -1) = -1 and key_rings & 64 <> 0";
    DELETE_LOGS = "delete from oncelog.logs where tenant_id = $1 and topic_id = $2";
    DELETE = "delete from oncelog.topics where tenant_id = $1 and topic_id = $2";
    LIST = r"select name, partition_count, settings, created_at from oncelog.topics
        where tenant_id = $1 and name > $2 order by name limit $3";
    /// In a compacted partition, the records that the last round left, plus those appended since.
    PARTITIONS = r"select l.partition, l.log_start_offset, l.next_offset, l.size_bytes,
            least(l.next_offset - l.log_start_offset, l.next_offset - c.cleaned_offset + c.left_records)
        from oncelog.logs l left join lateral (
            select cleaned_offset, left_records from oncelog.compactions
            where tenant_id = $1 and log_id = l.log_id offset 0) c on true
        where l.tenant_id = $1 and l.topic_id = $2 and l.partition is not null
        order by l.partition";
    /// The log start only grows and stays within the log.
    TRIM = concat!(
        r"update oncelog.logs set log_start_offset = greatest(log_start_offset, least($3, next_offset))
        where ", durable!(), " and tenant_id = $1 and log_id = $2"
    );
}

/// A topic with the ids of its logs.
#[derive(Clone, Debug)]
pub struct StoredTopic {
    pub topic_id: TopicId,
    pub summary: TopicSummary,
    pub journal: LogId,
    /// The log of each partition, in order.
    pub logs: Vec<LogId>,
    /// The server on which the topic was read.
    pub server: Server,
}

pub async fn find(
    conn: &mut Connection,
    tenant: TenantId,
    name: &Name,
) -> Result<Option<StoredTopic>> {
    type Found = (TopicId, Partition, OwnSettings, Timestamp, Vec<LogId>, Server);
    let found: Option<Found> =
        sqlx::query_as(FIND).bind(tenant).bind(name).fetch_optional(conn).await?;
    let Some((topic_id, partition_count, settings, created_at, log_ids, server)) = found else {
        return Ok(None);
    };
    let mut log_ids = log_ids.into_iter();
    let journal = log_ids.next().ok_or_else(|| Error::Unexpected("a topic without logs".into()))?;
    let summary = TopicSummary { topic: name.clone(), partition_count, settings, created_at };
    Ok(Some(StoredTopic { topic_id, summary, journal, logs: log_ids.collect(), server }))
}

/// Locks a topic's row; none if the topic does not exist.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    name: &Name,
) -> Result<Option<(TopicId, Partition, OwnSettings)>> {
    Ok(sqlx::query_as(LOCK).bind(tenant).bind(name).fetch_optional(conn).await?)
}

/// Counts topics and partitions; the tenant's row must be locked.
pub async fn counts(conn: &mut Connection, tenant: TenantId) -> Result<(i64, i64)> {
    Ok(sqlx::query_as(COUNT).bind(tenant).fetch_one(conn).await?)
}

pub async fn insert(
    conn: &mut Connection,
    tenant: TenantId,
    name: &Name,
    partition_count: Partition,
    settings: &OwnSettings,
) -> Result<()> {
    let query = sqlx::query_scalar(INSERT).bind(tenant).bind(name);
    let query = query.bind(partition_count).bind(settings);
    let topic: TopicId = query.fetch_one(&mut *conn).await?;
    execute(conn, sqlx::query(ADD_JOURNAL).bind(tenant).bind(topic)).await?;
    add_partitions(conn, tenant, topic, 0, partition_count).await
}

/// Adds the logs of partitions `from` to `to` - 1.
pub async fn add_partitions(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
    from: Partition,
    to: Partition,
) -> Result<()> {
    let query = sqlx::query(ADD_PARTITIONS).bind(tenant).bind(topic).bind(from).bind(to);
    execute(conn, query).await
}

pub async fn update(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
    partition_count: Partition,
    settings: &OwnSettings,
) -> Result<()> {
    let query = sqlx::query(UPDATE).bind(tenant).bind(topic);
    execute(conn, query.bind(partition_count).bind(settings)).await
}

/// The logs of a topic, by id: the order in which they are locked.
pub async fn log_ids(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
) -> Result<Vec<LogId>> {
    Ok(sqlx::query_scalar(LOG_IDS).bind(tenant).bind(topic).fetch_all(conn).await?)
}

/// Locks the heads of a topic to delete them, in the order of their ids.
pub async fn lock_logs(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
) -> Result<Vec<LogId>> {
    Ok(sqlx::query_scalar(LOCK_LOGS).bind(tenant).bind(topic).fetch_all(conn).await?)
}

/// Finds a prepared transaction that pins one of these logs; their heads must be locked.
pub async fn pinned_by(
    conn: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Option<Uuid>> {
    Ok(sqlx::query_scalar(PINNED_BY).bind(tenant).bind(logs).fetch_optional(conn).await?)
}

/// Deletes a topic and its heads, which must be locked; the janitor deletes its rows later.
pub async fn delete(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
    logs: &[LogId],
) -> Result<()> {
    doom(conn, tenant, logs).await?;
    for sql in [DOOM_KEYS, DELETE_LOGS, DELETE] {
        execute(conn, sqlx::query(sql).bind(tenant).bind(topic)).await?;
    }
    Ok(())
}

/// Queues the rows of deleted logs for the janitor.
pub async fn doom(conn: &mut Connection, tenant: TenantId, logs: &[LogId]) -> Result<()> {
    execute(conn, sqlx::query(DOOM_LOGS).bind(tenant).bind(logs)).await
}

/// Lists the topics after a name, by name.
pub async fn list(
    conn: &mut Connection,
    tenant: TenantId,
    after: &str,
    limit: i64,
) -> Result<Vec<TopicSummary>> {
    let query = sqlx::query_as(LIST).bind(tenant).bind(after).bind(limit);
    let rows: Vec<(Name, Partition, OwnSettings, Timestamp)> = query.fetch_all(conn).await?;
    let topics = rows.into_iter().map(|(topic, partition_count, settings, created_at)| {
        TopicSummary { topic, partition_count, settings, created_at }
    });
    Ok(topics.collect())
}

pub async fn partitions(
    conn: &mut Connection,
    tenant: TenantId,
    topic: TopicId,
) -> Result<Vec<PartitionDescription>> {
    let rows: Vec<(Partition, Offset, Offset, i64, i64)> =
        sqlx::query_as(PARTITIONS).bind(tenant).bind(topic).fetch_all(conn).await?;
    let describe = |(partition, log_start_offset, high_watermark, size_bytes, record_count)| {
        PartitionDescription {
            partition,
            log_start_offset,
            high_watermark,
            record_count,
            size_bytes,
        }
    };
    Ok(rows.into_iter().map(describe).collect())
}

/// Advances the log start; false if the log no longer exists.
pub async fn trim(
    conn: &mut Connection,
    tenant: TenantId,
    log: LogId,
    before: Offset,
) -> Result<bool> {
    let query = sqlx::query(TRIM).bind(tenant).bind(log).bind(before);
    Ok(query.execute(conn).await?.rows_affected() == 1)
}
