//! Adding to a transaction: records, which are staged, and offsets.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use uuid::Uuid;

use super::{CallResult, ResolvedRequest, Stop, batcher, enter};
use crate::{
    broker::{Broker, quotas},
    model::{
        Digest, Epoch, ProducerId, Sequence, TenantId, settings::OwnSettings, transaction::Actor,
    },
    rules::{
        Refusal,
        transaction::{self, Numbering, TransactionRow, Verb},
    },
    store::{self, Connection, transaction::staging},
};

/// The first interval at which a waiting call is retried, as the earlier calls may have gone to
/// another replica. The interval doubles every time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of waiting calls, over all transactions and per transaction.
const WAITING_CALLS: usize = 1_024;
const WAITING_CALLS_PER_TRANSACTION: usize = 16;

/// Records to stage.
pub struct Staging {
    tenant: TenantId,
    id: Uuid,
    session: Option<(ProducerId, Epoch)>,
    sequence: Option<Sequence>,
    /// Whether the token covers all groups.
    all_groups: bool,
    request: Arc<ResolvedRequest>,
    max_batches: i64,
}

impl batcher::BatchedCall for Staging {
    fn tenant(&self) -> TenantId {
        self.tenant
    }

    fn id(&self) -> Uuid {
        self.id
    }

    fn size_bytes(&self) -> i64 {
        self.request.size_bytes()
    }

    fn make<'a>(
        calls: &'a [Self],
        connection: &'a mut Connection,
    ) -> BoxFuture<'a, Result<Vec<CallResult>, store::Error>> {
        Box::pin(async move {
            let Some(Staging { tenant, max_batches, .. }) = calls.first() else {
                return Ok(Vec::new());
            };
            let call = |call: &'a Staging| staging::StagingCall {
                all_groups: call.all_groups,
                ..call.request.call(call.id, call.session, call.sequence)
            };
            let staged: Vec<staging::StagingCall<'_>> = calls.iter().map(call).collect();
            let rows = staging::stage(connection, *tenant, &staged, *max_batches).await?;
            Ok(rows.into_iter().map(CallResult::now).collect())
        })
    }
}

impl Broker {
    /// A call that has overtaken others of its transaction waits for them.
    pub(super) async fn add_records(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: &Actor,
        sequence: Option<Sequence>,
        request: &Arc<ResolvedRequest>,
    ) -> Result<CallResult, Stop> {
        let settings = self.settings.of(tenant).await?;
        let mut wait = None;
        loop {
            // others are judged by what is staged already
            if request.over_limit.is_none() && actor.scopes.produces_everywhere() {
                let staging = Staging {
                    tenant,
                    id,
                    session: super::session_of(actor.caller),
                    all_groups: actor.scopes.covers_all_groups(),
                    sequence,
                    request: request.clone(),
                    max_batches: transaction::max_batches(&settings),
                };
                if let Some(done) = self.staging.make(staging).await? {
                    return Ok(done);
                }
            }
            let (actor, request, settings) = (actor.clone(), request.clone(), settings.clone());
            let judge = self.store.of(tenant).transaction(async move |connection| {
                judge_records(connection, tenant, id, &actor, sequence, &request, &settings).await
            });
            match judge.await? {
                Judged::Done(done) => return Ok(done),
                Judged::Ahead { expected, received } => {
                    if !self.wait_for_calls(id, received, &mut wait).await {
                        return Err(Refusal::OutOfOrderSequence { expected, received }.into());
                    }
                }
            }
        }
    }

    pub(super) async fn add_offsets(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: &Actor,
        request: &Arc<ResolvedRequest>,
    ) -> Result<CallResult, Stop> {
        let settings = self.settings.of(tenant).await?;
        let (actor, request) = (actor.clone(), request.clone());
        let add = self.store.of(tenant).transaction(async move |connection| {
            let (row, _, _) = enter(connection, tenant, id, &actor, Verb::Add).await?;
            stage_offsets(connection, tenant, id, &request, &settings).await?;
            Ok(CallResult::now(row))
        });
        add.await
    }

    /// Lets a call wait for earlier ones; false: it has waited long enough, or too many calls wait.
    async fn wait_for_calls(&self, id: Uuid, sequence: Sequence, wait: &mut Option<Wait>) -> bool {
        if wait.is_none() {
            *wait = self.waits.enter(id, self.gap_wait);
        }
        let Some(wait) = wait.as_mut().filter(|wait| Instant::now() < wait.until) else {
            return false;
        };
        wait.pause(sequence).await;
        true
    }
}

/// The decision on a call that was skipped by the statement for many.
enum Judged {
    Done(CallResult),
    /// Earlier calls may still come.
    Ahead {
        expected: Sequence,
        received: Sequence,
    },
}

