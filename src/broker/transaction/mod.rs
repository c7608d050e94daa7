//! Transactions of several requests: begin, add, prepare, end, describe.
//!
//! Most calls are one statement that takes effect only in the usual case (a compare-and-set on the
//! transaction's row). Otherwise the call is decided under locks: one database transaction locks
//! the session's row, the transaction's row, and then everything else, in the global lock order;
//! the rules decide, and the result is written.
//!
//! While a transaction is ongoing, its epoch is the producer's current one: an open, an end and an
//! expiry of the session abort it in their own database transaction. So its row alone distinguishes
//! a zombie from its owner, and a call on an ongoing transaction need not read the session.

mod add;
mod batcher;
mod begin;
mod end;
pub mod fence;
mod get;
pub mod metrics;
mod one_request;
mod record_ids;
mod resolve;

pub use add::{Staging, Waits};
pub use batcher::Calls;
pub use end::Committing;

use std::sync::Arc;

use uuid::Uuid;

use self::resolve::ResolvedRequest;
use super::{
    Broker, Error,
    group::offsets::count_fenced,
    memory_budget::Held,
    retry,
    wakeup::{notifier::Notifier, watch::Change},
};
use crate::{
    model::{
        LogId, Offset, ProducerId, Scopes, TenantId, Timestamp,
        transaction::{Actor, Answered, AppendItem, Call, Caller, OffsetItem, appends_digest},
    },
    rules::{
        Refusal,
        access::check_transaction,
        append::sequence::SessionFacts,
        transaction::{self, Numbering, TransactionRow, TransactionVerdict, Verb},
    },
    store::{self, Connection},
};

type Stop = retry::Stop<CallResult>;

/// A call that was done, now or earlier.
pub struct CallResult {
    row: TransactionRow,
    duplicate: bool,
    /// The next offsets of its logs, if the call has just made it visible.
    high_watermarks: Vec<(LogId, Offset)>,
}

impl CallResult {
    fn now(row: TransactionRow) -> Self {
        Self { row, duplicate: false, high_watermarks: Vec::new() }
    }

    fn before(row: TransactionRow) -> Self {
        Self { row, duplicate: true, high_watermarks: Vec::new() }
    }
}

impl CallResult {
    /// Notifies readers of logs of what has become visible.
    fn tell(&self, tenant: TenantId, notifier: &Notifier) {
        let news =
            self.high_watermarks.iter().map(|(log, now)| (*log, Change::HighWatermark(*now)));
        notifier.changed(tenant, news);
    }
}

impl Broker {
    pub async fn call_transaction(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: Actor,
        call: Call,
        held: Held,
    ) -> Result<Answered, Error> {
        let name = name(&call);
        let (actor, call, held) = (&actor, &call, &held);
        let done = self.retry(tenant, |attempt| async move {
            let resolve =
                self.resolve(tenant, work(call), held, &actor.scopes, (false, attempt > 0));
            let mut request = match resolve.await {
                Ok(request) => request,
                Err(refusal) => {
                    return Ok(self.done_before(tenant, id, actor, call, refusal).await?);
                }
            };
            if matches!(call, Call::Records { .. }) {
                self.limit_staged(tenant, &mut request).await?;
            }
            let done = self.try_call(tenant, id, actor, call, &Arc::new(request)).await;
            let done = match done {
                Err(Stop::Failed(error)) => {
                    count_fenced("transaction", &error);
                    return Err(self.refusal(tenant, actor, call, error).await.into());
                }
                done => done?,
            };
            self.waits.moved(id, done.row.next_sequence);
            Ok(done)
        });
        let done = done.await?.ok_or_else(|| {
            Error::unavailable("The transaction is contended. Nothing was changed; retry.")
        })?;
        // also if it was committed before: a repeat shows its cursors, too
        if let Call::Commit { work, .. } = call {
            self.let_go_with_all(tenant, &work.offsets).await;
        }
        Ok(self.answer(tenant, name, work(call).0, done))
    }

    /// The result of a call whose contents are refused now: if it was done before, that is the
    /// answer, whatever happened to its topics since.
    async fn done_before(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: &Actor,
        call: &Call,
        refusal: Error,
    ) -> Result<CallResult, Error> {
        let (verb, numbered) = match call {
            Call::Commit { .. } => (Verb::Commit, None),
            Call::Records { sequence: Some(sequence), appends } => {
                (Verb::Add, Some((*sequence, appends_digest(appends))))
            }
            _ => return Err(refusal),
        };
        if refusal.code.status() >= 500 {
            return Err(refusal);
        }
        let actor = actor.clone();
        let look = self.store.of(tenant).transaction(async move |connection| {
            let (row, verdict, _) = enter(connection, tenant, id, &actor, verb).await?;
            let is_known = match numbered {
                Some((sequence, digest)) => {
                    let number = add::judge_number(connection, tenant, &row, sequence, &digest);
                    number.await? == Numbering::Known
                }
                None => verdict == TransactionVerdict::Repeat,
            };
            Ok::<_, Stop>(is_known.then_some(row))
        });
        match look.await {
            Ok(Some(row)) => Ok(CallResult::before(row)),
            Ok(None) | Err(_) => Err(refusal),
        }
    }

    /// The refusal of a call. Its topics come first, so that a replica that has not noticed that
    /// one is gone answers as one that has.
    async fn refusal(&self, tenant: TenantId, actor: &Actor, call: &Call, refusal: Error) -> Error {
        let (appends, _) = work(call);
        if appends.is_empty() || refusal.code.status() >= 500 {
            return refusal;
        }
        let resolved = self.resolve(tenant, (appends, &[]), &None, &actor.scopes, (false, true));
        resolved.await.err().unwrap_or(refusal)
    }

