//! Loads a group (`groups`, `group_members`, `group_offsets`) under the lock of its row, and writes
//! what the rules have changed.

pub mod admin;
pub mod leases;
pub mod offsets;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sqlx::{
    Row,
    postgres::{PgBindIterExt, PgRow},
};

use super::{Connection, Error, Result, catalog::logs, execute, statements};
use crate::{
    model::{
        GroupId, LogId, Name, Partition, Pattern, TenantId, Timestamp,
        group::{AutoOffsetReset, Subscription, TopicPattern},
        scopes::Coverage,
    },
    rules::group::{GroupPartition, GroupState, Member, Owner, Revoked, Topics},
};

macro_rules! members {
    ($ordering:literal) => {
        concat!(
            r"select member_id, instance_id, topics, topic_pattern, session_timeout_ms, joined_at,
            lease_expires_at, readable
        from oncelog.group_members where tenant_id = $1 and group_name = $2 ",
            $ordering
        )
    };
}
use members;

/// The rows of a group in `group_offsets` (`o`), with their logs (`l`) and topics (`t`). Each is
/// looked up by key, whatever the tables were like when the statement was planned.
macro_rules! places {
    ($columns:literal) => {
        concat!(
            "select ",
            $columns,
            r"
        from oncelog.group_offsets o
        cross join lateral (
            select log_id, topic_id, partition, log_start_offset, next_offset from oncelog.logs
            where tenant_id = $1 and log_id = o.log_id offset 0) l
        cross join lateral (
            select name from oncelog.topics where tenant_id = $1 and topic_id = l.topic_id
            offset 0) t
        where o.tenant_id = $1 and o.group_name = $2"
        )
    };
}
use places;

statements! {
    MAKE = "insert into oncelog.groups (tenant_id, name) values ($1, $2) on conflict do nothing";
    LOCK = r"select group_id, generation, auto_offset_reset, patterns, topics_version
        from oncelog.groups where tenant_id = $1 and name = $2 for no key update";
    /// Renewals skip locked rows, so what is read here stays true.
    MEMBERS = members!("order by member_id for no key update");
    PLACES = places!(
        r"o.log_id, t.name, l.partition, o.member_id, o.owned_since, o.owned_at, o.assigned_to,
            o.revoked_since, o.let_go_by, o.starts"
    );
    TOPICS_VERSION = "select topics_version from oncelog.tenants where tenant_id = $1";
    PARTITIONS = r"select l.log_id, t.name, l.partition
        from oncelog.topics t join oncelog.logs l on l.tenant_id = $1 and l.topic_id = t.topic_id
        where t.tenant_id = $1 and l.partition is not null and ($3 or t.name = any($2))";
    UPDATE = r"update oncelog.groups
        set generation = $3, auto_offset_reset = $4, patterns = $5, topics_version = $6,
            member_count = $7,
            active_at = case when $7 > 0 or member_count > 0 then $8 else active_at end
        where tenant_id = $1 and name = $2";
    DROP_MEMBERS = r"delete from oncelog.group_members
        where tenant_id = $1 and group_name = $2 and member_id = any($3)";
    WRITE_MEMBERS = r"insert into oncelog.group_members as m (tenant_id, group_name, member_id,
            instance_id, topics, topic_pattern, session_timeout_ms, joined_at, lease_expires_at, readable)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        on conflict (tenant_id, group_name, member_id) do update
        set lease_expires_at = excluded.lease_expires_at";
    WRITE_PLACES = r"insert into oncelog.group_offsets as o (tenant_id, group_name, log_id, member_id,
            owned_since, owned_at, assigned_to, announced, revoked_since, let_go_by, starts)
        -- `announced` is for replicas of the previous version.
        select $1, $2, w.log_id, w.member_id, w.owned_since, w.owned_at, w.assigned_to,
            w.let_go_by is not null, w.revoked_since, w.let_go_by, w.starts
        from unnest($3::bigint[], $4::text[], $5::bigint[], $6::timestamptz[], $7::text[],
                $8::bigint[], $9::timestamptz[], $10::text[])
            as w (log_id, member_id, owned_since, owned_at, assigned_to,
                revoked_since, let_go_by, starts)
        -- Commits lock them in this order.
        order by w.log_id
        on conflict (tenant_id, group_name, log_id) do update
        set member_id = excluded.member_id, owned_since = excluded.owned_since,
            owned_at = excluded.owned_at, assigned_to = excluded.assigned_to,
            announced = excluded.announced, revoked_since = excluded.revoked_since,
            let_go_by = excluded.let_go_by, starts = excluded.starts";
    LATE = r"select tenant_id, group_name from oncelog.group_members where lease_expires_at < now()
        union
        select tenant_id, group_name from oncelog.group_offsets
        where let_go_by < now() and assigned_to is distinct from member_id limit $1";
    OUTDATED = r"select g.tenant_id, g.name
        from oncelog.groups g join oncelog.tenants t on t.tenant_id = g.tenant_id
        where g.member_count > 0 and g.topics_version <> t.topics_version limit $1";
}

