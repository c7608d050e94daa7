//! Statements on committed offsets of groups (`group_offsets`), and on who owns their partitions.
//! They lock rows by group and log.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::postgres::PgBindIterExt;
use uuid::Uuid;

use super::places;
use crate::{
    model::{LogId, Name, Offset, Partition, TenantId, group::CommittedOffset},
    rules::group::offsets::{GroupFacts, OffsetPlace, OffsetRow},
    store::{Connection, Error, Result, catalog::logs, execute, statements},
};

statements! {
    LOCK = r#"select o.group_name, o.log_id, o.committed_offset, o.metadata, o.member_id,
            o.owned_since, o.pinned_by
        from (
            select group_name, log_id from unnest($2::text[], $3::bigint[]) as w (group_name, log_id)
            -- No row as long as one is missing (unless $4): a transaction that holds some must not
            -- wait for others to be created.
            where $4 or cardinality($2) = (
                select count(*) from unnest($2::text[], $3::bigint[]) as w (group_name, log_id)
                cross join lateral (
                    select from oncelog.group_offsets
                    where tenant_id = $1 and group_name = w.group_name and log_id = w.log_id
                    offset 0) as o)
            order by group_name collate "C", log_id) as w
        -- Locked one by one, in this order.
        cross join lateral (
            select o.* from oncelog.group_offsets o
            join oncelog.logs l on l.tenant_id = $1 and l.log_id = o.log_id
            where o.tenant_id = $1 and o.group_name = w.group_name and o.log_id = w.log_id
            for no key update of o) as o"#;
    MAKE_GROUPS = r#"insert into oncelog.groups (tenant_id, name)
        select $1, name from unnest($2::text[]) as w (name)
        order by name collate "C" on conflict do nothing"#;
    /// Keeps existing groups from being deleted meanwhile.
    HOLD_GROUPS = r"select from oncelog.groups where tenant_id = $1 and name = any($2)
        order by name for key share";
    MAKE_ROWS = r#"insert into oncelog.group_offsets (tenant_id, group_name, log_id)
        select $1, group_name, log_id from unnest($2::text[], $3::bigint[]) as w (group_name, log_id)
        order by group_name collate "C", log_id on conflict do nothing"#;
    /// With the existing ones of these members, and with at least one if the group has any.
    GROUPS = r"select name, generation, array(
            select member_id from oncelog.group_members
            where tenant_id = $1 and group_name = name and member_id = any($3)
            union (
                select member_id from oncelog.group_members
                where tenant_id = $1 and group_name = name limit 1))
        from oncelog.groups where tenant_id = $1 and name = any($2)";
    /// All rows exist: an upsert finds each by its key, whatever the table was like when the
    /// statement was planned.
    COMMIT = r"insert into oncelog.group_offsets as o
            (tenant_id, group_name, log_id, committed_offset, metadata, committed_at)
        select $1, group_name, log_id, committed_offset, metadata, now()
        from unnest($2::text[], $3::bigint[], $4::bigint[], $5::text[])
            as w (group_name, log_id, committed_offset, metadata)
        on conflict (tenant_id, group_name, log_id) do update
        set committed_offset = excluded.committed_offset, metadata = excluded.metadata,
            committed_at = excluded.committed_at
        returning o.log_id, (
            -- Whether it is the first commit there: the statement's snapshot has the row before.
            select committed_offset is null from oncelog.group_offsets
            where tenant_id = $1 and group_name = o.group_name and log_id = o.log_id)";
    LIST = concat!(
        places!("t.name, l.partition, o.committed_offset, o.metadata"),
        r" and o.committed_offset is not null
        order by t.name, l.partition"
    );
    GROUP_EXISTS = "select exists (select from oncelog.groups where tenant_id = $1 and name = $2)";
}

/// Locks the offsets' rows in the order of group and log, and creates missing ones; omits those
/// whose log was deleted with its topic, and those of a group that was deleted while this waited.
/// Call it once per transaction.
///
/// This cannot deadlock: rows are created before any is locked, both in order, and a transaction
/// that waits for a row being created holds only rows that others would wait for in the same way.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    places: &[OffsetPlace],
) -> Result<BTreeMap<OffsetPlace, OffsetRow>> {
    let places: BTreeSet<&OffsetPlace> = places.iter().collect();
    let rows = lock_rows(conn, tenant, &places, false).await?;
    if !rows.is_empty() || places.is_empty() {
        return Ok(rows);
    }
    let mut groups: Vec<&Name> = places.iter().map(|place| &place.group).collect();
    groups.dedup();
    make_groups(conn, tenant, &groups).await?;
    let query = sqlx::query(MAKE_ROWS)
        .bind(tenant)
        .bind(places.iter().map(|place| &place.group).bind_iter())
        .bind(places.iter().map(|place| place.log_id).bind_iter());
    execute(conn, query).await?;
    lock_rows(conn, tenant, &places, true).await
}

