//! One lock per row, within this replica, so that requests waiting for the same row (such as
//! changes of one group) hold no pool connections: a storm of joins leaves the pool to others.
//! Requests for other rows never wait.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{Mutex as Waiting, OwnedMutexGuard};

use crate::model::{Name, TenantId};

/// The row of a group, or of the tenant itself.
type RowKey = (TenantId, Option<Name>);

/// Rows that are locked or waited for.
#[derive(Default)]
pub struct RowLocks(Mutex<HashMap<RowKey, Arc<Waiting<()>>>>);

/// The lock on a row, until dropped.
pub struct RowLock<'a> {
    _lock: OwnedMutexGuard<()>,
    _place: LockPlace<'a>,
}

/// A place in the queue for a row; the first one has the lock.
struct LockPlace<'a> {
    row_locks: &'a RowLocks,
    row: RowKey,
    mutex: Arc<Waiting<()>>,
}

impl RowLocks {
    /// Locks a row, in order of arrival. Between replicas the lock of the row itself decides.
    pub async fn take(&self, tenant: TenantId, group: Option<&Name>) -> RowLock<'_> {
        let place = self.place(tenant, group);
        RowLock { _lock: place.mutex.clone().lock_owned().await, _place: place }
    }

    /// None: the row is locked.
    pub fn try_take(&self, tenant: TenantId, group: Option<&Name>) -> Option<RowLock<'_>> {
        let place = self.place(tenant, group);
        Some(RowLock { _lock: place.mutex.clone().try_lock_owned().ok()?, _place: place })
    }

    fn place(&self, tenant: TenantId, group: Option<&Name>) -> LockPlace<'_> {
        let row = (tenant, group.cloned());
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mutex = rows.entry(row.clone()).or_default().clone();
        LockPlace { row_locks: self, row, mutex }
    }
}

impl Drop for LockPlace<'_> {
    fn drop(&mut self) {
        let mut rows = self.row_locks.0.lock().unwrap_or_else(PoisonError::into_inner);
        // the map's and this one: nobody else is there
        if Arc::strong_count(&self.mutex) == 2 {
            rows.remove(&self.row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_at_other_rows_does_not_wait() {
        let row_locks = RowLocks::default();
        let names: Vec<Name> = (0..1_000).map(|n| Name::parse(&format!("g{n}")).unwrap()).collect();
        let mut taken = Vec::new();
        for name in &names {
            taken.push(row_locks.try_take(TenantId(1), Some(name)).expect("nobody is at it"));
            taken.push(row_locks.try_take(TenantId(2), Some(name)).expect("nobody is at it"));
            assert!(row_locks.try_take(TenantId(1), Some(name)).is_none());
        }
        taken.push(row_locks.try_take(TenantId(1), None).expect("nobody is at it"));
        drop(taken);
        assert!(row_locks.0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nothing_behind() {
        let row_locks = RowLocks::default();
        let lock = row_locks.take(TenantId(1), None).await;
        let mut waiting = Box::pin(row_locks.take(TenantId(1), None));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(lock);
        drop(waiting);
        assert!(row_locks.0.lock().unwrap().is_empty());
    }
}
