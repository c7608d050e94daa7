//! Opening sessions.
//!
//! An open locks the session row, then the heads of every log in which the producer is registered,
//! and raises its epoch and their fences. An append in flight either holds a head, so the open
//! waits for it and counts it in the next sequences, or it finds the fence moved and is refused.

use serde::{Deserialize, Serialize};

use super::{LOGS_FENCED_AT_ONCE, count, next_sequences};
use crate::{
    broker::{
        Answer, Broker, Error,
        idempotency::{self, Begun, IdempotentCall, count_replay},
        janitor::transactions::count_aborted,
        quotas::{self, Quota},
        retry,
        transaction::fence::{FencedTransactions, abort_ongoing, transactions},
    },
    model::{
        Epoch, ProducerId, TenantId,
        dedup::RequestKey,
        session::{MAX_LISTED_SCOPES, Open, Opened, Session},
        settings::{Key, OwnSettings},
        transaction::Reason,
    },
    rules::{self, session::SessionRow},
    store::{
        self, Connection,
        session::{ScopePosition, Standings},
    },
};

type Stop = retry::Stop<Answer<StoredOpen>>;

/// An open after its first transaction, which is also the form that its key stores.
#[derive(Clone, Serialize, Deserialize)]
struct StoredOpen {
    opened: Opened,
    reset_epoch: Epoch,
    /// Logs still have to be fenced; until then its next sequences are unknown.
    is_fencing: bool,
}

impl StoredOpen {
    fn new(
        row: SessionRow,
        standings: Vec<ScopePosition>,
        transactions: FencedTransactions,
        duplicate: bool,
    ) -> Self {
        let (reset_epoch, is_fencing) = (row.facts.reset_epoch, row.fencing);
        let opened = Opened {
            session: store::session::session(row),
            next_sequences: next_sequences(reset_epoch, standings, MAX_LISTED_SCOPES as usize),
            aborted_transaction: transactions.aborted,
            prepared_transactions: transactions.prepared,
            duplicate,
        };
        Self { opened, reset_epoch, is_fencing }
    }
}

impl Broker {
    /// `key` makes the open idempotent.
    pub async fn open_session(
        &self,
        tenant: TenantId,
        open: Open,
        key: Option<RequestKey>,
    ) -> Result<Answer<Opened>, Error> {
        rules::access::check_open(&open)?;
        let once = match self.begin_once(tenant, key).await? {
            Begun::Replay(stored) => return self.opened_before(tenant, &open, stored, key).await,
            Begun::Fresh(once) => once,
        };
        let settings = self.settings.of(tenant).await?;
        let timeout_ms = timeout_ms(&open, &settings);
        let quota = self.quotas.near(tenant, &settings, Key::MaxSessions).await?;
        // all with a key, and all that are counted, wait for the tenant's row
        let _lock = match once.is_keyed() || quota.is_some() {
            true => Some(self.row_locks.take(tenant, None).await),
            false => None,
        };
        let (open, timeout_ms) = (&open, &timeout_ms);
        let opened =
            self.retry(tenant, |_| self.try_open(tenant, open, timeout_ms, quota, once)).await?;
        let Answer { value: stored, is_replay } = opened.ok_or_else(|| {
            Error::unavailable(
                "Too many opens of this session at once. Nothing was changed; retry.",
            )
        })?;
        if is_replay {
            return self.opened_before(tenant, open, stored, key).await;
        }
        let opened = self.fenced(tenant, stored, key).await.map_err(Error::after_change)?;
        count(match (opened.duplicate, opened.session.epoch) {
            (true, _) => "repeated",
            (false, 0) => "opened",
            (false, _) => "reopened",
        });
        if !opened.duplicate && opened.aborted_transaction.is_some() {
            count_aborted(Reason::Fenced, 1);
        }
        Ok(Answer::new(opened))
    }

    /// The answer to an open whose key is stored.
    async fn opened_before(
        &self,
        tenant: TenantId,
        open: &Open,
        stored: StoredOpen,
        key: Option<RequestKey>,
    ) -> Result<Answer<Opened>, Error> {
        rules::access::check_session(&open.scopes, &stored.opened.session.owner())?;
        let value = self.fenced(tenant, stored, key).await.map_err(Error::after_change)?;
        count("repeated");
        count_replay("open");
        Ok(Answer { value, is_replay: true })
    }

