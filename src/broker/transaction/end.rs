//! Ending a transaction: commit, abort, and prepare, after which it can only be ended.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use uuid::Uuid;

use super::{CallResult, ResolvedRequest, Stop, batcher, begin, enter, record_ids, session_of};
use crate::{
    broker::{Broker, Error, quotas},
    model::{
        LogId, Name, TenantId,
        settings::{Key, OwnSettings},
        transaction::{Actor, Caller, Reason, State},
    },
    rules::{
        group::offsets::{self, Claimed, Committer, OffsetPlace},
        transaction::{self, TransactionRow, TransactionVerdict, Verb},
    },
    store::{
        self, Connection,
        group::offsets::OffsetWrite as OffsetCommit,
        transaction::{end::Commit, staging},
    },
};

/// A transaction to commit as it is.
pub struct Committing {
    tenant: TenantId,
    commit: Commit,
}

impl batcher::BatchedCall for Committing {
    fn tenant(&self) -> TenantId {
        self.tenant
    }

    fn id(&self) -> Uuid {
        self.commit.id
    }

    fn size_bytes(&self) -> i64 {
        0
    }

    fn make<'a>(
        calls: &'a [Self],
        connection: &'a mut Connection,
    ) -> BoxFuture<'a, Result<Vec<CallResult>, store::Error>> {
        Box::pin(async move {
            let Some(Committing { tenant, .. }) = calls.first() else { return Ok(Vec::new()) };
            let commits: Vec<Commit> = calls.iter().map(|call| call.commit).collect();
            let committed =
                store::transaction::end::commit(connection, *tenant, &commits, false).await?;
            let mut done: Vec<CallResult> =
                committed.rows.into_iter().map(CallResult::now).collect();
            // told once for all
            if let Some(first) = done.first_mut() {
                first.high_watermarks = committed.high_watermarks;
            }
            Ok(done)
        })
    }
}

impl Broker {
    pub(super) async fn commit(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: &Actor,
        expected_appends: Option<i64>,
        request: &Arc<ResolvedRequest>,
    ) -> Result<CallResult, Stop> {
        let begun = Instant::now();
        // without offsets, whose groups a token has to cover
        let at_once = actor.caller != Caller::Operator && actor.scopes.produces_everywhere();
        if request.is_empty() && at_once {
            let commit = Commit { id, session: session_of(actor.caller), expected_appends };
            if let Some(done) = self.committing.make(Committing { tenant, commit }).await? {
                self.transactions.committed(begun);
                return Ok(done);
            }
        }
        let settings = self.settings.of(tenant).await?;
        let (actor, request) = (actor.clone(), request.clone());
        let (store, notifier) = (self.store.clone(), self.notifier.clone());
        let commit = self.tasks.spawn(async move {
            let judge = store.transaction(async move |c| {
                judge_commit(c, tenant, id, &actor, expected_appends, &request, &settings).await
            });
            let done = judge.await?;
            done.tell(tenant, &notifier);
            Ok::<_, Stop>(done)
        });
        let done = commit.await.unwrap_or_else(|_| Err(Error::internal().into()))?;
        if !done.duplicate {
            self.transactions.committed(begun);
        }
        Ok(done)
    }

    pub(super) async fn prepare(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: &Actor,
    ) -> Result<CallResult, Stop> {
        let (actor, settings) = (actor.clone(), self.settings.of(tenant).await?);
        let quota = self.quotas.near(tenant, &settings, Key::MaxPreparedTransactions).await?;
        // all that are counted wait for the tenant's row
        let _lock = match quota {
            Some(_) => Some(self.row_locks.take(tenant, None).await),
            None => None,
        };
        let prepare = self.store.of(tenant).transaction(async move |connection| {
            let held = quotas::hold(quota, connection, tenant).await?;
            let done = judge_prepare(connection, tenant, id, &actor, &settings).await?;
            if let Some(held) = held.filter(|_| !done.duplicate) {
                held.check(connection, tenant).await?;
            }
            Ok(done)
        });
        prepare.await
    }

    pub(super) async fn abort(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: &Actor,
    ) -> Result<CallResult, Stop> {
        let actor = actor.clone();
        let abort = self
            .store
            .of(tenant)
            .transaction(async move |connection| judge_abort(connection, tenant, id, &actor).await);
        abort.await
    }
}

/// Decides a commit under its locks, adds its contents, and commits.
async fn judge_commit(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    actor: &Actor,
    expected_appends: Option<i64>,
    request: &ResolvedRequest,
    settings: &OwnSettings,
) -> Result<CallResult, Stop> {
    let (mut row, verdict, _) = enter(connection, tenant, id, actor, Verb::Commit).await?;
    if verdict == TransactionVerdict::Repeat {
        return Ok(CallResult::before(row));
    }
    if !request.is_empty() {
        // a prepared one takes nothing more
        transaction::judge(&row, Verb::Add, actor.caller)?;
        row = begin::add(connection, tenant, row, request, settings).await?;
    }
    finish(connection, tenant, row, expected_appends, settings).await
}

