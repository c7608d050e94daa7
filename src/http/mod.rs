//! THE DOOR: routes, wire types, tokens, problems. No SQL, no rules.

mod access;
pub mod auth;
mod body;
mod json;
mod media;
mod problem;
mod query;

/// What one replica takes upon itself.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest request body, decompressed.
    pub max_body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout_ms: u64,
    /// Request bodies in memory, all together.
    pub max_in_flight_bytes: usize,
    /// How long the head of a request may take to arrive, and an idle connection may stay.
    pub header_timeout_ms: u64,
    /// Largest head of a request.
    pub max_header_bytes: usize,
    /// Connections beyond wait to be accepted.
    pub max_connections: usize,
    /// How long a shutdown waits for requests in flight.
    pub drain_timeout_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_body_bytes: 16 << 20,
            body_timeout_ms: 30_000,
            max_in_flight_bytes: 256 << 20,
            header_timeout_ms: 30_000,
            max_header_bytes: 64 << 10,
            max_connections: 10_000,
            drain_timeout_ms: 25_000,
        }
    }
}
