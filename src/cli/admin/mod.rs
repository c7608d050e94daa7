//! Administrative commands for topics, groups, tenants, transactions and settings.

pub mod group;
mod newest_first;
pub mod resource;
mod revocations;
pub mod session;
pub mod settings;
pub mod tenant;
pub mod topic;
pub mod txn;
