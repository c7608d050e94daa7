//! Whether the database answers, for probes.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sqlx::PgConnection;
use tokio::time::timeout;

use super::{Error, Store, error::Cause, statements};

/// The maximum duration of a ping, which may include a connect.
const TIMEOUT: Duration = Duration::from_secs(5);

statements! {
    PING = "select 1";
}

/// A connection that other work neither waits for nor keeps busy.
#[derive(Debug, Default)]
pub struct Probe {
    /// None while a ping is under way.
    kept: Mutex<Option<PgConnection>>,
}

impl Probe {
    /// Ok if the database answers. A kept connection may have died; then a new one is asked.
    pub async fn ping(&self, store: &Store) -> Result<(), Error> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        let asked = timeout(TIMEOUT, async {
            if let Some(mut connection) = kept
                && ask(&mut connection).await.is_ok()
            {
                return Ok(connection);
            }
            let mut connection = store.connection().await?;
            ask(&mut connection).await?;
            Ok(connection)
        });
        let asked = asked.await.unwrap_or(Err(Error::Unavailable(Cause::SilentPeer)))?;
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked);
        Ok(())
    }
}

async fn ask(connection: &mut PgConnection) -> Result<(), Error> {
    sqlx::query(PING).execute(connection).await?;
    Ok(())
}
