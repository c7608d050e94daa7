//! The queue of a lane, which forms batches.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use metrics::{Gauge, Histogram};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};
use uuid::Uuid;

use super::{
    batch::{Job, RequestBatch},
    fair_queue::FairQueue,
    linger::Pace,
};
use crate::{
    model::{LogId, ProducerId, TenantId},
    rules::append::Request,
    telemetry,
};

/// Maximum requests and bytes of one pass.
pub const BATCH_REQUESTS: usize = 512;
const BATCH_BYTES: i64 = 8 << 20;

/// The scope in which a producer's requests are ordered.
pub type ProducerScope = (TenantId, LogId, ProducerId);

pub fn scope(job: &Job) -> Option<ProducerScope> {
    Some((job.tenant, job.request.home, job.request.numbered?.producer_id))
}

pub struct Queue {
    receiver: mpsc::UnboundedReceiver<Job>,
    jobs: FairQueue<Job>,
    /// Jobs that were in no batch yet, with their waiting time.
    queued: Gauge,
    queue_duration: Histogram,
}

impl Queue {
    pub fn new(receiver: mpsc::UnboundedReceiver<Job>, queued: Gauge) -> Self {
        let queue_duration = metrics::histogram!(telemetry::QUEUE_DURATION_SECONDS);
        Self { receiver, jobs: FairQueue::default(), queued, queue_duration }
    }

    /// Whether nothing waits.
    pub fn is_empty(&mut self) -> bool {
        self.take_in();
        self.jobs.is_empty()
    }

    /// How much waits.
    pub fn len(&self) -> usize {
        self.jobs.len() + self.receiver.len()
    }

    /// Receives everything that has arrived, because the tenant whose turn is next may have arrived
    /// last.
    fn take_in(&mut self) {
        while let Ok(job) = self.receiver.try_recv() {
            self.jobs.push(job.tenant, job);
        }
    }

    /// Waits for an arrival; false if there will be none.
    pub async fn wait(&mut self) -> bool {
        let job = self.receiver.recv().await;
        let came = job.is_some();
        self.put_back(job);
        came
    }

    /// Lingers for requests of the last batch's clients if that batch was slow and of the same
    /// tenant.
    pub async fn linger(&mut self, pace: &Pace) {
        let Some((wait, company)) = self.jobs.next().and_then(|tenant| pace.wait_for(tenant))
        else {
            return;
        };
        let until = Instant::now() + wait;
        while self.jobs.len() < company.min(BATCH_REQUESTS)
            && let Ok(Some(job)) = timeout_at(until, self.receiver.recv()).await
        {
            self.jobs.push(job.tenant, job);
        }
    }

    /// Takes back parked jobs.
    pub fn put_back(&mut self, jobs: impl IntoIterator<Item = Job>) {
        jobs.into_iter().for_each(|job| self.jobs.push(job.tenant, job));
    }

    /// Takes back a job for the next batch.
    pub fn again(&mut self, job: Job) {
        if job.ticket.parked.is_none() {
            self.queued.increment(1.0);
        }
        self.jobs.push(job.tenant, job);
    }

    pub fn scopes(&self) -> BTreeSet<ProducerScope> {
        self.jobs.iter().filter_map(scope).collect()
    }

    /// Takes everything that waits for the tenant whose turn it is.
    pub fn next_batch(&mut self) -> RequestBatch {
        let tenant = self.jobs.next().unwrap_or(TenantId(0));
        let mut batch = RequestBatch {
            tenant,
            requests: Vec::new(),
            tickets: Vec::new(),
            is_redo: false,
            compared: BTreeMap::new(),
        };
        self.add_to(&mut batch, |_| true);
        batch
    }

    /// Takes arrivals of the batch's tenant that may still join it.
    pub fn join(&mut self, batch: &mut RequestBatch, may_join: impl Fn(&Request) -> bool) {
        self.take_in();
        self.add_to(batch, may_join);
    }

    /// Fills a batch up to its limits, with each producer's requests in the order of their
    /// sequences.
    fn add_to(&mut self, batch: &mut RequestBatch, may_join: impl Fn(&Request) -> bool) {
        let now = Instant::now();
        let size_bytes =
            |request: &Request| -> i64 { request.parts.iter().map(|part| part.size_bytes).sum() };
        let mut bytes: i64 = batch.requests.iter().map(size_bytes).sum();
        let mut room = BATCH_REQUESTS.saturating_sub(batch.requests.len());
        let identity = |request: &Request| Some(request.transaction.as_ref()?.identity());
        let mut transactions: HashSet<Uuid> = batch.requests.iter().filter_map(identity).collect();
        let mut taken = self.jobs.take(batch.tenant, |job| {
            let fits = room > 0 && bytes < BATCH_BYTES;
            // a transaction that is sent twice finds its outcome in the next batch
            let is_first = identity(&job.request).is_none_or(|id| transactions.insert(id));
            let takes = fits && is_first && may_join(&job.request);
            if takes {
                bytes += job.request.size_bytes();
                room -= 1;
            }
            takes
        });
        taken.sort_by_key(|job| {
            let numbered = job.request.numbered;
            (job.request.home, numbered.map(|n| (n.producer_id, n.epoch, n.sequence)))
        });
        for job in taken {
            // what was parked has been in a batch before
            if job.ticket.parked.is_none() {
                self.queued.decrement(1.0);
                let waited = now.duration_since(job.ticket.arrived_at);
                self.queue_duration.record(waited.as_secs_f64());
            }
            batch.requests.push(job.request);
            batch.tickets.push(job.ticket);
        }
    }
}
