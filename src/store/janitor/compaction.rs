//! Statements of compaction: finds logs that may be due, and rewrites rows that lose records.
//! Offsets stay: a row keeps its span and says which of its records remain; a row without remaining
//! records is deleted.
//!
//! It only touches rows before the snapshot, so no replay meets a hole: a cache that is behind
//! `compacted_offset` is discarded, like one behind `kept_offset`. The producer states cover the
//! requests of rewritten rows.

use std::collections::HashMap;

use sqlx::{
    FromRow, Row,
    postgres::{PgBindIterExt, PgRow},
};
use uuid::Uuid;

use super::Due;
use crate::{
    model::{LogId, Offset, Timestamp, settings::OwnSettings},
    rules::compaction::CompactionState,
    store::{Connection, Result, Server, durable, execute, janitor, statements},
};

statements! {
    /// Covers all tenants, without locks: logs of topics with the setting, their own or their
    /// tenant's, that have changed or have tombstones waiting, and that no replica is working on.
    CANDIDATES = r"select l.tenant_id, l.log_id, p.settings as topic, t.settings as tenant,
            l.next_offset, coalesce(d.cleaned_offset, 0) as cleaned_offset,
            coalesce(least(d.left_records, greatest(d.cleaned_offset - l.log_start_offset, 0)), 0)
                as left_records,
            coalesce(d.tombstones, 0) as tombstones, coalesce(d.settled_offset, 0) as settled_offset,
            coalesce(d.settled_at, 'epoch') as settled_at, clock_timestamp() as now
        from (
            select p.tenant_id, p.topic_id from oncelog.topics p where p.settings ->> 'cleanup' = 'compact'
            union all
            select p.tenant_id, p.topic_id from oncelog.tenants t cross join lateral (
                select tenant_id, topic_id from oncelog.topics
                where tenant_id = t.tenant_id and settings ->> 'cleanup' is null) p
            where t.settings ->> 'cleanup' = 'compact') c
        cross join lateral (
            select * from oncelog.logs
            where tenant_id = c.tenant_id and topic_id = c.topic_id and partition is not null
            offset 0) l
        left join lateral (
            select * from oncelog.compactions where tenant_id = l.tenant_id and log_id = l.log_id
            offset 0) d on true
        join oncelog.topics p on p.tenant_id = c.tenant_id and p.topic_id = c.topic_id
        join oncelog.tenants t on t.tenant_id = c.tenant_id
        where l.log_id > $1 and (l.next_offset > coalesce(d.cleaned_offset, 0) or d.tombstones > 0)
            and coalesce(d.claimed_until, 'epoch') < statement_timestamp()
        order by l.log_id limit $2";
    /// Takes the log if nothing has changed, and no replica is working on it.
    CLAIM = concat!(
        r"with head as materialized (
            select snapshot_offset, log_start_offset from oncelog.logs
            where tenant_id = $1 and log_id = $2),
        claimed as (
            insert into oncelog.compactions as c (tenant_id, log_id, claimed_until)
            select $1, $2, $4 from head where ", durable!(), r"
            on conflict (tenant_id, log_id) do update set claimed_until = $4
                where c.claimed_until < $3 and c.cleaned_offset = $5
                    and c.settled_offset = $6 and c.tombstones = $7
            returning c.log_id)
        select snapshot_offset, log_start_offset, pg_postmaster_start_time() as server
        from head where exists (select from claimed)"
    );
    /// Checks that the rows were read from this server: after a failover their offsets may hold
    /// other rows.
    LOCK = r"select log_id from oncelog.logs
        where tenant_id = $1 and log_id = $2 and snapshot_offset >= $3
            and pg_postmaster_start_time() = $4 for no key update";
    /// The rows under the head's lock.
    STANDING = r"select base_offset, kept, transaction_id, staged_ordinal from oncelog.batches
        where tenant_id = $1 and log_id = $2 and base_offset = any($3)";
    REWRITE = r"update oncelog.batches b
        set kept = w.kept, records = w.records, producers = null, staged_ordinal = null
        from unnest($3::bigint[], $4::bytea[], $5::text[]) as w (base_offset, kept, records)
        where b.tenant_id = $1 and b.log_id = $2 and b.base_offset = any($3) and b.base_offset = w.base_offset";
    REMOVE = r"delete from oncelog.batches
        where tenant_id = $1 and log_id = $2 and base_offset = any($3)";
    MOVE = r"update oncelog.logs
        set compacted_offset = greatest(compacted_offset, $3), size_bytes = size_bytes - $4
        where tenant_id = $1 and log_id = $2";
    /// Does nothing if another replica has completed a round meanwhile.
    FINISH = r"update oncelog.compactions
        set cleaned_offset = $5, left_records = $6, tombstones = $7,
            settled_offset = coalesce($8, settled_offset),
            settled_at = coalesce($9, settled_at), claimed_until = 'epoch'
        where tenant_id = $1 and log_id = $2 and cleaned_offset = $3 and settled_offset = $4";
}

/// A log that may be due for compaction.
#[derive(Clone, Debug, FromRow)]
pub struct Candidate {
    /// The first columns.
    #[sqlx(flatten)]
    pub log: Due,
    pub topic: OwnSettings,
    pub tenant: OwnSettings,
    #[sqlx(flatten)]
    pub standing: CompactionState,
    /// The database's clock.
    pub now: Timestamp,
}

