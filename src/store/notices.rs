//! NOTIFY between replicas: a hint that logs have changed, never more. Where a pooler forbids LISTEN,
//! polling alone is enough.

use sqlx::{PgConnection, postgres::PgListener};

use super::{Error, Store, statements};

/// The channel; the database is the scope.
pub const CHANNEL: &str = "oncelog";

statements! {
    NOTIFY = "select pg_notify($1, $2)";
}

pub async fn notify(connection: &mut PgConnection, payload: &str) -> Result<(), Error> {
    sqlx::query(NOTIFY).bind(CHANNEL).bind(payload).execute(connection).await?;
    Ok(())
}

/// A listener with a connection of its own.
pub async fn listen(store: &Store) -> Result<PgListener, Error> {
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(store.options().clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}
