//! Statements on staged data of transactions with several requests: `staged_batches`,
//! `staged_offsets`, and the `pins` of prepared ones. They lock rows of `transactions` by id.

use sqlx::postgres::PgBindIterExt;
use uuid::Uuid;

use super::transaction_columns;
use crate::{
    model::{
        Digest, Epoch, LogId, Name, Offset, Partition, ProducerId, Sequence, TenantId, TopicId,
        transaction::CommitRight,
    },
    rules::{
        group::offsets::{Claimed, OffsetPlace},
        transaction::TransactionRow,
    },
    store::{Connection, Error, Result, durable, execute, janitor::Chunk, statements},
};

/// The topics that were deleted, or have another partition count than the records were spread over
/// (`c`).
macro_rules! changed_topics {
    () => {
        r"left join lateral (
                select partition_count from oncelog.topics where tenant_id = $1 and topic_id = c.topic_id
                offset 0) t on true
            where t.partition_count is null or t.partition_count <> c.partition_count"
    };
}

statements! {
    /// Stages the calls of many transactions. Each succeeds or fails on its own, and is returned if
    /// it succeeded: its transaction is ongoing, before its timeout and begun by this session, its
    /// sequence is the next one, and its topics are as they were when the records were spread.
    STAGE = concat!(
        r"with want as materialized (
            select * from unnest($2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[],
                    $6::bigint[], $7::bigint[], $19::bigint[], $21::boolean[])
                as w (transaction_id, producer_id, epoch, sequence, appends, batches, ids, all_groups)),
        moved as materialized (
            select c.transaction_id
            from unnest($8::uuid[], $9::bigint[], $10::integer[])
                as c (transaction_id, topic_id, partition_count)
            ", changed_topics!(), r"),
        held as materialized (
            select t.transaction_id
            from oncelog.transactions t join want w on w.transaction_id = t.transaction_id
            where ", durable!(), r"
                and t.tenant_id = $1 and t.transaction_id = any($2)
                and t.prepared_at is null and t.ended_at is null and t.expires_at > clock_timestamp()
                and t.producer_id is not distinct from w.producer_id
                and t.epoch is not distinct from w.epoch
                and (w.sequence is null or t.next_sequence = w.sequence)
                -- It may have offsets of groups that the token does not cover.
                and (w.all_groups or t.id_count = 0)
                and t.batch_count + w.batches <= $11
                and not exists (select from moved m where m.transaction_id = t.transaction_id)
            order by t.transaction_id for no key update of t skip locked),
        -- A commit notices a concurrent call by the counts in the transaction's row.
        grown as (
            update oncelog.transactions t
            set append_count = t.append_count + w.appends, batch_count = t.batch_count + w.batches,
                id_count = t.id_count + w.ids,
                next_sequence = t.next_sequence + (w.sequence is not null)::int
            from want w join held h on h.transaction_id = w.transaction_id
            where t.tenant_id = $1 and t.transaction_id = any($2) and t.transaction_id = w.transaction_id
            returning ", transaction_columns!(), r", t.appends,
                t.batch_count - w.batches as first_ordinal, t.append_count - w.appends as appends_before),
        staged as (
            insert into oncelog.staged_batches (tenant_id, transaction_id, ordinal, log_id,
                record_count, sequence, digest, records, ids)
            select $1, r.transaction_id, g.first_ordinal + r.ordinal, r.log_id,
                r.record_count, r.sequence, r.digest, r.records,
                -- The packed ids start with the number of appends before the call
                -- (rules::transaction::record_ids).
                int8send(g.appends_before) || r.ids
            from unnest($12::uuid[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[],
                    $17::bytea[], $18::text[], $20::bytea[])
                as r (transaction_id, ordinal, log_id, record_count, sequence, digest, records, ids)
            join grown g on g.transaction_id = r.transaction_id)
        select * from grown"
    );
    CALL_DIGEST = r"select digest from oncelog.staged_batches
        where tenant_id = $1 and transaction_id = $2 and sequence = $3";
    MOVED = concat!(
        r"select exists (
            select from unnest($2::bigint[], $3::integer[]) as c (topic_id, partition_count)
            ", changed_topics!(), ")"
    );
    STAGE_OFFSETS = r"with counted as (
            -- Counted in the locked row, like records with ids, where a concurrent commit notices it.
            update oncelog.transactions set id_count = id_count + cardinality($4::bigint[])
            where tenant_id = $1 and transaction_id = $2)
        insert into oncelog.staged_offsets as s (tenant_id, transaction_id, group_name, log_id,
            committed_offset, member_id, generation, expected_offset, member_expected_offset, began_at_offset)
        select $1, $2, o.*
        from unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[],
            $9::bigint[], $10::bigint[]) as o
        on conflict (tenant_id, transaction_id, group_name, log_id) do update
        set committed_offset = excluded.committed_offset, member_id = excluded.member_id,
            generation = excluded.generation, expected_offset = excluded.expected_offset,
            member_expected_offset = excluded.member_expected_offset,
            -- The last offset for a place counts, but its run began where the first one's did
            -- (rules::group::offsets::Claimed).
            began_at_offset = case when excluded.member_id is not null
                then coalesce(s.began_at_offset, excluded.began_at_offset) end";
    OFFSETS = r"select group_name, log_id, committed_offset, member_id, generation, expected_offset,
            member_expected_offset, began_at_offset
        from oncelog.staged_offsets
        where tenant_id = $1 and transaction_id = $2
        order by group_name, log_id";
    LOGS = r"select log_id, bool_or(ids is not null) from oncelog.staged_batches
        where tenant_id = $1 and transaction_id = $2
        group by log_id order by log_id";
    PIN_LOGS = "insert into oncelog.pins (tenant_id, transaction_id, log_id) select $1, $2, unnest($3::bigint[])";
    UNPIN_LOGS = "delete from oncelog.pins where tenant_id = $1 and transaction_id = $2";
    PIN_OFFSETS = r"update oncelog.group_offsets o set pinned_by = $4
        from unnest($2::text[], $3::bigint[]) as p (group_name, log_id)
        where o.tenant_id = $1 and o.log_id = any($3)
            and o.group_name = p.group_name and o.log_id = p.log_id";
    DROP_OFFSETS = r"delete from oncelog.staged_offsets
        where tenant_id = $1 and transaction_id = $2";
    /// Covers all tenants.
    SWEEPING = "select tenant_id, transaction_id from oncelog.transactions where sweeping limit $1";
    DROP_STAGED = r"delete from oncelog.staged_batches
        where tenant_id = $1 and transaction_id = $2 and ordinal = any (array(
            select ordinal from oncelog.staged_batches where tenant_id = $1 and transaction_id = $2
            order by ordinal limit $3))";
    SWEPT = r"update oncelog.transactions set sweeping = false
        where tenant_id = $1 and transaction_id = $2 and sweeping";
}

