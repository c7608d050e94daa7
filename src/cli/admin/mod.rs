//! Administrative commands for topics, groups, tenants, transactions and settings.

pub mod group;
pub mod resource;
pub mod settings;
pub mod tenant;
pub mod topic;
pub mod txn;
