//! When a ring of keys turns: its period is over, so what lies in its next partition has expired.

use crate::model::{Timestamp, dedup::Ring};

/// A ring as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingRow {
    pub ring: Ring,
    /// No key of it lives longer. None: for ever.
    pub period_ms: Option<i64>,
    /// The partition that takes new keys.
    pub slot: i16,
    pub turned_at: Timestamp,
}

impl RingRow {
    /// The partition that is emptied, and takes new keys from now on; none: it is not time.
    ///
    /// A key is put where its claimer saw the ring stand: by turn A that began its partition, or if
    /// the ring turned meanwhile (B) as the one before. So it was claimed before turn C, and expires
    /// a period after it at the latest. The partition is emptied by turn D, a period after C or later.
    /// A clock that goes back makes the ring turn later; one that goes ahead lets keys expire as well.
    pub fn turn(&self, now: Timestamp) -> Option<i16> {
        // instants are cut to milliseconds: beyond, not at
        let is_over = now.0 > self.turned_at.0.saturating_add(self.period_ms?);
        let slots = self.ring.slots();
        let at = slots.iter().position(|slot| *slot == self.slot);
        is_over.then(|| slots[at.map_or(0, |at| (at + 1) % slots.len())])
    }
}
