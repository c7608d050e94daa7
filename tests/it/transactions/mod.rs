//! Transactions over HTTP and in the broker.

mod http;
