//! Statements of every member's call: whether the member exists, what it owns, and the renewal of
//! its lease (`group_members`), which skips locked rows.

use sqlx::{FromRow, postgres::PgBindIterExt};

use crate::{
    model::{GroupId, LogId, Name, Offset, Partition, TenantId, Timestamp, group::AutoOffsetReset},
    rules::group::{Revoked, Starts},
    store::{Connection, Result, Server, durable, execute, statements},
};

statements! {
    /// $4: with the watermarks.
    BEATS = r"select w.n, g.group_id, g.generation, g.auto_offset_reset, m.session_timeout_ms,
            m.lease_expires_at, statement_timestamp() as now, o.log_ids, o.since, o.revoked_since,
            o.let_go_by, o.committed, o.starts, o.pinned, o.log_starts, o.high_watermarks,
            pg_postmaster_start_time() as started_at
        from unnest($2::text[], $3::text[]) with ordinality as w (group_name, member_id, n)
        -- Each lookup by key, whatever the tables were like when the statement was planned.
        cross join lateral (
            select group_id, generation, auto_offset_reset from oncelog.groups
            where tenant_id = $1 and name = w.group_name offset 0) as g
        cross join lateral (
            select session_timeout_ms, lease_expires_at from oncelog.group_members
            where tenant_id = $1 and group_name = w.group_name and member_id = w.member_id
            offset 0) as m
        cross join lateral (
            select array_agg(log_id) as log_ids, array_agg(owned_since) as since,
                array_agg(case when assigned_to is distinct from member_id
                    then coalesce(revoked_since, g.generation) end) as revoked_since,
                array_agg(case when revoked_since is not null then let_go_by end) as let_go_by,
                array_agg(committed_offset) as committed, array_agg(starts) as starts,
                array_agg(case when pinned_by is not null then (
                    select s.committed_offset from oncelog.staged_offsets s
                    where s.tenant_id = $1 and s.transaction_id = p.pinned_by
                        and s.group_name = w.group_name and s.log_id = p.log_id) end) as pinned,
                array_agg(case when $4 then (
                    select l.log_start_offset from oncelog.logs l
                    where l.tenant_id = $1 and l.log_id = p.log_id) end) as log_starts,
                array_agg(case when $4 then (
                    select l.next_offset from oncelog.logs l
                    where l.tenant_id = $1 and l.log_id = p.log_id) end) as high_watermarks
            from oncelog.group_offsets p
            where tenant_id = $1 and group_name = w.group_name and member_id = w.member_id) as o";
    RENEW = concat!(
        r"insert into oncelog.group_members as m (tenant_id, group_name, member_id, lease_expires_at)
        select $1, w.group_name, w.member_id, w.lease_expires_at
        from unnest($2::text[], $3::text[], $4::timestamptz[])
            as w (group_name, member_id, lease_expires_at)
        -- Members that are being changed, or renewed elsewhere, are skipped: their next call comes
        -- in time. Rows are locked first: then the upsert finds each by its key, whatever the table
        -- was like when the statement was planned.
        cross join lateral (
            select from oncelog.group_members
            where tenant_id = $1 and group_name = w.group_name and member_id = w.member_id
            for no key update skip locked) as held
        where ", durable!(), r"
        on conflict (tenant_id, group_name, member_id) do update
        -- A late renewal never moves a lease back.
        set lease_expires_at = greatest(m.lease_expires_at, excluded.lease_expires_at)"
    );
    GENERATIONS = "select group_id, generation from oncelog.groups where tenant_id = $1 and group_id = any($2)";
    GROUP_ID = "select group_id, generation from oncelog.groups where tenant_id = $1 and name = $2";
    NAMES = r"select l.log_id, t.name, l.partition from oncelog.logs l
        cross join lateral (
            select name from oncelog.topics where tenant_id = $1 and topic_id = l.topic_id offset 0) as t
        where l.tenant_id = $1 and l.log_id = any($2) and l.partition is not null";
}

/// A member with the partitions that it owns.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    pub group_id: GroupId,
    pub generation: i64,
    pub auto_offset_reset: AutoOffsetReset,
    pub session_timeout_ms: i64,
    pub lease_expires_at: Timestamp,
    /// When this was read, and from which server.
    pub now: Timestamp,
    pub server: Server,
    pub owned: Vec<Owned>,
}

/// A partition that a member owns.
#[derive(Clone, Debug)]
pub struct Owned {
    pub log_id: LogId,
    /// The generation in which it became the owner.
    pub since: i64,
    /// Whether it is assigned to another member.
    pub revoked: Option<Revoked>,
    pub committed_offset: Option<Offset>,
    pub starts: Option<Starts>,
    /// The offset that a prepared transaction will commit here.
    pub pinned_offset: Option<Offset>,
    /// (log start offset, high watermark), if requested. None if the log was deleted with its
    /// topic.
    pub watermarks: Option<(Offset, Offset)>,
}

