//! The integration tests: one binary, a real PostgreSQL that it starts itself, a database a test.
//! No server installed = fail, not skip.

mod crash;
mod embedded;
mod model_check;
mod greeting;
mod long_polls;
mod protocol;
mod reads;
mod served;
mod statements;
mod stops;
mod support;
mod tidy;
mod torture;
mod trims;
