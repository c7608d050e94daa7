//! Work that is done once for all who ask at the same time, and not too often.

use std::time::Duration;

use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

/// The latest result of some work.
pub struct SingleFlight<T> {
    /// Minimum interval between beginnings; those who ask in between wait for the next one.
    interval: Duration,
    latest: Mutex<Latest<T>>,
}

struct Latest<T> {
    /// When work last began, also if it was cancelled.
    begun: Option<Instant>,
    /// The last result, and when its work began.
    found: Option<(Instant, T)>,
}

impl<T: Clone> SingleFlight<T> {
    pub fn new(interval: Duration) -> Self {
        Self { interval, latest: Mutex::new(Latest { begun: None, found: None }) }
    }

    /// Returns a result of work that began after this call.
    pub async fn result(&self, work: impl Future<Output = T>) -> T {
        let arrived = Instant::now();
        // The first one works, the others wait here.
        let mut latest = self.latest.lock().await;
        if let Some((begun, found)) = &latest.found
            && *begun >= arrived
        {
            return found.clone();
        }
        if let Some(begun) = latest.begun {
            sleep_until(begun + self.interval).await;
        }
        let begun = Instant::now();
        latest.begun = Some(begun);
        let found = work.await;
        latest.found = Some((begun, found.clone()));
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::{FutureExt, future::join_all};

    use super::*;

    #[tokio::test]
    async fn those_who_ask_together_share_a_result_and_later_ones_wait_for_theirs() {
        let interval = Duration::from_millis(20);
        let flight = SingleFlight::new(interval);
        let done = AtomicUsize::new(0);
        let ask = async || flight.result(async { done.fetch_add(1, Ordering::Relaxed) }).await;
        let begun = Instant::now();
        assert_eq!(ask().await, 0);
        // all came after the first began
        assert!(join_all((0..100).map(|_| ask())).await.iter().all(|found| *found == 1));
        assert_eq!(ask().await, 2);
        assert!(begun.elapsed() >= 2 * interval, "not too often");
    }

    #[tokio::test]
    async fn work_whose_caller_is_gone_is_done_by_the_next() {
        let flight = SingleFlight::new(Duration::ZERO);
        assert_eq!(flight.result(std::future::pending::<u8>()).now_or_never(), None);
        assert_eq!(flight.result(async { 2 }).await, 2);
    }
}