async fn judge_records(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    actor: &Actor,
    sequence: Option<Sequence>,
    request: &ResolvedRequest,
    settings: &OwnSettings,
) -> Result<Judged, Stop> {
    let (row, _, _) = enter(connection, tenant, id, actor, Verb::Add).await?;
    if let Some(received) = sequence {
        match judge_number(connection, tenant, &row, received, &request.digest).await? {
            Numbering::New => {}
            Numbering::Ahead => {
                return Ok(Judged::Ahead { expected: row.next_sequence, received });
            }
            Numbering::Known => return Ok(Judged::Done(CallResult::before(row))),
        }
    }
    let row = stage(connection, tenant, &row, sequence, request, settings).await?;
    Ok(Judged::Done(CallResult::now(row)))
}

/// The verdict on a sequenced call with this digest to a locked transaction.
pub(super) async fn judge_number(
    connection: &mut Connection,
    tenant: TenantId,
    row: &TransactionRow,
    sequence: Sequence,
    digest: &Digest,
) -> Result<Numbering, Stop> {
    let numbering = transaction::number(row, sequence)?;
    if numbering == Numbering::Known {
        let id = row.transaction_id;
        let known = staging::call_digest(connection, tenant, id, sequence).await?;
        if known.as_ref() != Some(digest) {
            return Err(Refusal::SequenceReused { sequence }.into());
        }
    }
    Ok(numbering)
}

/// Stages the records of a call to a locked transaction; returns its row afterwards.
pub(super) async fn stage(
    connection: &mut Connection,
    tenant: TenantId,
    row: &TransactionRow,
    sequence: Option<Sequence>,
    request: &ResolvedRequest,
    settings: &OwnSettings,
) -> Result<TransactionRow, Stop> {
    if let Some(refusal) = &request.over_limit {
        return Err(refusal.clone().into());
    }
    transaction::check_size(row.batch_count, request.batch_count(), settings)?;
    if staging::moved(connection, tenant, &request.spreads).await? {
        return Err(Stop::Again);
    }
    let call = request.call(row.transaction_id, row.session, sequence);
    let staged = staging::stage(connection, tenant, &[call], transaction::max_batches(settings))
        .await?
        .pop();
    staged.ok_or(Stop::Again)
}

/// Stages the offsets of a call to a locked transaction.
pub(super) async fn stage_offsets(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    request: &ResolvedRequest,
    settings: &OwnSettings,
) -> Result<(), Stop> {
    if request.offsets.is_empty() {
        return Ok(());
    }
    quotas::check_groups(connection, tenant, id, request.groups(), settings).await?;
    Ok(staging::stage_offsets(connection, tenant, id, &request.offsets).await?)
}

/// Calls that wait for earlier calls of their transactions.
#[derive(Default)]
pub struct Waits(Mutex<HashMap<Uuid, WaitingCall>>);

struct WaitingCall {
    calls: usize,
    /// The next sequence of the transaction, as last seen on this replica.
    next: watch::Sender<Sequence>,
}

/// A waiting call, as long as it lives.
pub struct Wait {
    until: Instant,
    pause: Duration,
    next: watch::Receiver<Sequence>,
    id: Uuid,
    waits: Arc<Waits>,
}

impl Waits {
    fn enter(self: &Arc<Self>, id: Uuid, longest: Duration) -> Option<Wait> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = waiting.values().map(|waiting| waiting.calls).sum();
        let same = waiting.get(&id).map_or(0, |waiting| waiting.calls);
        if same >= WAITING_CALLS_PER_TRANSACTION || all >= WAITING_CALLS {
            return None;
        }
        let new = || WaitingCall { calls: 0, next: watch::Sender::new(0) };
        let same = waiting.entry(id).or_insert_with(new);
        same.calls += 1;
        Some(Wait {
            until: Instant::now() + longest,
            pause: FIRST_PAUSE,
            next: same.next.subscribe(),
            id,
            waits: self.clone(),
        })
    }

    /// Wakes the calls of this transaction after a call was done.
    pub fn moved(&self, id: Uuid, next: Sequence) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = waiting.get(&id) {
            waiting.next.send_replace(next);
        }
    }
}

impl Wait {
    /// Waits until this sequence is the next, or until the next retry.
    async fn pause(&mut self, sequence: Sequence) {
        let until = self.until.min(Instant::now() + self.pause);
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        let _ = timeout_at(until, self.next.wait_for(|next| *next == sequence)).await;
        // what was heard was for this one time
        self.next.mark_unchanged();
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut waiting = self.waits.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = waiting.get_mut(&self.id) {
            same.calls -= 1;
            if same.calls == 0 {
                waiting.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_for_each_transaction_and_in_all() {
        let waits = Arc::new(Waits::default());
        let enter = |id: u128| waits.enter(Uuid::from_u128(id), Duration::ZERO);
        let mut waiting: Vec<Wait> =
            (0..WAITING_CALLS_PER_TRANSACTION).map(|_| enter(0).unwrap()).collect();
        assert!(enter(0).is_none());
        waiting.pop();
        waiting.push(enter(0).unwrap());
        let others = WAITING_CALLS_PER_TRANSACTION..WAITING_CALLS;
        waiting.extend(others.map(|id| enter(id as u128).unwrap()));
        assert!(enter(u128::MAX).is_none());
        waiting.clear();
        assert!(waits.0.lock().unwrap().is_empty());
    }
}
