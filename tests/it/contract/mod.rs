//! The contract with clients, resource by resource: HTTP in, answers and problems out.

pub mod appends;
pub mod authorisation;
pub mod bodies;
pub mod dedup;
pub mod groups;
mod lifecycle;
pub mod limits;
pub mod neighbours;
pub mod reads;
mod service;
pub mod sessions;
pub mod settings;
pub mod tenants;
mod tls;
pub mod topics;
pub mod transactions;
