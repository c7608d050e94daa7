//! Beginning a transaction, alone or with its first contents.

use std::sync::Arc;

use uuid::Uuid;

use super::{CallResult, ResolvedRequest, Stop, add, check_reach, hold_session};
use crate::{
    broker::{Broker, Error, Held, group::offsets::count_fenced, quotas},
    model::{
        Scopes, TenantId, Timestamp,
        settings::{Key, OwnSettings},
        transaction::{Answered, Begin, Caller, RepeatedBy, State},
    },
    rules::{
        Refusal,
        transaction::{self, TransactionRow},
    },
    store::{
        self, Connection,
        transaction::{Limits, New, one_request::Claim},
    },
};

impl Broker {
    /// Begins a transaction, or returns the current state of one begun with the same id and
    /// payload.
    pub async fn begin_transaction(
        &self,
        tenant: TenantId,
        begin: Begin,
        held: Held,
    ) -> Result<Answered, Error> {
        let new = Arc::new(New {
            id: begin.transaction_id.unwrap_or_else(Uuid::now_v7),
            repeated_by: begin.repeated_by(),
            session: begin.session,
            digest: begin.digest(),
        });
        let mut begun = self.begin_anew(tenant, &begin, &new, &held).await;
        if let Err(error) = &begun
            && new.repeated_by != RepeatedBy::Nothing
            && error.code.status() < 500
        {
            begun = self.begun_before(tenant, &new, &begin.scopes, error.clone()).await;
        }
        match begun {
            Ok(done) => {
                if begin.commit {
                    self.let_go_with_all(tenant, &begin.work.offsets).await;
                }
                Ok(self.answer(tenant, "begin", &begin.work.appends, done))
            }
            Err(error) => {
                count_fenced("transaction", &error);
                Err(error)
            }
        }
    }

    /// The result of a begin that is refused now: if its id or key is remembered, that transaction
    /// is the answer, whatever has changed since. A transaction in progress is waited for.
    async fn begun_before(
        &self,
        tenant: TenantId,
        new: &Arc<New>,
        scopes: &Arc<Scopes>,
        refusal: Error,
    ) -> Result<CallResult, Error> {
        let found = self.retry(tenant, |_| {
            let (new, scopes, refusal) = (new.clone(), scopes.clone(), refusal.clone());
            self.store.of(tenant).transaction(async move |connection| {
                let row = remembered(connection, tenant, &new, &scopes, refusal).await?;
                Ok(CallResult::before(row))
            })
        });
        found.await?.ok_or(refusal)
    }

    async fn begin_anew(
        &self,
        tenant: TenantId,
        begin: &Begin,
        new: &Arc<New>,
        held: &Held,
    ) -> Result<CallResult, Error> {
        if let Some((id, _)) = begin.session {
            self.session_owners.check(tenant, id, &begin.scopes).await?;
        }
        let work = &begin.work;
        let in_pass = begin.commit && !work.appends.is_empty();
        let begun = self.retry(tenant, |attempt| async move {
            let work = (&*work.appends, &*work.offsets);
            let mut request =
                self.resolve(tenant, work, held, &begin.scopes, (in_pass, attempt > 0)).await?;
            let settings = self.settings.of(tenant).await?;
            transaction::timeout_ms(begin.timeout_ms, None, &settings)?;
            if begin.commit {
                self.commit_in_one_request(tenant, new, begin, request, settings).await
            } else {
                self.limit_staged(tenant, &mut request).await?;
                self.try_begin(tenant, new, begin, request, settings).await
            }
        });
        begun.await?.ok_or_else(|| {
            Error::unavailable(
                "Too many begins of this transaction at once. Nothing was changed; retry.",
            )
        })
    }

    async fn try_begin(
        &self,
        tenant: TenantId,
        new: &Arc<New>,
        begin: &Begin,
        request: ResolvedRequest,
        settings: Arc<OwnSettings>,
    ) -> Result<CallResult, Stop> {
        let requested_timeout_ms = begin.timeout_ms;
        let limits = Limits {
            requested_timeout_ms,
            default_timeout_ms: transaction::timeout_ms(requested_timeout_ms, None, &settings)?,
            max_timeout_ms: transaction::max_timeout_ms(&settings),
            retention_ms: transaction::retention_ms(&settings),
        };
        let quota = self.quotas.near(tenant, &settings, Key::MaxOpenTransactions).await?;
        if request.is_empty() && quota.is_none() {
            let begun = new.clone();
            let begin = self.store.of(tenant).write(async move |connection| {
                store::transaction::begin_new(connection, tenant, &begun, &limits).await
            });
            if let Some(row) = begin.await? {
                return Ok(CallResult::now(row));
            }
        }
        // all that are counted wait for the tenant's row
        let _lock = match quota {
            Some(_) => Some(self.row_locks.take(tenant, None).await),
            None => None,
        };
        let (new, scopes) = (new.clone(), begin.scopes.clone());
        let begin = self.store.of(tenant).transaction(async move |connection| {
            let held = quotas::hold(quota, connection, tenant).await?;
            let begun =
                judge(connection, tenant, &new, requested_timeout_ms, &scopes, &settings).await?;
            match begun {
                Begun::Before(row) => Ok(CallResult::before(row)),
                Begun::Now(row) => {
                    if let Some(held) = held {
                        held.check(connection, tenant).await?;
                    }
                    add(connection, tenant, row, &request, &settings).await.map(CallResult::now)
                }
            }
        });
        begin.await
    }
}

