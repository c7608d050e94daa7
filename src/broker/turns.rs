//! Turns: of what would wait for the same row, such as changes of one group, one is done at a time
//! here, and the others wait without a connection, so that a storm of joins leaves the pool to
//! everybody else.

use std::hash::{BuildHasher, Hash};

use tokio::sync::{Mutex, MutexGuard};

/// Rows share so many.
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
    pub async fn take(&self, row: impl Hash) -> MutexGuard<'_, ()> {
        let hash = self.hasher.hash_one(row);
        self.turns[hash as usize % TURNS].lock().await
    }
}
