//! What tenants have: topics and their logs, settings; and the tenants themselves.

pub mod log_names;
pub mod settings;
pub mod tenants;
pub mod topics;
