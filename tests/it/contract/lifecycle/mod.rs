//! What ends: records that are trimmed, too old or superseded, and all that deleted tenants and idle producers leave behind.

pub mod compaction;
pub mod expiry;
pub mod removal;
pub mod retention;
pub mod trims;
