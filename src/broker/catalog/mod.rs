//! The catalog: tenants, their settings, and topics with their logs.

pub mod log_names;
mod revocations;
pub mod settings;
pub mod tenants;
pub mod topics;
