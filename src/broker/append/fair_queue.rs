//! A queue that is fair between tenants: each tenant has its turn, however much another one queues.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound::{Excluded, Unbounded},
    sync::{Arc, Mutex, PoisonError},
};

use crate::model::TenantId;

/// The waiting items, in order of arrival per tenant.
pub struct FairQueue<T> {
    waiting: BTreeMap<TenantId, VecDeque<T>>,
    len: usize,
    /// The tenant whose turn was last.
    last: TenantId,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), len: 0, last: TenantId(0) }
    }
}

impl<T> FairQueue<T> {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, tenant: TenantId, item: T) {
        self.waiting.entry(tenant).or_default().push_back(item);
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().flatten()
    }

    /// The tenant whose turn is next.
    pub fn next(&self) -> Option<TenantId> {
        let behind = self.waiting.range((Excluded(self.last), Unbounded));
        behind.chain(&self.waiting).map(|(tenant, _)| *tenant).next()
    }

    /// Takes the tenant's items for which `takes` returns true, in their order.
    pub fn take(&mut self, tenant: TenantId, mut takes: impl FnMut(&T) -> bool) -> Vec<T> {
        self.last = tenant;
        let Some(waiting) = self.waiting.remove(&tenant) else { return Vec::new() };
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for item in waiting {
            if takes(&item) {
                taken.push(item);
            } else {
                left.push_back(item);
            }
        }
        self.len -= taken.len();
        if !left.is_empty() {
            self.waiting.insert(tenant, left);
        }
        taken
    }
}

/// A limit on waiting items. A tenant may use at most what it leaves for all others, so some places
/// always remain.
pub struct Places {
    most: usize,
    taken: Mutex<HashMap<TenantId, usize>>,
}

/// A place in the queue, until dropped.
pub struct QueuePlace {
    tenant: TenantId,
    places: Arc<Places>,
}

impl Places {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// Returns none if too many items wait, overall or of this tenant.
    pub fn take(self: &Arc<Self>, tenant: TenantId) -> Option<QueuePlace> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.most.saturating_sub(taken.values().sum());
        let own = taken.get(&tenant).copied().unwrap_or(0);
        if own >= free {
            return None;
        }
        taken.insert(tenant, own + 1);
        Some(QueuePlace { tenant, places: self.clone() })
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const C: TenantId = TenantId(9);

    #[test]
    fn each_has_its_turn() {
        let mut waiting = FairQueue::default();
        for number in 0..6 {
            waiting.push(A, number);
        }
        waiting.push(C, 0);
        waiting.push(B, 0);
        let mut turns = Vec::new();
        while let Some(tenant) = waiting.next() {
            let mut room = 2;
            let taken = waiting.take(tenant, |_| {
                room -= 1;
                room >= 0
            });
            turns.push((tenant, taken));
        }
        let want = [(A, vec![0, 1]), (B, vec![0]), (C, vec![0]), (A, vec![2, 3]), (A, vec![4, 5])];
        assert_eq!(turns, want);
        assert!(waiting.is_empty());
    }

    #[test]
    fn nobody_takes_the_last_place_but_who_has_none() {
        // places, how many each of these takes in turn, how many they get
        type Takes = [(TenantId, usize)];
        let table: [(usize, &Takes, &[usize]); 6] = [
            (1, &[(A, 1), (B, 1)], &[1, 0]),
            (2, &[(A, 2), (B, 1)], &[1, 1]),
            (8, &[(A, 4)], &[4]),
            (8, &[(A, 8)], &[4]),
            (8, &[(A, 8), (B, 8), (C, 8)], &[4, 2, 1]),
            (9, &[(A, 9), (B, 9), (C, 9)], &[5, 2, 1]),
        ];
        for (most, takes, want) in table {
            let places = Places::new(most);
            let mut held = Vec::new();
            let mut got = Vec::new();
            for (tenant, wanted) in takes {
                let taken: Vec<QueuePlace> =
                    (0..*wanted).filter_map(|_| places.take(*tenant)).collect();
                got.push(taken.len());
                held.push(taken);
            }
            assert_eq!(got, want, "{most} {takes:?}");
            drop(held);
            assert!(places.taken.lock().unwrap().is_empty());
        }
    }
}
