//! Sessions: describe, list and end them, and fence the logs of their producers.

pub mod open;
pub mod owners;

use std::sync::Arc;

use super::{
    Broker, Error, janitor,
    transaction::fence::{abort_ongoing, transactions},
};
use crate::{
    model::{
        Epoch, LogId, Name, ProducerId, Scopes, TenantId,
        session::{MAX_LISTED_SCOPES, NextSequence, Opened, Session},
        topic::{Listed, Page},
    },
    rules::{
        Refusal,
        access::check_session,
        session::{self, End, SessionRow},
    },
    store::{
        self, Connection,
        session::{ScopePosition, Standings},
    },
    telemetry,
};

/// Up to this many logs are fenced in the transaction that raises the epoch; more are fenced in
/// chunks of this size, before the open answers.
pub const LOGS_FENCED_AT_ONCE: usize = 200;
impl Broker {
    /// `next_sequences` as of now.
    pub async fn session(
        &self,
        tenant: TenantId,
        id: ProducerId,
        scopes: &Scopes,
    ) -> Result<Opened, Error> {
        let (row, standings) = self.session_row(tenant, id, scopes).await?;
        let opened_at = row.opened_at;
        let seen = self
            .store
            .of(tenant)
            .run(async move |connection| transactions(connection, tenant, id, opened_at).await);
        let transactions = seen.await?;
        let reset_epoch = row.facts.reset_epoch;
        Ok(Opened {
            session: store::session::session(row),
            next_sequences: next_sequences(reset_epoch, standings, MAX_LISTED_SCOPES as usize),
            aborted_transaction: transactions.aborted,
            prepared_transactions: transactions.prepared,
            duplicate: false,
        })
    }

    /// All sessions by producer id, or the one with a transactional id.
    pub async fn sessions(
        &self,
        tenant: TenantId,
        transactional_id: Option<&Name>,
        page: Page,
    ) -> Result<Listed<Session>, Error> {
        let name = transactional_id.cloned();
        let Page { limit, after } = page;
        let after = match after.as_deref().map(str::parse::<i64>) {
            None => -1,
            Some(Ok(after)) => after,
            Some(Err(_)) => return Err(Error::invalid("?after", "expected a producer id")),
        };
        let list = self.store.of(tenant).run(async move |connection| {
            store::session::list(connection, tenant, name.as_ref(), after, limit + 1).await
        });
        Ok(Listed::cut(list.await?, limit, |session| session.producer_id.0.to_string()))
    }

    /// The next sequence of every scope, by topic and partition; a page starts after `topic` or
    /// `topic/partition`.
    pub async fn session_sequences(
        &self,
        tenant: TenantId,
        id: ProducerId,
        page: Page,
        scopes: &Scopes,
    ) -> Result<Listed<NextSequence>, Error> {
        let (row, standings) = self.session_row(tenant, id, scopes).await?;
        let mut scopes = next_sequences(row.facts.reset_epoch, standings, usize::MAX);
        if let Some(after) = &page.after {
            let (topic, partition) = match after.split_once('/') {
                Some((topic, partition)) => (topic, partition.parse().ok()),
                None => (after.as_str(), None),
            };
            scopes.retain(|scope| (scope.topic.as_str(), scope.partition) > (topic, partition));
        }
        Ok(Listed::cut(scopes, page.limit, |scope| match scope.partition {
            Some(partition) => format!("{}/{partition}", scope.topic),
            None => scope.topic.to_string(),
        }))
    }

    /// Ends the session if this epoch is still current: afterwards it has no owner. Ending it again
    /// changes nothing.
    pub async fn end_session(
        &self,
        tenant: TenantId,
        id: ProducerId,
        epoch: Option<Epoch>,
        scopes: &Arc<Scopes>,
    ) -> Result<(), Error> {
        let scopes = scopes.clone();
        let close = self.store.of(tenant).transaction(async move |connection| {
            close(connection, tenant, id, epoch, &scopes).await
        });
        let Closed { closed_now, unfinished } = close.await?;
        if closed_now {
            count("ended");
        }
        if let Some(epoch) = unfinished {
            self.fence_in_chunks(tenant, id, epoch).await.map_err(Error::after_change)?;
        }
        Ok(())
    }

