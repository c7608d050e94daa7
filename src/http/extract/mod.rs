//! What is taken from a request before its handler runs: who calls, and the path, query and body, each checked.

pub mod access;
pub mod auth;
pub mod body;
pub mod json;
pub mod list;
pub mod media;
pub mod query;
