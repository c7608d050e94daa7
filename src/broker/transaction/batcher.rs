//! Batches calls of many transactions: everything that waits for one tenant goes into one
//! statement, which applies or skips each call on its own; skipped calls are decided under their
//! locks. These statements skip transactions that are locked elsewhere.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::CallResult;
use crate::{
    broker::{
        Error,
        append::fair_queue::{FairQueue, Places},
        wakeup::notifier::Notifier,
    },
    model::TenantId,
    store::{self, Connection, Store},
    telemetry,
};

/// Maximum number of waiting calls of one kind; a tenant may use half of it, and at most what it
/// leaves free.
const QUEUED_CALLS: usize = 16_384;
/// Maximum number of calls, and bytes of their records, per statement.
const BATCH_CALLS: usize = 256;
const BATCH_BYTES: i64 = 8 << 20;
/// Far beyond the lock timeout: only a dead peer takes so long.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);

/// A call that is batched with others of its kind.
pub trait BatchedCall: Send + Sync + 'static {
    fn tenant(&self) -> TenantId;
    fn id(&self) -> Uuid;
    fn size_bytes(&self) -> i64;

    /// Runs calls of one tenant on different transactions; returns the results of those that were
    /// applied.
    fn make<'a>(
        calls: &'a [Self],
        connection: &'a mut Connection,
    ) -> BoxFuture<'a, Result<Vec<CallResult>, store::Error>>
    where
        Self: Sized;
}

/// None: it was skipped.
type Made = Result<Option<CallResult>, Error>;
type Waiting<C> = (C, oneshot::Sender<Made>);

/// The sender to the task that batches calls of one kind.
pub struct Calls<C> {
    sender: mpsc::UnboundedSender<Waiting<C>>,
    places: Arc<Places>,
}

impl<C: BatchedCall> Calls<C> {
    pub fn start(
        store: &Store,
        notifier: &Notifier,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (store, notifier) = (store.clone(), notifier.clone());
        let maker = Maker { store, notifier, connection: None, queue: FairQueue::default() };
        tasks.spawn(maker.run(receiver, stop.clone()));
        Self { sender, places: Places::new(QUEUED_CALLS) }
    }

    pub async fn make(&self, call: C) -> Made {
        let (answer, answered) = oneshot::channel();
        let Some(_place) = self.places.take(call.tenant()) else {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "queued_calls")
                .increment(1);
            let detail = "Too many calls are waiting on this replica. Nothing was changed; retry.";
            return Err(Error::unavailable(detail));
        };
        // one that has ended drops the answer's sender
        let _ = self.sender.send((call, answer));
        answered.await.unwrap_or_else(|_| Err(Error::internal()))
    }
}

struct Maker<C> {
    store: Store,
    notifier: Notifier,
    connection: Option<Connection>,
    queue: FairQueue<Waiting<C>>,
}

impl<C: BatchedCall> Maker<C> {
    async fn run(
        mut self,
        mut receiver: mpsc::UnboundedReceiver<Waiting<C>>,
        stop: CancellationToken,
    ) {
        loop {
            if self.queue.is_empty() {
                let call = tokio::select! {
                    biased;
                    call = receiver.recv() => call,
                    () = stop.cancelled() => None,
                };
                let Some(call) = call else { return };
                self.queue.push(call.0.tenant(), call);
            }
            while let Ok(call) = receiver.try_recv() {
                self.queue.push(call.0.tenant(), call);
            }
            let (calls, answers) = self.next_batch();
            self.serve(calls, answers).await;
        }
    }

    /// Takes what waits for the tenant whose turn it is, one call per transaction.
    fn next_batch(&mut self) -> (Vec<C>, Vec<oneshot::Sender<Made>>) {
        let Some(tenant) = self.queue.next() else { return (Vec::new(), Vec::new()) };
        let (mut ids, mut count, mut bytes) = (HashSet::new(), 0, 0);
        let batch = self.queue.take(tenant, |(call, _)| {
            let takes = count < BATCH_CALLS && bytes < BATCH_BYTES && ids.insert(call.id());
            if takes {
                count += 1;
                bytes += call.size_bytes();
            }
            takes
        });
        batch.into_iter().unzip()
    }

    async fn serve(&mut self, calls: Vec<C>, answers: Vec<oneshot::Sender<Made>>) {
        let made = timeout(STATEMENT_TIMEOUT, self.try_make(&calls)).await;
        let waiting = calls.iter().zip(answers);
        match made.unwrap_or_else(|_| Err(store::Error::silent_peer())) {
            Ok(mut done) => waiting.for_each(|(call, answer)| {
                let at = done.iter().position(|done| done.row.transaction_id == call.id());
                let done = at.map(|at| done.swap_remove(at));
                done.iter().for_each(|done| done.tell(call.tenant(), &self.notifier));
                let _ = answer.send(Ok(done));
            }),
            // judged one by one
            Err(store::Error::Contended(_)) => waiting.for_each(|(_, answer)| {
                let _ = answer.send(Ok(None));
            }),
            Err(error) => {
                self.connection = None;
                let error = Error::from(error);
                waiting.for_each(|(_, answer)| {
                    let _ = answer.send(Err(error.clone()));
                });
            }
        }
    }

    async fn try_make(&mut self, calls: &[C]) -> Result<Vec<CallResult>, store::Error> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            closed => closed.insert(self.store.connection().await?),
        };
        C::make(calls, connection).await
    }
}
