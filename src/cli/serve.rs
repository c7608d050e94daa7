//! `oncelog serve` runs the server.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use anyhow::Context;

use crate::{
    app,
    config::{Config, Flags},
    telemetry,
};

pub(super) const EXAMPLE: &str = "\
Each setting can also be given in the environment or in the TOML file, where its name is that of
the flag with `_` for `-`. A flag overrides the environment, which overrides the file; `oncelog
config` prints the result. Times and sizes may have a unit (`30s`, `64MiB`); without one they are
milliseconds and bytes. On SIGTERM or Ctrl-C it answers the requests in flight, then exits.

Examples:
  oncelog serve
  oncelog serve --listen 127.0.0.1:9000 --data-dir /var/lib/oncelog
  DATABASE_URL=postgres://oncelog@db.example/oncelog \\
    ONCELOG_TOKEN_JWKS_FILE=/etc/oncelog/jwks.json oncelog serve --listen 0.0.0.0:8080";

pub(super) fn run(flags: &Flags) -> anyhow::Result<()> {
    let config = Config::load(flags)?;
    let audit = config.audit_log_file.as_deref().map(audit_file).transpose()?;
    telemetry::start_logging(config.log_format, config.log_level, audit);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .thread_name("oncelog")
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(app::serve(config))
}

/// Opens the file of the audit log to append to it; a new one is its owner's alone.
fn audit_file(path: &Path) -> anyhow::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    file.with_context(|| format!("cannot open audit_log_file {}", path.display()))
}
