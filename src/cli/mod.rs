//! The command line: `serve`, and what people and scripts do with a log.
//!
//! Results go to stdout, everything else to stderr. `client` speaks to a server; the other
//! commands work here.

mod client;
mod consume;
mod lines;
mod output;
mod produce;
mod serve;
mod service;
mod settings;
mod token;
mod topic;
mod window;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use self::output::Closed;
use crate::config::Flags;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed; stderr says what was wrong and what to do
  2  wrong usage

Try it:
  oncelog serve &
  oncelog topic create orders
  echo '{\"key\": \"customer-7\", \"value\": {\"total\": 12.5}}' | oncelog produce --topic orders
  oncelog consume --topic orders";

/// An exactly-once event log behind plain HTTP/JSON, stored in PostgreSQL.
#[derive(Parser)]
#[command(version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the log over HTTP
    Serve(Flags),
    /// Bring the schema of a database up to date, and end
    #[command(after_help = service::MIGRATE_EXAMPLE)]
    Migrate(service::MigrateFlags),
    /// Print what `serve` with the same flags would run with, and where each value comes from
    #[command(after_help = service::CONFIG_EXAMPLE)]
    Config(Flags),
    /// Print the OpenAPI document of the HTTP interface
    #[command(after_help = service::OPENAPI_EXAMPLE)]
    Openapi,
    /// Print the completions of a shell
    #[command(after_help = service::COMPLETIONS_EXAMPLE)]
    Completions { shell: clap_complete::Shell },
    /// Make tokens, and look into them
    #[command(subcommand)]
    Token(token::Command),
    /// Make, list, describe and delete topics
    #[command(subcommand)]
    Topic(topic::Command),
    /// Show and change the tenant's settings
    #[command(subcommand)]
    Settings(settings::Command),
    /// Append lines of a file or of stdin, each once, however often it has to be tried
    #[command(after_long_help = produce::HELP, after_help = produce::EXAMPLE)]
    Produce(produce::Flags),
    /// Print records, one JSON object a line
    #[command(after_long_help = consume::HELP, after_help = consume::EXAMPLE)]
    Consume(consume::Flags),
}

/// Arguments that are well-formed, yet ask for what cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

/// Runs what the process's arguments ask for. Wrong arguments end the process with their help.
pub fn run() -> ExitCode {
    let Err(error) = execute(Arguments::parse().command) else { return ExitCode::SUCCESS };
    // whoever read the output has seen enough
    if error.is::<Closed>() {
        return ExitCode::SUCCESS;
    }
    eprintln!("oncelog: {error:#}");
    if error.is::<WrongUsage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(flags) => serve::run(&flags),
        Command::Migrate(flags) => service::migrate(flags),
        Command::Config(flags) => service::config(&flags),
        Command::Openapi => service::openapi(),
        Command::Completions { shell } => service::completions(shell, Arguments::command()),
        Command::Token(command) => token::run(command),
        Command::Topic(command) => topic::run(command),
        Command::Settings(command) => settings::run(command),
        Command::Produce(flags) => produce::run(flags),
        Command::Consume(flags) => consume::run(flags),
    }
}

/// Runs a command that has nothing to do in parallel but wait.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(work)
}
