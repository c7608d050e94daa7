//! The integration tests: one binary, a real PostgreSQL that it starts itself, a database per test.
//! If no PostgreSQL is installed, they fail instead of being skipped.

mod cli;
mod contract;
mod documents;
mod history;
mod house;
mod metrics;
mod protocol;
mod support;
