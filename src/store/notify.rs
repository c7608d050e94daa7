//! NOTIFY between replicas: a hint that logs have changed, never more. Behind a pooler that shares
//! connections nobody can listen, and polling alone is enough.

use sqlx::{PgConnection, postgres::PgListener};

use super::{Error, Store, route::Route, statements};

/// The channel; the database is the scope.
pub const CHANNEL: &str = "oncelog";

statements! {
    /// A notice is a transaction of its own, and nobody misses one that a crash has lost. The setting
    /// ends with it: behind a pooler the connection goes on to others.
    NOTIFY = "select pg_notify($1, $2), set_config('synchronous_commit', 'off', true)";
}

pub async fn notify(connection: &mut PgConnection, payload: &str) -> Result<(), Error> {
    sqlx::query(NOTIFY).bind(CHANNEL).bind(payload).execute(connection).await?;
    Ok(())
}

/// A listener with a connection of its own. None: a pooler shares connections, so there is nothing
/// to listen on, and a LISTEN would stay behind in somebody else's.
pub async fn listen(store: &Store) -> Result<Option<PgListener>, Error> {
    if store.route().await? == Route::Shared {
        return Ok(None);
    }
    let options = store.options().as_ref().clone();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(Some(listener))
}