/// Stands for a missing committed offset.
const NOTHING: Offset = -1;

/// The records of a call that go to one log.
pub struct StagedPart<'a> {
    pub log_id: LogId,
    pub record_count: i64,
    pub records: &'a str,
    /// Their packed ids (`rules::transaction::record_ids`).
    pub ids: Option<&'a [u8]>,
}

/// A topic with the partition count over which records were spread; none if they were not spread.
pub type Spread = (TopicId, Option<Partition>);

/// A call that adds records to a transaction.
pub struct StagingCall<'a> {
    pub id: Uuid,
    pub session: Option<(ProducerId, Epoch)>,
    pub sequence: Option<Sequence>,
    /// Whether the caller may add to a transaction with offsets of any group.
    pub all_groups: bool,
    pub digest: Digest,
    pub append_count: i64,
    /// The number of records with ids.
    pub id_count: i64,
    pub parts: Vec<StagedPart<'a>>,
    pub spreads: &'a [Spread],
}

/// Stages calls of different transactions; returns the rows of the successful ones.
pub async fn stage(
    conn: &mut Connection,
    tenant: TenantId,
    calls: &[StagingCall<'_>],
    max_batches: i64,
) -> Result<Vec<TransactionRow>> {
    let spreads = || calls.iter().flat_map(|c| c.spreads.iter().map(|spread| (c.id, *spread)));
    // a call, the ordinal of a part in it, and the part
    let parts = || {
        calls.iter().flat_map(|call| (0..).zip(&call.parts).map(move |(n, part)| (call, n, part)))
    };
    let numbered = |(call, ordinal, _): (&StagingCall<'_>, i64, _)| {
        Some((call.sequence.filter(|_| ordinal == 0)?, call.digest))
    };
    let query = sqlx::query_as(STAGE)
        .bind(tenant)
        .bind(calls.iter().map(|c| c.id).bind_iter())
        .bind(calls.iter().map(|c| Some(c.session?.0)).bind_iter())
        .bind(calls.iter().map(|c| Some(c.session?.1)).bind_iter())
        .bind(calls.iter().map(|c| c.sequence).bind_iter())
        .bind(calls.iter().map(|c| c.append_count).bind_iter())
        .bind(calls.iter().map(|c| c.parts.len() as i64).bind_iter())
        .bind(spreads().map(|(id, _)| id).bind_iter())
        .bind(spreads().map(|(_, (topic, _))| topic).bind_iter())
        .bind(spreads().map(|(_, (_, count))| count).bind_iter())
        .bind(max_batches)
        .bind(parts().map(|(call, ..)| call.id).bind_iter())
        .bind(parts().map(|(_, ordinal, _)| ordinal).bind_iter())
        .bind(parts().map(|(.., part)| part.log_id).bind_iter())
        .bind(parts().map(|(.., part)| part.record_count).bind_iter())
        .bind(parts().map(|part| Some(numbered(part)?.0)).bind_iter())
        .bind(parts().map(|part| Some(numbered(part)?.1)).bind_iter())
        .bind(parts().map(|(.., part)| part.records).bind_iter())
        .bind(calls.iter().map(|c| c.id_count).bind_iter())
        .bind(parts().map(|(.., part)| part.ids).bind_iter())
        .bind(calls.iter().map(|c| c.all_groups).bind_iter());
    let staged = query.fetch_all(conn).await;
    staged.map_err(|error| Error::from(error).of_a_write())
}

/// The digest of a sequenced call that was made.
pub async fn call_digest(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    sequence: Sequence,
) -> Result<Option<Digest>> {
    let query = sqlx::query_scalar(CALL_DIGEST).bind(tenant).bind(id).bind(sequence);
    Ok(query.fetch_optional(conn).await?)
}

/// Whether one of these topics was deleted, or has another partition count.
pub async fn moved(conn: &mut Connection, tenant: TenantId, spreads: &[Spread]) -> Result<bool> {
    let query = sqlx::query_scalar(MOVED)
        .bind(tenant)
        .bind(spreads.iter().map(|(topic, _)| topic).bind_iter())
        .bind(spreads.iter().map(|(_, count)| count).bind_iter());
    Ok(query.fetch_one(conn).await?)
}

/// Stages offsets for a locked transaction, each for a different place; they replace those staged
/// for it before.
pub async fn stage_offsets<'a>(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    offsets: &'a [Claimed],
) -> Result<()> {
    // member_id, generation, expected_offset, member_expected_offset, began_at_offset
    let right = |o: &'a Claimed| match &o.claim {
        CommitRight::Member { member_id, generation, expected, began } => {
            (Some(member_id), Some(*generation), None, expected.map(base), began.map(base))
        }
        CommitRight::Expected(expected) => (None, None, *expected, None, None),
    };
    let query = sqlx::query(STAGE_OFFSETS)
        .bind(tenant)
        .bind(id)
        .bind(offsets.iter().map(|o| &o.place.group).bind_iter())
        .bind(offsets.iter().map(|o| o.place.log_id).bind_iter())
        .bind(offsets.iter().map(|o| o.offset).bind_iter())
        .bind(offsets.iter().map(|o| right(o).0).bind_iter())
        .bind(offsets.iter().map(|o| right(o).1).bind_iter())
        .bind(offsets.iter().map(|o| right(o).2).bind_iter())
        .bind(offsets.iter().map(|o| right(o).3).bind_iter())
        .bind(offsets.iter().map(|o| right(o).4).bind_iter());
    execute(conn, query).await
}

