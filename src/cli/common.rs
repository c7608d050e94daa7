//! What commands that show or change something have in common.

use std::time::Duration;

use clap::Args;

use super::client::ServerFlags;
use crate::model::Name;

/// A person waits for these.
pub const PATIENCE: Duration = Duration::from_secs(5);

pub const OUTPUT: &str = "\
On a terminal the output is a table; piped, or with --json, it is JSON, one object a line.";

#[derive(Args)]
pub struct Common {
    /// JSON, one object a line, also on a terminal
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerFlags,
}

/// A legal name; others are wrong usage before any server is asked.
pub fn name(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(str::to_owned)
}
