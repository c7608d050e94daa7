//! The context of the transactions in a batch, read under their locks.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::batch::RequestBatch;
use crate::{
    model::{LogId, Name, Offset, ProducerId, TenantId, Timestamp, transaction::PlacedAppend},
    rules::{
        append::{
            Request,
            plan::{Plan, PlannedCommit},
            reservations::{Verdicts, stored_parts},
        },
        group::offsets::OffsetPlace,
        transaction::one_request::{OutcomeHorizon, SingleRequestTxn, TxnContext},
    },
    store::{
        self, Connection,
        append::load::Facts,
        transaction::one_request::{Claim, Ended},
    },
};

/// The locked rows, and the ids for which this pass has inserted rows.
#[derive(Default)]
pub struct HeldRows {
    pub context: TxnContext,
    claims: Vec<Uuid>,
}

pub fn transactions(requests: &[Request]) -> impl Iterator<Item = &SingleRequestTxn> + Clone {
    requests.iter().filter_map(|request| request.transaction.as_ref())
}

/// The sessions to which transactions of a batch are bound.
pub fn sessions(requests: &[Request]) -> impl Iterator<Item = ProducerId> {
    transactions(requests).filter_map(|txn| txn.session.map(|(id, _)| id))
}

/// Locks ids, then offsets, in the order of all locks; the sessions are locked already.
pub async fn hold(
    connection: &mut Connection,
    tenant: TenantId,
    requests: &[Request],
    sessions: &Facts,
) -> Result<HeldRows, store::Error> {
    let mut held = HeldRows::default();
    let claim = |request: &Request| {
        let txn = request.transaction.as_ref()?;
        let (id, digest) = (txn.transaction_id, request.digest);
        Some(Claim { id, repeated_by: txn.repeated_by, digest })
    };
    let claims: Vec<Claim> = requests.iter().filter_map(claim).collect();
    if claims.is_empty() {
        return Ok(held);
    }
    held.claims =
        store::transaction::one_request::insert_placeholders(connection, tenant, &claims).await?;
    let context = &mut held.context;
    for Claim { id, repeated_by, .. } in claims.iter().filter(|c| !held.claims.contains(&c.id)) {
        let row = store::transaction::read_repeated(connection, tenant, *id, repeated_by).await?;
        context.rows.extend(row.map(|row| (*id, row)));
    }
    // last: what was forgotten before an id came free, or its row was looked for, has moved the
    // horizon by now
    let (horizon, now) = store::transaction::horizon(connection, tenant).await?;
    context.caches = Some(OutcomeHorizon { horizon, now });
    for id in self::sessions(requests) {
        let ongoing = store::transaction::ongoing(connection, tenant, id).await?;
        let ongoing = ongoing.filter(|row| !row.has_expired(now));
        context.ongoing.extend(ongoing.map(|row| (id, row.transaction_id)));
        context.sessions.extend(sessions.get(&id).map(|facts| (id, *facts)));
    }
    let places: BTreeSet<OffsetPlace> = transactions(requests)
        .flat_map(|txn| txn.offsets.iter().map(|claimed| claimed.place.clone()))
        .collect();
    if !places.is_empty() {
        let places: Vec<OffsetPlace> = places.into_iter().collect();
        context.places = store::group::offsets::lock(connection, tenant, &places).await?;
        let logs: BTreeSet<LogId> = places.iter().map(|place| place.log_id).collect();
        let logs: Vec<LogId> = logs.into_iter().collect();
        let ends = store::catalog::logs::watermarks(connection, tenant, &logs).await?;
        let ends = ends.into_iter().map(|(log_id, start, end, _)| (log_id, (start, end)));
        context.ends = Some(ends.collect());
        let names: BTreeSet<Name> = places.into_iter().map(|place| place.group).collect();
        let names: Vec<Name> = names.into_iter().collect();
        let claims = transactions(requests).flat_map(|txn| &txn.offsets);
        let members = claims.filter_map(|claimed| claimed.claim.member_id()).collect();
        context.groups =
            store::group::offsets::groups(connection, tenant, &names, &members).await?;
    }
    Ok(held)
}

/// The transactions that a plan commits, with the locations of their appends.
pub fn ended<'a>(batch: &'a RequestBatch, plan: &'a Plan) -> Vec<Ended<'a>> {
    let ended = |(request, txn, verdicts, base_offsets): PlannedCommit<'a>| {
        let appends = locate_parts(request, txn, verdicts, base_offsets);
        Ended { transaction: txn, digest: request.digest, appends }
    };
    plan.committed(&batch.requests).map(ended).collect()
}

/// The locations of a transaction's parts, as its outcome stores them.
pub fn locate_parts(
    request: &Request,
    txn: &SingleRequestTxn,
    verdicts: &Verdicts,
    base_offsets: impl IntoIterator<Item = Offset>,
) -> Vec<PlacedAppend> {
    let parts = stored_parts(request, verdicts).into_iter().zip(&txn.topics).zip(base_offsets);
    let located = parts.map(|((part, topic), base_offset)| PlacedAppend {
        topic: topic.to_string(),
        partition: part.partition,
        base_offset: (part.record_count > 0).then_some(base_offset),
        record_count: part.record_count,
    });
    located.collect()
}

/// Writes the outcomes and offsets of a plan whose rows are written, and removes placeholder ids
/// that it does not use.
pub async fn write(
    connection: &mut Connection,
    tenant: TenantId,
    held: &HeldRows,
    ended: &[Ended<'_>],
    plan: &Plan,
    ended_at: Option<Timestamp>,
) -> Result<(), store::Error> {
    if let Some(ended_at) = ended_at.filter(|_| !ended.is_empty()) {
        store::transaction::one_request::finish(connection, tenant, ended, ended_at).await?;
    }
    let commits: Vec<store::group::offsets::OffsetWrite> = plan
        .offsets
        .iter()
        .map(|moved| {
            let place = moved.place.clone();
            store::group::offsets::OffsetWrite { place, offset: moved.to, metadata: None }
        })
        .collect();
    if !commits.is_empty() && !store::group::offsets::commit(connection, tenant, &commits).await? {
        return Err(store::Error::overtaken());
    }
    let used: BTreeSet<Uuid> = ended.iter().map(|ended| ended.transaction.transaction_id).collect();
    let unused: Vec<Uuid> = held.claims.iter().copied().filter(|id| !used.contains(id)).collect();
    if !unused.is_empty() {
        store::transaction::one_request::drop_claims(connection, tenant, &unused).await?;
    }
    Ok(())
}
