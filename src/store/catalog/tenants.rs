//! Statements on tenants: their settings, and what an operator has set for them.

use sqlx::{PgConnection, types::Json};

use super::topics::stored_name;
use crate::{
    model::{
        Name, TenantId,
        settings::{Maxima, OwnSettings},
        tenant::Tenant,
    },
    store::{Error, Instant, statements},
};

statements! {
    FIND = "select tenant_id from oncelog.tenants where name = $1";
    MAKE = "insert into oncelog.tenants (name) values ($1) on conflict (name) do nothing";
    SETTINGS = "select settings, maxima, settings_version from oncelog.tenants where tenant_id = $1";
    READ = r"select tenant_id, name, created_at, settings, maxima, settings_version, suspended_at, deleted_at
        from oncelog.tenants where tenant_id = $1";
    READ_NAMED = r"select tenant_id, name, created_at, settings, maxima, settings_version, suspended_at, deleted_at
        from oncelog.tenants where name = $1";
    LIST = r"select tenant_id, name, created_at, settings, maxima, settings_version, suspended_at, deleted_at
        from oncelog.tenants where name > $1 order by name limit $2";
    /// Serialises changes of settings with creations of topics, which the settings limit.
    LOCK = r"select tenant_id, name, created_at, settings, maxima, settings_version, suspended_at, deleted_at
        from oncelog.tenants where tenant_id = $1 for no key update";
    LOCK_NAMED = r"select tenant_id, name, created_at, settings, maxima, settings_version, suspended_at, deleted_at
        from oncelog.tenants where name = $1 for no key update";
    UPDATE = "update oncelog.tenants set settings = $2, settings_version = settings_version + 1 where tenant_id = $1";
    OPERATE = r"update oncelog.tenants set maxima = $2, suspended_at = case when $3 then coalesce(suspended_at, now()) end,
            settings_version = settings_version + 1 where tenant_id = $1";
    DELETE = "update oncelog.tenants set deleted_at = now(), settings_version = settings_version + 1 where tenant_id = $1";
    TOPICS_CHANGED = "update oncelog.tenants set topics_version = topics_version + 1 where tenant_id = $1";
    PAGE = "select tenant_id, settings, maxima from oncelog.tenants where tenant_id > $1 order by tenant_id limit $2";
    COUNT = r"select count(*) filter (where suspended_at is null and deleted_at is null),
            count(*) filter (where suspended_at is not null and deleted_at is null),
            count(*) filter (where deleted_at is not null) from oncelog.tenants";
}

/// A tenant's own settings, and their version.
pub type StoredSettings = (OwnSettings, i64);

type TenantColumns =
    (i64, String, Instant, Json<OwnSettings>, Json<Maxima>, i64, Option<Instant>, Option<Instant>);

fn tenant(row: TenantColumns) -> Result<(TenantId, Tenant), Error> {
    let (id, name, created_at, values, maxima, version, suspended_at, deleted_at) = row;
    let tenant = Tenant {
        name: stored_name(&name)?,
        created_at: created_at.into(),
        settings: OwnSettings { maxima: maxima.0, ..values.0 },
        version,
        suspended_at: suspended_at.map(Into::into),
        deleted_at: deleted_at.map(Into::into),
    };
    Ok((TenantId(id), tenant))
}

/// Finds the tenant of that name, or creates it: whoever signs tokens decides which tenants exist.
pub async fn find_or_make(connection: &mut PgConnection, name: &Name) -> Result<TenantId, Error> {
    loop {
        let found: Option<i64> =
            sqlx::query_scalar(FIND).bind(name.as_str()).fetch_optional(&mut *connection).await?;
        if let Some(tenant_id) = found {
            return Ok(TenantId(tenant_id));
        }
        make(connection, name).await?;
    }
}

/// Creates a tenant; false if it exists.
pub async fn make(connection: &mut PgConnection, name: &Name) -> Result<bool, Error> {
    let made = sqlx::query(MAKE).bind(name.as_str()).execute(connection).await?;
    Ok(made.rows_affected() == 1)
}

pub async fn settings(
    connection: &mut PgConnection,
    tenant: TenantId,
) -> Result<StoredSettings, Error> {
    let (values, maxima, version): (Json<OwnSettings>, Json<Maxima>, i64) =
        sqlx::query_as(SETTINGS).bind(tenant.0).fetch_one(connection).await?;
    Ok((OwnSettings { maxima: maxima.0, ..values.0 }, version))
}

