//! Statements on groups for operators: description, reset, deletion, expiry, and the lag of all
//! groups.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{stored_reset, stored_starts};
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
    store::{Error, Instant, catalog::topics::stored_name, statements},
};

statements! {
    LIST = r"select name, generation, member_count, auto_offset_reset, created_at from oncelog.groups
        where tenant_id = $1 and name > $2 order by name limit $3";
    GROUP = "select generation, auto_offset_reset, created_at from oncelog.groups where tenant_id = $1 and name = $2";
    MEMBERS = r"select member_id, instance_id, topics, topic_pattern, session_timeout_ms, joined_at, lease_expires_at
        from oncelog.group_members where tenant_id = $1 and group_name = $2 order by joined_at, member_id";
    PLACES = r"select t.name, l.partition, o.committed_offset, o.metadata, o.committed_at, o.starts, l.log_start_offset,
            l.next_offset, o.member_id, o.owned_since, o.owned_at, o.assigned_to, o.pinned_by, (
                select prepared_at from oncelog.transactions where tenant_id = $1 and transaction_id = o.pinned_by)
        from oncelog.group_offsets o
        cross join lateral (select log_id, topic_id, partition, log_start_offset, next_offset from oncelog.logs
            where tenant_id = $1 and log_id = o.log_id offset 0) l
        cross join lateral (select name from oncelog.topics where tenant_id = $1 and topic_id = l.topic_id offset 0) t
        where o.tenant_id = $1 and o.group_name = $2
            and coalesce(o.committed_offset::text, o.starts, o.member_id, o.pinned_by::text) is not null
        order by t.name, l.partition";
    SUBSCRIBED = r"select l.log_id, t.name, l.partition from oncelog.group_offsets o
        cross join lateral (select log_id, topic_id, partition, log_start_offset, next_offset from oncelog.logs
            where tenant_id = $1 and log_id = o.log_id offset 0) l
        cross join lateral (select name from oncelog.topics where tenant_id = $1 and topic_id = l.topic_id offset 0) t
        where o.tenant_id = $1 and o.group_name = $2 and (o.committed_offset is not null or o.starts is not null)
        order by t.name, l.partition";
    /// Nobody can join meanwhile.
    HOLD = "select auto_offset_reset from oncelog.groups where tenant_id = $1 and name = $2 for no key update";
    STARTS = r"select log_id, starts from oncelog.group_offsets
        where tenant_id = $1 and group_name = $2 and starts is not null";
    /// Nobody can join, or commit for the first time in a partition, meanwhile.
    LOCK = "select active_at from oncelog.groups where tenant_id = $1 and name = $2 for update";
    LOCK_UNLESS_HELD = "select active_at from oncelog.groups where tenant_id = $1 and name = $2 for update skip locked";
    HAS_MEMBERS = "select exists (select from oncelog.group_members where tenant_id = $1 and group_name = $2)";
    /// In order, as by commits in flight.
    LOCK_PLACES = r"select committed_offset, committed_at, pinned_by from oncelog.group_offsets
        where tenant_id = $1 and group_name = $2 order by log_id for no key update";
    DROP_PLACES = "delete from oncelog.group_offsets where tenant_id = $1 and group_name = $2";
    DROP = "delete from oncelog.groups where tenant_id = $1 and name = $2";
    /// Covers many tenants, each with its own limit, without locks; those due for longest come
    /// first.
    IDLE = r"select w.tenant_id, g.name
        from unnest($1::bigint[], $2::timestamptz[]) as w (tenant_id, idle_since)
        cross join lateral (select g.name, g.active_at from oncelog.groups g
            where g.tenant_id = w.tenant_id and g.member_count = 0 and g.active_at < w.idle_since
            order by g.active_at limit $3) g
        order by g.active_at limit $3";
    MOVE_ACTIVITY = "update oncelog.groups set active_at = $3 where tenant_id = $1 and name = $2";
    COUNT = r"select count(*) filter (where member_count > 0), count(*) filter (where member_count = 0),
        coalesce(sum(member_count), 0)::bigint from oncelog.groups";
    /// Covers all tenants, greatest lag first; and the sum of the lags beyond the limit (no names).
    /// `rules::group::position` defines where a group resumes.
    LAGS = r"with lag as materialized (
            select o.tenant_id, o.group_name, l.topic_id, sum(l.next_offset - case
                    when o.committed_offset >= l.log_start_offset then o.committed_offset
                    when o.committed_offset is null and o.starts = 'earliest' or g.auto_offset_reset = 'earliest' then l.log_start_offset
                    when g.auto_offset_reset = 'latest' then l.next_offset end)::bigint as records
            from oncelog.group_offsets o
            join oncelog.groups g on g.tenant_id = o.tenant_id and g.name = o.group_name
            join oncelog.logs l on l.tenant_id = o.tenant_id and l.log_id = o.log_id
            where o.committed_offset is not null or o.starts is not null
            group by o.tenant_id, o.group_name, l.topic_id),
        ranked as materialized (
            select *, row_number() over (order by records desc, tenant_id, group_name, topic_id) as rank
            from lag where records is not null)
        select n.name, r.group_name, t.name, r.records from ranked r
        join oncelog.tenants n on n.tenant_id = r.tenant_id
        join oncelog.topics t on t.tenant_id = r.tenant_id and t.topic_id = r.topic_id
        where r.rank <= $1
        union all select null, null, null, coalesce(sum(records), 0)::bigint from ranked where rank > $1";
}

