//! `oncelog serve`.

use anyhow::Context;

use crate::{
    app,
    config::{Config, Flags},
    telemetry,
};

pub(super) fn run(flags: &Flags) -> anyhow::Result<()> {
    let config = Config::load(flags)?;
    telemetry::start_logging(config.log_format, config.log_level);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .thread_name("oncelog")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(app::serve(config))
}
