//! Sizes of chunks: as many rows as can be processed while others wait for a lock.

use std::time::Duration;

/// The first chunk of an item.
pub const FIRST: i64 = 50;
/// The minimum, however slow a flush is.
const LEAST: i64 = 10;
const MOST: i64 = 500;
/// The target duration of a chunk.
const AIM: Duration = Duration::from_millis(20);

/// The next size, after a chunk of this many rows took this long.
pub fn next(rows: i64, took: Duration) -> i64 {
    let next = if took < AIM / 2 {
        rows * 2
    } else if took > AIM {
        (rows as f64 * AIM.as_secs_f64() / took.as_secs_f64()) as i64
    } else {
        rows
    };
    next.clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_while_they_are_quick_and_shrink_as_far_as_they_took_too_long() {
        // rows, milliseconds, rows of the next
        let table = [
            (50, 0, 100),
            (50, 9, 100),
            (50, 10, 50),
            (50, 20, 50),
            (50, 40, 25),
            (500, 1, 500),
            (400, 1, 500),
            (500, 100, 100),
            (500, 60_000, 10),
            (10, 60_000, 10),
        ];
        for (rows, millis, want) in table {
            assert_eq!(next(rows, Duration::from_millis(millis)), want, "{rows} in {millis} ms");
        }
    }
}
