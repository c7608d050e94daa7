//! Describing transactions: a state is stored before it is reported to a client.

use std::{collections::HashMap, sync::Arc};

use uuid::Uuid;

use crate::{
    broker::{Broker, Error},
    model::{
        Scopes, TenantId, Word,
        read::Staged,
        scopes::Reach,
        topic::{Listed, Page},
        transaction::{Filter, Reason, Transaction},
    },
    rules::{
        Refusal,
        access::check_transaction,
        transaction::{self, TransactionRow},
    },
    store,
};

/// Maximum number of transactions past their deadlines that a list aborts first.
const LATE_PER_LIST: i64 = 1_000;

/// What is known of an id.
enum KnownTransaction {
    Row(Box<TransactionRow>),
    Expired,
    Absent(Refusal),
}

impl Broker {
    pub async fn transaction(
        &self,
        tenant: TenantId,
        id: Uuid,
        scopes: &Arc<Scopes>,
    ) -> Result<Transaction, Error> {
        loop {
            let scopes = scopes.clone();
            let see = self.store.of(tenant).run(async move |connection| {
                // the row first: what was forgotten since has moved the horizon
                let row = store::transaction::read(connection, tenant, id).await?;
                let (horizon, now) = store::transaction::horizon(connection, tenant).await?;
                let Some(row) = row else {
                    let (settings, _) =
                        store::catalog::tenants::settings(connection, tenant).await?;
                    let retention_ms = transaction::retention_ms(&settings);
                    let absent = transaction::absent(&id, horizon, retention_ms, now);
                    return Ok::<_, Error>(KnownTransaction::Absent(absent));
                };
                if row.has_expired(now) {
                    return Ok(KnownTransaction::Expired);
                }
                if !scopes.sees_all_transactions() {
                    let reach = store::transaction::reach(connection, tenant, &[id]).await?;
                    check_transaction(&scopes, reach.get(&id).unwrap_or(&Reach::default()))?;
                }
                Ok(KnownTransaction::Row(Box::new(row)))
            });
            match see.await? {
                KnownTransaction::Row(row) => return Ok(row.into_transaction()),
                KnownTransaction::Absent(refusal) => return Err(refusal.into()),
                // a commit may hold it that was in time: its end is waited for
                KnownTransaction::Expired => self.expire_transactions(tenant, vec![id]).await?,
            }
        }
    }

    /// Removes the ids of open transactions that the token does not cover.
    pub async fn hide_transactions(
        &self,
        tenant: TenantId,
        staged: &mut [Staged],
        scopes: &Scopes,
    ) -> Result<(), Error> {
        if staged.is_empty() || scopes.sees_all_transactions() {
            return Ok(());
        }
        let mut reaches = HashMap::new();
        if scopes.has(&[Word::Produce]) {
            let ids: Vec<Uuid> = staged.iter().filter_map(|staged| staged.transaction_id).collect();
            let read = self.store.of(tenant).run(async move |connection| {
                store::transaction::reach(connection, tenant, &ids).await
            });
            reaches = read.await?;
        }
        let is_covered =
            |id: &Uuid| reaches.get(id).is_some_and(|reach: &Reach| scopes.lacks(reach).is_none());
        for Staged { transaction_id, .. } in staged {
            *transaction_id = transaction_id.filter(is_covered);
        }
        Ok(())
    }

    /// By id, without the locations of their appends.
    pub async fn transactions(
        &self,
        tenant: TenantId,
        filter: Filter,
        page: Page,
    ) -> Result<Listed<Transaction>, Error> {
        let Page { limit, after } = page;
        let after = match after.as_deref().map(Uuid::try_parse) {
            None => Uuid::nil(),
            Some(Ok(after)) => after,
            Some(Err(_)) => return Err(Error::invalid("?after", "expected a transaction id")),
        };
        let late = self.store.of(tenant).run(async move |connection| {
            store::transaction::late(connection, tenant, LATE_PER_LIST).await
        });
        let late = late.await?;
        if !late.is_empty() {
            self.expire_transactions(tenant, late).await?;
        }
        let list = self.store.of(tenant).run(async move |connection| {
            store::transaction::list(connection, tenant, filter, after, limit + 1).await
        });
        let rows = list.await?;
        let transactions = rows.into_iter().map(TransactionRow::into_transaction).collect();
        Ok(Listed::cut(transactions, limit, |t: &Transaction| t.transaction_id.to_string()))
    }

    /// Aborts transactions past their deadlines.
    pub(in crate::broker) async fn expire_transactions(
        &self,
        tenant: TenantId,
        ids: Vec<Uuid>,
    ) -> Result<(), Error> {
        let expire = self.store.of(tenant).write(async move |connection| {
            let expired = store::transaction::end::expire(connection, tenant, &ids).await;
            expired.map_err(store::Error::of_a_write)
        });
        crate::broker::janitor::transactions::count_aborted(Reason::Timeout, expire.await?);
        Ok(())
    }
}
