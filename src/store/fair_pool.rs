//! Shares the pool's connections between tenants: a tenant never gets the last free connection, nor
//! more than a few times as many as it leaves to all others. So statements of one tenant that wait
//! for locks, or take long, leave connections to the rest.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::oneshot;

use crate::model::TenantId;

/// How many connections a tenant may have for each one left free.
const TIMES: usize = 4;

/// A tenant, or work for all tenants.
type Who = Option<TenantId>;

#[derive(Debug)]
pub struct Fair(Mutex<PoolState>);

#[derive(Debug)]
struct PoolState {
    free: usize,
    held: HashMap<Who, usize>,
    waiting: VecDeque<(Who, oneshot::Sender<Permit>)>,
}

/// The permit for one connection, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    who: Who,
    fair: Arc<Fair>,
}

impl PoolState {
    fn may(&self, who: Who) -> bool {
        let held = self.held.get(&who).copied().unwrap_or(0);
        match held {
            0 => self.free > 0,
            held => held < TIMES * self.free.saturating_sub(1),
        }
    }

    fn take(&mut self, who: Who) {
        self.free -= 1;
        *self.held.entry(who).or_default() += 1;
    }

    fn give_back(&mut self, who: Who) {
        self.free += 1;
        if let Some(held) = self.held.get_mut(&who) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&who);
            }
        }
    }

    /// Of the eligible owners the one with the fewest connections, and of these the one that has
    /// waited longest.
    fn next(&self) -> Option<usize> {
        let held = |who: &Who| self.held.get(who).copied().unwrap_or(0);
        let waiting = self.waiting.iter().enumerate().filter(|(_, (who, _))| self.may(*who));
        waiting.min_by_key(|(_, (who, _))| held(who)).map(|(index, _)| index)
    }
}

impl Fair {
    pub fn new(connections: usize) -> Arc<Self> {
        let state = PoolState { free: connections, held: HashMap::new(), waiting: VecDeque::new() };
        Arc::new(Self(Mutex::new(state)))
    }

    /// None: the pool is closed.
    pub async fn take(self: &Arc<Self>, who: Who) -> Option<Permit> {
        let granted = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.may(who) {
                state.take(who);
                return Some(Permit { who, fair: self.clone() });
            }
            let (sender, granted) = oneshot::channel();
            state.waiting.push_back((who, sender));
            granted
        };
        granted.await.ok()
    }

    /// Passes on free permits. A waiter that has given up returns its permit at once.
    fn hand_on(self: &Arc<Self>) {
        let mut unwanted = Vec::new();
        {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.waiting.retain(|(_, waiting)| !waiting.is_closed());
            while let Some((who, waiting)) = state.next().and_then(|n| state.waiting.remove(n)) {
                state.take(who);
                let permit = Permit { who, fair: self.clone() };
                unwanted.extend(waiting.send(permit).err());
            }
        }
        drop(unwanted);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.fair.0.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.who);
        self.fair.hand_on();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const A: Who = Some(TenantId(1));
    const B: Who = Some(TenantId(2));
    const C: Who = Some(TenantId(3));

    fn takes(fair: &Arc<Fair>, who: Who, times: usize) -> Vec<Permit> {
        (0..times).filter_map(|_| fair.take(who).now_or_never().flatten()).collect()
    }

    #[tokio::test]
    async fn nobody_alone_takes_all() {
        // connections, what one alone gets, a second then, and a third
        for (connections, want) in
            [(1, [1, 0, 0]), (2, [1, 1, 0]), (4, [3, 1, 0]), (10, [8, 1, 1]), (20, [16, 3, 1])]
        {
            let fair = Fair::new(connections);
            let held = [A, B, C].map(|who| takes(&fair, who, 30));
            assert_eq!(held.each_ref().map(Vec::len), want, "{connections}");
            drop(held);
            let state = fair.0.lock().unwrap();
            assert_eq!((state.free, state.held.len()), (connections, 0));
        }
    }

    #[tokio::test]
    async fn who_has_the_fewest_is_next() {
        let fair = Fair::new(2);
        let (a, b) = (takes(&fair, A, 1), takes(&fair, B, 1));
        let mut first = Box::pin(fair.take(A));
        let mut second = Box::pin(fair.take(C));
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(b);
        assert!(futures_util::poll!(&mut first).is_pending());
        let c = second.now_or_never().flatten();
        assert!(c.is_some());
        drop((a, c));
        assert!(first.await.is_some());
    }

    #[tokio::test]
    async fn who_gives_up_keeps_nothing() {
        let fair = Fair::new(1);
        let a = takes(&fair, A, 1);
        for _ in 0..3 {
            let mut waiting = Box::pin(fair.take(B));
            assert!(futures_util::poll!(&mut waiting).is_pending());
        }
        drop(a);
        let mut waiting = Box::pin(fair.take(B));
        assert!(futures_util::poll!(&mut waiting).is_ready());
    }

    #[tokio::test]
    async fn a_permit_that_nobody_hears_of_goes_on() {
        let fair = Fair::new(1);
        let a = takes(&fair, A, 1);
        let mut given_up = Box::pin(fair.take(B));
        let mut next = Box::pin(fair.take(C));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(a);
        drop(given_up);
        assert!(futures_util::poll!(&mut next).is_ready());
    }
}
