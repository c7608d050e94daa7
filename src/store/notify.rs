//! NOTIFY between replicas: only a hint that logs have changed. Behind a pooler with shared
//! connections nobody can listen, and polling alone suffices.

use sqlx::postgres::PgListener;

use super::{Connection, Result, Store, execute, statements};

/// The channel; its scope is the database.
pub const CHANNEL: &str = "oncelog";

statements! {
    /// A notification is a transaction of its own, and losing one in a crash is harmless. The
    /// setting ends with it, because behind a pooler other clients use the connection next.
    NOTIFY = "select pg_notify($1, $2), set_config('synchronous_commit', 'off', true)";
}

pub async fn notify(conn: &mut Connection, payload: &str) -> Result<()> {
    execute(conn, sqlx::query(NOTIFY).bind(CHANNEL).bind(payload)).await
}

/// A listener with its own connection; none where nobody can listen.
pub async fn listen(store: &Store) -> Result<Option<PgListener>> {
    let Some(options) = store.listen_options().await? else { return Ok(None) };
    let options = options.as_ref().clone();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(Some(listener))
}
