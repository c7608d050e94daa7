//! Coalesces lookups: all calls of a tenant that arrived before a statement began share it, so each
//! gets the result of a statement that began after it arrived. Everything that a call asks for is
//! in one statement.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::oneshot, time::sleep};

use super::Error;
use crate::{model::TenantId, store};

/// Maximum number of keys per statement, except that one call may ask for more.
const KEYS_PER_STATEMENT: usize = 1_000;

/// When a statement begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    Now,
    /// After a window, together with all calls that arrive meanwhile.
    AfterWindow,
}

/// A statement that looks up many keys at once.
pub trait SharedLookup: Clone + Send + Sync + 'static {
    type Key: Clone + Ord + Hash + Send + Sync;
    type Found: Clone + Send;

    /// How long calls that are not urgent wait for others.
    const WINDOW: Duration;

    /// Returns what was found, by key.
    fn run(
        &self,
        batch: Batch<Self::Key>,
    ) -> impl Future<Output = Result<HashMap<Self::Key, Self::Found>, store::Error>> + Send;
}

/// What the calls that share a statement ask for.
pub struct Batch<K> {
    pub tenant: TenantId,
    pub when: When,
    /// Sorted, each once.
    pub keys: Vec<K>,
    /// The number of calls.
    pub calls: usize,
}

type Queue = (TenantId, When);

struct Call<L: SharedLookup> {
    keys: Vec<L::Key>,
    answer: oneshot::Sender<Result<Vec<Option<L::Found>>, Error>>,
}

#[derive(Clone)]
pub struct Coalescer<L: SharedLookup> {
    pub lookup: L,
    /// Calls waiting for the next statement; an entry means that a task will run it.
    waiting: Arc<Mutex<HashMap<Queue, Vec<Call<L>>>>>,
}

impl<L: SharedLookup> Coalescer<L> {
    pub fn new(lookup: L) -> Self {
        Self { lookup, waiting: Arc::default() }
    }

    /// What was found of a key, as of now or later.
    pub async fn find(
        &self,
        tenant: TenantId,
        key: L::Key,
        when: When,
    ) -> Result<Option<L::Found>, Error> {
        Ok(self.find_all(tenant, vec![key], when).await?.pop().flatten())
    }

    /// What was found of each of these keys, all by one statement.
    pub async fn find_all(
        &self,
        tenant: TenantId,
        keys: Vec<L::Key>,
        when: When,
    ) -> Result<Vec<Option<L::Found>>, Error> {
        let (answer, answered) = oneshot::channel();
        let queue = (tenant, when);
        let is_idle = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let is_idle = !waiting.contains_key(&queue);
            waiting.entry(queue).or_default().push(Call { keys, answer });
            is_idle
        };
        if is_idle {
            // not owned by this call: others wait for it as well
            tokio::spawn(self.clone().serve(queue));
        }
        answered.await.unwrap_or_else(|_| Err(Error::internal()))
    }

    async fn serve(self, queue: Queue) {
        let (tenant, when) = queue;
        let mut is_behind = false;
        loop {
            if when == When::AfterWindow && !is_behind {
                sleep(L::WINDOW).await;
            }
            let Some(calls) = self.take(queue, &mut is_behind) else { return };
            let mut keys: Vec<L::Key> = calls.iter().flat_map(|call| &call.keys).cloned().collect();
            keys.sort_unstable();
            keys.dedup();
            let batch = Batch { tenant, when, keys, calls: calls.len() };
            let found = self.lookup.run(batch).await.map_err(Error::from);
            for Call { keys, answer } in calls {
                let of_call = |found: &HashMap<L::Key, L::Found>| {
                    keys.iter().map(|key| found.get(key).cloned()).collect()
                };
                let _ = answer.send(found.as_ref().map(of_call).map_err(Error::clone));
            }
        }
    }

    /// Takes the calls of the next statement. `is_behind`: it leaves some, which have waited long
    /// enough. None: nobody waits, so the task ends.
    fn take(&self, queue: Queue, is_behind: &mut bool) -> Option<Vec<Call<L>>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.get_mut(&queue) {
            Some(calls) if !calls.is_empty() => {
                let rest = calls.split_off(batch_len(calls));
                *is_behind = !rest.is_empty();
                Some(std::mem::replace(calls, rest))
            }
            _ => {
                waiting.remove(&queue);
                None
            }
        }
    }
}

