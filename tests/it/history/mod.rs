//! Proof by history: random work under kills, lost answers and crashes, held against what was acknowledged.

pub mod crash;
pub mod embedded;
pub mod group_torture;
pub mod lost_tails;
pub mod poolers;
pub mod sequences;
pub mod stops;
pub mod torture;
