//! The protocol under the contract: its rules one by one, what one pass decides, and model checks with the real rules.

pub mod group_check;
pub mod model_check;
pub mod passes;
pub mod rules;
pub mod transaction_check;
