//! Limits of a read: how much an answer may hold, and how long it may wait.

use crate::{http::extract::query::ParameterPlace, model::ValidationErrors};

const DEFAULT_LIMIT: i64 = 500;
const MAX_LIMIT: i64 = 10_000;
const DEFAULT_BYTES: i64 = 1 << 20;
const MAX_BYTES: i64 = 16 << 20;
const MAX_WAIT_MS: i64 = 60_000;

/// The limits of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub limit: usize,
    pub max_bytes: usize,
    pub wait_ms: u64,
}

impl Bounds {
    /// Parses the parameters with these names, with defaults for absent ones.
    pub fn checked(
        errors: &mut ValidationErrors,
        place: ParameterPlace,
        limit: Option<i64>,
        max_bytes: Option<i64>,
        wait_ms: Option<i64>,
    ) -> Self {
        let mut size = |name, value: Option<i64>, default, range| {
            let value = errors.range(&place.of(name), Some(value.unwrap_or(default)), range);
            value.and_then(|value| usize::try_from(value).ok()).unwrap_or_default()
        };
        Self {
            limit: size("limit", limit, DEFAULT_LIMIT, 1..=MAX_LIMIT),
            max_bytes: size("max_bytes", max_bytes, DEFAULT_BYTES, 1..=MAX_BYTES),
            wait_ms: size("wait_ms", wait_ms, 0, 0..=MAX_WAIT_MS) as u64,
        }
    }
}
