//! When a ring of keys rotates: its period has passed, so the keys in its next table have expired.

use crate::model::{Timestamp, dedup::Ring};

/// The state of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRow {
    pub ring: Ring,
    /// The maximum lifetime of its keys. None: no limit.
    pub period_ms: Option<i64>,
    /// The table for new keys.
    pub slot: i16,
    pub turned_at: Timestamp,
}

impl RingRow {
    /// The table to empty and use for new keys from now on; none if it is not due.
    ///
    /// A key goes to the table that its reservation saw as current: that of rotation A, or, if the
    /// ring rotated meanwhile (B), the previous one. So it was reserved before rotation C, and
    /// expires at most one period after it. The table is emptied by rotation D, at least one period
    /// after C. A clock that goes back delays the rotation; one that goes ahead also makes keys
    /// expire earlier.
    pub fn turn(&self, now: Timestamp) -> Option<i16> {
        // instants are cut to milliseconds: beyond, not at
        let is_over = now.0 > self.turned_at.0.saturating_add(self.period_ms?);
        let slots = self.ring.slots();
        let at = slots.iter().position(|slot| *slot == self.slot);
        is_over.then(|| slots[at.map_or(0, |at| (at + 1) % slots.len())])
    }
}
