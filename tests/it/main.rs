//! The integration tests: one binary, a real PostgreSQL that it starts itself, a database a test.
//! No server installed = fail, not skip.

mod cli;
mod contract;
mod documents;
mod history;
mod house;
mod metrics;
mod protocol;
mod support;
