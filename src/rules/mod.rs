//! The rules of the protocol: pure functions over state and input. Nothing here awaits, reads a
//! clock, draws a random number or knows SQL, HTTP or a task.

pub mod access;
pub mod append;
pub mod compaction;
pub mod expiry;
pub mod group;
pub mod key_rings;
pub mod rates;
mod refusal;
pub mod retention;
pub mod revocation;
pub mod session;
pub mod settings;
pub mod tenant;
#[cfg(test)]
mod tests;
pub mod transaction;

pub use refusal::Refusal;
