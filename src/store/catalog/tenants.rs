//! Statements on `tenants`: their settings, and what an operator has set for them. Their rows are
//! the first in the order of locks.

use sqlx::{FromRow, Row, postgres::PgRow};

use crate::{
    model::{
        Name, TenantId,
        settings::{Maxima, OwnSettings},
        tenant::{Tenant, revocation::Revocations},
    },
    store::{Connection, Result, execute, statements},
};

macro_rules! tenants {
    ($which:literal) => {
        tenants!("revocations", $which)
    };
    ($revocations:literal, $which:literal) => {
        concat!(
            "select tenant_id, name, created_at, settings, maxima, settings_version, suspended_at, \
                deleted_at, ",
            $revocations,
            " from oncelog.tenants where ",
            $which
        )
    };
}

statements! {
    FIND = "select tenant_id from oncelog.tenants where name = $1";
    MAKE = "insert into oncelog.tenants (name, maxima) values ($1, $2) on conflict (name) do nothing";
    /// Serializes those who count tenants.
    HOLD = "select pg_advisory_xact_lock(hashtext('oncelog'), hashtext('tenants'))";
    COUNT_UP_TO = "select count(*) from (select from oncelog.tenants limit $1) t";
    HAS_TOMBSTONE = "select exists (select from oncelog.tenant_tombstones where name = $1)";
    DROP_TOMBSTONE = "delete from oncelog.tenant_tombstones where name = $1";
    SETTINGS = r"select settings, maxima, settings_version from oncelog.tenants
        where tenant_id = $1";
    READ = tenants!("tenant_id = $1");
    READ_NAMED = tenants!("name = $1");
    /// Nobody lists the revocations of all.
    LIST = tenants!("'[]'::jsonb as revocations", "name > $1 order by name limit $2");
    /// Serialises changes of settings with creations of topics, which the settings limit.
    LOCK = tenants!("tenant_id = $1 for no key update");
    LOCK_NAMED = tenants!("name = $1 for no key update");
    UPDATE = r"update oncelog.tenants set settings = $2, settings_version = settings_version + 1
        where tenant_id = $1";
    OPERATE = r"update oncelog.tenants
        set maxima = $2, suspended_at = case when $3 then coalesce(suspended_at, now()) end,
            settings_version = settings_version + 1
        where tenant_id = $1";
    REVOKE = r"update oncelog.tenants
        set revocations = $2, settings_version = settings_version + 1
        where tenant_id = $1";
    DELETE = r"update oncelog.tenants set deleted_at = now(), settings_version = settings_version + 1
        where tenant_id = $1";
    TOPICS_CHANGED = r"update oncelog.tenants set topics_version = topics_version + 1
        where tenant_id = $1";
    PAGE = r"select tenant_id, settings, maxima from oncelog.tenants where tenant_id > $1
        order by tenant_id limit $2";
    COUNT = r"select count(*) filter (where suspended_at is null and deleted_at is null),
            count(*) filter (where suspended_at is not null and deleted_at is null),
            count(*) filter (where deleted_at is not null)
        from oncelog.tenants";
}

/// A tenant's own settings, and their version.
pub type StoredSettings = (OwnSettings, i64);

/// The settings of a row: the operator's maxima have a column of their own.
fn settings_of(row: &PgRow) -> Result<OwnSettings, sqlx::Error> {
    Ok(OwnSettings { maxima: row.try_get("maxima")?, ..row.try_get("settings")? })
}

impl FromRow<'_, PgRow> for Tenant {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Tenant {
            name: row.try_get("name")?,
            created_at: row.try_get("created_at")?,
            settings: settings_of(row)?,
            revocations: row.try_get("revocations")?,
            version: row.try_get("settings_version")?,
            suspended_at: row.try_get("suspended_at")?,
            deleted_at: row.try_get("deleted_at")?,
        })
    }
}

pub async fn find(conn: &mut Connection, name: &Name) -> Result<Option<TenantId>> {
    Ok(sqlx::query_scalar(FIND).bind(name).fetch_optional(conn).await?)
}

/// Creates a tenant with these maxima; false if it exists.
pub async fn make(conn: &mut Connection, name: &Name, maxima: &Maxima) -> Result<bool> {
    let made = sqlx::query(MAKE).bind(name).bind(maxima).execute(conn).await?;
    Ok(made.rows_affected() == 1)
}

/// Counts all tenants, those that are being deleted among them, up to a number. Until the end of
/// the transaction nobody else does.
pub async fn count_up_to(conn: &mut Connection, most: i64) -> Result<i64> {
    execute(conn, sqlx::query(HOLD)).await?;
    Ok(sqlx::query_scalar(COUNT_UP_TO).bind(most).fetch_one(conn).await?)
}

