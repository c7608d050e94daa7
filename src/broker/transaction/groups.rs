//! Calls of many transactions, made together: all that waits for one tenant goes with one statement,
//! in which each call is done by itself or not; one that is not is judged under its locks. The
//! statements wait for no transaction that is held elsewhere.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use uuid::Uuid;

use super::Done;
use crate::{
    broker::{Error, watches::Herald},
    model::TenantId,
    store::{self, Connection, Store},
    telemetry,
};

/// Calls of one kind that may wait.
const QUEUED_CALLS: usize = 8_192;
/// Most calls, and bytes of their records, of one statement.
const GROUP_CALLS: usize = 256;
const GROUP_BYTES: i64 = 8 << 20;
/// Far beyond the lock timeout: only a silent peer takes so long.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);

/// A call that is made together with others of its kind.
pub trait Call: Send + Sync + 'static {
    fn tenant(&self) -> TenantId;
    fn id(&self) -> Uuid;
    fn size_bytes(&self) -> i64;

    /// Makes calls of one tenant, of different transactions; answers those that were done.
    fn make<'a>(
        calls: &'a [Self],
        connection: &'a mut Connection,
    ) -> BoxFuture<'a, Result<Vec<Done>, store::Error>>
    where
        Self: Sized;
}

/// None: it was not done.
type Made = Result<Option<Done>, Error>;
type Waiting<C> = (C, oneshot::Sender<Made>);

/// The way to those that make calls of one kind.
pub struct Calls<C>(mpsc::Sender<Waiting<C>>);

impl<C: Call> Calls<C> {
    pub fn start(
        store: &Store,
        herald: &Herald,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUED_CALLS);
        let (store, herald) = (store.clone(), herald.clone());
        let maker = Maker { store, herald, connection: None, queue: VecDeque::new() };
        tasks.spawn(maker.run(receiver, stop.clone()));
        Self(sender)
    }

    pub async fn make(&self, call: C) -> Made {
        let (answer, answered) = oneshot::channel();
        if self.0.try_send((call, answer)).is_err() {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "queued_calls")
                .increment(1);
            let detail = "Too many calls are waiting here already. Nothing was changed.";
            return Err(Error::unavailable(detail));
        }
        answered.await.unwrap_or_else(|_| Err(Error::internal()))
    }
}

struct Maker<C> {
    store: Store,
    herald: Herald,
    connection: Option<Connection>,
    queue: VecDeque<Waiting<C>>,
}

impl<C: Call> Maker<C> {
    async fn run(mut self, mut receiver: mpsc::Receiver<Waiting<C>>, stop: CancellationToken) {
        loop {
            if self.queue.is_empty() {
                let call = tokio::select! {
                    biased;
                    call = receiver.recv() => call,
                    () = stop.cancelled() => None,
                };
                let Some(call) = call else { return };
                self.queue.push_back(call);
            }
            while self.queue.len() < GROUP_CALLS
                && let Ok(call) = receiver.try_recv()
            {
                self.queue.push_back(call);
            }
            let (calls, answers) = self.next_group();
            self.serve(calls, answers).await;
        }
    }

    /// What waits for the first one's tenant, one call of each transaction.
    fn next_group(&mut self) -> (Vec<C>, Vec<oneshot::Sender<Made>>) {
        let tenant = self.queue.front().map(|(call, _)| call.tenant());
        let (mut group, mut left) = (Vec::new(), VecDeque::new());
        let (mut ids, mut bytes) = (HashSet::new(), 0);
        for (call, answer) in self.queue.drain(..) {
            let fits = group.len() < GROUP_CALLS && bytes < GROUP_BYTES;
            if fits && Some(call.tenant()) == tenant && ids.insert(call.id()) {
                bytes += call.size_bytes();
                group.push((call, answer));
            } else {
                left.push_back((call, answer));
            }
        }
        self.queue = left;
        group.into_iter().unzip()
    }

    async fn serve(&mut self, calls: Vec<C>, answers: Vec<oneshot::Sender<Made>>) {
        let made = timeout(STATEMENT_TIMEOUT, self.try_make(&calls)).await;
        let waiting = calls.iter().zip(answers);
        match made.unwrap_or_else(|_| Err(store::Error::silent_peer())) {
            Ok(mut done) => waiting.for_each(|(call, answer)| {
                let at = done.iter().position(|done| done.row.transaction_id == call.id());
                let done = at.map(|at| done.swap_remove(at));
                done.iter().for_each(|done| done.tell(call.tenant(), &self.herald));
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

    async fn try_make(&mut self, calls: &[C]) -> Result<Vec<Done>, store::Error> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            closed => closed.insert(self.store.connection().await?),
        };
        C::make(calls, connection).await
    }
}
