//! Tenants, by name.

use sqlx::PgConnection;

use super::{Error, statements};
use crate::model::{Name, TenantId};

statements! {
    FIND = "select tenant_id from oncelog.tenants where name = $1";
    MAKE = "insert into oncelog.tenants (name) values ($1) on conflict (name) do nothing";
}

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
