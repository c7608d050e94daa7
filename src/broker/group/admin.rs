//! Administration of groups: describe, reset, delete.
//!
//! A reset locks the group's row, so that nobody joins, and the rows it changes, like a commit. A
//! deletion locks the group's row and all of its offsets. Commits in flight hold one of these
//! locks: they come first, or find their rows gone and create the group again.

use std::collections::BTreeMap;

use crate::{
    broker::{Broker, Error, retry},
    model::{
        Code, LogId, Name, Offset, Partition, Scopes, TenantId,
        group::{
            CommittedOffset,
            view::{GroupDescription, GroupSummary, OffsetsReset, ResetTo},
        },
        topic::{Listed, Page},
    },
    rules::{
        Refusal,
        access::check_consume,
        group::{
            offsets::OffsetPlace,
            reset::{self, ResetContext},
        },
    },
    store::{self, Connection, group::offsets::OffsetWrite},
};

/// A partition to reset.
#[derive(Clone)]
struct Target {
    log_id: LogId,
    topic: Name,
    partition: Partition,
    /// The first record at or after the requested instant.
    found: Option<Offset>,
}

type Stop = retry::Stop<Vec<CommittedOffset>>;

/// `what` says what was refused.
fn refuse(refusal: Refusal, what: &str) -> Error {
    let mut error = Error::from(refusal);
    if error.code == Code::GroupNotEmpty {
        let what_to_do = "Stop them first, so that they leave or their leases expire.";
        error.detail = format!("The group has members. {what_to_do} {what}");
    } else {
        error.detail = format!("{} {what}", error.detail);
    }
    error
}

const NOTHING_RESET: &str = "Nothing was reset.";
const NOT_DELETED: &str = "The group was not deleted.";

impl Broker {
    pub async fn groups(
        &self,
        tenant: TenantId,
        page: Page,
    ) -> Result<Listed<GroupSummary>, Error> {
        let Page { limit, after } = page;
        let list = self.store.of(tenant).run(async move |connection| {
            let after = after.unwrap_or_default();
            store::group::admin::list(connection, tenant, &after, limit + 1).await
        });
        Ok(Listed::cut(list.await?, limit, |group| group.group.to_string()))
    }

    pub async fn group(&self, tenant: TenantId, group: &Name) -> Result<GroupDescription, Error> {
        let name = group.clone();
        let describe = self.store.of(tenant).snapshot(async move |connection| {
            store::group::admin::describe(connection, tenant, &name).await
        });
        let found = describe.await?.ok_or_else(|| Error::group_not_found(group))?;
        let (mut description, grounds) = found;
        for (place, ground) in description.places.iter_mut().zip(&grounds) {
            place.lag = reset::lag(ground);
        }
        Ok(description)
    }

    /// Moves the group's offsets, all or none; returns the new ones by topic and partition.
    pub async fn reset_offsets(
        &self,
        tenant: TenantId,
        group: &Name,
        wanted: OffsetsReset,
        scopes: &Scopes,
    ) -> Result<Vec<CommittedOffset>, Error> {
        let mut named = wanted.topics.iter().flatten();
        named.try_for_each(|topic| check_consume(scopes, topic))?;
        let wanted = &wanted;
        let offsets = self.retry(tenant, |attempt| async move {
            let targets = self.targets(tenant, group, wanted).await?;
            targets.iter().try_for_each(|target| check_consume(scopes, &target.topic))?;
            let targets = self.search_targets(tenant, targets, wanted.to).await?;
            let (name, to, dry_run) = (group.clone(), wanted.to, wanted.dry_run);
            let reset = self.store.of(tenant).transaction(async move |connection| {
                reset(connection, tenant, &name, &targets, to, dry_run).await
            });
            match reset.await {
                Ok(offsets) => {
                    let count = offsets.len();
                    tracing::info!(tenant_id = tenant.0, %group, count, to = ?wanted.to, "group offsets reset");
                    Ok(offsets)
                }
                // its members may be gone, and nobody has noticed yet
                Err(Stop::Failed(error)) if attempt == 0 && error.code == Code::GroupNotEmpty => {
                    self.settle_group(tenant, group, "late").await;
                    Err(Stop::Again)
                }
                stopped => stopped,
            }
        });
        offsets.await?.ok_or_else(|| {
            Error::unavailable("Topics were deleted or trimmed in the meantime. Nothing was reset.")
        })
    }

    /// The partitions to reset, by topic and partition.
    async fn targets(
        &self,
        tenant: TenantId,
        group: &Name,
        wanted: &OffsetsReset,
    ) -> Result<Vec<Target>, Error> {
        // before its topics: as the path comes before the body
        let found = self.group_ids.find(tenant, group, |_, _| false).await?;
        found.ok_or_else(|| Error::group_not_found(group))?;
        let target = |(log_id, topic, partition)| Target { log_id, topic, partition, found: None };
        let Some(topics) = &wanted.topics else {
            let name = group.clone();
            let subscribed = self.store.of(tenant).run(async move |connection| {
                store::group::admin::subscribed(connection, tenant, &name).await
            });
            return Ok(subscribed.await?.into_iter().map(target).collect());
        };
        let mut targets = Vec::new();
        for name in topics {
            // not as cached: it may have grown through another replica
            let topic = self.topics.resolve(tenant, name, true).await?;
            let partitions = (0..).zip(&topic.logs);
            targets.extend(partitions.map(|(n, log_id)| target((*log_id, name.clone(), n))));
        }
        Ok(targets)
    }