    async fn session_row(
        &self,
        tenant: TenantId,
        id: ProducerId,
        scopes: &Scopes,
    ) -> Result<(SessionRow, Vec<ScopePosition>), Error> {
        let read = self
            .store
            .of(tenant)
            .run(async move |connection| store::session::read(connection, tenant, id).await);
        let row = read.await?.ok_or(Refusal::UnknownProducer { producer_id: id })?;
        check_session(scopes, &row.owner())?;
        Ok((row, self.standings(tenant, id).await?))
    }

    /// Takes snapshots of logs whose tails are too long to be read at once.
    pub(super) async fn catch_up(&self, tenant: TenantId, logs: Vec<LogId>) -> Result<(), Error> {
        for log in logs {
            janitor::snapshot(&self.store, tenant, log).await?;
        }
        Ok(())
    }

    pub(super) async fn standings(
        &self,
        tenant: TenantId,
        id: ProducerId,
    ) -> Result<Vec<ScopePosition>, Error> {
        loop {
            let read = self.store.of(tenant).run(async move |connection| {
                store::session::standings(connection, tenant, id).await
            });
            match read.await? {
                Standings::Known(standings) => return Ok(standings),
                Standings::Behind(logs) => self.catch_up(tenant, logs).await?,
            }
        }
    }

    /// Fences the logs of a producer whose epoch has been raised, chunk by chunk. A producer that
    /// registers now reads the new epoch, so the list of logs is complete.
    pub(super) async fn fence_in_chunks(
        &self,
        tenant: TenantId,
        producer: ProducerId,
        epoch: Epoch,
    ) -> Result<(), Error> {
        let list = self.store.of(tenant).run(async move |connection| {
            store::session::registered_logs(connection, tenant, producer).await
        });
        let logs: Vec<LogId> = list.await?;
        for chunk in logs.chunks(LOGS_FENCED_AT_ONCE) {
            let chunk = chunk.to_vec();
            let fence = self.store.of(tenant).transaction(async move |connection| {
                store::catalog::logs::lock(connection, tenant, &chunk).await?;
                store::catalog::logs::raise_fences(connection, tenant, &chunk).await
            });
            fence.await?;
        }
        let done = self.store.of(tenant).transaction(async move |connection| {
            store::session::fenced(connection, tenant, producer, epoch).await
        });
        Ok(done.await?)
    }
}

pub(super) fn count(event: &'static str) {
    metrics::counter!(telemetry::SESSIONS_TOTAL, "event" => event).increment(1);
}

#[derive(Default)]
struct Closed {
    /// False: it was ended before, or the epoch is no longer current.
    closed_now: bool,
    /// The epoch whose logs still have to be fenced, if there are many.
    unfinished: Option<Epoch>,
}

async fn close(
    connection: &mut Connection,
    tenant: TenantId,
    id: ProducerId,
    epoch: Option<Epoch>,
    scopes: &Scopes,
) -> Result<Closed, Error> {
    let Some(row) = store::session::lock(connection, tenant, id).await? else {
        return Err(Refusal::UnknownProducer { producer_id: id }.into());
    };
    match session::end(&row, epoch, scopes)? {
        End::Now => {}
        End::Before => {
            let unfinished = row.fencing.then_some(row.facts.epoch);
            return Ok(Closed { closed_now: false, unfinished });
        }
        End::Stale => return Ok(Closed::default()),
    }
    abort_ongoing(connection, tenant, id).await?;
    let logs = store::session::registered_logs(connection, tenant, id).await?;
    let fencing = logs.len() > LOGS_FENCED_AT_ONCE;
    if !fencing {
        store::catalog::logs::lock(connection, tenant, &logs).await?;
        store::catalog::logs::raise_fences(connection, tenant, &logs).await?;
    }
    store::session::close(connection, tenant, id, fencing).await?;
    Ok(Closed { closed_now: true, unfinished: fencing.then_some(row.facts.epoch + 1) })
}

/// The next sequence of every scope in which the producer has appended.
pub(super) fn next_sequences(
    reset_epoch: Epoch,
    standings: Vec<ScopePosition>,
    limit: usize,
) -> Vec<NextSequence> {
    let known = standings.into_iter().filter(|standing| standing.state.last_sequence.is_some());
    let next = |standing: ScopePosition| NextSequence {
        topic: standing.topic,
        partition: standing.partition,
        next_sequence: standing.state.next_sequence(reset_epoch),
    };
    known.take(limit).map(next).collect()
}
