//! Lanes: writer tasks that batch waiting requests.
//!
//! A lane takes everything that waits for one tenant, makes one pass, and takes the next batch: a
//! lone request does not wait, and under load batches grow by themselves. Out-of-order requests are
//! *parked* and decided again when their scope advances. A lane owns its requests and its
//! connection and is never cancelled: a disconnecting client changes nothing.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use metrics::Gauge;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    batch::{Job, Outcome, RequestBatch, Ticket},
    fair_queue::Places,
    linger::Pace,
    metrics::LaneMetrics,
    outcome::{all_duplicates, appended},
    queue::{Queue, scope},
    writer::{FastOutcome, Passed, SlowOutcome, Writer},
};
use crate::{
    broker::{
        Error, ServiceConfig, janitor,
        wakeup::{
            notify::Signals,
            watch::{Change, Watches},
        },
    },
    model::{LogId, TenantId, TopicId},
    rules::{
        Refusal,
        append::{
            Request,
            plan::{Decision, Plan},
            producer_state::Remembered,
            read_set,
        },
    },
    store::{self, Store, append::Written},
    telemetry,
};

/// Maximum number of requests waiting for a lane; a tenant may use half of it, and at most what it
/// leaves free.
const QUEUED_REQUESTS: usize = 16_384;
/// Maximum number of parked requests per lane, and per producer and scope.
const PARKED_REQUESTS: usize = 4_096;
const PARKED_REQUESTS_PER_PRODUCER: usize = 16;
/// How often parked requests are decided again if nothing in this lane moves them.
const PARKED_INTERVAL: Duration = Duration::from_millis(5);
/// How long a request is retried while the database is unavailable.
const DATABASE_WAIT: Duration = Duration::from_secs(10);
const RECONNECT_AFTER: Duration = Duration::from_millis(50);
/// How often a pass is retried while rows are contended.
const CONTENDED_ATTEMPTS: usize = 3;

/// The senders into the lanes.
pub struct Lanes {
    senders: Vec<mpsc::UnboundedSender<Job>>,
    places: Vec<Arc<Places>>,
    queued: Vec<Gauge>,
}

impl Lanes {
    pub fn start(
        store: &Store,
        settings: &ServiceConfig,
        watches: &Arc<Watches>,
        signals: &Arc<Signals>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let start = |lane| {
            let metrics = LaneMetrics::new(lane);
            let queued = metrics.queued.clone();
            let (sender, receiver) = mpsc::unbounded_channel();
            let lane = Lane {
                queue: Queue::new(receiver, queued.clone()),
                writer: Writer::new(store.clone()),
                parked: Vec::new(),
                pace: Pace::default(),
                gap_wait: Duration::from_millis(settings.gap_wait_ms),
                snapshot_rows: settings.snapshot_rows,
                remembered_producers: settings.remembered_producers,
                store: store.clone(),
                watches: watches.clone(),
                signals: signals.clone(),
                tasks: tasks.clone(),
                stop: stop.clone(),
                metrics,
            };
            tasks.spawn(lane.run());
            (sender, queued)
        };
        let (senders, queued): (Vec<_>, _) = (0..settings.lanes.max(1)).map(start).unzip();
        let places = senders.iter().map(|_| Places::new(QUEUED_REQUESTS)).collect();
        Self { senders, places, queued }
    }

    /// Hands a request to the lane of its topic, which never changes.
    pub fn submit(&self, topic: TopicId, mut job: Job) -> Result<(), Error> {
        let mut hasher = DefaultHasher::new();
        (job.tenant, topic).hash(&mut hasher);
        let lane = hasher.finish() as usize % self.senders.len();
        let Some(place) = self.places[lane].take(job.tenant) else {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "queued_appends")
                .increment(1);
            let detail =
                "Too many appends are waiting on this replica. Nothing was changed; retry.";
            return Err(Error::unavailable(detail));
        };
        job.ticket.place = Some(place);
        self.queued[lane].increment(1.0);
        // the lane has ended: the answer's sender is dropped with the job
        if self.senders[lane].send(job).is_err() {
            self.queued[lane].decrement(1.0);
        }
        Ok(())
    }
}

struct Lane {
    queue: Queue,
    writer: Writer,
    parked: Vec<(Job, Refusal)>,
    pace: Pace,
    gap_wait: Duration,
    snapshot_rows: i64,
    remembered_producers: usize,
    store: Store,
    watches: Arc<Watches>,
    signals: Arc<Signals>,
    tasks: TaskTracker,
    stop: CancellationToken,
    metrics: LaneMetrics,
}

