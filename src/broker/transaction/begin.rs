//! Beginning a transaction, alone or with its first work.

use std::sync::Arc;

use uuid::Uuid;

use super::{Asked, Done, Stop, hold_session, records};
use crate::{
    broker::{Broker, Error, Held, append::RESOLVE_ATTEMPTS, offsets::count_fenced},
    model::{
        TenantId, Timestamp,
        settings::OwnSettings,
        transaction::{Answered, Begin, Caller, State},
    },
    rules::{
        Refusal,
        transaction::{self, Row},
    },
    store::{
        self, Connection, staging,
        transactions::{Limits, New},
    },
};

impl Broker {
    /// Begins a transaction, or answers how one begun with the same id and payload stands now.
    pub async fn begin_transaction(
        &self,
        tenant: TenantId,
        begin: Begin,
        held: Held,
    ) -> Result<Answered, Error> {
        let new = New {
            id: begin.transaction_id.unwrap_or_else(Uuid::now_v7),
            chosen: begin.transaction_id.is_some(),
            session: begin.session,
            digest: begin.digest(),
        };
        let new = Arc::new(new);
        for attempt in 0..RESOLVE_ATTEMPTS {
            let work = (&*begin.work.appends, &*begin.work.offsets);
            let in_pass = begin.commit && !begin.work.appends.is_empty();
            let asked = self.ask(tenant, work, &held, in_pass, attempt > 0).await?;
            let settings = self.settings.of(tenant).await?;
            let begun = match transaction::timeout_ms(begin.timeout_ms, None, &settings) {
                Err(refusal) => self.begun_before(tenant, &new, refusal).await,
                Ok(_) if begin.commit => {
                    self.whole(tenant, &new, begin.timeout_ms, asked, settings).await
                }
                Ok(_) => self.try_begin(tenant, &new, begin.timeout_ms, asked, settings).await,
            };
            match begun {
                Ok(done) => return Ok(self.answer("begin", done)),
                Err(Stop::Failed(error)) => {
                    count_fenced("transaction", &error);
                    return Err(error);
                }
                Err(Stop::Expired(id)) => self.expire_transactions(tenant, vec![id]).await?,
                Err(Stop::Ahead(refusal)) => return Err(refusal.into()),
                Err(Stop::Stale | Stop::Again) => {}
            }
        }
        Err(Error::unavailable("Too many begins of this transaction at once. Nothing was changed."))
    }

    /// A begin that is refused now may have been done before the maximum was lowered.
    async fn begun_before(
        &self,
        tenant: TenantId,
        new: &Arc<New>,
        refusal: Refusal,
    ) -> Result<Done, Stop> {
        let new = new.clone();
        let find = self.store.transaction(move |connection| {
            Box::pin(async move {
                if let Some((id, epoch)) = new.session {
                    hold_session(connection, tenant, Caller::Session(id, epoch)).await?;
                }
                let locked = store::transactions::lock(connection, tenant, &[new.id]).await?;
                let row = locked.into_iter().next().ok_or(refusal)?;
                if row.has_expired(store::sessions::clock(connection).await?) {
                    return Err(Stop::Expired(new.id));
                }
                transaction::repeat(&row, &new.digest)?;
                Ok(Done::before(row))
            })
        });
        find.await
    }

    async fn try_begin(
        &self,
        tenant: TenantId,
        new: &Arc<New>,
        asked_timeout_ms: Option<i64>,
        asked: Asked,
        settings: Arc<OwnSettings>,
    ) -> Result<Done, Stop> {
        let limits = Limits {
            asked_timeout_ms,
            default_timeout_ms: transaction::timeout_ms(asked_timeout_ms, None, &settings)?,
            max_timeout_ms: transaction::max_timeout_ms(&settings),
            retention_ms: transaction::retention_ms(&settings),
        };
        if asked.is_empty() {
            let begun = new.clone();
            let begin = self.store.write(move |connection| {
                Box::pin(async move {
                    store::transactions::begin_new(connection, tenant, &begun, &limits).await
                })
            });
            if let Some(row) = begin.await? {
                return Ok(Done::now(row));
            }
        }
        let new = new.clone();
        let begin = self.store.transaction(move |connection| {
            Box::pin(async move {
                let begun = judge(connection, tenant, &new, asked_timeout_ms, &settings).await?;
                match begun {
                    Begun::Before(row) => Ok(Done::before(row)),
                    Begun::Now(row) => {
                        add(connection, tenant, row, &asked, &settings).await.map(Done::now)
                    }
                }
            })
        });
        begin.await
    }
}

