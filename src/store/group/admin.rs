//! Statements on groups for operators: description, reset, deletion, expiry, and the lag of all
//! groups. They lock the group's row, then its rows in `group_offsets` by log.

use std::collections::BTreeMap;

use sqlx::{
    Row,
    postgres::{PgBindIterExt, PgRow},
};
use uuid::Uuid;

use super::{members, places};
use crate::{
    model::{
        LogId, Name, Offset, Partition, TenantId, Timestamp,
        group::{
            AutoOffsetReset, Partitions,
            view::{
                GroupDescription, GroupSummary, Lag, MemberDescription, OwnerDescription, Pin,
                PlaceDescription,
            },
        },
    },
    rules::group::{Starts, reset::ResetContext},
    store::{Connection, Result, execute, statements},
};

statements! {
    LIST = r"select name, generation, member_count, auto_offset_reset, created_at
        from oncelog.groups where tenant_id = $1 and name > $2
        order by name limit $3";
    GROUP = r"select generation, auto_offset_reset, created_at
        from oncelog.groups where tenant_id = $1 and name = $2";
    MEMBERS = members!("order by joined_at, member_id");
    PLACES = concat!(
        places!(
            r"t.name, l.partition, o.committed_offset, o.metadata, o.committed_at, o.starts,
            l.log_start_offset, l.next_offset, o.member_id, o.owned_since, o.owned_at, o.assigned_to,
            o.pinned_by, (
                select prepared_at from oncelog.transactions
                where tenant_id = $1 and transaction_id = o.pinned_by) as prepared_at"
        ),
        r"
            and coalesce(o.committed_offset::text, o.starts, o.member_id, o.pinned_by::text) is not null
        order by t.name, l.partition"
    );
    SUBSCRIBED = concat!(
        places!("l.log_id, t.name, l.partition"),
        r" and (o.committed_offset is not null or o.starts is not null)
        order by t.name, l.partition"
    );
    /// Nobody can join meanwhile.
    HOLD = r"select auto_offset_reset from oncelog.groups
        where tenant_id = $1 and name = $2 for no key update";
    STARTS = r"select log_id, starts from oncelog.group_offsets
        where tenant_id = $1 and group_name = $2 and starts is not null";
    /// Nobody can join, or commit for the first time in a partition, meanwhile.
    LOCK = "select active_at from oncelog.groups where tenant_id = $1 and name = $2 for update";
    LOCK_UNLESS_HELD = r"select active_at from oncelog.groups
        where tenant_id = $1 and name = $2 for update skip locked";
    HAS_MEMBERS = "select exists (select from oncelog.group_members where tenant_id = $1 and group_name = $2)";
    /// In order, as by commits in flight.
    LOCK_PLACES = r"select committed_offset, committed_at, pinned_by from oncelog.group_offsets
        where tenant_id = $1 and group_name = $2
        order by log_id for no key update";
    DROP_PLACES = "delete from oncelog.group_offsets where tenant_id = $1 and group_name = $2";
    DROP = "delete from oncelog.groups where tenant_id = $1 and name = $2";
    /// Covers many tenants, each with its own limit, without locks; those due for longest come
    /// first.
    IDLE = r"select w.tenant_id, g.name
        from unnest($1::bigint[], $2::timestamptz[]) as w (tenant_id, idle_since)
        cross join lateral (
            select g.name, g.active_at from oncelog.groups g
            where g.tenant_id = w.tenant_id and g.member_count = 0 and g.active_at < w.idle_since
            order by g.active_at limit $3) g
        order by g.active_at limit $3";
    MOVE_ACTIVITY = "update oncelog.groups set active_at = $3 where tenant_id = $1 and name = $2";
    COUNT = r"select count(*) filter (where member_count > 0),
            count(*) filter (where member_count = 0), coalesce(sum(member_count), 0)::bigint
        from oncelog.groups";
    /// Covers all tenants, greatest lag first; the oldest records are looked up by key, and only
    /// for lags within the limit.
    LAGS = r"with place as materialized (
            select o.tenant_id, o.group_name, l.topic_id, l.log_id, l.next_offset,
                -- Where a group resumes is defined by rules::group::position.
                case when o.committed_offset >= l.log_start_offset then o.committed_offset
                    when o.committed_offset is null and o.starts = 'earliest'
                        or g.auto_offset_reset = 'earliest' then l.log_start_offset
                    when g.auto_offset_reset = 'latest' then l.next_offset end as next_read
            from oncelog.group_offsets o
            join oncelog.groups g on g.tenant_id = o.tenant_id and g.name = o.group_name
            join oncelog.logs l on l.tenant_id = o.tenant_id and l.log_id = o.log_id
            where o.committed_offset is not null or o.starts is not null),
        lag as materialized (
            select tenant_id, group_name, topic_id, sum(next_offset - next_read)::bigint as records
            from place group by tenant_id, group_name, topic_id),
        ranked as materialized (
            select *, row_number() over (order by records desc, tenant_id, group_name, topic_id) as rank
            from lag where records is not null),
        named as materialized (
            select r.rank, r.tenant_id, r.group_name, r.topic_id, r.records,
                min(b.appended_at) as oldest_at
            from ranked r
            join place p on p.tenant_id = r.tenant_id and p.group_name = r.group_name
                and p.topic_id = r.topic_id
            left join lateral (
                select b.appended_at from oncelog.batches b
                where p.next_read < p.next_offset
                    and b.tenant_id = p.tenant_id and b.log_id = p.log_id and b.base_offset >= coalesce((
                        select s.base_offset from oncelog.batches s
                        where s.tenant_id = p.tenant_id and s.log_id = p.log_id
                            and s.base_offset <= p.next_read
                        order by s.base_offset desc limit 1), p.next_read)
                    and b.base_offset + b.record_count > p.next_read
                order by b.base_offset limit 1) b on true
            where r.rank <= $1
            group by r.rank, r.tenant_id, r.group_name, r.topic_id, r.records)
        (select n.name, r.group_name, t.name, r.records, r.oldest_at from named r
            join oncelog.tenants n on n.tenant_id = r.tenant_id
            join oncelog.topics t on t.tenant_id = r.tenant_id and t.topic_id = r.topic_id
            order by r.rank)
        union all
        -- The lags beyond the limit, without names.
        select null, null, null, coalesce(sum(records), 0)::bigint, null from ranked where rank > $1";
}

