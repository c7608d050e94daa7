//! The janitor tasks that measure what is the same on every replica, each at its own pace.

pub mod database;
pub mod lags;
pub mod topics;
