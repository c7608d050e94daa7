//! Extractors, which run before a handler: the caller's identity, and the path, query and body,
//! each validated.

pub mod access;
pub mod auth;
pub mod body;
pub mod caller;
pub mod json;
pub mod list;
pub mod local;
pub mod media;
pub mod query;