/// How many of these calls share a statement; at least the first.
fn batch_len<L: SharedLookup>(calls: &[Call<L>]) -> usize {
    let most = calls.first().map_or(0, |call| call.keys.len()).max(KEYS_PER_STATEMENT);
    let mut keys: BTreeSet<&L::Key> = BTreeSet::new();
    let key_counts = calls.iter().map(|call| {
        keys.extend(&call.keys);
        keys.len()
    });
    key_counts.take_while(|count| *count <= most).count()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use tokio::sync::Notify;

    use super::*;

    const TENANT: TenantId = TenantId(1);

    /// Finds the number of the statement and of its calls for keys that are not negative, and fails
    /// while it is told to.
    #[derive(Clone, Default)]
    struct Statements {
        begun: Arc<Mutex<Vec<Vec<i64>>>>,
        goes_on: Arc<Notify>,
        fails: Arc<AtomicBool>,
    }

    impl SharedLookup for Statements {
        type Key = i64;
        type Found = (usize, usize);
        const WINDOW: Duration = Duration::from_millis(5);

        async fn run(
            &self,
            batch: Batch<i64>,
        ) -> Result<HashMap<i64, (usize, usize)>, store::Error> {
            let n = {
                let mut begun = self.begun.lock().unwrap();
                begun.push(batch.keys.clone());
                begun.len()
            };
            self.goes_on.notified().await;
            if self.fails.load(SeqCst) {
                return Err(store::Error::overtaken());
            }
            let exist = batch.keys.into_iter().filter(|key| *key >= 0);
            Ok(exist.map(|key| (key, (n, batch.calls))).collect())
        }
    }

    /// Lets all tasks go on as far as they can.
    async fn settle() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn who_looks_together() {
        let most = KEYS_PER_STATEMENT as i64;
        let table = [
            // keys that are asked for, from and to, and how many of the calls share a statement
            (vec![(0, 1)], 1),
            (vec![(0, 1); 5_000], 5_000),
            (vec![(0, most), (0, most), (5, 10)], 3),
            (vec![(0, most), (0, most + 1), (0, 1)], 1),
            (vec![(0, most - 1), (most - 1, most), (most, most + 1)], 2),
            // more than a statement may have, but by one call
            (vec![(0, 9 * most), (0, 9 * most), (7, 8), (0, 9 * most + 1)], 3),
            (vec![(0, 1), (0, 9 * most)], 1),
        ];
        for (ranges, want) in table {
            let call = |(from, to): (i64, i64)| -> Call<Statements> {
                Call { keys: (from..to).collect(), answer: oneshot::channel().0 }
            };
            let calls: Vec<Call<Statements>> = ranges.into_iter().map(call).collect();
            assert_eq!(batch_len(&calls), want);
        }
    }

    #[tokio::test]
    async fn a_call_gets_the_result_of_a_statement_that_began_after_it() {
        let coalescer = Coalescer::new(Statements::default());
        let find = |keys: &[i64]| {
            let (coalescer, keys) = (coalescer.clone(), keys.to_vec());
            tokio::spawn(async move { coalescer.find_all(TENANT, keys, When::Now).await })
        };
        let first = find(&[2, 1]);
        settle().await;
        let [second, cancelled, third] = [find(&[3, 1]), find(&[4]), find(&[-1, 3])];
        settle().await;
        cancelled.abort();
        coalescer.lookup.goes_on.notify_one();
        assert_eq!(first.await.unwrap(), Ok(vec![Some((1, 1)); 2]));
        coalescer.lookup.goes_on.notify_one();
        assert_eq!(second.await.unwrap(), Ok(vec![Some((2, 3)); 2]));
        assert_eq!(third.await.unwrap(), Ok(vec![None, Some((2, 3))]));
        assert_eq!(*coalescer.lookup.begun.lock().unwrap(), [vec![1, 2], vec![-1, 1, 3, 4]]);
        settle().await;
        assert!(coalescer.waiting.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn an_error_goes_to_all_whose_statement_it_was() {
        let coalescer = Coalescer::new(Statements::default());
        coalescer.lookup.fails.store(true, SeqCst);
        let find = || {
            let coalescer = coalescer.clone();
            tokio::spawn(async move { coalescer.find(TENANT, 1, When::Now).await })
        };
        let failed = [find(), find()];
        settle().await;
        let next = find();
        settle().await;
        coalescer.lookup.goes_on.notify_one();
        for call in failed {
            assert_eq!(call.await.unwrap(), Err(Error::from(store::Error::overtaken())));
        }
        coalescer.lookup.fails.store(false, SeqCst);
        coalescer.lookup.goes_on.notify_one();
        assert_eq!(next.await.unwrap(), Ok(Some((2, 1))));
    }

    #[test]
    fn who_is_left_over_waits_for_no_second_window() {
        let coalescer = Coalescer::new(Statements::default());
        let (queue, mut is_behind) = ((TENANT, When::AfterWindow), false);
        let call =
            |to: usize| Call { keys: (0..to as i64).collect(), answer: oneshot::channel().0 };
        let calls = vec![call(KEYS_PER_STATEMENT), call(KEYS_PER_STATEMENT + 1), call(1)];
        coalescer.waiting.lock().unwrap().insert(queue, calls);
        for want in [Some((1, true)), Some((2, false)), None] {
            let taken = coalescer.take(queue, &mut is_behind);
            assert_eq!(taken.map(|calls| (calls.len(), is_behind)), want);
        }
        assert!(coalescer.waiting.lock().unwrap().is_empty());
    }
}
