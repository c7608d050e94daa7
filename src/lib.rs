//! oncelog: an exactly-once event log behind plain HTTP/JSON, stored in Postgres.
//!
//! One straight line of imports, `http > broker > store > rules > model`; a request goes in once
//! and out once.
//!
//! - [`model`] THE WORDS: ids, records, limits, error codes. No async, no I/O.
//! - [`rules`] THE LAW: pure functions over state; nothing in `rules` awaits or reads a clock.
//! - [`store`] THE LEDGER: every SQL statement. Decides nothing.
//! - [`broker`] THE WORK: one function an operation; lanes, memory, tailers, janitor.
//! - [`http`] THE DOOR: routes, wire types, tokens, problems. No SQL, no rules.
//!
//! Around them: `config` (the only reader of flags, environment and file), `embedded` (a private
//! Postgres), `telemetry`, and `app`, which puts them together.

pub mod broker;
pub mod http;
pub mod model;
pub mod rules;
pub mod store;

pub mod config;
pub mod embedded;
pub mod telemetry;

pub mod app;
pub mod cli;