/// A member, with one array per attribute of the partitions it owns.
#[derive(FromRow)]
struct LeaseRow {
    n: i64,
    group_id: GroupId,
    generation: i64,
    auto_offset_reset: AutoOffsetReset,
    session_timeout_ms: i64,
    lease_expires_at: Timestamp,
    now: Timestamp,
    log_ids: Option<Vec<LogId>>,
    since: Option<Vec<i64>>,
    revoked_since: Option<Vec<Option<i64>>>,
    let_go_by: Option<Vec<Option<Timestamp>>>,
    committed: Option<Vec<Option<Offset>>>,
    starts: Option<Vec<Option<Starts>>>,
    pinned: Option<Vec<Option<Offset>>>,
    log_starts: Option<Vec<Option<Offset>>>,
    high_watermarks: Option<Vec<Option<Offset>>>,
    started_at: Server,
}

/// The element of an array for one of them.
fn at<T: Copy>(values: &Option<Vec<Option<T>>>, index: usize) -> Option<T> {
    values.as_ref()?.get(index).copied().flatten()
}

/// Reads members, each by (group, member id), with the watermarks of their partitions where
/// requested; None for a member that does not exist.
pub async fn beats(
    conn: &mut Connection,
    tenant: TenantId,
    members: &[(&Name, &str)],
    with_watermarks: bool,
) -> Result<Vec<Option<MemberStatus>>> {
    let query = sqlx::query_as(BEATS)
        .bind(tenant)
        .bind(members.iter().map(|(group, _)| group).bind_iter())
        .bind(members.iter().map(|(_, id)| id).bind_iter())
        .bind(with_watermarks);
    let rows: Vec<LeaseRow> = query.fetch_all(conn).await?;
    let mut found: Vec<Option<MemberStatus>> = vec![None; members.len()];
    for row in rows {
        if let Some(place) = usize::try_from(row.n - 1).ok().and_then(|n| found.get_mut(n)) {
            *place = Some(status(row));
        }
    }
    Ok(found)
}

fn status(row: LeaseRow) -> MemberStatus {
    let mut owned = Vec::new();
    for (index, log_id) in row.log_ids.iter().flatten().enumerate() {
        let since = row.since.as_ref().and_then(|since| since.get(index)).copied();
        let let_go_by = at(&row.let_go_by, index);
        let revoked = at(&row.revoked_since, index).map(|since| Revoked { since, let_go_by });
        owned.push(Owned {
            log_id: *log_id,
            since: since.unwrap_or_default(),
            revoked,
            committed_offset: at(&row.committed, index),
            starts: at(&row.starts, index),
            pinned_offset: at(&row.pinned, index),
            watermarks: at(&row.log_starts, index).zip(at(&row.high_watermarks, index)),
        });
    }
    MemberStatus {
        group_id: row.group_id,
        generation: row.generation,
        auto_offset_reset: row.auto_offset_reset,
        session_timeout_ms: row.session_timeout_ms,
        lease_expires_at: row.lease_expires_at,
        now: row.now,
        server: row.started_at,
        owned,
    }
}

/// Renews leases: (group, member id, until when).
pub async fn renew(
    conn: &mut Connection,
    tenant: TenantId,
    leases: &[(&Name, &str, Timestamp)],
) -> Result<()> {
    let query = sqlx::query(RENEW)
        .bind(tenant)
        .bind(leases.iter().map(|(group, ..)| group).bind_iter())
        .bind(leases.iter().map(|(_, id, _)| id).bind_iter())
        .bind(leases.iter().map(|(.., until)| until).bind_iter());
    execute(conn, query).await
}

/// The generations of the existing ones of these groups.
pub async fn generations(
    conn: &mut Connection,
    tenant: TenantId,
    groups: &[GroupId],
) -> Result<Vec<(GroupId, i64)>> {
    Ok(sqlx::query_as(GENERATIONS).bind(tenant).bind(groups).fetch_all(conn).await?)
}

/// The id and generation of a group. None if it does not exist.
pub async fn group_id(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<(GroupId, i64)>> {
    Ok(sqlx::query_as(GROUP_ID).bind(tenant).bind(group).fetch_optional(conn).await?)
}

/// The topics and partitions of the existing ones of these logs.
pub async fn names(
    conn: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<Vec<(LogId, Name, Partition)>> {
    Ok(sqlx::query_as(NAMES).bind(tenant).bind(logs).fetch_all(conn).await?)
}
