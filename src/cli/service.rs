//! Commands that need no running server: `migrate`, `config`, `openapi`, `completions`.

use std::{
    io::{IsTerminal, stdout},
    path::PathBuf,
};

use anyhow::{Context, bail};
use clap::Args;
use secrecy::SecretString;

use super::{block_on, output::print};
use crate::{
    app,
    config::{self, Config},
    http, telemetry,
};

pub(super) const MIGRATE_EXAMPLE: &str = "\
It is safe to repeat, and to run while servers are running. `serve` does the same at startup.

Example:
  oncelog migrate --database-url postgres://oncelog@db.example/oncelog";

pub(super) const CONFIG_EXAMPLE: &str = "\
The output is a valid configuration file with all keys; secrets are replaced by ***. On a terminal
times and sizes have units; piped, they are milliseconds and bytes.

Example:
  ONCELOG_LANES=2 oncelog config --listen 127.0.0.1:9000 | grep -v default$";

pub(super) const OPENAPI_EXAMPLE: &str = "\
The same document that a server serves at /openapi.json.

Example:
  oncelog openapi > openapi.json";

pub(super) const COMPLETIONS_EXAMPLE: &str = "\
Example:
  oncelog completions bash > /etc/bash_completion.d/oncelog";

#[derive(Args)]
pub(super) struct MigrateFlags {
    /// TOML configuration file [env: ONCELOG_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// URL of the database [env: DATABASE_URL or ONCELOG_DATABASE_URL]
    #[arg(long, value_name = "URL")]
    database_url: Option<SecretString>,
}

pub(super) fn migrate(given: MigrateFlags) -> anyhow::Result<()> {
    let flags = config::Flags::of(given.config, [("database_url", given.database_url)]);
    let config = Config::read(&flags)?;
    let Some(url) = &config.database_url else {
        bail!(
            "no database to migrate: give --database-url or set DATABASE_URL. Without one, \
             `oncelog serve` migrates its own PostgreSQL when it starts"
        );
    };
    telemetry::start_logging(config.log_format, config.log_level, None);
    block_on(app::migrate_only(url))?;
    print(b"the schema is up to date\n")
}

pub(super) fn config(flags: &config::Flags) -> anyhow::Result<()> {
    let config = Config::load(flags)?;
    let text = if stdout().is_terminal() { format!("{config:#}") } else { config.to_string() };
    print(text.as_bytes())
}

pub(super) fn openapi() -> anyhow::Result<()> {
    let document = http::openapi().to_pretty_json().context("cannot write the document")?;
    print(format!("{document}\n").as_bytes())
}

pub(super) fn completions(
    shell: clap_complete::Shell,
    mut command: clap::Command,
) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "oncelog", &mut script);
    print(&script)
}
