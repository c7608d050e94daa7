//! A long sequence that fails made short: whatever may be left out is.

use super::{Failure, fleet::Fleet, ops::Op, run};

/// Most runs for one failure.
const RUNS: usize = 400;

/// The shortest sequence found that fails in the same way, and how.
pub async fn shrink(fleet: &Fleet, mut ops: Vec<Op>, mut failure: Failure) -> (Vec<Op>, Failure) {
    // nothing behind the failure matters, but what the end found, the end finds again
    if let Some(at) = failure.at {
        ops.retain(|op| op.number <= at);
    }
    let (mut chunk, mut runs) = (ops.len().div_ceil(2), 0);
    while chunk > 0 && runs < RUNS {
        let mut from = 0;
        let before = ops.len();
        while from < ops.len() && runs < RUNS {
            let mut fewer = ops.clone();
            fewer.drain(from..(from + chunk).min(ops.len()));
            runs += 1;
            match run(fleet, &fewer).await {
                Err(same) if same.kind == failure.kind => {
                    (ops, failure) = (fewer, same);
                }
                _ => from += chunk,
            }
        }
        if chunk > 1 || ops.len() == before {
            chunk /= 2;
        }
    }
    (ops, failure)
}
