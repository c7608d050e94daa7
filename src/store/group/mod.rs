//! Loads a group with its members under the lock of its row, and writes what the rules have
//! changed.

pub mod admin;
pub mod leases;
pub mod offsets;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use sqlx::PgConnection;

use super::{
    Error, Instant,
    catalog::{logs, topics::stored_name},
    statements,
};
use crate::{
    model::{
        GroupId, LogId, Name, TenantId, Timestamp,
        group::{AutoOffsetReset, Subscription, TopicPattern},
    },
    rules::group::{GroupPartition, GroupState, Member, Owner, Revoked, Starts, Topics},
};

statements! {
    MAKE = "insert into oncelog.groups (tenant_id, name) values ($1, $2) on conflict do nothing";
    LOCK = r"select group_id, generation, auto_offset_reset, patterns, topics_version from oncelog.groups
        where tenant_id = $1 and name = $2 for no key update";
    /// Renewals skip locked rows, so what is read here stays true.
    MEMBERS = r"select member_id, instance_id, topics, topic_pattern, session_timeout_ms, joined_at, lease_expires_at
        from oncelog.group_members where tenant_id = $1 and group_name = $2 order by member_id for no key update";
    PLACES = r"select o.log_id, t.name, l.partition, o.member_id, o.owned_since, o.owned_at, o.assigned_to, o.revoked_since, o.let_go_by, o.starts
        from oncelog.group_offsets o
        cross join lateral (
            select topic_id, partition from oncelog.logs where tenant_id = $1 and log_id = o.log_id offset 0) as l
        cross join lateral (
            select name from oncelog.topics where tenant_id = $1 and topic_id = l.topic_id offset 0) as t
        where o.tenant_id = $1 and o.group_name = $2";
    TOPICS_VERSION = "select topics_version from oncelog.tenants where tenant_id = $1";
    PARTITIONS = r"select l.log_id, t.name, l.partition from oncelog.topics t
        join oncelog.logs l on l.tenant_id = $1 and l.topic_id = t.topic_id
        where t.tenant_id = $1 and l.partition is not null and ($3 or t.name = any($2))";
    UPDATE = r"update oncelog.groups set generation = $3, auto_offset_reset = $4, patterns = $5, topics_version = $6,
            member_count = $7, active_at = case when $7 > 0 or member_count > 0 then $8 else active_at end
        where tenant_id = $1 and name = $2";
    DROP_MEMBERS = "delete from oncelog.group_members where tenant_id = $1 and group_name = $2 and member_id = any($3)";
    WRITE_MEMBERS = r"insert into oncelog.group_members as m (tenant_id, group_name, member_id, instance_id, topics, topic_pattern,
            session_timeout_ms, joined_at, lease_expires_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        on conflict (tenant_id, group_name, member_id) do update set lease_expires_at = excluded.lease_expires_at";
    /// In the order of the logs, as commits lock them. (`announced` is for replicas of the previous
    /// version.)
    WRITE_PLACES = r"insert into oncelog.group_offsets as o
            (tenant_id, group_name, log_id, member_id, owned_since, owned_at, assigned_to, announced, revoked_since, let_go_by, starts)
        select $1, $2, w.log_id, w.member_id, w.owned_since, w.owned_at, w.assigned_to, w.let_go_by is not null, w.revoked_since, w.let_go_by, w.starts
        from unnest($3::bigint[], $4::text[], $5::bigint[], $6::timestamptz[], $7::text[], $8::bigint[], $9::timestamptz[], $10::text[])
            as w (log_id, member_id, owned_since, owned_at, assigned_to, revoked_since, let_go_by, starts) order by w.log_id
        on conflict (tenant_id, group_name, log_id) do update set member_id = excluded.member_id, owned_since = excluded.owned_since,
            owned_at = excluded.owned_at, assigned_to = excluded.assigned_to, announced = excluded.announced,
            revoked_since = excluded.revoked_since, let_go_by = excluded.let_go_by, starts = excluded.starts";
    LATE = r"select tenant_id, group_name from oncelog.group_members where lease_expires_at < now()
        union select tenant_id, group_name from oncelog.group_offsets
        where let_go_by < now() and assigned_to is distinct from member_id limit $1";
    OUTDATED = r"select g.tenant_id, g.name from oncelog.groups g join oncelog.tenants t on t.tenant_id = g.tenant_id
        where g.member_count > 0 and g.topics_version <> t.topics_version limit $1";
}