pub(super) enum Begun {
    Now(Row),
    Before(Row),
}

/// Makes the row, if there is none and nothing forbids it. What forbids it is asked after the row was
/// made: an outcome that was forgotten meanwhile has moved the horizon before its id came free.
pub(super) async fn judge(
    connection: &mut Connection,
    tenant: TenantId,
    new: &New,
    asked_timeout_ms: Option<i64>,
    settings: &OwnSettings,
) -> Result<Begun, Stop> {
    let mut session_timeout_ms = None;
    if let Some((id, epoch)) = new.session {
        hold_session(connection, tenant, Caller::Session(id, epoch)).await?;
        let session = store::sessions::read(connection, tenant, id).await?;
        session_timeout_ms = session.map(|session| session.transaction_timeout_ms);
    }
    let timeout_ms = transaction::timeout_ms(asked_timeout_ms, session_timeout_ms, settings)?;
    let now = store::sessions::clock(connection).await?;
    let expires_at = Timestamp(now.0 + timeout_ms);
    match store::transactions::insert(connection, tenant, new, now, expires_at).await? {
        Some(row) => {
            let (horizon, now) = store::transactions::horizon(connection, tenant).await?;
            if new.chosen {
                let retention_ms = transaction::retention_ms(settings);
                transaction::check_id(&new.id, horizon, retention_ms, now)?;
            }
            Ok(Begun::Now(row))
        }
        None => known(connection, tenant, new).await.map(Begun::Before),
    }
}

/// Why there can be no new row.
async fn known(connection: &mut Connection, tenant: TenantId, new: &New) -> Result<Row, Stop> {
    if let Some(row) = store::transactions::lock(connection, tenant, &[new.id]).await?.pop() {
        let now = store::sessions::clock(connection).await?;
        if row.has_expired(now) {
            return Err(Stop::Expired(new.id));
        }
        transaction::repeat(&row, &new.digest)?;
        return Ok(row);
    }
    let Some((producer, _)) = new.session else { return Err(Stop::Again) };
    let Some(other) = store::transactions::ongoing(connection, tenant, producer).await? else {
        return Err(Stop::Again);
    };
    let now = store::sessions::clock(connection).await?;
    let transaction_id = other.transaction_id;
    if other.has_expired(now) {
        return Err(Stop::Expired(transaction_id));
    }
    Err(Refusal::ConcurrentTransactions { transaction_id }.into())
}

/// Adds the work of a call to a locked, ongoing transaction.
pub(super) async fn add(
    connection: &mut Connection,
    tenant: TenantId,
    mut row: Row,
    asked: &Asked,
    settings: &OwnSettings,
) -> Result<Row, Stop> {
    if asked.append_count > 0 {
        row = match records::stage(connection, tenant, &row, None, asked, settings).await {
            Err(Stop::Again) => return Err(too_late(connection, row).await?),
            staged => staged?,
        };
    }
    if !asked.offsets.is_empty() {
        let id = row.transaction_id;
        staging::stage_offsets(connection, tenant, id, &asked.offsets).await?;
    }
    Ok(row)
}

/// Why records could not be staged for a locked transaction.
async fn too_late(connection: &mut Connection, row: Row) -> Result<Stop, Stop> {
    let now = store::sessions::clock(connection).await?;
    let Row { state, reason, .. } = row.as_of(now);
    Ok(match state {
        State::Aborted => Refusal::InvalidTransactionState { state, reason }.into(),
        _ => Stop::Again,
    })
}