/// None if the tenant has been removed.
pub async fn read(connection: &mut PgConnection, id: TenantId) -> Result<Option<Tenant>, Error> {
    let row: Option<TenantColumns> =
        sqlx::query_as(READ).bind(id.0).fetch_optional(connection).await?;
    Ok(row.map(tenant).transpose()?.map(|(_, tenant)| tenant))
}

pub async fn read_named(
    connection: &mut PgConnection,
    name: &Name,
) -> Result<Option<(TenantId, Tenant)>, Error> {
    let query = sqlx::query_as(READ_NAMED).bind(name.as_str());
    query.fetch_optional(connection).await?.map(tenant).transpose()
}

/// Locks the tenant's row. None if the tenant has been removed.
pub async fn lock(connection: &mut PgConnection, id: TenantId) -> Result<Option<Tenant>, Error> {
    let row: Option<TenantColumns> =
        sqlx::query_as(LOCK).bind(id.0).fetch_optional(connection).await?;
    Ok(row.map(tenant).transpose()?.map(|(_, tenant)| tenant))
}

/// Locks the tenant's row.
pub async fn lock_named(
    connection: &mut PgConnection,
    name: &Name,
) -> Result<Option<(TenantId, Tenant)>, Error> {
    let query = sqlx::query_as(LOCK_NAMED).bind(name.as_str());
    query.fetch_optional(connection).await?.map(tenant).transpose()
}

/// Lists the tenants after a name, by name.
pub async fn list(
    connection: &mut PgConnection,
    after: &str,
    limit: i64,
) -> Result<Vec<Tenant>, Error> {
    let rows: Vec<TenantColumns> =
        sqlx::query_as(LIST).bind(after).bind(limit).fetch_all(connection).await?;
    rows.into_iter().map(|row| Ok(tenant(row)?.1)).collect()
}

/// Notes that partitions were created or deleted, so that groups which subscribe to them are
/// reassigned. Locks the tenant's row.
pub async fn topics_changed(connection: &mut PgConnection, tenant: TenantId) -> Result<(), Error> {
    sqlx::query(TOPICS_CHANGED).bind(tenant.0).execute(connection).await?;
    Ok(())
}

/// Writes the settings of a locked tenant.
pub async fn update(
    connection: &mut PgConnection,
    tenant: TenantId,
    settings: &OwnSettings,
) -> Result<(), Error> {
    sqlx::query(UPDATE).bind(tenant.0).bind(Json(settings)).execute(connection).await?;
    Ok(())
}

/// Writes an operator's settings of a locked tenant.
pub async fn operate(
    connection: &mut PgConnection,
    tenant: TenantId,
    maxima: &Maxima,
    suspended: bool,
) -> Result<(), Error> {
    let query = sqlx::query(OPERATE).bind(tenant.0).bind(Json(maxima)).bind(suspended);
    query.execute(connection).await?;
    Ok(())
}

/// Marks a locked tenant as deleted; the janitor removes its data.
pub async fn delete(connection: &mut PgConnection, tenant: TenantId) -> Result<(), Error> {
    sqlx::query(DELETE).bind(tenant.0).execute(connection).await?;
    Ok(())
}

/// Lists the tenants after one, by id, with their own settings.
pub async fn page(
    connection: &mut PgConnection,
    after: TenantId,
    limit: i64,
) -> Result<Vec<(TenantId, OwnSettings)>, Error> {
    let rows: Vec<(i64, Json<OwnSettings>, Json<Maxima>)> =
        sqlx::query_as(PAGE).bind(after.0).bind(limit).fetch_all(connection).await?;
    let tenant = |(id, values, maxima): (i64, Json<OwnSettings>, Json<Maxima>)| {
        (TenantId(id), OwnSettings { maxima: maxima.0, ..values.0 })
    };
    Ok(rows.into_iter().map(tenant).collect())
}

/// Counts the tenants that are active, suspended and being deleted.
pub async fn count(connection: &mut PgConnection) -> Result<(i64, i64, i64), Error> {
    Ok(sqlx::query_as(COUNT).fetch_one(connection).await?)
}