/// Whether a tenant of that name was deleted, and no operator has created it again.
pub async fn has_tombstone(conn: &mut Connection, name: &Name) -> Result<bool> {
    Ok(sqlx::query_scalar(HAS_TOMBSTONE).bind(name).fetch_one(conn).await?)
}

/// Lets the name of a deleted tenant be used again.
pub async fn drop_tombstone(conn: &mut Connection, name: &Name) -> Result<()> {
    execute(conn, sqlx::query(DROP_TOMBSTONE).bind(name)).await
}

pub async fn settings(conn: &mut Connection, tenant: TenantId) -> Result<StoredSettings> {
    let row = sqlx::query(SETTINGS).bind(tenant).fetch_one(conn).await?;
    Ok((settings_of(&row)?, row.try_get("settings_version")?))
}

/// None if the tenant has been removed.
pub async fn read(conn: &mut Connection, id: TenantId) -> Result<Option<Tenant>> {
    Ok(sqlx::query_as(READ).bind(id).fetch_optional(conn).await?)
}

pub async fn read_named(conn: &mut Connection, name: &Name) -> Result<Option<(TenantId, Tenant)>> {
    named(conn, READ_NAMED, name).await
}

/// Locks the tenant's row. None if the tenant has been removed.
pub async fn lock(conn: &mut Connection, id: TenantId) -> Result<Option<Tenant>> {
    Ok(sqlx::query_as(LOCK).bind(id).fetch_optional(conn).await?)
}

/// Locks the tenant's row.
pub async fn lock_named(conn: &mut Connection, name: &Name) -> Result<Option<(TenantId, Tenant)>> {
    named(conn, LOCK_NAMED, name).await
}

async fn named(
    conn: &mut Connection,
    sql: &'static str,
    name: &Name,
) -> Result<Option<(TenantId, Tenant)>> {
    let row = sqlx::query(sql).bind(name).fetch_optional(conn).await?;
    row.map(|row| Ok((row.try_get("tenant_id")?, Tenant::from_row(&row)?))).transpose()
}

/// Lists the tenants after a name, by name.
pub async fn list(conn: &mut Connection, after: &str, limit: i64) -> Result<Vec<Tenant>> {
    Ok(sqlx::query_as(LIST).bind(after).bind(limit).fetch_all(conn).await?)
}

/// Notes that partitions were created or deleted, so that groups which subscribe to them are
/// reassigned. Locks the tenant's row.
pub async fn topics_changed(conn: &mut Connection, tenant: TenantId) -> Result<()> {
    execute(conn, sqlx::query(TOPICS_CHANGED).bind(tenant)).await
}

/// Writes the settings of a locked tenant.
pub async fn update(conn: &mut Connection, tenant: TenantId, settings: &OwnSettings) -> Result<()> {
    execute(conn, sqlx::query(UPDATE).bind(tenant).bind(settings)).await
}

/// Writes an operator's settings of a locked tenant.
pub async fn operate(
    conn: &mut Connection,
    tenant: TenantId,
    maxima: &Maxima,
    suspended: bool,
) -> Result<()> {
    execute(conn, sqlx::query(OPERATE).bind(tenant).bind(maxima).bind(suspended)).await
}

/// Writes the revocations of a locked tenant.
pub async fn revoke(
    conn: &mut Connection,
    tenant: TenantId,
    revocations: &Revocations,
) -> Result<()> {
    execute(conn, sqlx::query(REVOKE).bind(tenant).bind(revocations)).await
}

/// Marks a locked tenant as deleted; the janitor removes its data.
pub async fn delete(conn: &mut Connection, tenant: TenantId) -> Result<()> {
    execute(conn, sqlx::query(DELETE).bind(tenant)).await
}

/// Lists the tenants after one, by id, with their own settings.
pub async fn page(
    conn: &mut Connection,
    after: TenantId,
    limit: i64,
) -> Result<Vec<(TenantId, OwnSettings)>> {
    let rows = sqlx::query(PAGE).bind(after).bind(limit).fetch_all(conn).await?;
    rows.iter().map(|row| Ok((row.try_get("tenant_id")?, settings_of(row)?))).collect()
}

/// Counts the tenants that are active, suspended and being deleted.
pub async fn count(conn: &mut Connection) -> Result<(i64, i64, i64)> {
    Ok(sqlx::query_as(COUNT).fetch_one(conn).await?)
}
