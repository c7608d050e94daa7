//! Memory budgets: the bytes of requests until their work is done, and of answers until they are
//! sent.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A limit on bytes held at once.
#[derive(Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
    total_bytes: usize,
}

impl Budget {
    pub fn new(total_bytes: usize) -> Self {
        let total_bytes = total_bytes.min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(total_bytes)), total_bytes }
    }

    pub fn held_bytes(&self) -> usize {
        self.total_bytes - self.free.available_permits()
    }

    /// Reserves this many bytes, if they are free.
    pub fn take(&self, bytes: usize) -> Option<Taken> {
        Some(Taken { budget: self.clone(), permit: self.permit(bytes)? })
    }

    fn permit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(u32::try_from(bytes).ok()?).ok()
    }
}

/// Bytes reserved until this is dropped.
pub struct Taken {
    budget: Budget,
    permit: OwnedSemaphorePermit,
}

impl Taken {
    pub fn bytes(&self) -> usize {
        self.permit.num_permits()
    }

    /// Resizes the reservation; false: the bytes are not free, and nothing changes. A reservation
    /// larger than the whole budget takes all of it and runs alone.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        let (bytes, held) = (bytes.min(self.budget.total_bytes), self.bytes());
        if bytes <= held {
            drop(self.permit.split(held - bytes));
            return true;
        }
        let more = self.budget.permit(bytes - held);
        let got = more.is_some();
        more.into_iter().for_each(|more| self.permit.merge(more));
        got
    }
}

/// A request's reservation, shared by everything that works on it. None: not counted.
pub type Held = Option<Arc<Taken>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_until_they_are_dropped() {
        let budget = Budget::new(100);
        let mut first = budget.take(60).unwrap();
        assert!(budget.take(41).is_none());
        let second = budget.take(40).unwrap();
        assert!(!first.resize(61));
        assert_eq!((first.bytes(), budget.held_bytes()), (60, 100));
        assert!(first.resize(10));
        assert_eq!(budget.held_bytes(), 50);
        assert!(first.resize(60));
        drop(second);
        assert_eq!(budget.held_bytes(), 60);
        let held: Held = Some(Arc::new(first));
        let copy = held.clone();
        drop(held);
        assert_eq!(budget.held_bytes(), 60);
        drop(copy);
        assert_eq!(budget.held_bytes(), 0);
    }

    #[test]
    fn what_grows_larger_than_all_goes_alone() {
        let budget = Budget::new(100);
        assert!(budget.take(101).is_none());
        let mut all = budget.take(50).unwrap();
        assert!(all.resize(1_000));
        assert_eq!(budget.held_bytes(), 100);
        assert!(budget.take(1).is_none() && all.resize(2_000) && all.resize(99));
        let one = budget.take(1).unwrap();
        assert!(!all.resize(1_000));
        drop(one);
        assert!(all.resize(1_000));
    }
}
