//! Flags and limits that the administrative commands share.

use std::time::Duration;

use clap::Args;

use super::client::ServerFlags;
use crate::model::Name;

/// How long these commands retry: a person waits for them.
pub const PATIENCE: Duration = Duration::from_secs(5);

pub const OUTPUT: &str = "\
On a terminal the output is a table; piped, or with --json, it is JSON, one object per line.";

#[derive(Args)]
pub struct Common {
    /// Print JSON, one object per line, also on a terminal
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerFlags,
}

/// Parses a name; an invalid one is a usage error before any request is sent.
pub fn name(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(str::to_owned)
}