impl FromRow<'_, PgRow> for CompactionState {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(CompactionState {
            next_offset: row.try_get("next_offset")?,
            cleaned_offset: row.try_get("cleaned_offset")?,
            left_records: row.try_get("left_records")?,
            tombstones: row.try_get("tombstones")?,
            settled_offset: row.try_get("settled_offset")?,
            settled_at: row.try_get("settled_at")?,
        })
    }
}

/// Lists the logs after one, by id, that may be due.
pub async fn candidates(conn: &mut Connection, after: LogId, limit: i64) -> Result<Vec<Candidate>> {
    Ok(sqlx::query_as(CANDIDATES).bind(after).bind(limit).fetch_all(conn).await?)
}

/// The start and end of a log that this replica has taken, and the server it was read from.
#[derive(FromRow)]
pub struct Claimed {
    pub snapshot_offset: Offset,
    pub log_start_offset: Offset,
    pub server: Server,
}

/// Reserves a log for this replica until an instant. None if another replica was first.
pub async fn claim(
    conn: &mut Connection,
    candidate: &Candidate,
    until: Timestamp,
) -> Result<Option<Claimed>> {
    let Candidate { log: (tenant, log), standing, now, .. } = candidate;
    let query = sqlx::query_as(CLAIM)
        .bind(tenant)
        .bind(log)
        .bind(now)
        .bind(until)
        .bind(standing.cleaned_offset)
        .bind(standing.settled_offset)
        .bind(standing.tombstones);
    Ok(query.fetch_optional(conn).await?)
}

/// A row that loses records.
#[derive(Debug)]
pub struct CompactedRow {
    pub base_offset: Offset,
    /// The remaining records so far, as stored.
    pub kept: Option<Vec<u8>>,
    /// The remaining records now. None: no record remains.
    pub left: Option<(Vec<u8>, String)>,
    /// The number of bytes it shrinks by.
    pub freed_bytes: i64,
}

/// Changes rows before `end` if all of them are unchanged since they were read. False, with no
/// change, if another replica or a trim has touched them, the log no longer exists, or another
/// server answers than `server`, from which they were read.
pub async fn change(
    conn: &mut Connection,
    (tenant, log): Due,
    server: Server,
    end: Offset,
    changes: Vec<CompactedRow>,
) -> Result<bool> {
    let locked = sqlx::query(LOCK).bind(tenant).bind(log).bind(end).bind(server);
    if locked.fetch_optional(&mut *conn).await?.is_none() {
        return Ok(false);
    }
    type Standing = (Offset, Option<Vec<u8>>, Option<Uuid>, Option<i64>);
    let query = sqlx::query_as(STANDING).bind(tenant).bind(log);
    let query = query.bind(changes.iter().map(|change| change.base_offset).bind_iter());
    let standing: Vec<Standing> = query.fetch_all(&mut *conn).await?;
    let (mut transactions, mut ordinals) = (Vec::new(), Vec::new());
    let mut kept = HashMap::new();
    for (base_offset, bytes, transaction_id, staged_ordinal) in standing {
        kept.insert(base_offset, bytes);
        if let (Some(id), Some(ordinal)) = (transaction_id, staged_ordinal) {
            transactions.push(id);
            ordinals.push(ordinal);
        }
    }
    if changes.iter().any(|change| kept.get(&change.base_offset) != Some(&change.kept)) {
        return Ok(false);
    }
    let freed_bytes: i64 = changes.iter().map(|change| change.freed_bytes).sum();
    let (mut rewritten, mut places, mut records) = (Vec::new(), Vec::new(), Vec::new());
    let mut removed = Vec::new();
    for change in changes {
        match change.left {
            Some((kept, lines)) => {
                rewritten.push(change.base_offset);
                places.push(kept);
                records.push(lines);
            }
            None => removed.push(change.base_offset),
        }
    }
    let rewrite = sqlx::query(REWRITE).bind(tenant).bind(log);
    execute(conn, rewrite.bind(rewritten).bind(places).bind(records)).await?;
    execute(conn, sqlx::query(REMOVE).bind(tenant).bind(log).bind(removed)).await?;
    janitor::drop_staged(conn, tenant, transactions, ordinals).await?;
    let query = sqlx::query(MOVE).bind(tenant).bind(log).bind(end).bind(freed_bytes);
    execute(conn, query).await?;
    Ok(true)
}

/// The result of a round.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub cleaned_offset: Offset,
    pub left_records: i64,
    pub tombstones: i64,
    /// New tombstones to be removed later, if any: those before the offset, counted from the
    /// instant.
    pub settled: Option<(Offset, Timestamp)>,
}

/// Stores the result of a round with this beginning.
pub async fn finish(
    conn: &mut Connection,
    (tenant, log): Due,
    began: CompactionState,
    finished: Finished,
) -> Result<()> {
    let query = sqlx::query(FINISH)
        .bind(tenant)
        .bind(log)
        .bind(began.cleaned_offset)
        .bind(began.settled_offset)
        .bind(finished.cleaned_offset)
        .bind(finished.left_records)
        .bind(finished.tombstones)
        .bind(finished.settled.map(|(offset, _)| offset))
        .bind(finished.settled.map(|(_, instant)| instant));
    execute(conn, query).await
}
