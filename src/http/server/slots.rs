//! The places of a listener's connections. When all are taken, the one that has been idle longest
//! gives way: first of those that have shown no token, then of the tenant with the most.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

use super::connection::Connection;
use crate::model::TenantId;

/// Who looks for idle connections looks at all of them, so more than one of them ends each time.
const PLACES_PER_LOOK: usize = 128;
/// How soon it is noticed that one of the connections, which all had work, idles.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub struct Slots {
    most: usize,
    open: Mutex<Open>,
    freed: Notify,
}

#[derive(Default)]
struct Open {
    connections: HashMap<u64, Connection>,
    /// The number of connections there were.
    numbers: u64,
}

/// The place of one connection, until it is dropped.
pub struct Slot {
    pub number: u64,
    slots: Arc<Slots>,
}

impl Open {
    /// The connections to give way; none if all have work.
    fn idlest(&self, most: usize) -> Vec<u64> {
        let mut counts: HashMap<TenantId, usize> = HashMap::new();
        for tenant in self.connections.values().filter_map(Connection::tenant) {
            *counts.entry(tenant).or_default() += 1;
        }
        let idle = self.connections.iter().filter_map(|(number, connection)| {
            let since = connection.idle_since()?;
            let owner = connection.tenant().map(|tenant| (counts[&tenant], tenant));
            Some((Reverse(owner.unwrap_or((usize::MAX, TenantId(0)))), since, *number))
        });
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable();
        let first = idle.first().map(|(owner, ..)| *owner);
        let of_one = idle.into_iter().take_while(|(owner, ..)| Some(*owner) == first);
        of_one.take(most).map(|(.., number)| number).collect()
    }

    /// Ends who idles, if anybody does.
    fn make_room(&mut self, most: usize) {
        for number in self.idlest(most) {
            if let Some(connection) = self.connections.remove(&number) {
                connection.end();
            }
        }
    }
}

impl Slots {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), open: Mutex::default(), freed: Notify::new() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place; who idles gives way.
    pub async fn take(self: &Arc<Self>, connection: &Connection) -> Slot {
        loop {
            let freed = self.freed.notified();
            if let Some(slot) = self.try_take(connection) {
                return slot;
            }
            let _ = timeout(LOOK_AGAIN, freed).await;
        }
    }

    fn try_take(self: &Arc<Self>, connection: &Connection) -> Option<Slot> {
        let mut open = self.open();
        if open.connections.len() >= self.most {
            open.make_room(self.most.div_ceil(PLACES_PER_LOOK));
        }
        if open.connections.len() >= self.most {
            return None;
        }
        open.numbers += 1;
        let number = open.numbers;
        open.connections.insert(number, connection.clone());
        Some(Slot { number, slots: self.clone() })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.open().connections.remove(&self.number);
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    /// A connection that idles, of a tenant or of nobody yet.
    fn idle(tenant: Option<TenantId>) -> Connection {
        let connection = Connection::new(std::net::Ipv4Addr::LOCALHOST.into());
        drop(connection.request(false));
        if let Some(tenant) = tenant {
            connection.belongs_to(tenant);
        }
        connection
    }

    fn take(slots: &Arc<Slots>, connection: &Connection) -> Option<Slot> {
        slots.take(connection).now_or_never()
    }

    fn is_ended(connection: &Connection) -> bool {
        connection.until_ended(std::future::pending::<()>()).now_or_never().is_some()
    }

    /// First who has shown no token, then of the tenant with the most; of these who idles longest.
    #[tokio::test]
    async fn of_who_has_most_the_idlest_gives_way() {
        let owners = [Some(B), Some(A), Some(A), None, Some(A), None];
        let order = [3, 5, 1, 2, 0, 4];
        let slots = Slots::new(owners.len());
        let connections = owners.map(idle);
        let places: Vec<Slot> =
            connections.iter().filter_map(|connection| take(&slots, connection)).collect();
        assert_eq!(places.len(), owners.len());
        let mut newer = Vec::new();
        for (count, index) in order.into_iter().enumerate() {
            let ended = connections.iter().filter(|connection| is_ended(connection)).count();
            assert_eq!((ended, is_ended(&connections[index])), (count, false), "{index}");
            let connection = idle(Some(TenantId(10 + count as i64)));
            // busy: it does not give way itself
            let busy = connection.request(false);
            newer.push((take(&slots, &connection).unwrap(), busy));
            assert!(is_ended(&connections[index]), "{index}");
        }
        assert!(take(&slots, &idle(None)).is_none());
        drop(newer.pop());
        assert!(take(&slots, &idle(None)).is_some());
        // those that were ended free nothing more
        drop((newer, places));
        assert!(slots.open().connections.is_empty());
    }

    /// Looking for the idlest costs a look at all, so several go at once, but of one owner.
    #[tokio::test]
    async fn several_give_way_at_once() {
        let slots = Slots::new(3 * PLACES_PER_LOOK);
        let of = |index: usize| (index > 1).then_some(A);
        let connections: Vec<Connection> =
            (0..3 * PLACES_PER_LOOK).map(|index| idle(of(index))).collect();
        let places: Vec<Option<Slot>> =
            connections.iter().map(|connection| take(&slots, connection)).collect();
        let ended = || connections.iter().filter(|connection| is_ended(connection)).count();
        let first = take(&slots, &idle(None));
        assert!(first.is_some());
        assert_eq!(ended(), 2);
        drop(places);
    }

    #[tokio::test]
    async fn who_has_work_stays_and_is_waited_for() {
        let slots = Slots::new(1);
        let connection = idle(Some(A));
        let _place = take(&slots, &connection).unwrap();
        let busy = connection.request(false);
        let next = idle(None);
        let waiting = tokio::spawn({
            let (slots, next) = (slots.clone(), next.clone());
            async move { slots.take(&next).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && !is_ended(&connection));
        drop(busy);
        waiting.await.unwrap();
        assert!(is_ended(&connection));
    }
}
