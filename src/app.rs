//! The composition root: puts the parts together, serves, drains, stops.

use anyhow::{Context, bail};
use sqlx::ConnectOptions;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    config::Config,
    embedded::{DATABASE, Embedded},
};

/// Serves until SIGTERM or SIGINT, then stops in order.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    if config.database_url.is_some() {
        bail!("--database-url is not served yet");
    }
    let starting = tokio::task::spawn_blocking(move || Embedded::start(&config.data_dir, &[]));
    let mut embedded = starting.await.context("starting PostgreSQL panicked")??;
    let connection = embedded.connect_options(DATABASE).connect().await?;
    tracing::info!("ready");
    let outcome = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        reason = embedded.failed() => Err(anyhow::anyhow!(reason)),
    };
    drop(connection);
    tokio::task::spawn_blocking(move || embedded.stop()).await?;
    outcome
}
