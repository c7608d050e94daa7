//! Permits for waiting reads: a tenant may use all free ones, and returns those beyond its share as
//! soon as another tenant with fewer needs them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use tokio_util::sync::CancellationToken;

use crate::{
    broker::Error,
    model::{TenantId, settings::Key},
    rules::Refusal,
    telemetry,
};

pub struct WaitPermits {
    most: usize,
    taken: Mutex<HashMap<TenantId, VecDeque<TakenPermit>>>,
}

struct TakenPermit {
    number: u64,
    /// The number of permits it holds.
    count: usize,
    revoked: CancellationToken,
}

/// Held until dropped, or until revoked for another tenant.
pub struct WaitPermit {
    tenant: TenantId,
    number: u64,
    permits: Arc<WaitPermits>,
    pub revoked: CancellationToken,
}

fn count(taken: &VecDeque<TakenPermit>) -> usize {
    taken.iter().map(|taken| taken.count).sum()
}

fn all_taken() -> Error {
    metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "waiting_reads").increment(1);
    Error::unavailable("Too many reads are waiting on this replica; retry.")
}

impl WaitPermits {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// A request for more than all permits takes all. Refused: as many reads of the tenant wait as
    /// its own limit allows, or it has its share, and others have the rest.
    pub fn take(
        self: &Arc<Self>,
        tenant: TenantId,
        count: usize,
        own_limit: Option<i64>,
    ) -> Result<WaitPermit, Error> {
        let mut tenants = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = tenants.get(&tenant).map_or(0, VecDeque::len) as i64;
        if let Some(limit) = own_limit.filter(|limit| waiting >= *limit) {
            return Err(Refusal::QuotaReached { key: Key::MaxWaitingReads, limit }.into());
        }
        let others = tenants.keys().filter(|other| **other != tenant).count();
        let share = self.most / (others + 1);
        let own = tenants.get(&tenant).map_or(0, self::count);
        let mut free = self.most - tenants.values().map(self::count).sum::<usize>();
        let mut count = count.clamp(1, self.most.max(1));
        if own == 0 && count > free {
            count = count.min(share.max(1));
        }
        if count > free && own + count > share.max(1) {
            return Err(all_taken());
        }
        while count > free {
            // who has the most has more than its share: else there would be some free
            let greatest = tenants.values_mut().max_by_key(|taken| self::count(taken));
            let oldest = greatest.and_then(VecDeque::pop_front).ok_or_else(all_taken)?;
            oldest.revoked.cancel();
            free += oldest.count;
        }
        let revoked = CancellationToken::new();
        let own = tenants.entry(tenant).or_default();
        let number = own.back().map_or(0, |last| last.number + 1);
        own.push_back(TakenPermit { number, count, revoked: revoked.clone() });
        tenants.retain(|_, taken| !taken.is_empty());
        Ok(WaitPermit { tenant, number, permits: self.clone(), revoked })
    }

    /// The number of permits in use.
    pub fn taken(&self) -> usize {
        let tenants = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        tenants.values().map(count).sum()
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let mut tenants = self.permits.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if self.revoked.is_cancelled() {
            return;
        }
        if let Some(own) = tenants.get_mut(&self.tenant) {
            own.retain(|taken| taken.number != self.number);
            if own.is_empty() {
                tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::Code;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);
    const C: TenantId = TenantId(3);

    fn take(
        permits: &Arc<WaitPermits>,
        tenant: TenantId,
        count: usize,
        times: usize,
    ) -> Vec<WaitPermit> {
        (0..times).filter_map(|_| permits.take(tenant, count, None).ok()).collect()
    }

    fn left(permits: &[WaitPermit]) -> usize {
        permits.iter().filter(|permit| !permit.revoked.is_cancelled()).count()
    }

    #[test]
    fn what_is_free_may_be_borrowed_and_what_is_anothers_is_given_back() {
        let permits = WaitPermits::new(12);
        let a = take(&permits, A, 1, 20);
        assert_eq!((left(&a), a.len()), (12, 12));
        let b = take(&permits, B, 1, 20);
        assert_eq!((left(&a), left(&b), b.len()), (6, 6, 6));
        // the oldest go first
        assert!(a[..6].iter().all(|permit| permit.revoked.is_cancelled()));
        let c = take(&permits, C, 1, 20);
        assert_eq!((left(&a), left(&b), left(&c)), (4, 4, 4));
        assert!(permits.take(A, 1, None).is_err());
        drop(b);
        let more = take(&permits, A, 1, 20);
        assert_eq!((left(&a), left(&more), left(&c)), (4, 4, 4));
        drop((a, c, more));
        assert_eq!(permits.taken(), 0);
        assert!(permits.taken.lock().unwrap().is_empty());
    }

    #[test]
    fn many_logs_count_as_many_and_nobody_has_none() {
        let permits = WaitPermits::new(10);
        let a = take(&permits, A, 4, 9);
        assert_eq!(left(&a), 2);
        // all that is free, but no more than a share of what is not
        let b = take(&permits, B, 9, 1);
        assert_eq!((left(&a), left(&b), permits.taken()), (1, 1, 9));
        let c = take(&permits, C, 99, 1);
        assert_eq!(left(&c), 1);
        let alone = WaitPermits::new(3);
        assert_eq!(take(&alone, A, 99, 2).len(), 1);
        assert!(WaitPermits::new(0).take(A, 1, None).is_err());
    }

    /// The own limit is one of reads, however many logs they have.
    #[test]
    fn a_tenants_own_limit_holds_whatever_is_free() {
        let permits = WaitPermits::new(100);
        let take = |tenant, limit| permits.take(tenant, 7, Some(limit));
        assert_eq!(take(A, 0).err().unwrap().code, Code::QuotaExceeded);
        let first = take(A, 2).unwrap();
        let second = take(A, 2).unwrap();
        let refused = take(A, 2).err().unwrap();
        assert_eq!((refused.facts, refused.retry_after_s), (vec![("limit", json!(2))], Some(5)));
        let other = take(B, 1).unwrap();
        drop(first);
        let third = take(A, 2).unwrap();
        drop((second, third, other));
        assert!(permits.taken.lock().unwrap().is_empty());
    }
}
