//! The append protocol: its rules one by one, the decisions of single batches, and model checks
//! with the real rules.

pub mod group_check;
mod harness;
pub mod model_check;
pub mod passes;
pub mod rules;
pub mod transaction_check;
