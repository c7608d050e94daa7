//! The integration tests: one binary, a real PostgreSQL that it starts itself, a database a test.
//! No server installed = fail, not skip.

mod appends;
mod authorisation;
mod bodies;
mod codes;
mod embedded;
mod openapi;
mod protocol;
mod sessions;
mod statements;
mod support;
mod tidy;
mod topics;
mod torture;