/// Returns the row of a remembered id or key if the begin is a repeat; otherwise the refusal, which
/// rolls back the inserted placeholder.
async fn remembered(
    connection: &mut Connection,
    tenant: TenantId,
    new: &New,
    scopes: &Scopes,
    refusal: Error,
) -> Result<TransactionRow, Stop> {
    let New { id, repeated_by, digest, .. } = *new;
    let claim = Claim { id, repeated_by, digest };
    let claimed =
        store::transaction::one_request::insert_placeholders(connection, tenant, &[claim]).await?;
    if !claimed.is_empty() {
        return Err(refusal.into());
    }
    repeated(connection, tenant, new, scopes).await?.ok_or(Stop::Failed(refusal))
}

/// Returns the row of an id or key, if there is one; the begin must be a repeat.
async fn repeated(
    connection: &mut Connection,
    tenant: TenantId,
    new: &New,
    scopes: &Scopes,
) -> Result<Option<TransactionRow>, Stop> {
    let found = match new.repeated_by {
        RepeatedBy::Key(_) => {
            store::transaction::read_repeated(connection, tenant, new.id, &new.repeated_by).await?
        }
        RepeatedBy::Nothing | RepeatedBy::Id => {
            store::transaction::lock(connection, tenant, &[new.id]).await?.pop()
        }
    };
    let Some(row) = found else { return Ok(None) };
    if row.has_expired(store::session::clock(connection).await?) {
        return Err(Stop::Expired(new.id));
    }
    check_reach(connection, tenant, row.transaction_id, scopes).await?;
    transaction::repeat(&row, new.repeated_by, &new.digest)?;
    Ok(Some(row))
}

pub(super) enum Begun {
    Now(TransactionRow),
    Before(TransactionRow),
}

/// Inserts the row unless it exists or something forbids it. This is checked after the insert: an
/// outcome that was forgotten meanwhile has moved the horizon before its id became free.
pub(super) async fn judge(
    connection: &mut Connection,
    tenant: TenantId,
    new: &New,
    requested_timeout_ms: Option<i64>,
    scopes: &Scopes,
    settings: &OwnSettings,
) -> Result<Begun, Stop> {
    let mut session_timeout_ms = None;
    if let Some((id, epoch)) = new.session {
        hold_session(connection, tenant, Caller::Session(id, epoch)).await?;
        let session = store::session::read(connection, tenant, id).await?;
        session_timeout_ms = session.map(|session| session.transaction_timeout_ms);
    }
    let timeout_ms = transaction::timeout_ms(requested_timeout_ms, session_timeout_ms, settings)?;
    let now = store::session::clock(connection).await?;
    let expires_at = Timestamp(now.0 + timeout_ms);
    match store::transaction::insert(connection, tenant, new, now, expires_at).await? {
        Some(row) => {
            let (horizon, now) = store::transaction::horizon(connection, tenant).await?;
            let retention_ms = transaction::retention_ms(settings);
            transaction::check_begin(&new.id, new.repeated_by, horizon, retention_ms, now)?;
            Ok(Begun::Now(row))
        }
        None => existing(connection, tenant, new, scopes).await.map(Begun::Before),
    }
}

/// Why a new row is not allowed.
async fn existing(
    connection: &mut Connection,
    tenant: TenantId,
    new: &New,
    scopes: &Scopes,
) -> Result<TransactionRow, Stop> {
    if let Some(row) = repeated(connection, tenant, new, scopes).await? {
        return Ok(row);
    }
    let Some((producer, _)) = new.session else { return Err(Stop::Again) };
    let Some(other) = store::transaction::ongoing(connection, tenant, producer).await? else {
        return Err(Stop::Again);
    };
    let now = store::session::clock(connection).await?;
    let transaction_id = other.transaction_id;
    if other.has_expired(now) {
        return Err(Stop::Expired(transaction_id));
    }
    Err(Refusal::ConcurrentTransactions { transaction_id }.into())
}

/// Adds the contents of a call to a locked, ongoing transaction.
pub(super) async fn add(
    connection: &mut Connection,
    tenant: TenantId,
    mut row: TransactionRow,
    request: &ResolvedRequest,
    settings: &OwnSettings,
) -> Result<TransactionRow, Stop> {
    if request.append_count > 0 {
        row = match add::stage(connection, tenant, &row, None, request, settings).await {
            Err(Stop::Again) => return Err(too_late(connection, row).await?),
            staged => staged?,
        };
    }
    add::stage_offsets(connection, tenant, row.transaction_id, request, settings).await?;
    Ok(row)
}

/// Why records could not be staged for a locked transaction.
async fn too_late(connection: &mut Connection, row: TransactionRow) -> Result<Stop, Stop> {
    let now = store::session::clock(connection).await?;
    let TransactionRow { state, reason, .. } = row.as_of(now);
    Ok(match state {
        State::Aborted => Refusal::InvalidTransactionState { state, reason }.into(),
        _ => Stop::Again,
    })
}
