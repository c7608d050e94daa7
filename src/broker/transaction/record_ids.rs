//! The ids of staged records: a transaction reserves them when it is prepared, or else when it
//! commits, under the heads of all its logs and of the journals of their topics. Until then it
//! blocks nobody, and an aborted transaction leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use super::Stop;
use crate::{
    broker::{
        Error,
        append::dedup::{self, Policy},
    },
    model::{LogId, TenantId, TopicId, dedup::Ring, settings::OwnSettings, transaction::State},
    rules::{
        append::dedup::{Dedup, Known, Stopped},
        transaction::{
            TransactionRow,
            record_ids::{self, IdTopic, NewId},
        },
    },
    store::{self, Connection, dedup::NewKey, transaction::staging::Logs},
};

/// The ids that a transaction reserves; the heads of the journals are locked.
#[derive(Default)]
pub struct IdReservations {
    topics: BTreeMap<TopicId, IdTopic>,
    new: Vec<NewId>,
    known: Known,
}

impl From<Stopped> for Stop {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Refused(refusal) => refusal.into(),
            Stopped::RetryNextBatch => Stop::Again,
        }
    }
}

/// Reserves the ids of a locked transaction by the current settings; records already stored under
/// the same id are removed from it. A prepared one has reserved its ids: the reservations are
/// replaced by stored keys.
pub async fn claim(
    connection: &mut Connection,
    tenant: TenantId,
    row: &TransactionRow,
    logs: &Logs,
    settings: &OwnSettings,
) -> Result<IdReservations, Stop> {
    if logs.with_ids.is_empty() {
        return Ok(IdReservations::default());
    }
    let id = row.transaction_id;
    let of_logs = topics(connection, tenant, &logs.with_ids, settings).await?;
    let topics: BTreeMap<TopicId, IdTopic> =
        of_logs.values().map(|topic| (topic.topic_id, *topic)).collect();
    let journals = topics.values().map(|topic| topic.journal);
    let heads: BTreeSet<LogId> = logs.all.iter().copied().chain(journals).collect();
    let heads: Vec<LogId> = heads.into_iter().collect();
    if store::catalog::logs::lock(connection, tenant, &heads).await?.len() < heads.len() {
        return Err(Error::topic_gone().into());
    }
    if row.state == State::Prepared {
        let new = store::transaction::record_ids::release(connection, tenant, id).await?;
        let dedups: Vec<Dedup> = topics.values().map(|topic| topic.dedup()).collect();
        let known = look_up(connection, tenant, &dedups).await?;
        return Ok(IdReservations { topics, new, known });
    }
    let rows = store::transaction::record_ids::read(connection, tenant, id, &of_logs).await?;
    let dedups = record_ids::dedups(&rows);
    let known = look_up(connection, tenant, &dedups).await?;
    let record_ids::RecordIdPlan { new, skipped } = record_ids::judge(&known, &rows, &dedups)?;
    skip(connection, tenant, id, &skipped).await?;
    Ok(IdReservations { topics, new, known })
}

/// The topics of these logs that currently deduplicate.
async fn topics(
    connection: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
    settings: &OwnSettings,
) -> Result<HashMap<LogId, IdTopic>, Stop> {
    let found = store::transaction::record_ids::topics(connection, tenant, logs).await?;
    let remembering = found.into_iter().filter_map(|(log_id, topic)| {
        let Policy { window_ms, .. } = Policy::of(&topic.settings, settings)?;
        let store::transaction::record_ids::TopicOf { topic_id, journal, .. } = topic;
        Some((log_id, IdTopic { topic_id, journal, window_ms }))
    });
    Ok(remembering.collect())
}

async fn look_up(
    connection: &mut Connection,
    tenant: TenantId,
    dedups: &[Dedup],
) -> Result<Known, store::Error> {
    let journals = dedup::journals(dedups.iter());
    let of_journal = store::dedup::journals(connection, tenant, &journals).await?;
    let of_journal = |journal| of_journal.get(&journal).copied().unwrap_or_default();
    dedup::look_up(connection, tenant, dedups.iter(), of_journal).await
}

/// Removes records from staged rows that are already stored.
async fn skip(
    connection: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    skipped: &[(i64, Vec<u32>)],
) -> Result<(), store::Error> {
    if skipped.is_empty() {
        return Ok(());
    }
    let ordinals: Vec<i64> = skipped.iter().map(|(ordinal, _)| *ordinal).collect();
    let lines = store::transaction::record_ids::lines(connection, tenant, id, &ordinals).await?;
    let left = skipped.iter().filter_map(|(ordinal, skipped)| {
        let (records, record_count) = record_ids::left(lines.get(ordinal)?, skipped);
        Some((*ordinal, record_count, records))
    });
    store::transaction::record_ids::keep(connection, tenant, id, &left.collect::<Vec<_>>()).await
}

impl IdReservations {
    /// Until a prepared transaction ends, nobody else can store records with these ids.
    pub async fn hold(
        &self,
        connection: &mut Connection,
        tenant: TenantId,
        id: Uuid,
    ) -> Result<(), store::Error> {
        if self.new.is_empty() {
            return Ok(());
        }
        store::transaction::record_ids::hold(connection, tenant, id, &self.new).await?;
        let journals: Vec<_> = self.topics.values().map(|topic| (topic.journal, 0)).collect();
        store::dedup::claimed(connection, tenant, &journals).await
    }

    /// Stores the reserved ids of a committed transaction.
    pub async fn remember(
        &self,
        connection: &mut Connection,
        tenant: TenantId,
        committed: &TransactionRow,
    ) -> Result<(), store::Error> {
        let appends = committed.appends.as_deref().unwrap_or_default();
        if appends.iter().any(|append| append.record_count == 0) {
            store::transaction::record_ids::drop_empty(
                connection,
                tenant,
                committed.transaction_id,
            )
            .await?;
        }
        let key = |id: &NewId| {
            let IdTopic { window_ms, .. } = self.topics.get(&id.topic_id)?;
            let base_offset = appends.get(usize::try_from(id.ordinal).ok()?)?.base_offset?;
            Some(NewKey {
                slot: self.known.slot(Ring::of(*window_ms)),
                topic_id: id.topic_id,
                key: id.key,
                digest: id.digest,
                lifetime_ms: *window_ms,
                record: Some((id.log_id, base_offset + i64::from(id.position))),
                answer: None,
            })
        };
        let keys: Vec<NewKey> = self.new.iter().filter_map(key).collect();
        let (Some(ended_at), false) = (committed.ended_at, keys.is_empty()) else { return Ok(()) };
        store::dedup::remember(connection, tenant, &keys, ended_at).await?;
        let rings = |topic: &IdTopic| (topic.journal, Ring::of(topic.window_ms).bit());
        let journals: Vec<_> = self.topics.values().map(rings).collect();
        store::dedup::claimed(connection, tenant, &journals).await
    }
}
