//! The integration tests: one binary, a real PostgreSQL that it starts itself, a database a test.
//! No server installed = fail, not skip.

mod appends;
mod authorisation;
mod bodies;
mod cli;
mod codes;
mod crash;
mod docs;
mod docs_page;
mod embedded;
mod examples;
mod expiry;
mod greeting;
mod group_check;
mod long_polls;
mod members;
mod metrics;
mod model_check;
mod offsets;
mod openapi;
mod protocol;
mod reads;
mod served;
mod sessions;
mod settings;
mod staged;
mod statements;
mod stops;
mod support;
mod tidy;
mod topic_reads;
mod topics;
mod torture;
mod transaction_check;
mod transactions;
mod trims;
