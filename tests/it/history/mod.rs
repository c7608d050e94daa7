//! Recorded histories: random work with kills, lost answers and crashes, compared with what was
//! acknowledged.

pub mod crash;
pub mod embedded;
pub mod group_torture;
pub mod lost_tails;
pub mod poolers;
pub mod sequences;
pub mod stops;
pub mod torture;
