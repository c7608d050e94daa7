//! The closed loop of most workloads: each worker repeats one operation until the end of the run.

use std::time::Duration;

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    Stage,
    connection::{Connection, Failure},
    measure::{Clock, Report, SharedTally, watch},
};

/// The pause after an error, so that a broken server is not flooded.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) trait Worker: Send + Sized + 'static {
    /// Runs the operation once. Returns the number of acknowledged events; 0 ends the loop.
    fn operate(&mut self, tally: &SharedTally)
    -> impl Future<Output = Result<u64, Failure>> + Send;

    fn connection(&mut self) -> &mut Connection;
}

/// A worker after the run.
pub(super) struct Finished<W> {
    pub worker: W,
    /// Operations without an acknowledgement: their events may be stored or not.
    pub failures: u64,
}

/// The results of a run.
pub(super) struct Run<W> {
    pub finished: Vec<Finished<W>>,
    pub tally: SharedTally,
    cpu: Duration,
}

impl<W: Worker> Run<W> {
    pub async fn measure(workers: Vec<W>, stage: &Stage) -> anyhow::Result<Self> {
        let clock = stage.phases.clock();
        let tally = SharedTally::new(clock)?;
        let mut tasks = JoinSet::new();
        for worker in workers {
            tasks.spawn(measured_loop(worker, clock, tally.clone()));
        }
        let (finished, cpu) = watch(tasks, clock, &tally).await?;
        Ok(Self { finished, tally, cpu })
    }

    pub fn failures(&self) -> u64 {
        self.finished.iter().map(|finished| finished.failures).sum()
    }

    /// Adds the figures of the operation, and compares the log with what was acknowledged.
    pub async fn report(
        &self,
        report: &mut Report,
        operation: &'static str,
        stage: &Stage,
        unresolved: u64,
    ) -> anyhow::Result<()> {
        report.tally(operation, &self.tally.lock(), self.cpu)?;
        let acknowledged = self.tally.lock().acknowledged;
        report.note("check", stage.check(acknowledged, unresolved).await?);
        Ok(())
    }
}

async fn measured_loop<W: Worker>(mut worker: W, clock: Clock, tally: SharedTally) -> Finished<W> {
    let mut failures = 0;
    loop {
        let begun = Instant::now();
        if begun >= clock.until {
            return Finished { worker, failures };
        }
        match worker.operate(&tally).await {
            Ok(0) => return Finished { worker, failures },
            Ok(events) => tally.lock().done(begun, Instant::now(), events),
            Err(failure) => {
                tally.lock().failed(&failure);
                failures += 1;
                sleep(PAUSE).await;
                worker.connection().recover(&failure).await;
            }
        }
    }
}