/// Lists the groups after a name, by name.
pub async fn list(
    conn: &mut Connection,
    tenant: TenantId,
    after: &str,
    limit: i64,
) -> Result<Vec<GroupSummary>> {
    let query = sqlx::query_as(LIST).bind(tenant).bind(after).bind(limit);
    let rows: Vec<(Name, i64, i32, AutoOffsetReset, Timestamp)> = query.fetch_all(conn).await?;
    let groups =
        rows.into_iter().map(|(group, generation, member_count, auto_offset_reset, created_at)| {
            GroupSummary { group, generation, member_count, auto_offset_reset, created_at }
        });
    Ok(groups.collect())
}

/// Describes a group except its lags, with what these are computed from, one row per place; call it
/// first in a transaction. None if the group does not exist.
pub async fn describe(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<(GroupDescription, Vec<ResetContext>)>> {
    let query = sqlx::query_as(GROUP).bind(tenant).bind(group);
    let found: Option<(i64, AutoOffsetReset, Timestamp)> = query.fetch_optional(&mut *conn).await?;
    let Some((generation, auto_offset_reset, created_at)) = found else { return Ok(None) };
    let query = sqlx::query(PLACES).bind(tenant).bind(group);
    let rows = query.fetch_all(&mut *conn).await?;
    let described: Result<Vec<(PlaceDescription, ResetContext)>, sqlx::Error> =
        rows.iter().map(|row| Ok((place(row)?, reset_context(row, auto_offset_reset)?))).collect();
    let (places, contexts): (Vec<PlaceDescription>, _) = described?.into_iter().unzip();
    let query = sqlx::query_as(MEMBERS).bind(tenant).bind(group);
    let rows: Vec<MemberRow> = query.fetch_all(conn).await?;
    let mut owned: BTreeMap<&str, Partitions> = BTreeMap::new();
    for PlaceDescription { topic, partition, owner, .. } in &places {
        let Some(owner) = owner else { continue };
        let of_owner = owned.entry(&owner.member_id).or_default();
        of_owner.entry(topic.clone()).or_default().insert(*partition);
    }
    let members = rows.into_iter().map(|row| member(row, &mut owned)).collect();
    let group = group.clone();
    let description =
        GroupDescription { group, generation, auto_offset_reset, created_at, members, places };
    Ok(Some((description, contexts)))
}

/// A row of `PLACES`.
fn place(row: &PgRow) -> Result<PlaceDescription, sqlx::Error> {
    let member_id: Option<String> = row.try_get("member_id")?;
    let assigned_to: Option<String> = row.try_get("assigned_to")?;
    let assigned_to = assigned_to.filter(|to| member_id.as_ref() != Some(to));
    let owner = member_id.zip(row.try_get("owned_since")?);
    let (at, prepared_at) = (row.try_get("owned_at")?, row.try_get("prepared_at")?);
    let pinned_by: Option<Uuid> = row.try_get("pinned_by")?;
    Ok(PlaceDescription {
        topic: row.try_get("name")?,
        partition: row.try_get("partition")?,
        committed_offset: row.try_get("committed_offset")?,
        metadata: row.try_get("metadata")?,
        committed_at: row.try_get("committed_at")?,
        log_start_offset: row.try_get("log_start_offset")?,
        high_watermark: row.try_get("next_offset")?,
        lag: None,
        owner: owner.map(|(member_id, since)| OwnerDescription { member_id, since, at }),
        assigned_to,
        pin: pinned_by.map(|transaction_id| Pin { transaction_id, since: prepared_at }),
    })
}

fn reset_context(row: &PgRow, reset: AutoOffsetReset) -> Result<ResetContext, sqlx::Error> {
    Ok(ResetContext {
        committed_offset: row.try_get("committed_offset")?,
        starts: row.try_get("starts")?,
        auto_offset_reset: reset,
        log: (row.try_get("log_start_offset")?, row.try_get("next_offset")?),
        found: None,
    })
}

/// Without the last column, which is of no interest here.
type MemberRow = (String, Option<String>, Vec<String>, Option<String>, i64, Timestamp, Timestamp);

fn member(row: MemberRow, owned: &mut BTreeMap<&str, Partitions>) -> MemberDescription {
    let (member_id, instance_id, mut topics, topic_pattern, session_timeout_ms, ..) = row;
    let (.., joined_at, lease_expires_at) = row;
    topics.sort_unstable();
    MemberDescription {
        assignment: owned.remove(member_id.as_str()).unwrap_or_default(),
        member_id,
        instance_id,
        topics,
        topic_pattern,
        session_timeout_ms,
        joined_at,
        lease_expires_at,
    }
}

/// The partitions that a group subscribes to or has committed in, by topic and partition.
pub async fn subscribed(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Vec<(LogId, Name, Partition)>> {
    Ok(sqlx::query_as(SUBSCRIBED).bind(tenant).bind(group).fetch_all(conn).await?)
}

/// Keeps members from joining until the transaction ends, before its offsets are locked. None if
/// the group does not exist.
pub async fn hold(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<AutoOffsetReset>> {
    Ok(sqlx::query_scalar(HOLD).bind(tenant).bind(group).fetch_optional(conn).await?)
}

/// Where a locked group starts without a committed offset.
pub async fn starts(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<BTreeMap<LogId, Starts>> {
    let query = sqlx::query_as(STARTS).bind(tenant).bind(group);
    let rows: Vec<(LogId, Starts)> = query.fetch_all(conn).await?;
    Ok(rows.into_iter().collect())
}

/// A group that is locked as a whole.
pub struct WholeGroup {
    pub has_members: bool,
    /// The committed offset that a prepared transaction pins, and the transaction.
    pub pinned: Option<(Option<Offset>, Uuid)>,
    pub active_at: Timestamp,
    pub last_committed_at: Option<Timestamp>,
}

/// Locks a group to delete it, so that no commit and no join comes between. `waits`: for those in
/// flight. None if the group does not exist, or is locked.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    waits: bool,
) -> Result<Option<WholeGroup>> {
    let sql = if waits { LOCK } else { LOCK_UNLESS_HELD };
    let query = sqlx::query_scalar(sql).bind(tenant).bind(group);
    let active_at: Option<Timestamp> = query.fetch_optional(&mut *conn).await?;
    let Some(active_at) = active_at else { return Ok(None) };
    let query = sqlx::query_scalar(HAS_MEMBERS).bind(tenant).bind(group);
    let has_members: bool = query.fetch_one(&mut *conn).await?;
    let query = sqlx::query_as(LOCK_PLACES).bind(tenant).bind(group);
    let places: Vec<(Option<Offset>, Option<Timestamp>, Option<Uuid>)> =
        query.fetch_all(conn).await?;
    let pinned = places.iter().find_map(|(committed, _, pin)| Some((*committed, (*pin)?)));
    let last_committed_at = places.iter().filter_map(|(_, at, _)| *at).max();
    Ok(Some(WholeGroup { has_members, pinned, active_at, last_committed_at }))
}

/// Deletes a locked group without members; returns how many rows it had.
pub async fn delete(conn: &mut Connection, tenant: TenantId, group: &Name) -> Result<u64> {
    let mut rows = 0;
    for sql in [DROP_PLACES, DROP] {
        let query = sqlx::query(sql).bind(tenant).bind(group);
        rows += query.execute(&mut *conn).await?.rows_affected();
    }
    Ok(rows)
}

/// Lists groups without members, up to a limit: those of a tenant that were last active, as far as
/// noted, before an instant.
pub async fn idle(
    conn: &mut Connection,
    since: &[(TenantId, Timestamp)],
    limit: i64,
) -> Result<Vec<(TenantId, Name)>> {
    let query = sqlx::query_as(IDLE)
        .bind(since.iter().map(|(tenant, _)| tenant).bind_iter())
        .bind(since.iter().map(|(_, since)| since).bind_iter())
        .bind(limit);
    Ok(query.fetch_all(conn).await?)
}

/// Notes activity of a locked group: it is not checked again before its limit has passed since.
pub async fn move_activity(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    active_at: Timestamp,
) -> Result<()> {
    let query = sqlx::query(MOVE_ACTIVITY).bind(tenant).bind(group).bind(active_at);
    execute(conn, query).await
}

/// Counts over all tenants: groups with members, groups without, members.
pub async fn count(conn: &mut Connection) -> Result<(i64, i64, i64)> {
    Ok(sqlx::query_as(COUNT).fetch_one(conn).await?)
}

/// The lag of the groups of all tenants in each topic: the `limit` greatest, and the sum of the
/// others.
pub async fn lags(conn: &mut Connection, limit: i64) -> Result<(Vec<Lag>, i64)> {
    type Row = (Option<Name>, Option<Name>, Option<Name>, i64, Option<Timestamp>);
    let rows: Vec<Row> = sqlx::query_as(LAGS).bind(limit).fetch_all(conn).await?;
    let (mut lags, mut others) = (Vec::with_capacity(rows.len()), 0);
    for row in rows {
        let (Some(tenant), Some(group), Some(topic), records, oldest_at) = row else {
            others = row.3;
            continue;
        };
        lags.push(Lag { tenant, group, topic, records, oldest_at });
    }
    Ok((lags, others))
}
