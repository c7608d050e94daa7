//! Decides whether the next pass should linger (like Kafka's linger.ms).
//!
//! Clients that send their next request after an answer arrive together. If a flush is slow they
//! would split into two halves, each waiting for the other's flush; a short wait keeps them
//! together. If a flush is fast, waiting only costs time.

use std::time::Duration;

use crate::model::TenantId;

/// Passes slower than this are worth a wait.
const SLOW_PASS: Duration = Duration::from_millis(1);
/// The bytes that a pass stores in this time are work, which lingering does not save.
const BYTES_PER_MS: u64 = 256 * 1024;
/// The part of a slow pass's time that the next one may wait.
const WAIT_DIVISOR: u32 = 4;

/// Statistics of the last passes of a lane.
#[derive(Default)]
pub struct Pace {
    tenant: Option<TenantId>,
    /// The time of the last two passes, without the time for their bytes.
    passes: [Duration; 2],
    company: usize,
}

impl Pace {
    /// Records a finished pass of this tenant, which stored `bytes` of records. `company` is the
    /// number of its requests and of those that arrived meanwhile.
    pub fn passed(&mut self, tenant: TenantId, took: Duration, bytes: u64, company: usize) {
        let took = took.saturating_sub(Duration::from_micros(bytes * 1_000 / BYTES_PER_MS));
        *self = Self { tenant: Some(tenant), passes: [took, self.passes[0]], company };
    }

    /// How long the next pass may linger if it is for this tenant, and for how many requests. A
    /// single slow pass does not count.
    pub fn wait_for(&self, tenant: TenantId) -> Option<(Duration, usize)> {
        let pass = self.passes[0].min(self.passes[1]);
        let waits = self.tenant == Some(tenant) && pass > SLOW_PASS;
        waits.then(|| (pass / WAIT_DIVISOR, self.company))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(1);
    const B: TenantId = TenantId(2);

    #[test]
    fn only_slow_passes_wait_and_for_their_own_tenant() {
        // passes of A in microseconds, the next one's tenant, its wait in microseconds
        let table: [(&[u64], _, _); 7] = [
            (&[], A, None),
            (&[4_000], A, None),
            (&[300, 300], A, None),
            (&[300, 4_000], A, None),
            (&[1_000, 1_000], A, None),
            (&[4_000, 2_400], A, Some(600)),
            (&[4_000, 2_400], B, None),
        ];
        for (passes, tenant, want) in table {
            let mut pace = Pace::default();
            for took in passes {
                pace.passed(A, Duration::from_micros(*took), 0, 7);
            }
            let want = want.map(|wait| (Duration::from_micros(wait), 7));
            assert_eq!(pace.wait_for(tenant), want, "{passes:?} {tenant:?}");
        }
    }

    #[test]
    fn what_takes_long_because_it_is_much_does_not_wait() {
        for (took_us, bytes, want) in [(1_900, 256 << 10, None), (4_000, 512 << 10, Some(500))] {
            let mut pace = Pace::default();
            for _ in 0..2 {
                pace.passed(A, Duration::from_micros(took_us), bytes, 7);
            }
            assert_eq!(pace.wait_for(A), want.map(|wait| (Duration::from_micros(wait), 7)));
        }
    }
}
