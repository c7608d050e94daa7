//! Runs measurements less often than every round.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The share of time it may take.
const SHARE: u32 = 100;

/// When a measurement is due again on this replica.
pub struct Throttle {
    interval: Duration,
    next_at: Mutex<Instant>,
}

impl Throttle {
    pub fn every(interval: Duration) -> Self {
        Self { interval, next_at: Mutex::new(Instant::now()) }
    }

    /// One item, if it is due.
    pub fn due(&self) -> Vec<()> {
        let next_at = *self.next_at.lock().unwrap_or_else(PoisonError::into_inner);
        Vec::from_iter((Instant::now() >= next_at).then_some(()))
    }

    /// Records a measurement from then until now.
    pub fn done(&self, begun: Instant) {
        let pause = (begun.elapsed() * SHARE).max(self.interval);
        *self.next_at.lock().unwrap_or_else(PoisonError::into_inner) = begun + pause;
    }
}
