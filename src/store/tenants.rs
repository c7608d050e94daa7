//! Tenants, by name, and their settings.

use sqlx::{PgConnection, types::Json};

use super::{Error, statements};
use crate::model::{
    Name, TenantId,
    settings::{Maxima, OwnSettings},
};

statements! {
    FIND = "select tenant_id from oncelog.tenants where name = $1";
    MAKE = "insert into oncelog.tenants (name) values ($1) on conflict (name) do nothing";
    READ = "select settings, maxima, settings_version from oncelog.tenants where tenant_id = $1";
    /// Changes of the settings, and creations of topics, which they limit, follow each other.
    LOCK = "select settings, maxima, settings_version from oncelog.tenants where tenant_id = $1 for no key update";
    UPDATE = "update oncelog.tenants set settings = $2, settings_version = settings_version + 1 where tenant_id = $1";
    TOPICS_CHANGED = "update oncelog.tenants set topics_version = topics_version + 1 where tenant_id = $1";
    PAGE = "select tenant_id, settings, maxima from oncelog.tenants where tenant_id > $1 order by tenant_id limit $2";
}

/// A tenant's own settings, and how often they were changed.
pub type Stored = (OwnSettings, i64);

/// The tenant of that name, made at its first use: whoever signs tokens says which tenants exist.
pub async fn find_or_make(connection: &mut PgConnection, name: &Name) -> Result<TenantId, Error> {
    loop {
        let found: Option<i64> =
            sqlx::query_scalar(FIND).bind(name.as_str()).fetch_optional(&mut *connection).await?;
        if let Some(tenant_id) = found {
            return Ok(TenantId(tenant_id));
        }
        sqlx::query(MAKE).bind(name.as_str()).execute(&mut *connection).await?;
    }
}

pub async fn settings(connection: &mut PgConnection, tenant: TenantId) -> Result<Stored, Error> {
    stored(connection, READ, tenant).await
}

/// Locks the tenant's row.
pub async fn lock(connection: &mut PgConnection, tenant: TenantId) -> Result<Stored, Error> {
    stored(connection, LOCK, tenant).await
}

async fn stored(
    connection: &mut PgConnection,
    sql: &'static str,
    tenant: TenantId,
) -> Result<Stored, Error> {
    let (values, maxima, version): (Json<OwnSettings>, Json<Maxima>, i64) =
        sqlx::query_as(sql).bind(tenant.0).fetch_one(connection).await?;
    Ok((OwnSettings { maxima: maxima.0, ..values.0 }, version))
}

/// Partitions were made, or are to be deleted: groups that subscribe to them are looked at again.
/// Locks the tenant's row.
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

/// Tenants behind one, by id, with their own settings.
pub async fn page(
    connection: &mut PgConnection,
    after: TenantId,
    limit: i64,
) -> Result<Vec<(TenantId, OwnSettings)>, Error> {
    let rows: Vec<(i64, Json<OwnSettings>, Json<Maxima>)> =
        sqlx::query_as(PAGE).bind(after.0).bind(limit).fetch_all(connection).await?;
    let own = |values: OwnSettings, maxima| OwnSettings { maxima, ..values };
    Ok(rows
        .into_iter()
        .map(|(id, values, maxima)| (TenantId(id), own(values.0, maxima.0)))
        .collect())
}