    /// Completes an open by fencing all its logs. Any open that finds them unfenced does it, even
    /// if another request died over it; the first answer with this key holds for all repeats.
    async fn fenced(
        &self,
        tenant: TenantId,
        stored: StoredOpen,
        key: Option<RequestKey>,
    ) -> Result<Opened, Error> {
        if !stored.is_fencing {
            return Ok(stored.opened);
        }
        let producer = stored.opened.session.producer_id;
        self.fence_in_chunks(tenant, producer, stored.opened.session.epoch).await?;
        let standings = self.standings(tenant, producer).await?;
        let mut fenced = StoredOpen { is_fencing: false, ..stored.clone() };
        fenced.opened.next_sequences =
            next_sequences(stored.reset_epoch, standings, MAX_LISTED_SCOPES as usize);
        let (Some(key), opened) = (key, fenced.opened.clone()) else { return Ok(fenced.opened) };
        let complete = self.store.of(tenant).write(async move |connection| {
            idempotency::complete(connection, tenant, &key, (&stored, &fenced)).await
        });
        if complete.await? {
            return Ok(opened);
        }
        Ok(match self.begin_once(tenant, Some(key)).await? {
            Begun::Replay(StoredOpen { opened, is_fencing: false, .. }) => opened,
            // forgotten meanwhile
            Begun::Replay(_) | Begun::Fresh(_) => opened,
        })
    }

    async fn try_open(
        &self,
        tenant: TenantId,
        open: &Open,
        timeout_ms: &Result<i64, Error>,
        quota: Option<Quota>,
        once: IdempotentCall,
    ) -> Result<Answer<StoredOpen>, Stop> {
        if let Some(stored) = self.open_new(tenant, open.clone(), timeout_ms, quota, once).await? {
            return Ok(Answer::new(stored));
        }
        let (open, timeout_ms) = (open.clone(), timeout_ms.clone());
        let open = self.store.of(tenant).transaction(async move |connection| {
            let once = take_turn(connection, tenant, once).await?;
            let stored = open_known(connection, tenant, &open, timeout_ms).await?;
            once.remember(connection, tenant, &stored).await?;
            Ok(Answer::new(stored))
        });
        open.await
    }

    /// The usual open, of a new producer, takes one statement. None: the producer exists.
    async fn open_new(
        &self,
        tenant: TenantId,
        open: Open,
        timeout_ms: &Result<i64, Error>,
        quota: Option<Quota>,
        once: IdempotentCall,
    ) -> Result<Option<StoredOpen>, Stop> {
        let (None, Ok(timeout_ms)) = (open.condition, timeout_ms) else { return Ok(None) };
        let timeout_ms = *timeout_ms;
        if once.is_keyed() || quota.is_some() {
            let make = self.store.of(tenant).transaction(async move |connection| {
                let held = quotas::hold(quota, connection, tenant).await?;
                let made = open_new(connection, tenant, &open, timeout_ms, once).await?;
                if let (Some(_), Some(held)) = (&made, held) {
                    held.check(connection, tenant).await?;
                }
                Ok(made)
            });
            return make.await;
        }
        let make = self.store.of(tenant).write(async move |connection| {
            open_new(connection, tenant, &open, timeout_ms, once).await
        });
        make.await
    }
}

async fn check_open_id(connection: &mut Connection, open: &Open) -> Result<(), Error> {
    if open.open_id.is_some() {
        rules::session::check_open_id(open, store::session::clock(connection).await?)?;
    }
    Ok(())
}

/// The timeout of the session's transactions. It is checked only once the open is known to be no
/// repeat, whose answer does not depend on the current settings.
fn timeout_ms(open: &Open, tenant: &OwnSettings) -> Result<i64, Error> {
    rules::transaction::timeout_ms(open.transaction_timeout_ms, None, tenant)
        .map_err(|refusal| Error::invalid("/transaction_timeout_ms", &refusal.to_string()))
}

/// Serializes opens with a key, so that each sees the key stored by the one before it.
async fn take_turn(
    connection: &mut Connection,
    tenant: TenantId,
    once: IdempotentCall,
) -> Result<IdempotentCall, Stop> {
    if once.is_keyed() {
        store::catalog::tenants::lock(connection, tenant).await?;
    }
    match once.look_up(connection, tenant).await? {
        Begun::Replay(value) => Err(Stop::Done(Box::new(Answer { value, is_replay: true }))),
        Begun::Fresh(once) => Ok(once),
    }
}