impl Lane {
    async fn run(mut self) {
        let mut ticks = interval(PARKED_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.queue.is_empty() {
                tokio::select! {
                    biased;
                    came = self.queue.wait() => if !came { return },
                    _ = ticks.tick(), if !self.parked.is_empty() => self.unpark(|_| true),
                    () = self.stop.cancelled(), if self.parked.is_empty() => return,
                }
                continue;
            }
            self.queue.linger(&self.pace).await;
            let batch = self.next_batch();
            let (tenant, served, bytes) =
                (batch.tenant, batch.requests.len(), batch.size_bytes().unsigned_abs());
            let begun = Instant::now();
            self.serve(batch).await;
            self.pace.passed(tenant, begun.elapsed(), bytes, served + self.queue.len());
        }
    }

    fn unpark(&mut self, moves: impl Fn(&Job) -> bool) {
        let (moving, staying) =
            std::mem::take(&mut self.parked).into_iter().partition(|(job, _)| moves(job));
        self.parked = staying;
        let moving: Vec<(Job, Refusal)> = moving;
        self.queue.put_back(moving.into_iter().map(|(job, _)| job));
    }

    /// Takes what waits, and the parked requests of the same scopes.
    fn next_batch(&mut self) -> RequestBatch {
        let scopes = self.queue.scopes();
        self.unpark(|job| scope(job).is_some_and(|scope| scopes.contains(&scope)));
        self.queue.next_batch()
    }

    /// Makes passes until every request of the batch is answered or parked.
    async fn serve(&mut self, mut batch: RequestBatch) {
        let begun = Instant::now();
        let fast = self.writer.try_fast(&batch).await;
        self.metrics.record_fast(begun, &fast);
        match fast {
            Ok(FastOutcome::Passed(passed)) => return self.answer(batch, *passed),
            Ok(FastOutcome::Unknown) => {}
            Ok(FastOutcome::Overtaken(compared)) => batch.compared = compared,
            Err(error) => self.sort_out_lost(&mut batch, &error),
        }
        let tenant = batch.tenant;
        let mut contended = 0;
        while !batch.requests.is_empty() {
            let begun = Instant::now();
            let slow = self.writer.run_slow(&mut batch, &mut self.queue).await;
            self.metrics.record_slow(begun, &slow);
            match slow {
                Ok(SlowOutcome::Passed(passed)) => return self.answer(batch, *passed),
                Ok(SlowOutcome::Vanished(logs)) => {
                    let is_gone = |request: &Request, _: &Ticket| {
                        let mut parts = request.parts.iter();
                        let mut journals = request.transaction.iter().flat_map(|txn| &txn.journals);
                        logs.contains(&request.home)
                            || parts.any(|p| logs.contains(&p.log_id))
                            || journals.any(|(journal, _)| logs.contains(journal))
                    };
                    batch.take(is_gone).into_iter().for_each(|t| t.answer(Outcome::TopicChanged));
                }
                Ok(SlowOutcome::Behind(log)) => {
                    self.tasks.spawn(snapshot(self.store.clone(), tenant, log));
                    let stands_on = |request: &Request, _: &Ticket| {
                        read_set::dependency_logs(std::slice::from_ref(request)).contains(&log)
                    };
                    let behind = Error::unavailable(
                        "The log is being prepared for idempotent appends. Nothing was changed; \
                         retry.",
                    );
                    batch.take(stands_on).into_iter().for_each(|t| t.fail(behind.clone()));
                }
                Err(error @ store::Error::Contended(_)) if contended < CONTENDED_ATTEMPTS => {
                    tracing::debug!(%error, "retrying a pass");
                    contended += 1;
                }
                Err(error @ (store::Error::Contended(_) | store::Error::Unexpected(_))) => {
                    let error = Error::from(error);
                    batch.take(|_, _| true).into_iter().for_each(|t| t.fail(error.clone()));
                }
                Err(error) => {
                    self.sort_out_lost(&mut batch, &error);
                    tokio::time::sleep(RECONNECT_AFTER).await;
                }
            }
        }
    }