/// Lists the groups after a name, by name.
pub async fn list(
    connection: &mut PgConnection,
    tenant: TenantId,
    after: &str,
    limit: i64,
) -> Result<Vec<GroupSummary>, Error> {
    let query = sqlx::query_as(LIST).bind(tenant.0).bind(after).bind(limit);
    let rows: Vec<(String, i64, i32, String, Instant)> = query.fetch_all(connection).await?;
    let summary =
        |(name, generation, member_count, reset, created_at): (String, _, _, String, _)| {
            Ok(GroupSummary {
                group: stored_name(&name)?,
                generation,
                member_count,
                auto_offset_reset: stored_reset(&reset)?,
                created_at: Instant::into(created_at),
            })
        };
    rows.into_iter().map(summary).collect()
}

/// Describes a group except its lags, with what these are computed from, one row per place; call it
/// first in a transaction. None if the group does not exist.
pub async fn describe(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<(GroupDescription, Vec<ResetContext>)>, Error> {
    let query = sqlx::query_as(GROUP).bind(tenant.0).bind(group.as_str());
    let found: Option<(i64, String, Instant)> = query.fetch_optional(&mut *connection).await?;
    let Some((generation, reset, created_at)) = found else { return Ok(None) };
    let auto_offset_reset = stored_reset(&reset)?;
    let query = sqlx::query_as(PLACES).bind(tenant.0).bind(group.as_str());
    let rows: Vec<PlaceRow> = query.fetch_all(&mut *connection).await?;
    let places: Result<Vec<(PlaceDescription, ResetContext)>, Error> =
        rows.into_iter().map(|row| place(row, auto_offset_reset)).collect();
    let (places, grounds): (Vec<PlaceDescription>, _) = places?.into_iter().unzip();
    let query = sqlx::query_as(MEMBERS).bind(tenant.0).bind(group.as_str());
    let rows: Vec<MemberRow> = query.fetch_all(connection).await?;
    let mut owned: BTreeMap<&str, Partitions> = BTreeMap::new();
    for PlaceDescription { topic, partition, owner, .. } in &places {
        let Some(owner) = owner else { continue };
        let of_owner = owned.entry(&owner.member_id).or_default();
        of_owner.entry(topic.clone()).or_default().insert(*partition);
    }
    let members = rows.into_iter().map(|row| member(row, &mut owned)).collect();
    let (group, created_at) = (group.clone(), created_at.into());
    let description =
        GroupDescription { group, generation, auto_offset_reset, created_at, members, places };
    Ok(Some((description, grounds)))
}

type PlaceRow = (
    String,
    Partition,
    Option<Offset>,
    Option<String>,
    Option<Instant>,
    Option<String>,
    Offset,
    Offset,
    Option<String>,
    Option<i64>,
    Option<Instant>,
    Option<String>,
    Option<Uuid>,
    Option<Instant>,
);

fn place(row: PlaceRow, reset: AutoOffsetReset) -> Result<(PlaceDescription, ResetContext), Error> {
    let (topic, partition, committed_offset, metadata, committed_at, starts, ..) = row;
    let (log_start_offset, high_watermark) = (row.6, row.7);
    let (member_id, since, owned_at, assigned_to, pinned_by, prepared_at) =
        (row.8, row.9, row.10, row.11, row.12, row.13);
    let ground = ResetContext {
        committed_offset,
        starts: starts.as_deref().map(stored_starts).transpose()?,
        auto_offset_reset: reset,
        log: (log_start_offset, high_watermark),
        found: None,
    };
    let at = |instant: Option<Instant>| instant.map(Timestamp::from);
    let assigned_to = assigned_to.filter(|to| member_id.as_ref() != Some(to));
    let owner = member_id.zip(since);
    let description = PlaceDescription {
        topic: stored_name(&topic)?,
        partition,
        committed_offset,
        metadata,
        committed_at: at(committed_at),
        log_start_offset,
        high_watermark,
        lag: None,
        owner: owner.map(|(member_id, since)| OwnerDescription {
            member_id,
            since,
            at: at(owned_at),
        }),
        assigned_to,
        pin: pinned_by.map(|transaction_id| Pin { transaction_id, since: at(prepared_at) }),
    };
    Ok((description, ground))
}

type MemberRow = (String, Option<String>, Vec<String>, Option<String>, i64, Instant, Instant);

fn member(row: MemberRow, owned: &mut BTreeMap<&str, Partitions>) -> MemberDescription {
    let (member_id, instance_id, mut topics, topic_pattern, session_timeout_ms, joined, lease) =
        row;
    topics.sort_unstable();
    MemberDescription {
        assignment: owned.remove(member_id.as_str()).unwrap_or_default(),
        member_id,
        instance_id,
        topics,
        topic_pattern,
        session_timeout_ms,
        joined_at: joined.into(),
        lease_expires_at: lease.into(),
    }
}

/// The partitions that a group subscribes to or has committed in, by topic and partition.
pub async fn subscribed(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
) -> Result<Vec<(LogId, Name, Partition)>, Error> {
    let query = sqlx::query_as(SUBSCRIBED).bind(tenant.0).bind(group.as_str());
    let rows: Vec<(i64, String, Partition)> = query.fetch_all(connection).await?;
    let named = |(log_id, topic, partition): (i64, String, Partition)| {
        Ok((LogId(log_id), stored_name(&topic)?, partition))
    };
    rows.into_iter().map(named).collect()
}

/// Keeps members from joining until the transaction ends, before its offsets are locked. None if
/// the group does not exist.
pub async fn hold(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<AutoOffsetReset>, Error> {
    let query = sqlx::query_scalar(HOLD).bind(tenant.0).bind(group.as_str());
    let reset: Option<String> = query.fetch_optional(connection).await?;
    reset.as_deref().map(stored_reset).transpose()
}

/// Where a locked group starts without a committed offset.
pub async fn starts(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
) -> Result<BTreeMap<LogId, Starts>, Error> {
    let query = sqlx::query_as(STARTS).bind(tenant.0).bind(group.as_str());
    let rows: Vec<(i64, String)> = query.fetch_all(connection).await?;
    rows.iter().map(|(log_id, starts)| Ok((LogId(*log_id), stored_starts(starts)?))).collect()
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
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    waits: bool,
) -> Result<Option<WholeGroup>, Error> {
    let sql = if waits { LOCK } else { LOCK_UNLESS_HELD };
    let query = sqlx::query_scalar(sql).bind(tenant.0).bind(group.as_str());
    let active_at: Option<Instant> = query.fetch_optional(&mut *connection).await?;
    let Some(active_at) = active_at else { return Ok(None) };
    let query = sqlx::query_scalar(HAS_MEMBERS).bind(tenant.0).bind(group.as_str());
    let has_members: bool = query.fetch_one(&mut *connection).await?;
    let query = sqlx::query_as(LOCK_PLACES).bind(tenant.0).bind(group.as_str());
    let places: Vec<(Option<Offset>, Option<Instant>, Option<Uuid>)> =
        query.fetch_all(connection).await?;
    let pinned = places.iter().find_map(|(committed, _, pin)| Some((*committed, (*pin)?)));
    let last_committed_at = places.iter().filter_map(|(_, at, _)| *at).max().map(Timestamp::from);
    Ok(Some(WholeGroup { has_members, pinned, active_at: active_at.into(), last_committed_at }))
}

/// Deletes a locked group without members; returns how many rows it had.
pub async fn delete(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
) -> Result<u64, Error> {
    let mut rows = 0;
    for sql in [DROP_PLACES, DROP] {
        let query = sqlx::query(sql).bind(tenant.0).bind(group.as_str());
        rows += query.execute(&mut *connection).await?.rows_affected();
    }
    Ok(rows)
}

/// Lists groups without members, up to a limit: those of a tenant that were last active, as far as
/// noted, before an instant.
pub async fn idle(
    connection: &mut PgConnection,
    since: &[(TenantId, Timestamp)],
    limit: i64,
) -> Result<Vec<(TenantId, Name)>, Error> {
    let rows: Vec<(i64, String)> = sqlx::query_as(IDLE)
        .bind(since.iter().map(|(tenant, _)| tenant.0).collect::<Vec<_>>())
        .bind(since.iter().map(|(_, since)| since.to_chrono()).collect::<Vec<Instant>>())
        .bind(limit)
        .fetch_all(connection)
        .await?;
    rows.iter().map(|(tenant, group)| Ok((TenantId(*tenant), stored_name(group)?))).collect()
}

/// Notes activity of a locked group: it is not checked again before its limit has passed since.
pub async fn move_activity(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    active_at: Timestamp,
) -> Result<(), Error> {
    let query = sqlx::query(MOVE_ACTIVITY).bind(tenant.0).bind(group.as_str());
    query.bind(active_at.to_chrono()).execute(connection).await?;
    Ok(())
}

/// Counts over all tenants: groups with members, groups without, members.
pub async fn count(connection: &mut PgConnection) -> Result<(i64, i64, i64), Error> {
    Ok(sqlx::query_as(COUNT).fetch_one(connection).await?)
}

/// The lag of the groups of all tenants in each topic: the `limit` greatest, and the sum of the
/// others.
pub async fn lags(connection: &mut PgConnection, limit: i64) -> Result<(Vec<Lag>, i64), Error> {
    type Row = (Option<String>, Option<String>, Option<String>, i64);
    let rows: Vec<Row> = sqlx::query_as(LAGS).bind(limit).fetch_all(connection).await?;
    let (mut lags, mut others) = (Vec::with_capacity(rows.len()), 0);
    for row in rows {
        let (Some(tenant), Some(group), Some(topic), records) = row else {
            others = row.3;
            continue;
        };
        let name = |text: &str| stored_name(text);
        let (tenant, group, topic) = (name(&tenant)?, name(&group)?, name(&topic)?);
        lags.push(Lag { tenant, group, topic, records });
    }
    Ok((lags, others))
}