/// Creates missing groups, and keeps all from being deleted.
async fn make_groups(conn: &mut Connection, tenant: TenantId, groups: &[&Name]) -> Result<()> {
    loop {
        execute(conn, sqlx::query(MAKE_GROUPS).bind(tenant).bind(groups)).await?;
        let held = sqlx::query(HOLD_GROUPS).bind(tenant).bind(groups);
        // one was being deleted when it was to be made
        if held.fetch_all(&mut *conn).await?.len() == groups.len() {
            return Ok(());
        }
    }
}

async fn lock_rows(
    conn: &mut Connection,
    tenant: TenantId,
    places: &BTreeSet<&OffsetPlace>,
    also_some: bool,
) -> Result<BTreeMap<OffsetPlace, OffsetRow>> {
    type Found =
        (Name, LogId, Option<Offset>, Option<String>, Option<String>, Option<i64>, Option<Uuid>);
    let rows: Vec<Found> = sqlx::query_as(LOCK)
        .bind(tenant)
        .bind(places.iter().map(|place| &place.group).bind_iter())
        .bind(places.iter().map(|place| place.log_id).bind_iter())
        .bind(also_some)
        .fetch_all(conn)
        .await?;
    let locked =
        |(group, log_id, committed_offset, metadata, member_id, since, pinned_by): Found| {
            let owner = member_id.zip(since);
            (
                OffsetPlace { group, log_id },
                OffsetRow { committed_offset, metadata, owner, pinned_by },
            )
        };
    Ok(rows.into_iter().map(locked).collect())
}

/// Reads whether the groups have members, and these; a missing group has none.
pub async fn groups(
    conn: &mut Connection,
    tenant: TenantId,
    groups: &[Name],
    members: &BTreeSet<&str>,
) -> Result<BTreeMap<Name, GroupFacts>> {
    let members = members.iter().copied();
    let query = sqlx::query_as(GROUPS).bind(tenant).bind(groups).bind(members.bind_iter());
    let rows: Vec<(Name, i64, Vec<String>)> = query.fetch_all(conn).await?;
    let mut found: BTreeMap<Name, GroupFacts> =
        groups.iter().map(|group| (group.clone(), GroupFacts::default())).collect();
    for (name, generation, members) in rows {
        found.insert(name, GroupFacts { generation, members });
    }
    Ok(found)
}

/// An offset to commit at a locked place.
pub struct OffsetWrite {
    pub place: OffsetPlace,
    pub offset: Offset,
    pub metadata: Option<String>,
}

/// Writes the offsets of locked rows, after all other locks. False if a log is being deleted with
/// its topic; then the transaction must be rolled back.
///
/// The janitor removes the offsets of a deleted topic that it can see. It cannot see a row that a
/// transaction in flight has created, so the first commit in a partition locks the log's head.
pub async fn commit(
    conn: &mut Connection,
    tenant: TenantId,
    commits: &[OffsetWrite],
) -> Result<bool> {
    let written: Vec<(LogId, Option<bool>)> = sqlx::query_as(COMMIT)
        .bind(tenant)
        .bind(commits.iter().map(|commit| &commit.place.group).bind_iter())
        .bind(commits.iter().map(|commit| commit.place.log_id).bind_iter())
        .bind(commits.iter().map(|commit| commit.offset).bind_iter())
        .bind(commits.iter().map(|commit| commit.metadata.as_ref()).bind_iter())
        .fetch_all(&mut *conn)
        .await?;
    let mut first = BTreeSet::new();
    for (log_id, is_first) in written {
        let unlocked = || Error::Unexpected("an offset was committed in no locked row".into());
        if is_first.ok_or_else(unlocked)? {
            first.insert(log_id);
        }
    }
    let first: Vec<LogId> = first.into_iter().collect();
    Ok(first.is_empty() || logs::hold(conn, tenant, &first).await?)
}

/// The committed offsets of a group, in topics that still exist. None if the group does not exist.
pub async fn list(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<Vec<CommittedOffset>>> {
    let query = sqlx::query_as(LIST).bind(tenant).bind(group);
    let rows: Vec<(Name, Partition, Offset, Option<String>)> = query.fetch_all(&mut *conn).await?;
    if rows.is_empty() {
        let query = sqlx::query_scalar(GROUP_EXISTS).bind(tenant).bind(group);
        let exists: bool = query.fetch_one(conn).await?;
        return Ok(exists.then(Vec::new));
    }
    let offsets = rows.into_iter().map(|(topic, partition, offset, metadata)| CommittedOffset {
        topic,
        partition,
        offset,
        metadata,
    });
    Ok(Some(offsets.collect()))
}
