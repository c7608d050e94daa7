//! Statements that measure the whole database for `/metrics`: what topics store, the sizes of
//! tables, and transactions that hold up vacuum. They read heads (`logs`) and the catalog, never
//! records, and lock nothing.

use std::collections::HashMap;

use sqlx::postgres::PgBindIterExt;

use crate::{
    model::{Name, TenantId},
    store::{Connection, Result, statements},
};

statements! {
    /// The tenants' names of those of the topics that exist, looked up one by one.
    TENANT_NAMES = r"select w.tenant_id, w.name, (
            select n.name from oncelog.tenants n where n.tenant_id = w.tenant_id)
        from unnest($1::bigint[], $2::text[]) as w (tenant_id, name)
        cross join lateral (
            select from oncelog.topics t
            where t.tenant_id = w.tenant_id and t.name = w.name offset 0) t";
    /// Covers all tenants, greatest first.
    STORED = r"with stored as materialized (
            select tenant_id, topic_id, sum(size_bytes)::bigint as size_bytes from oncelog.logs
            where partition is not null
            group by tenant_id, topic_id),
        ranked as materialized (
            select *, row_number() over (order by size_bytes desc, tenant_id, topic_id) as rank
            from stored)
        select n.name, t.name, r.size_bytes from ranked r
        join oncelog.tenants n on n.tenant_id = r.tenant_id
        join oncelog.topics t on t.tenant_id = r.tenant_id and t.topic_id = r.topic_id
        where r.rank <= $1
        union all
        -- Those beyond the limit, without names.
        select null, null, coalesce(sum(size_bytes), 0)::bigint from ranked where rank > $1";
    /// Tables with their indexes; those of the keys count as one.
    TABLES = r"select case when relname like 'dedup\_keys%' then 'dedup_keys' else relname::text end as name,
            coalesce(sum(pg_total_relation_size(oid)), 0)::bigint
        from pg_class where relnamespace = 'oncelog'::regnamespace and relkind = 'r'
        group by name";
    /// A role without pg_read_all_stats sees of other roles' sessions when a snapshot began only in
    /// transactions, not in time. Workers of autovacuum have no user, and hold nothing up.
    OLDEST_TRANSACTION = r"with sessions as materialized (
            select xact_start, backend_xid, backend_xmin from pg_stat_activity
            where coalesce(datname, current_database()) = current_database()
                and usesysid is not null),
        prepared as materialized (
            select prepared, transaction from pg_prepared_xacts where database = current_database())
        select coalesce(extract(epoch from clock_timestamp() - least(
                (select min(xact_start) from sessions), (select min(prepared) from prepared))), 0)::float8,
            greatest((select max(greatest(age(backend_xid), age(backend_xmin))) from sessions),
                (select max(age(transaction)) from prepared),
                (select max(greatest(age(xmin), age(catalog_xmin))) from pg_replication_slots), 0)::bigint";
}

/// The names of the tenants of topics; without those that do not exist.
pub async fn tenant_names(
    conn: &mut Connection,
    topics: &[(TenantId, Name)],
) -> Result<HashMap<(TenantId, Name), Name>> {
    let query = sqlx::query_as(TENANT_NAMES)
        .bind(topics.iter().map(|(tenant, _)| tenant).bind_iter())
        .bind(topics.iter().map(|(_, name)| name).bind_iter());
    let rows: Vec<(TenantId, Name, Name)> = query.fetch_all(conn).await?;
    Ok(rows.into_iter().map(|(tenant, topic, name)| ((tenant, topic), name)).collect())
}

/// What topics store.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Tenant, topic and bytes.
    pub greatest: Vec<(Name, Name, i64)>,
    pub others_bytes: i64,
}

/// The bytes of the topics of all tenants: the `limit` greatest, and the sum of the others.
pub async fn stored(conn: &mut Connection, limit: i64) -> Result<Stored> {
    let rows: Vec<(Option<Name>, Option<Name>, i64)> =
        sqlx::query_as(STORED).bind(limit).fetch_all(conn).await?;
    let mut stored = Stored::default();
    for row in rows {
        match row {
            (Some(tenant), Some(topic), bytes) => stored.greatest.push((tenant, topic, bytes)),
            (.., bytes) => stored.others_bytes = bytes,
        }
    }
    Ok(stored)
}

/// The tables with their bytes on disk.
pub async fn tables(conn: &mut Connection) -> Result<Vec<(String, i64)>> {
    Ok(sqlx::query_as(TABLES).fetch_all(conn).await?)
}

/// What keeps vacuum from removing rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OldestTransaction {
    pub age_seconds: f64,
    pub xmin_age_transactions: i64,
}

pub async fn oldest_transaction(conn: &mut Connection) -> Result<OldestTransaction> {
    let (age_seconds, xmin_age_transactions) =
        sqlx::query_as(OLDEST_TRANSACTION).fetch_one(conn).await?;
    Ok(OldestTransaction { age_seconds, xmin_age_transactions })
}