/// A group whose row is locked, with its id.
pub struct LockedGroup {
    pub group_id: GroupId,
    pub state: GroupState,
}

/// Creates the group if it does not exist.
pub async fn make(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
) -> Result<(), Error> {
    sqlx::query(MAKE).bind(tenant.0).bind(group.as_str()).execute(connection).await?;
    Ok(())
}

/// Locks the group and loads all of it. None if it does not exist.
pub async fn lock(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
) -> Result<Option<LockedGroup>, Error> {
    type Row = (i64, i64, String, Vec<String>, i64);
    let query = sqlx::query_as(LOCK).bind(tenant.0).bind(group.as_str());
    let found: Option<Row> = query.fetch_optional(&mut *connection).await?;
    let Some((group_id, generation, reset, patterns, topics_version)) = found else {
        return Ok(None);
    };
    let patterns: Vec<TopicPattern> =
        patterns.iter().map(|text| stored_pattern(text)).collect::<Result<_, _>>()?;
    let members = members(connection, tenant, group, &patterns).await?;
    let places = places(connection, tenant, group, generation).await?;
    let auto_offset_reset = stored_reset(&reset)?;
    let state =
        GroupState { generation, auto_offset_reset, patterns, topics_version, members, places };
    Ok(Some(LockedGroup { group_id: GroupId(group_id), state }))
}

/// Compiles a stored pattern, which was validated when it was stored.
pub fn stored_pattern(text: &str) -> Result<TopicPattern, Error> {
    TopicPattern::parse(text)
        .map_err(|what| Error::Unexpected(format!("stored pattern {text:?}: {what}")))
}

pub fn stored_reset(text: &str) -> Result<AutoOffsetReset, Error> {
    let known = AutoOffsetReset::parse(text);
    known.ok_or_else(|| Error::Unexpected(format!("unknown auto_offset_reset {text:?}")))
}

/// `patterns`: all patterns, compiled once.
async fn members(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    patterns: &[TopicPattern],
) -> Result<BTreeMap<String, Member>, Error> {
    type Row = (String, Option<String>, Vec<String>, Option<String>, i64, Instant, Instant);
    let query = sqlx::query_as(MEMBERS).bind(tenant.0).bind(group.as_str());
    let rows: Vec<Row> = query.fetch_all(connection).await?;
    let made: HashMap<&str, &TopicPattern> = patterns.iter().map(|p| (p.as_str(), p)).collect();
    let member = |(id, instance_id, topics, pattern, timeout_ms, joined, lease): Row| {
        let topics: Result<BTreeSet<Name>, Error> = topics.iter().map(|t| stored_name(t)).collect();
        let pattern = pattern.map(|text| match made.get(text.as_str()) {
            Some(pattern) => Ok((*pattern).clone()),
            None => stored_pattern(&text),
        });
        let member = Member {
            instance_id,
            subscription: Subscription { topics: topics?, pattern: pattern.transpose()? },
            session_timeout_ms: timeout_ms,
            joined_at: joined.into(),
            lease_expires_at: lease.into(),
        };
        Ok((id, member))
    };
    rows.into_iter().map(member).collect()
}

