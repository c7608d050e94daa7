//! A pass: a batch of appends of one tenant, decided and written together.
//!
//! The *fast path* decides from the log caches and writes with one statement that takes effect only
//! if the caches are current. The *slow path* handles everything else: it locks the heads, loads
//! what the caches lack, decides, writes and commits. A failure drops the caches of the batch's
//! logs; a lost connection drops all of them, as others may have written meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::timeout;

use super::{
    batch::RequestBatch,
    dedup,
    load::{Loaded, load, load_early},
    log_caches::TenantLogCaches,
    queue::Queue,
    txn::{self, transactions},
    write::{PlanResult, write_if, write_locked},
};
use crate::{
    model::{LogId, Offset, ProducerId, TenantId},
    rules::{
        append::{
            self, Request,
            cache::{FAR_OFFSETS, Head, LogCaches, NEAR_OFFSETS},
            plan::Plan,
            read_set::{self, ExpectedHead},
        },
        transaction::one_request::TxnContext,
    },
    store::{
        self, Connection, Server, Store,
        append::{Written, load::Facts},
    },
};

/// Far beyond the lock timeout: only a dead peer takes so long.
const PASS_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the slow path starts again because it met a producer that it had not locked, or had
/// too much to load under its locks.
const SLOW_ATTEMPTS: usize = 4;

/// The result of a successful pass.
pub struct Passed {
    pub plan: Plan,
    /// None: nothing was written.
    pub written: Option<Written>,
}

pub enum FastOutcome {
    Passed(Box<Passed>),
    /// The caches lack something.
    Unknown,
    /// Another writer or a fence came first, or a transaction's context has changed.
    Overtaken(BTreeMap<LogId, ExpectedHead>),
}

pub enum SlowOutcome {
    Passed(Box<Passed>),
    /// These logs were deleted with their topics; nothing was done.
    Vanished(BTreeSet<LogId>),
    /// The log needs a newer snapshot first; nothing was done.
    Behind(LogId),
}

/// The resources of passes: a private connection, and the log caches.
pub struct Writer {
    store: Store,
    connection: Option<Connection>,
    caches: TenantLogCaches,
    /// The server of the last write; before it, that of the connection when it was opened.
    server: Option<Server>,
}

impl Writer {
    pub fn new(store: Store) -> Self {
        Self { store, connection: None, caches: TenantLogCaches::default(), server: None }
    }

    pub fn caches(&mut self, tenant: TenantId) -> &mut LogCaches {
        self.caches.of(tenant)
    }

    /// Records a pass over these requests, and evicts caches beyond this many producers; returns
    /// how many are cached.
    pub fn used(&mut self, tenant: TenantId, requests: &[Request], most: usize) -> usize {
        let logs = read_set::touched_logs(requests);
        let added = logs.len() + requests.iter().map(Request::weight).sum::<usize>();
        self.caches.used(tenant, logs, added, most)
    }

    /// The fast path: decides from the caches, and writes if they are current.
    pub async fn try_fast(&mut self, batch: &RequestBatch) -> Result<FastOutcome, store::Error> {
        let caches = self.caches.of(batch.tenant);
        let Some(connection) = &mut self.connection else { return Ok(FastOutcome::Unknown) };
        if !read_set::is_known(caches, &batch.requests) {
            return Ok(FastOutcome::Unknown);
        }
        let Some(mut context) = TxnContext::optimistic(transactions(&batch.requests)) else {
            return Ok(FastOutcome::Unknown);
        };
        let lookup = dedup::look_up_cached(connection, batch.tenant, caches, &batch.requests);
        match timeout(PASS_TIMEOUT, lookup).await {
            Ok(Ok(keys)) => context.known = keys,
            Ok(Err(error)) => return Err(self.fail(batch, error)),
            Err(_) => return Err(self.fail(batch, store::Error::silent_peer())),
        }
        let plan = append::decide(caches, &batch.requests, &mut context);
        if !plan.silent.is_empty() {
            self.forget(batch.tenant, &batch.requests);
            return Ok(FastOutcome::Unknown);
        }
        let writes = plan.writes_anything();
        let result = timeout(PASS_TIMEOUT, write_if(connection, batch, &plan, true)).await;
        match result.unwrap_or_else(|_| Err(store::Error::silent_peer())) {
            Ok(PlanResult::Applied(written)) => {
                let mut passed = Box::new(Passed { plan, written });
                self.confirm(batch.tenant, &mut passed);
                Ok(FastOutcome::Passed(passed))
            }
            Ok(PlanResult::Stale) => {
                if writes {
                    self.forget(batch.tenant, &batch.requests);
                }
                Ok(FastOutcome::Overtaken(plan.compares().collect()))
            }
            Err(store::Error::Unavailable(error)) if writes => {
                Err(self.fail(batch, store::Error::OutcomeUnknown(error)))
            }
            Err(error) => Err(self.fail(batch, error)),
        }
    }