/// A group whose row is locked, with its id.
pub struct LockedGroup {
    pub group_id: GroupId,
    pub state: GroupState,
}

/// Creates the group; false: it exists.
pub async fn make(conn: &mut Connection, tenant: TenantId, group: &Name) -> Result<bool> {
    let made = sqlx::query(MAKE).bind(tenant).bind(group).execute(conn).await?;
    Ok(made.rows_affected() > 0)
}

/// Locks the group and loads all of it. None if it does not exist.
pub async fn lock(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<LockedGroup>> {
    type Row = (GroupId, i64, AutoOffsetReset, Vec<TopicPattern>, i64);
    let query = sqlx::query_as(LOCK).bind(tenant).bind(group);
    let found: Option<Row> = query.fetch_optional(&mut *conn).await?;
    let Some((group_id, generation, auto_offset_reset, patterns, topics_version)) = found else {
        return Ok(None);
    };
    let members = read_members(conn, tenant, group, &patterns).await?;
    let places = read_places(conn, tenant, group, generation).await?;
    let state =
        GroupState { generation, auto_offset_reset, patterns, topics_version, members, places };
    Ok(Some(LockedGroup { group_id, state }))
}

/// `patterns`: all patterns, compiled once.
async fn read_members(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    patterns: &[TopicPattern],
) -> Result<BTreeMap<String, Member>> {
    type Row = (
        String,
        Option<String>,
        Vec<Name>,
        Option<String>,
        i64,
        Timestamp,
        Timestamp,
        Option<Vec<String>>,
    );
    let query = sqlx::query_as(MEMBERS).bind(tenant).bind(group);
    let rows: Vec<Row> = query.fetch_all(conn).await?;
    let compiled: HashMap<&str, &TopicPattern> = patterns.iter().map(|p| (p.as_str(), p)).collect();
    let member = |row: Row| {
        let (id, instance_id, topics, pattern, timeout_ms, joined_at, lease_expires_at, readable) =
            row;
        let pattern = pattern.map(|text| match compiled.get(text.as_str()) {
            Some(pattern) => Ok((*pattern).clone()),
            None => TopicPattern::parse(&text).map_err(Error::Unexpected),
        });
        let topics = topics.into_iter().collect();
        let readable = readable.map_or(Coverage::All, |patterns| {
            Coverage::Matching(patterns.iter().map(|text| Pattern::new(text)).collect())
        });
        let subscription = Subscription { topics, pattern: pattern.transpose()?, readable };
        let session_timeout_ms = timeout_ms;
        let member =
            Member { instance_id, subscription, session_timeout_ms, joined_at, lease_expires_at };
        Ok((id, member))
    };
    rows.into_iter().map(member).collect()
}

/// `newest`: the generation of the group.
async fn read_places(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    newest: i64,
) -> Result<BTreeMap<LogId, GroupPartition>> {
    let query = sqlx::query(PLACES).bind(tenant).bind(group);
    let rows = query.fetch_all(conn).await?;
    rows.iter().map(|row| Ok((row.try_get("log_id")?, place(row, newest)?))).collect()
}

fn place(row: &PgRow, newest: i64) -> Result<GroupPartition, sqlx::Error> {
    let member_id: Option<String> = row.try_get("member_id")?;
    let at: Option<Timestamp> = row.try_get("owned_at")?;
    let owner = member_id.zip(row.try_get("owned_since")?);
    let mut place = GroupPartition {
        topic: row.try_get("name")?,
        partition: row.try_get("partition")?,
        owner: owner.map(|(member_id, since)| Owner {
            member_id,
            since,
            at: at.unwrap_or_default(),
        }),
        assigned_to: row.try_get("assigned_to")?,
        revoked: None,
        starts: row.try_get("starts")?,
    };
    if place.is_to_move() {
        place.revoked =
            Some(stored_revoked(row.try_get("revoked_since")?, row.try_get("let_go_by")?, newest));
    }
    Ok(place)
}

/// The revocation of a partition. Rows of the previous version do not say since when: it counts
/// from now.
fn stored_revoked(since: Option<i64>, let_go_by: Option<Timestamp>, newest: i64) -> Revoked {
    let let_go_by = let_go_by.filter(|_| since.is_some());
    Revoked { since: since.unwrap_or(newest), let_go_by }
}

/// The partitions of these topics, or of all topics.
pub async fn topics(
    conn: &mut Connection,
    tenant: TenantId,
    names: &BTreeSet<&Name>,
    all: bool,
) -> Result<Topics> {
    // before the partitions: those made between the two are looked at again
    let version = sqlx::query_scalar(TOPICS_VERSION).bind(tenant).fetch_one(&mut *conn);
    let version: i64 = version.await?;
    let names = names.iter().copied();
    let query = sqlx::query_as(PARTITIONS).bind(tenant).bind(names.bind_iter()).bind(all);
    let mut partitions: Vec<(LogId, Name, Partition)> = query.fetch_all(conn).await?;
    // the partitions of a topic share its name
    let mut known: HashSet<Name> = HashSet::new();
    for (_, topic, _) in &mut partitions {
        match known.get(topic) {
            Some(name) => *topic = name.clone(),
            None => drop(known.insert(topic.clone())),
        }
    }
    Ok(Topics { version, partitions })
}

/// Writes the changes of a locked group.
pub async fn write(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    (before, after): (&GroupState, &GroupState),
    now: Timestamp,
) -> Result<()> {
    write_group(conn, tenant, group, (before, after), now).await?;
    let gone = before.members.keys().filter(|id| !after.members.contains_key(*id));
    let gone: Vec<&str> = gone.map(String::as_str).collect();
    if !gone.is_empty() {
        let query = sqlx::query(DROP_MEMBERS).bind(tenant).bind(group).bind(gone);
        execute(conn, query).await?;
    }
    for (id, member) in after.members.iter().filter(|(id, m)| before.members.get(*id) != Some(m)) {
        write_member(conn, tenant, group, (id, member)).await?;
    }
    write_places(conn, tenant, group, (before, after)).await
}

async fn write_group(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    (before, after): (&GroupState, &GroupState),
    now: Timestamp,
) -> Result<()> {
    let facts = |state: &GroupState| {
        let GroupState { generation, auto_offset_reset, topics_version, .. } = *state;
        (generation, auto_offset_reset, topics_version, state.patterns.len(), state.members.len())
    };
    if facts(before) == facts(after) {
        return Ok(());
    }
    let query = sqlx::query(UPDATE)
        .bind(tenant)
        .bind(group)
        .bind(after.generation)
        .bind(after.auto_offset_reset)
        .bind(&after.patterns)
        .bind(after.topics_version)
        .bind(i32::try_from(after.members.len()).unwrap_or(i32::MAX))
        .bind(now);
    execute(conn, query).await
}

async fn write_member(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    (member_id, member): (&str, &Member),
) -> Result<()> {
    let Subscription { topics, pattern, readable } = &member.subscription;
    let readable: Option<Vec<&str>> = match readable {
        Coverage::All => None,
        Coverage::Matching(patterns) => Some(patterns.iter().map(Pattern::as_str).collect()),
    };
    let query = sqlx::query(WRITE_MEMBERS)
        .bind(tenant)
        .bind(group)
        .bind(member_id)
        .bind(&member.instance_id)
        .bind(topics.iter().bind_iter())
        .bind(pattern)
        .bind(member.session_timeout_ms)
        .bind(member.joined_at)
        .bind(member.lease_expires_at)
        .bind(readable);
    execute(conn, query).await
}

/// The janitor removes the offsets of a deleted topic that it can see. It cannot see rows inserted
/// here until they commit, so new ones lock the heads of their logs.
async fn write_places(
    conn: &mut Connection,
    tenant: TenantId,
    group: &Name,
    (before, after): (&GroupState, &GroupState),
) -> Result<()> {
    let changed =
        || after.places.iter().filter(|(log_id, place)| before.places.get(log_id) != Some(*place));
    if changed().next().is_none() {
        return Ok(());
    }
    let owners = || changed().map(|(_, place)| place.owner.as_ref());
    let query = sqlx::query(WRITE_PLACES)
        .bind(tenant)
        .bind(group)
        .bind(changed().map(|(log_id, _)| log_id).bind_iter())
        .bind(owners().map(|owner| Some(&owner?.member_id)).bind_iter())
        .bind(owners().map(|owner| Some(owner?.since)).bind_iter())
        .bind(owners().map(|owner| Some(owner?.at)).bind_iter())
        .bind(changed().map(|(_, place)| place.assigned_to.as_ref()).bind_iter())
        .bind(changed().map(|(_, place)| Some(place.revoked?.since)).bind_iter())
        .bind(changed().map(|(_, place)| place.revoked?.let_go_by).bind_iter())
        .bind(changed().map(|(_, place)| place.starts).bind_iter());
    execute(conn, query).await?;
    let added = changed().map(|(log_id, _)| *log_id);
    let added: Vec<LogId> = added.filter(|log_id| !before.places.contains_key(log_id)).collect();
    let held = added.is_empty() || logs::hold(conn, tenant, &added).await?;
    if held { Ok(()) } else { Err(Error::overtaken()) }
}

/// Lists groups with members whose lease has expired, or that have not released a partition in
/// time.
pub async fn late(conn: &mut Connection, limit: i64) -> Result<Vec<(TenantId, Name)>> {
    Ok(sqlx::query_as(LATE).bind(limit).fetch_all(conn).await?)
}

/// Lists groups with members whose tenant's topics have changed since their assignment.
pub async fn outdated(conn: &mut Connection, limit: i64) -> Result<Vec<(TenantId, Name)>> {
    Ok(sqlx::query_as(OUTDATED).bind(limit).fetch_all(conn).await?)
}