/// `newest`: the generation of the group.
async fn places(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    newest: i64,
) -> Result<BTreeMap<LogId, GroupPartition>, Error> {
    type Row = (
        i64,
        String,
        i32,
        Option<String>,
        Option<i64>,
        Option<Instant>,
        Option<String>,
        Option<i64>,
        Option<Instant>,
        Option<String>,
    );
    let query = sqlx::query_as(PLACES).bind(tenant.0).bind(group.as_str());
    let rows: Vec<Row> = query.fetch_all(connection).await?;
    let place = |row: Row| {
        let (log_id, topic, partition, owner, since, at, assigned_to, revoked_since, by, starts) =
            row;
        let at = at.map_or(Timestamp::default(), Timestamp::from);
        let owner = owner.zip(since).map(|(member_id, since)| Owner { member_id, since, at });
        let topic = stored_name(&topic)?;
        let starts = starts.as_deref().map(stored_starts).transpose()?;
        let mut place =
            GroupPartition { topic, partition, owner, assigned_to, revoked: None, starts };
        place.revoked = place.is_to_move().then(|| stored_revoked(revoked_since, by, newest));
        Ok((LogId(log_id), place))
    };
    rows.into_iter().map(place).collect()
}

/// The revocation of a partition. Rows of the previous version do not say since when: it counts
/// from now.
fn stored_revoked(since: Option<i64>, let_go_by: Option<Instant>, newest: i64) -> Revoked {
    let let_go_by = let_go_by.filter(|_| since.is_some()).map(Timestamp::from);
    Revoked { since: since.unwrap_or(newest), let_go_by }
}

/// The value of the column.
fn starts_text(starts: Starts) -> &'static str {
    match starts {
        Starts::Reset => "reset",
        Starts::Earliest => "earliest",
    }
}

pub fn stored_starts(text: &str) -> Result<Starts, Error> {
    let known = [Starts::Reset, Starts::Earliest].into_iter().find(|s| starts_text(*s) == text);
    known.ok_or_else(|| Error::Unexpected(format!("unknown start of a group {text:?}")))
}

/// The partitions of these topics, or of all topics.
pub async fn topics(
    connection: &mut PgConnection,
    tenant: TenantId,
    names: &BTreeSet<&Name>,
    all: bool,
) -> Result<Topics, Error> {
    // before the partitions: those made between the two are looked at again
    let version = sqlx::query_scalar(TOPICS_VERSION).bind(tenant.0).fetch_one(&mut *connection);
    let version: i64 = version.await?;
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let query = sqlx::query_as(PARTITIONS).bind(tenant.0).bind(names).bind(all);
    let rows: Vec<(i64, String, i32)> = query.fetch_all(connection).await?;
    let mut known: HashMap<String, Name> = HashMap::new();
    let mut partitions = Vec::with_capacity(rows.len());
    for (log_id, topic, partition) in rows {
        if !known.contains_key(&topic) {
            known.insert(topic.clone(), stored_name(&topic)?);
        }
        partitions.extend(known.get(&topic).map(|name| (LogId(log_id), name.clone(), partition)));
    }
    Ok(Topics { version, partitions })
}

/// Writes the changes of a locked group.
pub async fn write(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    (before, after): (&GroupState, &GroupState),
    now: Timestamp,
) -> Result<(), Error> {
    write_group(connection, tenant, group, (before, after), now).await?;
    let gone = before.members.keys().filter(|id| !after.members.contains_key(*id));
    let gone: Vec<&str> = gone.map(String::as_str).collect();
    if !gone.is_empty() {
        let query = sqlx::query(DROP_MEMBERS).bind(tenant.0).bind(group.as_str()).bind(gone);
        query.execute(&mut *connection).await?;
    }
    for (id, member) in after.members.iter().filter(|(id, m)| before.members.get(*id) != Some(m)) {
        write_member(connection, tenant, group, (id, member)).await?;
    }
    write_places(connection, tenant, group, (before, after)).await
}

