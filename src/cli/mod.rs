//! The command line.

use clap::{Parser, Subcommand};

use crate::config::Flags;

mod serve;

/// An exactly-once event log behind plain HTTP/JSON, stored in PostgreSQL.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the log over HTTP
    Serve(Flags),
}

/// Runs what the process's arguments ask for. Wrong arguments end the process with their help.
pub fn run() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Serve(flags) => serve::run(&flags),
    }
}
