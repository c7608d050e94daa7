//! Statements on tenants, their topics, and the heads of their logs.

pub mod logs;
pub mod tenants;
pub mod topics;