    async fn try_call(
        &self,
        tenant: TenantId,
        id: Uuid,
        actor: &Actor,
        call: &Call,
        request: &Arc<ResolvedRequest>,
    ) -> Result<CallResult, Stop> {
        match call {
            Call::Records { sequence, .. } => {
                self.add_records(tenant, id, actor, *sequence, request).await
            }
            Call::Offsets(_) => self.add_offsets(tenant, id, actor, request).await,
            Call::Prepare => self.prepare(tenant, id, actor).await,
            Call::Commit { expected_appends, .. } => {
                self.commit(tenant, id, actor, *expected_appends, request).await
            }
            Call::Abort => self.abort(tenant, id, actor).await,
        }
    }

    /// After a commit: releases partitions that the cursors of its last call acknowledge. (Earlier
    /// calls were not committed when they arrived.)
    async fn let_go_with_all(&self, tenant: TenantId, offsets: &[OffsetItem]) {
        for item in offsets {
            if let OffsetItem::Cursor { group, member, cursor } = item {
                self.let_go_with(tenant, group, member, cursor).await;
            }
        }
    }

    fn answer(
        &self,
        tenant: TenantId,
        call: &'static str,
        appends: &[AppendItem],
        done: CallResult,
    ) -> Answered {
        let CallResult { row, duplicate, .. } = done;
        for AppendItem { topic, batch, .. } in appends.iter().filter(|_| !duplicate) {
            self.traffic.appended(tenant, topic, batch.records.len() as u64, batch.lines.len());
        }
        if !duplicate && let Some(reason) = row.reason {
            crate::broker::janitor::transactions::count_aborted(reason, 1);
        }
        self.transactions.called(call, duplicate);
        Answered { transaction: row.into_transaction(), duplicate }
    }
}

fn work(call: &Call) -> (&[AppendItem], &[OffsetItem]) {
    match call {
        Call::Records { appends, .. } => (appends, &[]),
        Call::Offsets(offsets) => (&[], offsets),
        Call::Commit { work, .. } => (&work.appends, &work.offsets),
        Call::Prepare | Call::Abort => (&[], &[]),
    }
}

fn name(call: &Call) -> &'static str {
    match call {
        Call::Records { .. } => "records",
        Call::Offsets(_) => "offsets",
        Call::Prepare => "prepare",
        Call::Commit { .. } => "commit",
        Call::Abort => "abort",
    }
}

/// Locks the session that a caller names against opens, and checks it.
async fn hold_session(
    connection: &mut Connection,
    tenant: TenantId,
    caller: Caller,
) -> Result<Option<SessionFacts>, Stop> {
    let Caller::Session(id, epoch) = caller else { return Ok(None) };
    let facts = store::append::load::share_sessions(connection, tenant, &[id]).await?;
    transaction::check_producer((id, epoch), facts.get(&id))?;
    Ok(facts.get(&id).copied())
}

/// Whether the token covers the session that a caller names, if there is such a session.
async fn covers_session(
    connection: &mut Connection,
    tenant: TenantId,
    actor: &Actor,
) -> Result<bool, Stop> {
    let Caller::Session(id, _) = actor.caller else { return Ok(true) };
    if actor.scopes.produces_everywhere() {
        return Ok(true);
    }
    let row = store::session::read(connection, tenant, id).await?;
    Ok(row.is_none_or(|row| actor.scopes.covers_session(&row.owner())))
}

/// Locks the caller's session and the transaction, reads the clock, and checks the call.
async fn enter(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    actor: &Actor,
    verb: Verb,
) -> Result<(TransactionRow, transaction::TransactionVerdict, Timestamp), Stop> {
    let caller = actor.caller;
    let covers_session = covers_session(connection, tenant, actor).await?;
    // nothing is said of a session that the token does not cover
    if covers_session {
        hold_session(connection, tenant, caller).await?;
    }
    let locked = store::transaction::lock(connection, tenant, &[id]).await?.pop();
    let (horizon, now) = store::transaction::horizon(connection, tenant).await?;
    let Some(row) = locked else {
        let (settings, _) = store::catalog::tenants::settings(connection, tenant).await?;
        let retention_ms = transaction::retention_ms(&settings);
        return Err(transaction::absent(&id, horizon, retention_ms, now).into());
    };
    if row.has_expired(now) {
        return Err(Stop::Expired(id));
    }
    if caller != Caller::Operator {
        check_reach(connection, tenant, id, &actor.scopes).await?;
    }
    if !covers_session {
        return Err(Refusal::SessionNotCovered { scope: "produce".to_owned() }.into());
    }
    let verdict = transaction::judge(&row, verb, caller)?;
    Ok((row, verdict, now))
}

/// Fails unless the token covers all that a locked transaction has staged, and its session.
async fn check_reach(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    scopes: &Scopes,
) -> Result<(), Stop> {
    if scopes.covers_all_transactions() {
        return Ok(());
    }
    let reach = store::transaction::reach(connection, tenant, &[id]).await?.remove(&id);
    Ok(check_transaction(scopes, &reach.unwrap_or_default())?)
}

/// The session of a caller.
fn session_of(caller: Caller) -> Option<(ProducerId, i64)> {
    match caller {
        Caller::Session(id, epoch) => Some((id, epoch)),
        Caller::Bearer | Caller::Operator => None,
    }
}
