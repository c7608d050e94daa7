//! The rates of a tenant, and their state.

use super::Key;

/// For how many seconds a full bucket lasts.
pub const WINDOW_S: i64 = 2;

/// What a rate is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metered {
    Requests,
    BytesIn,
    BytesOut,
}

impl Metered {
    pub const ALL: [Self; 3] = [Self::Requests, Self::BytesIn, Self::BytesOut];

    pub const fn key(self) -> Key {
        match self {
            Self::Requests => Key::MaxRequestsPerS,
            Self::BytesIn => Key::MaxBytesInPerS,
            Self::BytesOut => Key::MaxBytesOutPerS,
        }
    }
}

/// The state of a rate, for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateState {
    pub metered: Metered,
    /// What a full bucket holds.
    pub quota: i64,
    /// Whole ones that are left; at least 0.
    pub left: i64,
    /// Until the bucket is full.
    pub full_in_s: i64,
}
