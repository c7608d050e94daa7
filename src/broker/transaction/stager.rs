//! The stager stages what calls of many transactions add, all that waits for one tenant with one
//! statement. Each call is done by itself or not; one that is not is judged under its locks. The
//! statement waits for no lock: a call whose transaction is held elsewhere is not done here.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::Asked;
use crate::{
    broker::Error,
    model::{Epoch, ProducerId, Sequence, TenantId},
    rules::transaction::Row,
    store::{self, Connection, Store, staging},
    telemetry,
};

/// Calls that may wait.
const QUEUED_CALLS: usize = 8_192;
/// Most calls, and bytes of their records, of one statement.
const GROUP_CALLS: usize = 256;
const GROUP_BYTES: i64 = 8 << 20;
/// Far beyond what a statement takes that waits for nobody.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);

/// A call to be staged.
pub struct Job {
    pub tenant: TenantId,
    pub id: Uuid,
    pub session: Option<(ProducerId, Epoch)>,
    pub sequence: Option<Sequence>,
    pub asked: Arc<Asked>,
    pub max_batches: i64,
}

/// The row as it is then; none: it was not done.
type Staged = Result<Option<Row>, Error>;

/// The way to the stager.
pub struct Stager(mpsc::Sender<(Job, oneshot::Sender<Staged>)>);

impl Stager {
    pub fn start(store: &Store, tasks: &TaskTracker, stop: &CancellationToken) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUED_CALLS);
        let stager = Work { store: store.clone(), connection: None, queue: VecDeque::new() };
        tasks.spawn(stager.run(receiver, stop.clone()));
        Self(sender)
    }

    pub async fn stage(&self, job: Job) -> Staged {
        let (answer, answered) = oneshot::channel();
        if self.0.try_send((job, answer)).is_err() {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "queued_calls")
                .increment(1);
            let detail = "Too many calls are waiting here already. Nothing was changed.";
            return Err(Error::unavailable(detail));
        }
        answered.await.unwrap_or_else(|_| Err(Error::internal()))
    }
}

type Waiting = (Job, oneshot::Sender<Staged>);

struct Work {
    store: Store,
    connection: Option<Connection>,
    queue: VecDeque<Waiting>,
}

impl Work {
    async fn run(mut self, mut receiver: mpsc::Receiver<Waiting>, stop: CancellationToken) {
        loop {
            if self.queue.is_empty() {
                let job = tokio::select! {
                    biased;
                    job = receiver.recv() => job,
                    () = stop.cancelled() => None,
                };
                let Some(job) = job else { return };
                self.queue.push_back(job);
            }
            while self.queue.len() < GROUP_CALLS
                && let Ok(job) = receiver.try_recv()
            {
                self.queue.push_back(job);
            }
            let group = self.next_group();
            self.serve(group).await;
        }
    }

    /// What waits for the first one's tenant, one call of each transaction.
    fn next_group(&mut self) -> Vec<Waiting> {
        let tenant = self.queue.front().map(|(job, _)| job.tenant);
        let (mut group, mut left) = (Vec::new(), VecDeque::new());
        let (mut ids, mut bytes) = (HashSet::new(), 0);
        for (job, answer) in self.queue.drain(..) {
            let fits = group.len() < GROUP_CALLS && bytes < GROUP_BYTES;
            if fits && Some(job.tenant) == tenant && ids.insert(job.id) {
                bytes += job.asked.size_bytes();
                group.push((job, answer));
            } else {
                left.push_back((job, answer));
            }
        }
        self.queue = left;
        group
    }

    async fn serve(&mut self, group: Vec<Waiting>) {
        let staged = timeout(STATEMENT_TIMEOUT, self.stage(&group)).await;
        match staged.unwrap_or_else(|_| Err(store::Error::silent_peer())) {
            Ok(mut rows) => group.into_iter().for_each(|(job, answer)| {
                let at = rows.iter().position(|row| row.transaction_id == job.id);
                let _ = answer.send(Ok(at.map(|at| rows.swap_remove(at))));
            }),
            // judged one by one
            Err(store::Error::Contended(_)) => group.into_iter().for_each(|(_, answer)| {
                let _ = answer.send(Ok(None));
            }),
            Err(error) => {
                self.connection = None;
                let error = Error::from(error);
                group.into_iter().for_each(|(_, answer)| {
                    let _ = answer.send(Err(error.clone()));
                });
            }
        }
    }

    async fn stage(&mut self, group: &[Waiting]) -> Result<Vec<Row>, store::Error> {
        let Some((first, _)) = group.first() else { return Ok(Vec::new()) };
        let connection = match &mut self.connection {
            Some(connection) => connection,
            closed => closed.insert(self.store.connection().await?),
        };
        let jobs = group.iter().map(|(job, _)| job);
        let calls = jobs.map(|job| job.asked.call(job.id, job.session, job.sequence));
        let calls: Vec<staging::Call<'_>> = calls.collect();
        staging::stage(connection, first.tenant, &calls, first.max_batches).await
    }
}
