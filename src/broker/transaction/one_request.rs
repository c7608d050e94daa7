//! One-request transactions: they go through a lane, where they share commits with appends. Without
//! records there is nothing to share, so they begin and commit in one database transaction.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use super::{CallResult, ResolvedRequest, Stop, begin, end};
use crate::{
    broker::{
        Broker, Error,
        append::batch::{Job, Outcome, Ticket},
    },
    model::{TenantId, TopicId, settings::OwnSettings, transaction::Begin},
    rules::{
        append::Request,
        transaction::{self, one_request::SingleRequestTxn},
    },
    store::transaction::{New, one_request::remember_from},
};

impl Broker {
    pub(super) async fn commit_in_one_request(
        &self,
        tenant: TenantId,
        new: &Arc<New>,
        begin: &Begin,
        request: ResolvedRequest,
        settings: Arc<OwnSettings>,
    ) -> Result<CallResult, Stop> {
        let begun = Instant::now();
        let done = match request.topic {
            Some(topic) => self.submit(tenant, topic, new, request, &settings).await?,
            None => self.without_records(tenant, new, begin, request, settings).await?,
        };
        if !done.duplicate {
            self.transactions.committed_in_one_request(begun);
        }
        Ok(done)
    }

    async fn submit(
        &self,
        tenant: TenantId,
        topic: TopicId,
        new: &New,
        resolved: ResolvedRequest,
        settings: &OwnSettings,
    ) -> Result<CallResult, Stop> {
        self.check_groups(tenant, new.id, resolved.groups(), settings).await?;
        let size = transaction::check_size(0, resolved.batch_count(), settings);
        let over_limit = resolved.over_limit.clone().or(size.err());
        let (parts, lines): (Vec<_>, Vec<_>) = resolved.parts.into_iter().unzip();
        let Some(home) = parts.first().map(|part| part.log_id) else { return Err(Stop::Again) };
        let transaction = SingleRequestTxn {
            transaction_id: new.id,
            repeated_by: new.repeated_by,
            session: new.session,
            append_count: resolved.append_count,
            retention_ms: transaction::retention_ms(settings),
            journals: resolved.journals,
            topics: resolved.topics,
            offsets: resolved.offsets,
        };
        let request = Request {
            home,
            numbered: None,
            digest: new.digest,
            expected_offset: None,
            parts,
            spread: None,
            over_limit,
            transaction: Some(transaction),
            dedups: resolved.dedups,
        };
        let (answer, answered) = oneshot::channel();
        let arrived_at = Instant::now();
        let _held = resolved.held;
        let ticket = Ticket {
            lines,
            answer,
            arrived_at,
            maybe_written: false,
            place: None,
            parked: None,
            _held,
        };
        self.lanes.submit(topic, Job { tenant, request, ticket })?;
        match answered.await.unwrap_or_else(|_| Outcome::Failed(Error::internal())) {
            Outcome::Committed { row, duplicate: false } => Ok(CallResult::now(*row)),
            Outcome::Committed { row, duplicate: true } => Ok(CallResult::before(*row)),
            Outcome::Refused(refusal) => Err(refusal.into()),
            Outcome::Failed(error) => Err(error.into()),
            Outcome::TopicChanged => Err(Stop::Again),
            Outcome::Placed { .. } | Outcome::Forgotten => Err(Error::internal().into()),
        }
    }

    async fn without_records(
        &self,
        tenant: TenantId,
        new: &Arc<New>,
        begin: &Begin,
        request: ResolvedRequest,
        settings: Arc<OwnSettings>,
    ) -> Result<CallResult, Stop> {
        let (new, timeout_ms, scopes) = (new.clone(), begin.timeout_ms, begin.scopes.clone());
        let run = self.store.of(tenant).transaction(async move |connection| {
            let begun =
                begin::judge(connection, tenant, &new, timeout_ms, &scopes, &settings).await?;
            match begun {
                begin::Begun::Before(row) => Ok(CallResult::before(row)),
                begin::Begun::Now(row) => {
                    let row = begin::add(connection, tenant, row, &request, &settings).await?;
                    let done = end::finish(connection, tenant, row, None, &settings).await?;
                    if let Some(instant) = new.repeated_by.key().and_then(|key| key.instant) {
                        remember_from(connection, tenant, new.id, instant).await?;
                    }
                    Ok(done)
                }
            }
        });
        run.await
    }
}
