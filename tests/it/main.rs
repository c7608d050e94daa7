//! The integration tests: one binary, a real Postgres that it starts itself, a database a test.

mod protocol;
mod support;
mod torture;