async fn write_group(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    (before, after): (&GroupState, &GroupState),
    now: Timestamp,
) -> Result<(), Error> {
    let facts = |state: &GroupState| {
        let GroupState { generation, auto_offset_reset, topics_version, .. } = *state;
        (generation, auto_offset_reset, topics_version, state.patterns.len(), state.members.len())
    };
    if facts(before) == facts(after) {
        return Ok(());
    }
    let patterns: Vec<&str> = after.patterns.iter().map(TopicPattern::as_str).collect();
    sqlx::query(UPDATE)
        .bind(tenant.0)
        .bind(group.as_str())
        .bind(after.generation)
        .bind(after.auto_offset_reset.as_str())
        .bind(patterns)
        .bind(after.topics_version)
        .bind(i32::try_from(after.members.len()).unwrap_or(i32::MAX))
        .bind(now.to_chrono())
        .execute(connection)
        .await?;
    Ok(())
}

async fn write_member(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    (member_id, member): (&str, &Member),
) -> Result<(), Error> {
    let Subscription { topics, pattern } = &member.subscription;
    sqlx::query(WRITE_MEMBERS)
        .bind(tenant.0)
        .bind(group.as_str())
        .bind(member_id)
        .bind(&member.instance_id)
        .bind(topics.iter().map(Name::as_str).collect::<Vec<_>>())
        .bind(pattern.as_ref().map(TopicPattern::as_str))
        .bind(member.session_timeout_ms)
        .bind(member.joined_at.to_chrono())
        .bind(member.lease_expires_at.to_chrono())
        .execute(connection)
        .await?;
    Ok(())
}

/// The janitor removes the offsets of a deleted topic that it can see. It cannot see rows inserted
/// here until they commit, so new ones lock the heads of their logs.
async fn write_places(
    connection: &mut PgConnection,
    tenant: TenantId,
    group: &Name,
    (before, after): (&GroupState, &GroupState),
) -> Result<(), Error> {
    let changed =
        || after.places.iter().filter(|(log_id, place)| before.places.get(log_id) != Some(*place));
    if changed().next().is_none() {
        return Ok(());
    }
    let owners = || changed().map(|(_, place)| place.owner.as_ref());
    let revoked = || changed().map(|(_, place)| place.revoked);
    let instant = |at: Option<Timestamp>| at.map(Timestamp::to_chrono);
    sqlx::query(WRITE_PLACES)
        .bind(tenant.0)
        .bind(group.as_str())
        .bind(changed().map(|(log_id, _)| log_id.0).collect::<Vec<_>>())
        .bind(owners().map(|o| o.map(|o| o.member_id.as_str())).collect::<Vec<_>>())
        .bind(owners().map(|o| o.map(|o| o.since)).collect::<Vec<_>>())
        .bind(owners().map(|o| o.map(|o| o.at.to_chrono())).collect::<Vec<_>>())
        .bind(changed().map(|(_, place)| place.assigned_to.as_deref()).collect::<Vec<_>>())
        .bind(revoked().map(|r| r.map(|r| r.since)).collect::<Vec<_>>())
        .bind(revoked().map(|r| r.and_then(|r| r.let_go_by)).map(instant).collect::<Vec<_>>())
        .bind(changed().map(|(_, place)| place.starts.map(starts_text)).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
    let made = changed().map(|(log_id, _)| *log_id);
    let made: Vec<LogId> = made.filter(|log_id| !before.places.contains_key(log_id)).collect();
    let held = made.is_empty() || logs::hold(connection, tenant, &made).await?;
    if held { Ok(()) } else { Err(Error::overtaken()) }
}

/// Lists groups with members whose lease has expired, or that have not released a partition in
/// time.
pub async fn late(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<(TenantId, Name)>, Error> {
    due(connection, LATE, limit).await
}

/// Lists groups with members whose tenant's topics have changed since their assignment.
pub async fn outdated(
    connection: &mut PgConnection,
    limit: i64,
) -> Result<Vec<(TenantId, Name)>, Error> {
    due(connection, OUTDATED, limit).await
}

async fn due(
    connection: &mut PgConnection,
    sql: &'static str,
    limit: i64,
) -> Result<Vec<(TenantId, Name)>, Error> {
    let rows: Vec<(i64, String)> = sqlx::query_as(sql).bind(limit).fetch_all(connection).await?;
    rows.iter().map(|(tenant, group)| Ok((TenantId(*tenant), stored_name(group)?))).collect()
}
