//! Appends: sequences, dedup, caches and encodings; tables, properties and an oracle.

pub mod cache;
pub mod decide;
pub mod dedup;
pub mod encoding;
pub mod ledger;
pub mod oracle;
pub mod placement;
pub mod producer_state;
pub mod properties;
pub mod repeats;
pub mod reservations;
pub mod sequence;
pub mod table;
