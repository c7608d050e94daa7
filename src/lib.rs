//! oncelog: an exactly-once event log behind plain HTTP/JSON, stored in Postgres.
//!
//! Imports go one way, `http > broker > store > rules > model`, without a circle, also inside a
//! room. A request passes each room once on its way in and once on its way out.
//!
//! - [`model`]: ids, records, settings, limits, error codes. No async, no I/O.
//! - [`rules`]: the protocol, as pure functions over state. Nothing in `rules` awaits or reads a
//!   clock.
//! - [`store`]: every SQL statement. It decides nothing.
//! - [`broker`]: one function per operation, which loads, decides, writes and answers; lanes,
//!   caches, wake-ups, janitor.
//! - [`http`]: routes, wire types, tokens, problem documents. No SQL, no rules.
//!
//! Around them: `config` (the only reader of flags, environment and file), `embedded` (a private
//! Postgres), `telemetry`, and `app`, which puts them together. `docs/architecture.md` has the ways
//! of a request and a glossary, `docs/append-protocol.md` every rule.

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
