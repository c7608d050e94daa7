//! Identifies the history of the database that something was read from.
//!
//! A failover may lose the last commits, and then other rows take their offsets and ids: nothing
//! cached proves anything any more. The rows do not show it, but the server does: the one that
//! takes over was started at another instant, also if a pooler keeps the connections of its
//! clients. So cached data names its server, and is only returned together with data read from the
//! same one. A connection that was found dead ends a history as well, whichever server comes next.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use super::Instant;

/// A server, identified by its start time: `pg_postmaster_start_time()`, in microseconds. 0: none
/// yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server(i64);

impl Server {
    pub(super) fn started_at(started_at: Instant) -> Self {
        Self(started_at.timestamp_micros())
    }

    pub(super) fn to_chrono(self) -> Instant {
        Instant::from_timestamp_micros(self.0).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct History {
    pub server: Server,
    /// The number of connections found dead so far.
    losses: u64,
}

/// The history seen last.
#[derive(Clone, Debug, Default)]
pub(super) struct LastHistory(Arc<Numbers>);

#[derive(Debug, Default)]
struct Numbers {
    server: AtomicI64,
    losses: AtomicU64,
}

impl LastHistory {
    pub fn lost(&self) {
        self.0.losses.fetch_add(1, Ordering::SeqCst);
    }

    pub fn saw(&self, server: Server) -> History {
        let former = self.0.server.swap(server.0, Ordering::SeqCst);
        if former != server.0 && former != 0 {
            tracing::warn!("connected to a different database server; caches cleared");
        }
        History { server, ..self.history() }
    }

    pub fn history(&self) -> History {
        let server = Server(self.0.server.load(Ordering::SeqCst));
        History { server, losses: self.0.losses.load(Ordering::SeqCst) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_ends_with_its_server_and_with_a_lost_connection() {
        let seen = LastHistory::default();
        let (one, other) = (Server(1), Server(2));
        let begun = seen.history();
        assert_eq!(begun.server, Server::default());
        let first = seen.saw(one);
        assert_eq!((first, first == begun), (seen.history(), false));
        assert_eq!(seen.saw(one), first);
        assert_ne!(seen.saw(other), first);
        assert_eq!(seen.saw(one), first, "what a late answer is of stays what it was");
        seen.clone().lost();
        assert_ne!(seen.saw(one), first);
        assert_eq!(seen.history().server, one);
    }
}