/// The expected committed offset, in its columns.
fn base(offset: Option<Offset>) -> Offset {
    offset.unwrap_or(NOTHING)
}

fn stored_base(stored: Offset) -> Option<Offset> {
    Some(stored).filter(|stored| *stored != NOTHING)
}

/// Reads the offsets that a transaction will commit, by group and log.
pub async fn offsets(conn: &mut Connection, tenant: TenantId, id: Uuid) -> Result<Vec<Claimed>> {
    type Found = (
        Name,
        LogId,
        Offset,
        Option<String>,
        Option<i64>,
        Option<Offset>,
        Option<Offset>,
        Option<Offset>,
    );
    let rows: Vec<Found> = sqlx::query_as(OFFSETS).bind(tenant).bind(id).fetch_all(conn).await?;
    let claimed = |found: Found| {
        let (group, log_id, offset, member_id, generation, expected, by_member, began) = found;
        let claim = match member_id.zip(generation) {
            Some((member_id, generation)) => CommitRight::Member {
                member_id,
                generation,
                expected: by_member.map(stored_base),
                began: began.map(stored_base),
            },
            None => CommitRight::Expected(expected),
        };
        Claimed { place: OffsetPlace { group, log_id }, offset, claim }
    };
    Ok(rows.into_iter().map(claimed).collect())
}

