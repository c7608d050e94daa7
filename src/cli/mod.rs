//! The command line: `serve`, and the commands for operators and scripts.
//!
//! Results go to stdout, everything else to stderr. `client` holds the HTTP client of the commands
//! that call a server; the other commands run locally.

mod admin;
mod bench;
mod client;
mod common;
mod consume;
mod output;
mod produce;
mod serve;
mod server;
mod service;
mod status;
mod token;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use self::output::Closed;
use crate::config::Flags;

const EXIT_CODES: &str = "\
Results go to stdout, everything else to stderr; `oncelog <COMMAND> --help` has examples.

Exit codes:
  0    success, also when the reader of the output closes it early (`| head`)
  1    failure; stderr says what went wrong and what to do
  2    usage error
  130  interrupted by Ctrl-C (SIGINT); 143 by SIGTERM. `serve` shuts down cleanly on both, with 0

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
    #[command(after_help = serve::EXAMPLE)]
    Serve(Flags),
    /// Bring the schema of a database up to date, then exit
    #[command(after_help = service::MIGRATE_EXAMPLE)]
    Migrate(service::MigrateFlags),
    /// Print the configuration that `serve` would use, and where each value comes from
    #[command(after_help = service::CONFIG_EXAMPLE)]
    Config(Flags),
    /// Print the OpenAPI document of the HTTP interface
    #[command(after_help = service::OPENAPI_EXAMPLE)]
    Openapi,
    /// Print the completion script for a shell
    #[command(after_help = service::COMPLETIONS_EXAMPLE)]
    Completions { shell: clap_complete::Shell },
    /// Show what a server is, whether it is well, and what it does now
    #[command(after_help = status::EXAMPLE)]
    Status(status::StatusFlags),
    /// Name servers, and choose the one that commands call
    #[command(subcommand, after_help = server::commands::EXAMPLE)]
    Context(server::commands::ContextCommand),
    /// Create and inspect tokens
    #[command(subcommand, after_help = token::EXAMPLE)]
    Token(token::TokenCommand),
    /// Create, list, describe, change and delete topics
    #[command(subcommand, after_help = admin::topic::EXAMPLE)]
    Topic(admin::topic::TopicCommand),
    /// List, describe, reset and delete consumer groups
    #[command(subcommand, after_help = admin::group::EXAMPLE)]
    Group(admin::group::GroupCommand),
    /// Show and change the tenant's settings
    #[command(subcommand)]
    Settings(admin::settings::SettingsCommand),
    /// For operators: list, create, limit, suspend and delete tenants
    #[command(after_help = admin::tenant::EXAMPLE)]
    Tenant(admin::tenant::TenantArgs),
    /// Open, list, show and close the sessions of producers
    #[command(subcommand, after_help = admin::session::EXAMPLE)]
    Session(admin::session::SessionCommand),
    /// List and show transactions; abort or commit one as an operator
    #[command(subcommand, after_help = admin::txn::EXAMPLE)]
    Txn(admin::txn::TxnCommand),
    /// Append the lines of a file or of stdin, each exactly once despite retries
    #[command(after_long_help = produce::HELP, after_help = produce::EXAMPLE)]
    Produce(produce::ProduceFlags),
    /// Print records, one JSON object per line, or in a format
    #[command(after_long_help = consume::HELP, after_help = consume::EXAMPLE)]
    Consume(consume::ConsumeFlags),
    /// Measure how fast a server appends, reads and wakes readers
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// A usage error that clap cannot detect, such as a combination of flags that makes no sense.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

/// A signal interrupted a command that reports what it had done.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Interrupted {
    signal: SignalKind,
    message: String,
}

/// Waits for the first Ctrl-C or SIGTERM.
async fn interrupted() -> anyhow::Result<SignalKind> {
    let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()];
    let (mut interrupts, mut terminates) = (signal(interrupt)?, signal(terminate)?);
    Ok(tokio::select! {
        _ = interrupts.recv() => interrupt,
        _ = terminates.recv() => terminate,
    })
}

/// Runs the command of the process's arguments. Wrong arguments print the help and exit.
pub fn run() -> ExitCode {
    let Err(error) = execute(Arguments::parse().command) else { return ExitCode::SUCCESS };
    // the reader of the output has closed it
    if error.is::<Closed>() {
        return ExitCode::SUCCESS;
    }
    eprintln!("oncelog: {error:#}");
    if let Some(Interrupted { signal, .. }) = error.downcast_ref() {
        // the exit code that a shell reports for a process killed by a signal
        return ExitCode::from(128 | signal.as_raw_value() as u8);
    }
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
        Command::Topic(command) => admin::topic::run(command),
        Command::Group(command) => admin::group::run(command),
        Command::Settings(command) => admin::settings::run(command),
        Command::Tenant(args) => admin::tenant::run(args),
        Command::Status(flags) => status::run(flags),
        Command::Context(command) => server::commands::run(command),
        Command::Session(command) => admin::session::run(command),
        Command::Txn(command) => admin::txn::run(command),
        Command::Produce(flags) => produce::run(flags),
        Command::Consume(flags) => consume::run(flags),
        Command::Bench(command) => bench::run(command),
    }
}

/// Runs a command on one thread: it mostly waits.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_of_all_flags_are_consistent() {
        Arguments::command().debug_assert();
    }
}