    /// The slow path: locks, loads, decides, writes, commits.
    pub async fn run_slow(
        &mut self,
        batch: &mut RequestBatch,
        queue: &mut Queue,
    ) -> Result<SlowOutcome, store::Error> {
        match timeout(PASS_TIMEOUT, self.slow_attempts(batch, queue)).await {
            Ok(Ok(outcome)) => {
                if let SlowOutcome::Behind(_) = &outcome {
                    self.forget(batch.tenant, &batch.requests);
                }
                Ok(outcome)
            }
            Ok(Err(error)) => {
                self.settle(&error).await;
                Err(self.fail(batch, error))
            }
            Err(_) => Err(self.fail(batch, store::Error::silent_peer())),
        }
    }

    async fn slow_attempts(
        &mut self,
        batch: &mut RequestBatch,
        queue: &mut Queue,
    ) -> Result<SlowOutcome, store::Error> {
        let caches = self.caches.of(batch.tenant);
        let connection = match &mut self.connection {
            Some(connection) => connection,
            closed => {
                let connection = closed.insert(self.store.connection().await?);
                self.server = Some(store::server(connection).await?);
                connection
            }
        };
        let mut early = !read_set::remembers(caches, &batch.requests);
        for _ in 0..SLOW_ATTEMPTS {
            let RequestBatch { tenant, requests, .. } = &*batch;
            if early
                && let Loaded::Behind(log) =
                    load_early(connection, caches, *tenant, requests).await?
            {
                return Ok(SlowOutcome::Behind(log));
            }
            let attempt = slow_attempt(connection, caches, batch, queue, early).await?;
            if let Some(mut outcome) = attempt {
                if let SlowOutcome::Passed(passed) = &mut outcome {
                    self.confirm(batch.tenant, passed);
                }
                return Ok(outcome);
            }
            early = true;
        }
        Err(store::Error::Unexpected("the slow path did not terminate".into()))
    }

    fn confirm(&mut self, tenant: TenantId, passed: &mut Passed) {
        if let Some(written) = &passed.written {
            let caches = self.caches.of(tenant);
            passed.plan.confirm(caches, written.appended_at, &written.bases);
            // a write without a compare says nothing of the rows before it: on another server these
            // may be of another history, which no connection shows behind a pooler
            if let Some(server) = written.server
                && self.server.replace(server) != Some(server)
            {
                self.caches.clear();
            }
        }
    }

    /// A pass that failed here, not in the database, has left its transaction open: dropping it
    /// only rolls back with the next statement, and would hold its locks until then.
    async fn settle(&mut self, error: &store::Error) {
        if matches!(error, store::Error::Contended(_) | store::Error::Unexpected(_))
            && let Some(connection) = &mut self.connection
            && store::settle(connection).await.is_err()
        {
            self.connection = None;
            self.caches.clear();
        }
    }

    /// For requests that were decided from their cache without a write, or are refused by it
    /// repeatedly: the cache is reloaded for the next pass.
    pub fn forget(&mut self, tenant: TenantId, requests: &[Request]) {
        let caches = self.caches.of(tenant);
        for log in read_set::touched_logs(requests) {
            caches.remove(&log);
        }
    }

    fn fail(&mut self, batch: &RequestBatch, error: store::Error) -> store::Error {
        match &error {
            store::Error::Unavailable(_) | store::Error::OutcomeUnknown(_) => {
                if self.connection.take().is_some() {
                    self.store.lost();
                }
                self.caches.clear();
            }
            store::Error::Contended(_)
            | store::Error::Unexpected(_)
            | store::Error::Unsuitable(_) => self.forget(batch.tenant, &batch.requests),
        }
        error
    }
}

