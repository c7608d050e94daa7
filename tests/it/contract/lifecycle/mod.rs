//! The end of data: trims, retention, compaction, and the removal of deleted tenants and idle
//! producers.

pub mod compaction;
pub mod expiry;
pub mod removal;
pub mod retention;
pub mod trims;
