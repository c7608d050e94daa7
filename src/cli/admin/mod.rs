//! Commands that show, change and delete what there is: topics, groups, tenants, transactions, settings.

pub mod delete;
pub mod group;
pub mod settings;
pub mod tenant;
pub mod topic;
pub mod txn;