    /// After a failure: idempotent requests and transactions are retried (whichever write comes
    /// first makes the other's compare fail), unless the database is unavailable for too long. For
    /// other requests whose answer was lost, it is unknown whether they were written.
    fn sort_out_lost(&self, batch: &mut RequestBatch, error: &store::Error) {
        tracing::warn!(%error, requests = batch.requests.len(), "a pass failed");
        if matches!(error, store::Error::OutcomeUnknown(_)) {
            batch.is_redo = true;
            batch.tickets.iter_mut().for_each(|ticket| ticket.maybe_written = true);
            let is_repeatable = |r: &Request| r.is_repeatable();
            let lost = batch.take(|request, _| !is_repeatable(request));
            lost.into_iter().for_each(|ticket| ticket.fail(Error::outcome_unknown()));
        }
        let late = batch.take(|_, ticket| ticket.arrived_at.elapsed() > DATABASE_WAIT);
        for ticket in late {
            ticket.fail(Error::unavailable("The database is unavailable."));
        }
        self.metrics.redone.increment(batch.requests.len() as u64);
    }

    /// Answers decided requests, parks those that may wait, and notifies readers of these logs.
    fn answer(&mut self, batch: RequestBatch, passed: Passed) {
        self.metrics.passed(&batch);
        let RequestBatch { tenant, requests, tickets, .. } = batch;
        let Passed { plan, written } = passed;
        let remembered = self.writer.used(tenant, &requests, self.remembered_producers);
        self.metrics.remembered.set(remembered as f64);
        if let Some(written) = &written {
            self.tell(tenant, &plan, written);
        }
        let decided = requests.into_iter().zip(tickets).zip(plan.decisions);
        for ((request, mut ticket), decision) in decided {
            ticket.maybe_written = false;
            match decision {
                Decision::Appended { deltas, verdicts } => {
                    if let Some(written) = &written {
                        ticket.answer(appended(&request, &deltas, &verdicts, written));
                    }
                }
                Decision::Repeated(Remembered { placement, appended_at, .. }) => {
                    ticket.answer(Outcome::Placed { placement, appended_at, duplicate: true });
                }
                Decision::AllDuplicates(verdicts) => {
                    ticket.answer(all_duplicates(&request, verdicts))
                }
                Decision::RetryNextBatch => self.queue.again(Job { tenant, request, ticket }),
                Decision::Forgotten => ticket.answer(Outcome::Forgotten),
                Decision::AlreadyCommitted(row) => {
                    ticket.answer(Outcome::Committed { row, duplicate: true })
                }
                Decision::Refused(refusal) => ticket.answer(Outcome::Refused(refusal)),
                Decision::TopicChanged => {
                    self.writer.forget(tenant, std::slice::from_ref(&request));
                    ticket.answer(Outcome::TopicChanged);
                }
                Decision::OutOfOrder(refusal) => {
                    self.park(Job { tenant, request, ticket }, refusal)
                }
            }
        }
    }

    fn park(&mut self, mut job: Job, refusal: Refusal) {
        let same = self.parked.iter().filter(|(parked, _)| scope(parked) == scope(&job)).count();
        if job.ticket.arrived_at.elapsed() >= self.gap_wait
            || same >= PARKED_REQUESTS_PER_PRODUCER
            || self.parked.len() >= PARKED_REQUESTS
        {
            job.ticket.answer(Outcome::Refused(refusal));
        } else {
            job.ticket.parked.get_or_insert_with(|| self.metrics.park());
            self.parked.push((job, refusal));
        }
    }

    fn tell(&mut self, tenant: TenantId, plan: &Plan, written: &Written) {
        for write in &plan.writes {
            // of a journal not this is watched, but how its topic grows
            let is_journal = write.rows.iter().all(|row| row.lines.is_empty());
            if let Some(base) = written.bases.get(&write.log_id)
                && !is_journal
            {
                let news = Change::HighWatermark(base + write.record_count);
                self.watches.publish(tenant, write.log_id.into(), news);
            }
            let log = self.writer.caches(tenant).get_mut(&write.log_id);
            if let Some(log) = log.filter(|log| log.unfolded_rows >= self.snapshot_rows) {
                log.unfolded_rows = 0;
                self.tasks.spawn(snapshot(self.store.clone(), tenant, write.log_id));
            }
        }
        let changed = written.bases.keys().map(|log_id| (tenant, (*log_id).into()));
        self.signals.changed(changed);
    }
}

async fn snapshot(store: Store, tenant: TenantId, log: LogId) {
    if let Err(error) = janitor::snapshot(&store, tenant, log).await {
        tracing::debug!(%error, log = log.0, "a snapshot failed; the next one covers more rows");
    }
}