/// `early`: what could be loaded before the lock is loaded. None: it must be, first.
async fn slow_attempt(
    connection: &mut Connection,
    caches: &mut LogCaches,
    batch: &mut RequestBatch,
    queue: &mut Queue,
    early: bool,
) -> Result<Option<SlowOutcome>, store::Error> {
    let RequestBatch { tenant, requests, .. } = &*batch;
    let touched = read_set::touched_logs(requests);
    let dependencies = read_set::dependency_logs(requests);
    let before = positions(caches, &dependencies);

    let mut transaction = store::begin(connection).await?;
    let shared = unregistered(caches, requests);
    let mut held = Facts::new();
    let producers: BTreeSet<ProducerId> =
        shared.iter().map(|(_, id)| *id).chain(txn::sessions(requests)).collect();
    if !producers.is_empty() {
        let producers: Vec<ProducerId> = producers.into_iter().collect();
        held = store::append::load::share_sessions(&mut transaction, *tenant, &producers).await?;
    }
    let mut rows = txn::hold(&mut transaction, *tenant, requests, &held).await?;
    let mut heads = store::catalog::logs::lock(&mut transaction, *tenant, &touched).await?;
    if heads.len() < touched.len() {
        store::rollback(transaction).await?;
        let found: BTreeSet<LogId> = heads.iter().map(|head| head.log_id).collect();
        let vanished = touched.into_iter().filter(|log| !found.contains(log)).collect();
        return Ok(Some(SlowOutcome::Vanished(vanished)));
    }
    heads.retain(|head| dependencies.binary_search(&head.log_id).is_ok());
    let is_near = |head: &Head| caches.get(&head.log_id).is_some_and(|log| log.is_near(head));
    if !early && !heads.iter().all(is_near) {
        store::rollback(transaction).await?;
        return Ok(None);
    }
    let most_offsets = if early { FAR_OFFSETS } else { NEAR_OFFSETS };
    let loaded =
        load(&mut transaction, caches, *tenant, &heads, requests, &held, most_offsets).await?;
    if let Loaded::Behind(log) = loaded {
        store::rollback(transaction).await?;
        return Ok(early.then_some(SlowOutcome::Behind(log)));
    }
    let now_at = positions(caches, &dependencies);
    if heads.iter().any(|head| now_at.get(&head.log_id) != Some(&head.next_offset)) {
        return Err(store::Error::Unexpected("a head does not match its rows".into()));
    }
    if !unregistered(caches, requests).is_subset(&shared) {
        store::rollback(transaction).await?;
        return Ok(None);
    }
    for (log_id, position) in &now_at {
        if let Some(log) = caches.get_mut(log_id) {
            let moved = before.get(log_id).is_some_and(|before| before != position);
            let compared = batch.compared.get(log_id);
            log.looked(moved || compared.is_some_and(|compare| !compare.holds(log)));
        }
    }

    // waiting for the locks took time; what has come meanwhile need not wait for them once more
    queue.join(batch, |request| read_set::may_join(caches, &touched, &dependencies, request));
    rows.context.known =
        dedup::refresh_and_look_up(&mut transaction, batch.tenant, caches, &batch.requests).await?;
    let plan = append::decide(caches, &batch.requests, &mut rows.context);
    let written = write_locked(transaction, caches, batch, &plan, &now_at, &rows).await?;
    Ok(Some(SlowOutcome::Passed(Box::new(Passed { plan, written }))))
}

fn positions(caches: &LogCaches, logs: &[LogId]) -> BTreeMap<LogId, Offset> {
    let position = |log_id: &LogId| Some((*log_id, caches.get(log_id)?.next_offset));
    logs.iter().filter_map(position).collect()
}

/// Producers of the batch that are not cached as registered: an open may not know yet that they
/// write this log, so their session rows stay locked until this pass has registered them.
fn unregistered(caches: &LogCaches, requests: &[Request]) -> BTreeSet<(LogId, ProducerId)> {
    let numbered = |request: &Request| Some((request.home, request.numbered?.producer_id));
    let is_registered = |(log_id, producer_id): &(LogId, ProducerId)| {
        let producer = caches.get(log_id).and_then(|log| log.producers.get(producer_id));
        producer.is_some_and(|producer| producer.registered)
    };
    requests.iter().filter_map(numbered).filter(|pair| !is_registered(pair)).collect()
}