/// Commits a locked transaction with all its contents.
pub(super) async fn finish(
    connection: &mut Connection,
    tenant: TenantId,
    row: TransactionRow,
    expected_appends: Option<i64>,
    settings: &OwnSettings,
) -> Result<CallResult, Stop> {
    let id = row.transaction_id;
    transaction::check_appends(expected_appends, row.append_count)?;
    let logs = staging::logs(connection, tenant, id).await?;
    check_topics(connection, tenant, &logs.all).await?;
    let staged = staging::offsets(connection, tenant, id).await?;
    let places = judge_offsets(connection, tenant, &row, &staged).await?;
    if row.state == State::Prepared {
        staging::unpin(connection, tenant, id, &places).await?;
    }
    let claims = record_ids::claim(connection, tenant, &row, &logs, settings).await?;
    let commit = Commit { id, session: row.session, expected_appends };
    let committed = store::transaction::end::commit(connection, tenant, &[commit], true).await?;
    let high_watermarks = committed.high_watermarks;
    let row = committed.rows.into_iter().next().ok_or(Stop::Again)?;
    claims.remember(connection, tenant, &row).await?;
    let commit =
        |Claimed { place, offset, .. }: Claimed| OffsetCommit { place, offset, metadata: None };
    let commits: Vec<OffsetCommit> = staged.into_iter().map(commit).collect();
    if !commits.is_empty() {
        if !store::group::offsets::commit(connection, tenant, &commits).await? {
            return Err(Stop::Again);
        }
        staging::drop_offsets(connection, tenant, id).await?;
    }
    Ok(CallResult { row, duplicate: false, high_watermarks })
}

async fn judge_prepare(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    actor: &Actor,
    settings: &OwnSettings,
) -> Result<CallResult, Stop> {
    let (mut row, verdict, _) = enter(connection, tenant, id, actor, Verb::Prepare).await?;
    if verdict == TransactionVerdict::Repeat {
        return Ok(CallResult::before(row));
    }
    let staged = staging::offsets(connection, tenant, id).await?;
    let places = judge_offsets(connection, tenant, &row, &staged).await?;
    let records = staging::logs(connection, tenant, id).await?;
    let logs: BTreeSet<LogId> =
        records.all.iter().copied().chain(places.iter().map(|place| place.log_id)).collect();
    let logs: Vec<LogId> = logs.into_iter().collect();
    check_topics(connection, tenant, &logs).await?;
    // these heads are waited for, in order; those below are not
    let claims = record_ids::claim(connection, tenant, &row, &records, settings).await?;
    if !store::catalog::logs::hold(connection, tenant, &logs).await? {
        // one is being deleted, or is not after all: the next attempt learns it
        return Err(Stop::Again);
    }
    let now = store::session::clock(connection).await?;
    if row.has_expired(now) {
        return Err(Stop::Expired(id));
    }
    staging::pin(connection, tenant, id, &logs, &places).await?;
    claims.hold(connection, tenant, id).await?;
    store::transaction::end::prepare(connection, tenant, id, now).await?;
    row.state = State::Prepared;
    row.prepared_at = Some(now);
    Ok(CallResult::now(row))
}

async fn judge_abort(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    actor: &Actor,
) -> Result<CallResult, Stop> {
    let (mut row, verdict, now) = enter(connection, tenant, id, actor, Verb::Abort).await?;
    if verdict == TransactionVerdict::Repeat {
        return Ok(CallResult::before(row));
    }
    if row.state == State::Prepared {
        let staged = staging::offsets(connection, tenant, id).await?;
        let places: Vec<OffsetPlace> = staged.into_iter().map(|staged| staged.place).collect();
        store::group::offsets::lock(connection, tenant, &places).await?;
        staging::unpin(connection, tenant, id, &places).await?;
        store::transaction::record_ids::release(connection, tenant, id).await?;
    }
    let reason = if actor.caller == Caller::Operator { Reason::Operator } else { Reason::Client };
    store::transaction::end::abort(connection, tenant, id, reason, now).await?;
    row.state = State::Aborted;
    row.reason = Some(reason);
    row.ended_at = Some(now);
    Ok(CallResult::now(row))
}

/// Locks the offsets that a transaction will commit, and checks them; those of a prepared one were
/// checked before.
async fn judge_offsets(
    connection: &mut Connection,
    tenant: TenantId,
    row: &TransactionRow,
    staged: &[Claimed],
) -> Result<Vec<OffsetPlace>, Stop> {
    let places: Vec<OffsetPlace> = staged.iter().map(|staged| staged.place.clone()).collect();
    if places.is_empty() {
        return Ok(places);
    }
    let rows = store::group::offsets::lock(connection, tenant, &places).await?;
    if rows.len() < places.len() {
        let logs: BTreeSet<LogId> = places.iter().map(|place| place.log_id).collect();
        check_topics(connection, tenant, &logs.into_iter().collect::<Vec<_>>()).await?;
        // a group was deleted meanwhile: it is created again
        return Err(Stop::Again);
    }
    if row.state == State::Prepared {
        return Ok(places);
    }
    let names: BTreeSet<Name> = places.iter().map(|place| place.group.clone()).collect();
    let names: Vec<Name> = names.into_iter().collect();
    let members = staged.iter().filter_map(|claimed| claimed.claim.member_id()).collect();
    let groups = store::group::offsets::groups(connection, tenant, &names, &members).await?;
    let mut moves = Vec::with_capacity(staged.len());
    for claimed @ Claimed { place, .. } in staged {
        let (at, group) = (rows.get(place), groups.get(&place.group));
        let (at, group) = at.zip(group).ok_or(Stop::Again)?;
        moves.push((at, group, claimed));
    }
    let appends = row.append_count > 0;
    let by = Committer { transaction_id: row.transaction_id, appends };
    offsets::judge_in_transaction(&moves, by)?;
    Ok(places)
}

/// Checks that the topics of all these logs still exist.
async fn check_topics(
    connection: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<(), Stop> {
    if logs.is_empty()
        || store::catalog::logs::read(connection, tenant, logs).await?.len() == logs.len()
    {
        return Ok(());
    }
    Err(Error::topic_gone().into())
}
