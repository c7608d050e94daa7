//! Transactions of several requests: begun, added to, prepared, ended, seen.
//!
//! Most calls are one statement that does its work only where everything is as usual (a
//! compare-and-set on the transaction's row). Where it does nothing, or the call is a rarer one, the
//! call is judged: in one database transaction the session's row is held, the transaction's row
//! locked, then what else it needs, in the one order of all locks; the rules decide; it is written.
//!
//! While a transaction is ongoing, the epoch it was begun in is its producer's: an open, a close and
//! an expiry abort it in their own database transaction. So its row alone tells a zombie from its
//! owner, and a call on an ongoing one needs no look at the session.

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
    append::RESOLVE_ATTEMPTS,
    group::offsets::count_fenced,
    memory_budget::Held,
    wakeup::{notifier::Notifier, watch::Change},
};
use crate::{
    model::{
        LogId, Offset, ProducerId, Sequence, TenantId, Timestamp,
        transaction::{Answered, AppendItem, Call, Caller, OffsetItem},
    },
    rules::{
        Refusal,
        append::sequence::SessionFacts,
        transaction::{self, TransactionRow, Verb},
    },
    store::{self, Connection},
};

/// Why an attempt at a call ended without a result.
enum Stop {
    Failed(Error),
    /// A topic is not what it was resolved to.
    Stale,
    /// This transaction's time has run out, and nobody has written that down yet.
    Expired(Uuid),
    /// It may wait for the calls before it.
    Ahead {
        expected: Sequence,
        received: Sequence,
    },
    /// Somebody else came between.
    Again,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

impl From<store::Error> for Stop {
    fn from(error: store::Error) -> Self {
        Stop::Failed(error.into())
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Stop::Failed(refusal.into())
    }
}

/// A call that was done, or had been.
pub struct CallResult {
    row: TransactionRow,
    duplicate: bool,
    /// Where the next offsets of its logs are, if it has just made it visible.
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
    /// Tells those that wait for logs what has become visible.
    fn tell(&self, tenant: TenantId, notifier: &Notifier) {
        let news =
            self.high_watermarks.iter().map(|(log, now)| (*log, Change::HighWatermark(*now)));
        notifier.logs_changed(tenant, &news.collect::<Vec<_>>());
    }
}

impl Broker {
    pub async fn call_transaction(
        &self,
        tenant: TenantId,
        id: Uuid,
        caller: Caller,
        call: Call,
        held: Held,
    ) -> Result<Answered, Error> {
        let name = name(&call);
        let call = Arc::new(call);
        let mut wait = None;
        for attempt in 0.. {
            let asked = match self.ask(tenant, work(&call), &held, false, attempt > 0).await {
                Ok(asked) => Arc::new(asked),
                Err(refusal) => {
                    let done = self.committed_before(tenant, id, caller, &call, refusal).await?;
                    return Ok(self.answer(name, done));
                }
            };
            let stop = match self.try_call(tenant, id, caller, &call, &asked).await {
                Ok(done) => {
                    self.waits.moved(id, done.row.next_sequence);
                    if let Call::Commit { work, .. } = &*call {
                        self.let_go_with_all(tenant, &work.offsets).await;
                    }
                    return Ok(self.answer(name, done));
                }
                Err(stop) => stop,
            };
            match stop {
                Stop::Failed(error) => {
                    count_fenced("transaction", &error);
                    return Err(error);
                }
                Stop::Expired(id) => self.expire_transactions(tenant, vec![id]).await?,
                Stop::Ahead { expected, received } => {
                    if !self.wait_for_calls(id, received, &mut wait).await {
                        return Err(Refusal::OutOfOrderSequence { expected, received }.into());
                    }
                }
                Stop::Stale | Stop::Again if attempt < RESOLVE_ATTEMPTS => {}
                Stop::Stale | Stop::Again => break,
            }
        }
        Err(Error::unavailable("Too much was going on at this transaction. Nothing was changed."))
    }

    async fn try_call(
        &self,
        tenant: TenantId,
        id: Uuid,
        caller: Caller,
        call: &Arc<Call>,
        asked: &Arc<ResolvedRequest>,
    ) -> Result<CallResult, Stop> {
        match &**call {
            Call::Records { sequence, .. } => {
                self.add_records(tenant, id, caller, *sequence, asked).await
            }
            Call::Offsets(_) => self.add_offsets(tenant, id, caller, asked).await,
            Call::Prepare => self.prepare(tenant, id, caller).await,
            Call::Commit { expected_appends, .. } => {
                self.commit(tenant, id, caller, *expected_appends, asked).await
            }
            Call::Abort => self.abort(tenant, id, caller).await,
        }
    }

    /// The call that brought these has committed them: members let go with their cursors. (What other
    /// calls have brought was not committed when it came.)
    async fn let_go_with_all(&self, tenant: TenantId, offsets: &[OffsetItem]) {
        for item in offsets {
            if let OffsetItem::Cursor { group, member, cursor } = item {
                self.let_go_with(tenant, group, member, cursor).await;
            }
        }
    }

    fn answer(&self, call: &'static str, done: CallResult) -> Answered {
        let CallResult { row, duplicate, .. } = done;
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

/// Holds the session a caller names against opens, and judges it.
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

/// Holds the caller's session, locks the transaction, reads the clock and judges the call.
async fn enter(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    caller: Caller,
    verb: Verb,
) -> Result<(TransactionRow, transaction::TransactionVerdict, Timestamp), Stop> {
    hold_session(connection, tenant, caller).await?;
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
    let verdict = transaction::judge(&row, verb, caller)?;
    Ok((row, verdict, now))
}

/// The session a caller is.
fn session_of(caller: Caller) -> Option<(ProducerId, i64)> {
    match caller {
        Caller::Session(id, epoch) => Some((id, epoch)),
        Caller::Bearer | Caller::Operator => None,
    }
}
