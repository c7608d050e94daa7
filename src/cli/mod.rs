//! The command line: `serve`, and what people and scripts do with a log.
//!
//! Results go to stdout, everything else to stderr. `client` speaks to a server; the other
//! commands work here.

mod admin;
mod bench;
mod client;
mod common;
mod consume;
mod output;
mod produce;
mod serve;
mod service;
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
  0    done, also when whoever reads the output has seen enough (`| head`)
  1    failed; stderr says what was wrong and what to do
  2    wrong usage
  130  ended by Ctrl-C (SIGINT); 143 by SIGTERM. `serve` ends in order on both, with 0

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
    /// Bring the schema of a database up to date, and end
    #[command(after_help = service::MIGRATE_EXAMPLE)]
    Migrate(service::MigrateFlags),
    /// Print the configuration that `serve` would run with, and where each value comes from
    #[command(after_help = service::CONFIG_EXAMPLE)]
    Config(Flags),
    /// Print the OpenAPI document of the HTTP interface
    #[command(after_help = service::OPENAPI_EXAMPLE)]
    Openapi,
    /// Print the completions of a shell
    #[command(after_help = service::COMPLETIONS_EXAMPLE)]
    Completions { shell: clap_complete::Shell },
    /// Make tokens, and look into them
    #[command(subcommand, after_help = token::EXAMPLE)]
    Token(token::TokenCommand),
    /// Make, list, describe and delete topics
    #[command(subcommand, after_help = admin::topic::EXAMPLE)]
    Topic(admin::topic::TopicCommand),
    /// List, describe, reset and delete groups of consumers
    #[command(subcommand, after_help = admin::group::EXAMPLE)]
    Group(admin::group::GroupCommand),
    /// Show and change the tenant's settings
    #[command(subcommand)]
    Settings(admin::settings::SettingsCommand),
    /// For operators: list, make, limit, suspend and delete tenants
    #[command(subcommand, after_help = admin::tenant::EXAMPLE)]
    Tenant(admin::tenant::TenantCommand),
    /// List, show and end transactions
    #[command(subcommand, after_help = admin::txn::EXAMPLE)]
    Txn(admin::txn::TxnCommand),
    /// Append lines of a file or of stdin, each once, however often it has to be tried
    #[command(after_long_help = produce::HELP, after_help = produce::EXAMPLE)]
    Produce(produce::ProduceFlags),
    /// Print records, one JSON object a line
    #[command(after_long_help = consume::HELP, after_help = consume::EXAMPLE)]
    Consume(consume::ConsumeFlags),
    /// Measure how fast a server appends, reads and wakes readers
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

/// Arguments that are well-formed, yet ask for what cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(String);

/// A signal ended a command that had something to say about it.
#[derive(Debug, thiserror::Error)]
#[error("{told}")]
struct Interrupted {
    signal: SignalKind,
    told: String,
}

/// The first Ctrl-C or SIGTERM.
async fn interrupted() -> anyhow::Result<SignalKind> {
    let [interrupt, terminate] = [SignalKind::interrupt(), SignalKind::terminate()];
    let (mut interrupts, mut terminates) = (signal(interrupt)?, signal(terminate)?);
    Ok(tokio::select! {
        _ = interrupts.recv() => interrupt,
        _ = terminates.recv() => terminate,
    })
}

/// Runs what the process's arguments ask for. Wrong arguments end the process with their help.
pub fn run() -> ExitCode {
    let Err(error) = execute(Arguments::parse().command) else { return ExitCode::SUCCESS };
    // whoever read the output has seen enough
    if error.is::<Closed>() {
        return ExitCode::SUCCESS;
    }
    eprintln!("oncelog: {error:#}");
    if let Some(Interrupted { signal, .. }) = error.downcast_ref() {
        // what a shell says of a process that a signal has ended
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
        Command::Tenant(command) => admin::tenant::run(command),
        Command::Txn(command) => admin::txn::run(command),
        Command::Produce(flags) => produce::run(flags),
        Command::Consume(flags) => consume::run(flags),
        Command::Bench(command) => bench::run(command),
    }
}

/// Runs a command that has nothing to do in parallel but wait.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(work)
}