async fn open_new(
    connection: &mut Connection,
    tenant: TenantId,
    open: &Open,
    timeout_ms: i64,
    once: IdempotentCall,
) -> Result<Option<StoredOpen>, Stop> {
    let once = take_turn(connection, tenant, once).await?;
    check_open_id(connection, open).await?;
    let made = store::session::open_new(connection, tenant, open, timeout_ms).await?;
    let Some(row) = made else { return Ok(None) };
    let stored = StoredOpen::new(row, Vec::new(), FencedTransactions::default(), false);
    once.remember(connection, tenant, &stored).await?;
    Ok(Some(stored))
}

/// An open of an existing producer, a repeat of an open, or one to be refused.
async fn open_known(
    connection: &mut Connection,
    tenant: TenantId,
    open: &Open,
    timeout_ms: Result<i64, Error>,
) -> Result<StoredOpen, Stop> {
    check_open_id(connection, open).await?;
    let row = match (&open.condition, &open.transactional_id) {
        (Some((id, _)), _) => store::session::lock(connection, tenant, *id).await?,
        (None, Some(name)) => store::session::lock_by_name(connection, tenant, name).await?,
        (None, None) => None,
    };
    // under the lock: the same open may have been at work when this one came
    if let Some(open_id) = open.open_id
        && let Some(made) = store::session::find_open(connection, tenant, open_id).await?
    {
        return repeat(connection, tenant, open, row, made).await;
    }
    let timeout_ms = timeout_ms?;
    let next = rules::session::open(open, row.as_ref())?;
    // gone since: it is a new one now
    let mut row = row.ok_or(Stop::Again)?;
    row.transaction_timeout_ms = timeout_ms;
    let stored = reopen(connection, tenant, open, row, next).await?;
    if let Some(open_id) = open.open_id {
        let Session { producer_id: id, epoch, .. } = stored.opened.session;
        if !store::session::remember_open(connection, tenant, open_id, id, epoch).await? {
            return Err(Stop::Again);
        }
    }
    Ok(stored)
}

/// Answers a repeat of an open. `row` is the locked row of the session it names.
async fn repeat(
    connection: &mut Connection,
    tenant: TenantId,
    open: &Open,
    row: Option<SessionRow>,
    made: (ProducerId, Epoch),
) -> Result<StoredOpen, Stop> {
    let id = made.0;
    let row = match row {
        Some(row) if row.producer_id == id => Some(row),
        // to be refused: nobody waits for one session who holds another
        Some(_) => store::session::read(connection, tenant, id).await?,
        None => store::session::lock(connection, tenant, id).await?,
    };
    let row = rules::session::repeat(open, row, made)?;
    let standings = standings(connection, tenant, id).await?;
    let transactions = transactions(connection, tenant, id, row.opened_at).await?;
    Ok(StoredOpen::new(row, standings, transactions, true))
}

async fn reopen(
    connection: &mut Connection,
    tenant: TenantId,
    open: &Open,
    mut row: SessionRow,
    next: rules::session::NextEpoch,
) -> Result<StoredOpen, Stop> {
    let id = row.producer_id;
    row.opened_at = abort_ongoing(connection, tenant, id).await?;
    let logs = store::session::registered_logs(connection, tenant, id).await?;
    row.facts.epoch = next.epoch;
    row.facts.reset_epoch = next.reset_epoch;
    row.facts.closed = false;
    row.facts.sequencing = open.sequencing;
    row.fencing = logs.len() > LOGS_FENCED_AT_ONCE;
    let transactions = transactions(connection, tenant, id, row.opened_at).await?;
    if row.fencing {
        store::session::advance(connection, tenant, &row).await?;
        return Ok(StoredOpen::new(row, Vec::new(), transactions, false));
    }
    store::catalog::logs::lock(connection, tenant, &logs).await?;
    store::session::advance(connection, tenant, &row).await?;
    store::catalog::logs::raise_fences(connection, tenant, &logs).await?;
    let standings = standings(connection, tenant, id).await?;
    Ok(StoredOpen::new(row, standings, transactions, false))
}

async fn standings(
    connection: &mut Connection,
    tenant: TenantId,
    id: ProducerId,
) -> Result<Vec<ScopePosition>, Stop> {
    match store::session::standings(connection, tenant, id).await? {
        Standings::Known(standings) => Ok(standings),
        Standings::Behind(logs) => Err(Stop::Behind(logs)),
    }
}
