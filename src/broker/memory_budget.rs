//! Memory budgets: the bytes of requests until their work is done, and of answers until they are
//! sent. However much one tenant asks for, others find something: beside what it holds already, a
//! tenant gets no more than a few times what it leaves free.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::model::TenantId;

/// How many bytes a tenant may hold for each one left free.
const TIMES: usize = 4;

/// A tenant, or nobody in particular.
pub type Owner = Option<TenantId>;

/// A limit on bytes held at once.
#[derive(Clone)]
pub struct Budget {
    state: Arc<Mutex<State>>,
    total_bytes: usize,
}

struct State {
    free_bytes: usize,
    held_bytes: HashMap<Owner, usize>,
}

impl State {
    /// Takes more for one reservation of `own` bytes, if that leaves enough. The only one of its
    /// owner gets what is free: else large requests would never be let in.
    fn take(&mut self, owner: Owner, own: usize, more: usize) -> bool {
        let held = self.held_bytes.get(&owner).copied().unwrap_or(0);
        let Some(left) = self.free_bytes.checked_sub(more) else { return false };
        if held > own && held + more > left.saturating_mul(TIMES) {
            return false;
        }
        if more > 0 {
            self.free_bytes = left;
            self.held_bytes.insert(owner, held + more);
        }
        true
    }

    fn give_back(&mut self, owner: Owner, bytes: usize) {
        self.free_bytes += bytes;
        if let Some(held) = self.held_bytes.get_mut(&owner) {
            *held -= bytes;
            if *held == 0 {
                self.held_bytes.remove(&owner);
            }
        }
    }
}

impl Budget {
    pub fn new(total_bytes: usize) -> Self {
        let state = State { free_bytes: total_bytes, held_bytes: HashMap::new() };
        Self { state: Arc::new(Mutex::new(state)), total_bytes }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn held_bytes(&self) -> usize {
        self.total_bytes - self.state().free_bytes
    }

    /// Reserves this many bytes, if they are free for this owner.
    pub fn take(&self, owner: Owner, bytes: usize) -> Option<Taken> {
        let got = self.state().take(owner, 0, bytes);
        got.then(|| Taken { budget: self.clone(), owner, bytes })
    }
}

/// Bytes reserved until this is dropped.
pub struct Taken {
    budget: Budget,
    owner: Owner,
    bytes: usize,
}

impl Taken {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resizes the reservation; false: the bytes are not free, and nothing changes. A reservation
    /// larger than the whole budget takes all of it and runs alone.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        let bytes = bytes.min(self.budget.total_bytes);
        let mut state = self.budget.state();
        let fits = match bytes.checked_sub(self.bytes) {
            Some(more) => state.take(self.owner, self.bytes, more),
            None => {
                state.give_back(self.owner, self.bytes - bytes);
                true
            }
        };
        drop(state);
        if fits {
            self.bytes = bytes;
        }
        fits
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.state().give_back(self.owner, self.bytes);
    }
}

/// A request's reservation, shared by everything that works on it. None: not counted.
pub type Held = Option<Arc<Taken>>;

#[cfg(test)]
mod tests {
    use super::*;

    const A: Owner = Some(TenantId(1));
    const B: Owner = Some(TenantId(2));
    const C: Owner = Some(TenantId(3));

    fn take_all(budget: &Budget, owner: Owner, bytes: usize) -> Vec<Taken> {
        std::iter::from_fn(|| budget.take(owner, bytes)).collect()
    }

    /// What each of three gets that takes all it can, one after the other, in pieces of 1 byte.
    #[test]
    fn nobody_takes_all() {
        let budget = Budget::new(1_000);
        let [a, b, c] = [A, B, C].map(|owner| take_all(&budget, owner, 1));
        assert_eq!([a.len(), b.len(), c.len()], [800, 160, 32]);
        // what is given back is free for all, and who holds little gets the most of it
        drop(a);
        let more = take_all(&budget, C, 1);
        assert_eq!(c.len() + more.len(), 672);
        drop((b, c, more));
        assert_eq!(take_all(&budget, A, 1).len(), 800);
    }

    /// One body that grows is not stopped by the share, two are.
    #[test]
    fn the_only_one_of_its_owner_may_take_what_is_free() {
        let budget = Budget::new(100);
        let mut first = budget.take(A, 1).unwrap();
        assert!(first.resize(99));
        assert!(budget.take(A, 1).is_none());
        let other = budget.take(B, 1).unwrap();
        assert!(!first.resize(100));
        drop((first, other));
        let (mut first, second) = (budget.take(A, 40).unwrap(), budget.take(A, 40).unwrap());
        assert!(!first.resize(41));
        drop(second);
        assert!(first.resize(100));
        drop(first);
        assert!(budget.state().held_bytes.is_empty());
    }

    #[test]
    fn bytes_are_counted_until_they_are_dropped() {
        let budget = Budget::new(100);
        let mut first = budget.take(A, 60).unwrap();
        assert!(budget.take(B, 41).is_none());
        let second = budget.take(B, 40).unwrap();
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
        assert!(budget.take(A, 101).is_none());
        let mut all = budget.take(A, 50).unwrap();
        assert!(all.resize(1_000));
        assert_eq!(budget.held_bytes(), 100);
        assert!(budget.take(B, 1).is_none() && all.resize(2_000) && all.resize(99));
        let one = budget.take(B, 1).unwrap();
        assert!(!all.resize(1_000));
        drop(one);
        assert!(all.resize(1_000));
    }
}
