//! The integration tests: one binary, a real PostgreSQL. No server installed = fail, not skip.

mod embedded;