    /// The partitions with the first records of the requested instant, read before anything is
    /// locked.
    async fn search_targets(
        &self,
        tenant: TenantId,
        mut targets: Vec<Target>,
        to: ResetTo,
    ) -> Result<Vec<Target>, Stop> {
        let ResetTo::Timestamp(instant) = to else { return Ok(targets) };
        let search = self.store.of(tenant).run(async move |connection| {
            let logs: Vec<LogId> = targets.iter().map(|target| target.log_id).collect();
            let ends = ends(connection, tenant, &logs).await?;
            for target in &mut targets {
                let log = target.log_id;
                // the log was deleted or trimmed meanwhile
                let (start, end) = ends.get(&log).copied().ok_or(Stop::Again)?;
                let found =
                    store::read::search(connection, tenant, log, start, end, instant).await?;
                target.found = Some(found.ok_or(Stop::Again)?);
            }
            Ok(targets)
        });
        search.await
    }

    /// The name is free at once; a new group with it is a different group.
    pub async fn delete_group(&self, tenant: TenantId, group: &Name) -> Result<(), Error> {
        let mut deleted = self.try_delete(tenant, group).await;
        if deleted.as_ref().is_err_and(|error| error.code == Code::GroupNotEmpty) {
            // its members may be gone, and nobody has noticed yet
            self.settle_group(tenant, group, "late").await;
            deleted = self.try_delete(tenant, group).await;
        }
        deleted?;
        tracing::info!(tenant_id = tenant.0, %group, "group deleted");
        Ok(())
    }

    async fn try_delete(&self, tenant: TenantId, group: &Name) -> Result<(), Error> {
        let name = group.clone();
        let delete = self
            .store
            .of(tenant)
            .transaction(async move |connection| delete(connection, tenant, &name).await);
        delete.await
    }
}

async fn reset(
    connection: &mut Connection,
    tenant: TenantId,
    group: &Name,
    targets: &[Target],
    to: ResetTo,
    dry_run: bool,
) -> Result<Vec<CommittedOffset>, Stop> {
    let held = store::group::admin::hold(connection, tenant, group).await?;
    let auto_offset_reset = held.ok_or_else(|| Error::group_not_found(group))?;
    let (groups, nobody) = (std::slice::from_ref(group), Default::default());
    let facts = store::group::offsets::groups(connection, tenant, groups, &nobody).await?;
    let has_members = facts.get(group).is_some_and(|facts| !facts.members.is_empty());
    reset::check(has_members, None).map_err(|refusal| refuse(refusal, NOTHING_RESET))?;
    let place = |target: &Target| OffsetPlace { group: group.clone(), log_id: target.log_id };
    let places: Vec<OffsetPlace> = targets.iter().map(place).collect();
    let rows = store::group::offsets::lock(connection, tenant, &places).await?;
    let logs: Vec<LogId> = targets.iter().map(|target| target.log_id).collect();
    let ends = ends(connection, tenant, &logs).await?;
    let starts = store::group::admin::starts(connection, tenant, group).await?;
    let (mut commits, mut offsets) = (Vec::new(), Vec::new());
    for (target, place) in targets.iter().zip(places) {
        let Target { log_id, topic, partition, found } = target;
        let at = format!("{topic}/{partition}: {NOTHING_RESET}");
        let found_row = rows.get(&place).zip(ends.get(log_id));
        let (row, log) = found_row.ok_or(Stop::Again)?;
        let pinned = row.pinned_by.map(|id| (row.committed_offset, id));
        reset::check(false, pinned).map_err(|refusal| refuse(refusal, &at))?;
        let ground = ResetContext {
            committed_offset: row.committed_offset,
            starts: starts.get(log_id).copied(),
            auto_offset_reset,
            log: *log,
            found: *found,
        };
        let offset = reset::target(to, &ground).map_err(|refusal| refuse(refusal, &at))?;
        let (topic, partition) = (topic.clone(), *partition);
        offsets.push(CommittedOffset { topic, partition, offset, metadata: None });
        commits.push(OffsetWrite { place, offset, metadata: None });
    }
    if dry_run {
        return Err(Stop::Done(Box::new(offsets)));
    }
    if !store::group::offsets::commit(connection, tenant, &commits).await? {
        return Err(Stop::Again);
    }
    Ok(offsets)
}

/// The offsets in a log: [start, end).
async fn ends(
    connection: &mut Connection,
    tenant: TenantId,
    logs: &[LogId],
) -> Result<BTreeMap<LogId, (Offset, Offset)>, store::Error> {
    let ends = store::catalog::logs::watermarks(connection, tenant, logs).await?;
    Ok(ends.into_iter().map(|(log_id, start, end, _)| (log_id, (start, end))).collect())
}

async fn delete(connection: &mut Connection, tenant: TenantId, group: &Name) -> Result<(), Error> {
    let locked = store::group::admin::lock(connection, tenant, group, true).await?;
    let locked = locked.ok_or_else(|| Error::group_not_found(group))?;
    reset::check(locked.has_members, locked.pinned)
        .map_err(|refusal| refuse(refusal, NOT_DELETED))?;
    store::group::admin::delete(connection, tenant, group).await?;
    Ok(())
}
