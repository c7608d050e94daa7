//! NOTIFY between replicas: a hint that logs have changed, never more. Where a pooler forbids LISTEN,
//! polling alone is enough.

use sqlx::{PgConnection, postgres::PgListener};

use super::{Error, Store, statements};

/// The channel; the database is the scope.
pub const CHANNEL: &str = "oncelog";

statements! {
    NOTIFY = "select pg_notify($1, $2)";
    /// A notice is a transaction of its own; nobody misses one that a crash has lost.
    NEVER_FLUSH = "select set_config('synchronous_commit', 'off', false)";
}

/// A connection for notices, and nothing else.
pub async fn connect(store: &Store) -> Result<PgConnection, Error> {
    let mut connection = store.connection().await?;
    sqlx::query(NEVER_FLUSH).execute(&mut connection).await?;
    Ok(connection)
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
