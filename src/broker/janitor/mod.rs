//! The janitor: all background maintenance (expiry, removal, snapshots, measurements) in one
//! framework.
//!
//! A `Task` finds due items without locks, a limited number at a time, and processes them in
//! chunks. A chunk is one database transaction (`transaction`): it locks its item, or skips one
//! that is locked (`skip locked`; where locks are nearly permanent, it waits very briefly), checks
//! again whether it is due, and processes a limited number of rows. So every replica runs a janitor
//! and there is no leader: two on one item do the same as one.
//!
//! ```text
//! every 500 ms   members
//! every second   transactions, staged, outcomes, trim, ... one after the other
//! every 15 s     compaction
//!
//! a round of a task:   items the last round left, then due items       [a b c]
//!                      a chunk of each in turn, until none is left     a b c a c a
//!                      or the time is up: the next round does the rest
//! ```
//!
//! - A chunk lasts as long as any lock that it holds, and waits only briefly for more. (Except
//!   compaction, which covers a whole log in short transactions of its own.) The first chunk of an
//!   item is small, and the next grows or shrinks with the time it took (`size`), so rows of a
//!   megabyte and slow disks get small chunks.
//! - No task takes more than `TASK_TIME` of a round (compaction: `PATIENT_TASK_TIME`), and no item
//!   more than its turn.
//! - An item that cannot be locked in time is counted and found again. Any other failure ends the
//!   round of its task: the items after it are processed in the next round, so no item blocks the
//!   others.
//! - Every task has the same metrics, labelled with its name.
//!
//! To add a task: implement `Task` for a struct, which holds its state if it needs any (`Tenants`
//! to iterate over all tenants, `Throttle` to run less often); add it to the list in
//! `Janitor::new`, and its name to the label `task` in `telemetry::table`.

pub mod compaction;
pub mod deleted_tenants;
mod deleted_topics;
pub mod groups;
mod key_rings;
pub mod measure;
mod members;
pub mod producers;
pub mod retention;
mod size;
mod snapshots;
mod statistics;
mod task;
mod tenants;
mod throttle;
pub mod transactions;
mod trim;

use std::{sync::Arc, time::Duration};

use self::task::{Rounds, task};
pub use self::{
    snapshots::snapshot,
    task::{Every, Task, transaction},
    tenants::Tenants,
    throttle::Throttle,
};
use super::{Broker, ServiceConfig};
use crate::store;

/// Time limit of a task per round, not counting the end of its last chunk.
const TASK_TIME: Duration = Duration::from_millis(250);
/// Time limit of a task that nothing else waits for.
const PATIENT_TASK_TIME: Duration = Duration::from_secs(10);

/// The tasks of a replica, in the order of a round.
pub struct Janitor(Vec<Box<dyn Rounds>>);

impl Janitor {
    pub fn new(settings: &ServiceConfig) -> Self {
        Self(vec![
            task(members::Members),
            task(transactions::Late),
            task(transactions::Staged),
            task(transactions::Outcomes::default()),
            task(transactions::Open),
            task(retention::Retention::default()),
            task(compaction::Compaction::default()),
            task(trim::Trim),
            task(snapshots::Snapshots::default()),
            task(deleted_topics::DoomedLogs),
            task(deleted_topics::DoomedTopics),
            task(deleted_tenants::DeletedTenants::default()),
            task(producers::Producers::default()),
            task(producers::OpenIds),
            task(groups::Groups::default()),
            task(measure::lags::Lags::new(settings.max_lag_series)),
            task(measure::topics::TopicSeries::default()),
            task(measure::topics::TopicSizes::new(settings.max_topic_series)),
            task(measure::database::Database::default()),
            task(key_rings::KeyRings),
            task(key_rings::KeySizes::default()),
            task(statistics::Statistics),
        ])
    }

    /// Runs one round of everything that is due, however long it takes. A failing task does not
    /// block the others.
    pub async fn sweep(&self, broker: &Broker) -> Result<(), store::Error> {
        let mut swept = Ok(());
        for task in &self.0 {
            swept = swept.and(task.round(broker, Duration::MAX).await);
        }
        swept
    }
}

/// Runs rounds until it is dropped. Urgent tasks do not wait for the others.
pub async fn run(broker: Arc<Broker>) {
    let half_second = rounds(&broker, Every::HalfSecond, Duration::from_millis(500));
    let second = rounds(&broker, Every::Second, Duration::from_millis(1_000));
    let quarter = rounds(&broker, Every::QuarterMinute, Duration::from_secs(15));
    tokio::join!(half_second, second, quarter);
}

async fn rounds(broker: &Broker, every: Every, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let time = if every == Every::QuarterMinute { PATIENT_TASK_TIME } else { TASK_TIME };
    loop {
        ticks.tick().await;
        for task in broker.janitor.0.iter().filter(|task| task.every() == every) {
            // what failed was logged, and will be tried again
            let _ = task.round(broker, time).await;
        }
    }
}

#[cfg(test)]
mod tests;
