//! Turns: of the changes of one group one is made at a time here, and the others wait without a
//! connection, so that a storm of joins leaves the pool to everybody else.

use std::hash::BuildHasher;

use tokio::sync::{Mutex, MutexGuard};

use crate::model::{Name, TenantId};

/// Groups share so many.
const TURNS: usize = 64;

pub struct Turns {
    turns: Vec<Mutex<()>>,
    hasher: std::hash::RandomState,
}

impl Turns {
    pub fn new() -> Self {
        Self { turns: (0..TURNS).map(|_| Mutex::default()).collect(), hasher: Default::default() }
    }

    /// In the order of their coming. The row's lock decides between replicas.
    pub async fn take(&self, tenant: TenantId, group: &Name) -> MutexGuard<'_, ()> {
        let hash = self.hasher.hash_one((tenant, group));
        self.turns[hash as usize % TURNS].lock().await
    }
}
