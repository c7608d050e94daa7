//! Overload must not become a second overload of the log: of lines that every request of a bad
//! minute would write, only some a second are written.

use std::sync::{Mutex, PoisonError};

use super::timestamp_seconds;

/// Maximum number of lines of one limit in a second.
const LINES_PER_SECOND: u32 = 20;

/// Limits the lines of one kind.
#[derive(Default)]
pub struct LineLimit(Mutex<Second>);

#[derive(Default)]
struct Second {
    number: u64,
    lines: u32,
    left_out: u64,
}

impl LineLimit {
    pub const fn new() -> Self {
        Self(Mutex::new(Second { number: 0, lines: 0, left_out: 0 }))
    }

    /// None: the line is left out. Otherwise how many were left out before it.
    pub fn admit(&self) -> Option<u64> {
        self.admit_in(timestamp_seconds() as u64)
    }

    fn admit_in(&self, number: u64) -> Option<u64> {
        let mut second = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if second.number != number {
            (second.number, second.lines) = (number, 0);
        }
        if second.lines == LINES_PER_SECOND {
            second.left_out += 1;
            return None;
        }
        second.lines += 1;
        Some(std::mem::take(&mut second.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_the_next_says_how_many_were_left_out() {
        let limit = LineLimit::new();
        let admitted: Vec<_> = (0..25).filter_map(|_| limit.admit_in(7)).collect();
        assert_eq!(admitted, [0; 20]);
        assert_eq!((limit.admit_in(8), limit.admit_in(8)), (Some(5), Some(0)));
        // a clock that is put back is another second as well
        assert_eq!(limit.admit_in(3), Some(0));
    }
}