/// Reads the logs that a transaction has staged records for, by id.
pub struct Logs {
    pub all: Vec<LogId>,
    /// Whether some records had ids when they were staged.
    pub with_ids: Vec<LogId>,
}

pub async fn logs(conn: &mut Connection, tenant: TenantId, id: Uuid) -> Result<Logs> {
    let query = sqlx::query_as(LOGS).bind(tenant).bind(id);
    let logs: Vec<(LogId, bool)> = query.fetch_all(conn).await?;
    let with_ids = logs.iter().filter(|(_, has_ids)| *has_ids).map(|(id, _)| *id).collect();
    Ok(Logs { all: logs.iter().map(|(id, _)| *id).collect(), with_ids })
}

/// Pins the topics of these locked logs, and these locked places, so that nobody else commits
/// there.
pub async fn pin(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    logs: &[LogId],
    places: &[OffsetPlace],
) -> Result<()> {
    execute(conn, sqlx::query(PIN_LOGS).bind(tenant).bind(id).bind(logs)).await?;
    pin_offsets(conn, tenant, places, Some(id)).await
}

/// Reverts `pin`; the places must be locked.
pub async fn unpin(
    conn: &mut Connection,
    tenant: TenantId,
    id: Uuid,
    places: &[OffsetPlace],
) -> Result<()> {
    execute(conn, sqlx::query(UNPIN_LOGS).bind(tenant).bind(id)).await?;
    pin_offsets(conn, tenant, places, None).await
}

async fn pin_offsets(
    conn: &mut Connection,
    tenant: TenantId,
    places: &[OffsetPlace],
    pinned_by: Option<Uuid>,
) -> Result<()> {
    let query = sqlx::query(PIN_OFFSETS)
        .bind(tenant)
        .bind(places.iter().map(|place| &place.group).bind_iter())
        .bind(places.iter().map(|place| place.log_id).bind_iter())
        .bind(pinned_by);
    execute(conn, query).await
}

/// Deletes the staged offsets of an ended transaction.
pub async fn drop_offsets(conn: &mut Connection, tenant: TenantId, id: Uuid) -> Result<u64> {
    let query = sqlx::query(DROP_OFFSETS).bind(tenant).bind(id);
    Ok(query.execute(conn).await?.rows_affected())
}

/// Lists aborted transactions with staged rows.
pub async fn sweeping(conn: &mut Connection, limit: i64) -> Result<Vec<(TenantId, Uuid)>> {
    Ok(sqlx::query_as(SWEEPING).bind(limit).fetch_all(conn).await?)
}

/// Deletes one chunk of the staged rows of an aborted transaction.
pub async fn sweep(
    conn: &mut Connection,
    (tenant, id): (TenantId, Uuid),
    chunk: i64,
) -> Result<Chunk> {
    let query = sqlx::query(DROP_STAGED).bind(tenant).bind(id).bind(chunk);
    let rows = query.execute(&mut *conn).await?.rows_affected();
    if rows > 0 {
        return Ok(Chunk { rows, more: true });
    }
    let rows = drop_offsets(conn, tenant, id).await?;
    execute(conn, sqlx::query(SWEPT).bind(tenant).bind(id)).await?;
    Ok(Chunk { rows, more: false })
}
