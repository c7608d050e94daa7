//! A member's fetch: records of all its partitions, shared fairly, waiting without a connection.
//!
//! Every round starts with a lease check, which returns the partitions the member owns and their
//! watermarks, and renews its lease. If there are no records, everything the answer depends on is
//! watched; the next round sees what came before the watch. A wait ends for records, for a new
//! generation, and to renew the lease; then the next round decides.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    broker::{
        Broker, Error,
        read::{
            budget::ReadBudget,
            fair::{FairRead, LogSlice, Source},
            watermarks::Watermarks,
        },
        wakeup::{
            Awaited, LongPoll, Wake,
            watch::{Watch, WatchKey},
        },
    },
    model::{
        Code, GroupId, LogId, Name, Offset, Partition, TenantId,
        cursor::{GroupCursor, Position},
        group::{Membership, Partitions},
        read::{Fetch, GroupFetched, PartitionRecords, Run, origin, origin_bytes},
    },
    rules::group::position::{is_withheld, position, run_began},
    store::{
        History,
        group::leases::{MemberStatus, Owned},
    },
};

/// How soon a wait checks partitions that a prepared transaction holds again, as no notice
/// announces its end.
const WITHHELD_INTERVAL: Duration = Duration::from_millis(500);

/// A member's fetch.
struct Fetching<'a> {
    tenant: TenantId,
    group: &'a Name,
    member_id: &'a str,
    /// The cursor as it was sent, until it is opened, and its run.
    sent: Option<(&'a str, Run)>,
    /// Positions from the cursor, and those found in this fetch: a position that was found stays.
    known: BTreeMap<LogId, Position>,
    /// The log whose turn is first.
    first: usize,
    run: Run,
    /// Whether positions lost since stay part of the cursor's run, whose commit is then refused.
    continues: bool,
    /// The generation of the answer that the cursor acknowledges, if that answer revoked
    /// partitions.
    shown: Option<i64>,
    /// Watches on the awaited logs and on the group.
    watches: BTreeMap<WatchKey, Watch>,
}

/// The state of a round.
struct FetchContext {
    status: Arc<MemberStatus>,
    /// The time before the lease check.
    seen_at: Instant,
    membership: Membership,
    /// The partitions to read, with their positions, by log.
    sources: Vec<FetchSource>,
    /// Other positions of the run, from which nothing more is read.
    unsettled: Vec<Position>,
    /// Whether records are withheld.
    withholds: bool,
}

struct FetchSource {
    topic: Name,
    partition: Partition,
    position: Position,
    watermarks: Watermarks,
}

impl Broker {
    pub async fn fetch_group(
        &self,
        tenant: TenantId,
        group: &Name,
        member_id: &str,
        fetch: Fetch,
        permit: impl Fn(&Name) -> Result<(), Error>,
    ) -> Result<GroupFetched, Error> {
        let mut poll = LongPoll::new(self, tenant, fetch.wait_ms);
        let sent = fetch.cursor.as_deref().map(|cursor| (cursor, fetch.run));
        let mut fetching = Fetching::new(tenant, group, member_id, sent);
        loop {
            poll.begin_attempt(format_args!("a partition of group {group}"))?;
            // not by `query`, whose closure could not change `fetching`
            let context = match self.prepare_fetch(&mut fetching, &permit).await {
                Ok(context) => context,
                Err(error) => {
                    poll.retry_after(error).await?;
                    continue;
                }
            };
            let sources = context.sources();
            let page = poll.query(|| async {
                let mut budget = ReadBudget::new(fetch.limit, fetch.max_bytes);
                self.fair_read(tenant, &sources, fetching.first, &mut budget).await
            });
            // none: rows were removed since the lease check
            let Some(page) = page.await? else { continue };
            let has_news = page.has_records() || !context.membership.revoked.is_empty();
            if has_news || poll.is_over() {
                let others = fetching.other_logs(&context);
                let others = poll.query(|| self.names.of(tenant, others.clone())).await?;
                poll.answered(page.parts.iter().map(|part| {
                    (&context.sources[part.source].topic, part.records(), part.size_bytes())
                }));
                return Ok(fetching.answer(context, page, others.into_values()));
            }
            self.await_change(&mut fetching, context, &mut poll).await?;
        }
    }

    /// Checks the lease, and finds what the member owns and keeps.
    async fn prepare_fetch(
        &self,
        fetching: &mut Fetching<'_>,
        permit: impl Fn(&Name) -> Result<(), Error>,
    ) -> Result<FetchContext, Error> {
        let Fetching { tenant, group, member_id, .. } = *fetching;
        let seen_at = Instant::now();
        let Some(status) = self.leases.check(tenant, group, member_id).await? else {
            return Err(self.no_member(tenant, group).await);
        };
        if let Some((cursor, run)) = fetching.sent.take() {
            fetching.open(cursor, run, status.group_id)?;
        }
        let logs = status.owned.iter().map(|owned| owned.log_id).collect();
        let names = self.names.of(tenant, logs).await?;
        // the caller may read all of them, or nothing is released
        let topics: BTreeSet<&Name> = names.values().map(|(topic, _)| topic).collect();
        topics.into_iter().try_for_each(permit)?;
        // once: what is told from now on is not shown by it
        let shown = fetching.shown.take();
        let membership = self.membership(tenant, group, member_id, &status, shown).await?;
        let history = self.store.saw(status.server);
        fetching.find_sources((status, seen_at), membership, &names, history)
    }

    /// Waits until the answer may change or the lease must be renewed; not at all if a log was not
    /// watched until now.
    async fn await_change(
        &self,
        fetching: &mut Fetching<'_>,
        context: FetchContext,
        poll: &mut LongPoll<'_>,
    ) -> Result<(), Error> {
        let FetchContext { status, seen_at, sources, withholds, .. } = context;
        let timeout_ms = u64::try_from(status.session_timeout_ms).unwrap_or_default();
        let mut until = poll.deadline.min(Instant::now() + Duration::from_millis(timeout_ms / 3));
        if withholds {
            until = until.min(Instant::now() + WITHHELD_INTERVAL);
        }
        let end = |source: &FetchSource| {
            (WatchKey::from(source.position.log_id), source.watermarks.high_watermark)
        };
        let of_group = (WatchKey::from(status.group_id), status.generation);
        let wanted = sources.iter().map(end).chain([of_group]);
        let (mut keys, mut awaited, mut is_new) = (Vec::new(), Vec::new(), false);
        for (key, beyond) in wanted {
            let watch = fetching.watches.remove(&key);
            is_new |= watch.is_none();
            let watch = watch.unwrap_or_else(|| self.watches.watch(fetching.tenant, key));
            keys.push(key);
            awaited.push(Awaited { watch, beyond, seen_at });
        }
        let wake = if is_new { Wake::Nothing } else { poll.wait(&mut awaited, until).await? };
        // a new generation is no record
        if !matches!(wake, Wake::Log(index, _) if index < sources.len()) {
            poll.start_over();
        }
        let watches = awaited.into_iter().map(|awaited| awaited.watch);
        fetching.watches = keys.into_iter().zip(watches).collect();
        Ok(())
    }
}

impl<'a> Fetching<'a> {
    fn new(
        tenant: TenantId,
        group: &'a Name,
        member_id: &'a str,
        sent: Option<(&'a str, Run)>,
    ) -> Self {
        Self {
            tenant,
            group,
            member_id,
            sent,
            known: BTreeMap::new(),
            first: 0,
            run: Run::default(),
            continues: false,
            shown: None,
            watches: BTreeMap::new(),
        }
    }

    fn open(&mut self, cursor: &str, run: Run, group_id: GroupId) -> Result<(), Error> {
        let Some(cursor) = GroupCursor::parse(cursor, self.tenant, group_id) else {
            let detail = format!(
                "This is not a valid cursor of group {}: it is damaged, or belongs to another \
                 group or tenant, or to a deleted group with this name. Send a cursor from an \
                 answer unchanged, or none.",
                self.group
            );
            return Err(Error::new(Code::InvalidCursor, detail));
        };
        self.first = cursor.first;
        self.shown = cursor.told;
        self.known = cursor.positions.into_iter().map(|p| (p.log_id, p)).collect();
        (self.run, self.continues) = (run, run == Run::Continue);
        if run == Run::New {
            for Position { offset, began, .. } in self.known.values_mut() {
                *began = run_began(run, *offset, *began, [None, None]);
            }
            // what is found from now on is not the cursor's
            self.run = Run::Continue;
        }
        Ok(())
    }

    /// The partitions that the member owns and keeps, with their positions.
    fn find_sources(
        &mut self,
        (status, seen_at): (Arc<MemberStatus>, Instant),
        membership: Membership,
        names: &BTreeMap<LogId, (Name, Partition)>,
        history: History,
    ) -> Result<FetchContext, Error> {
        let is_in = |owned: &&Owned, list: &Partitions| {
            let name = names.get(&owned.log_id);
            name.is_some_and(|(topic, n)| list.get(topic).is_some_and(|list| list.contains(n)))
        };
        let is_kept =
            |owned: &&Owned| owned.revoked.is_none() && is_in(owned, &membership.assignment);
        let is_revoked = |owned: &&Owned| is_in(owned, &membership.revoked);
        let mut kept: Vec<Owned> = status.owned.iter().filter(is_kept).cloned().collect();
        kept.sort_by_key(|owned| owned.log_id);
        let revoked: Vec<Owned> = status.owned.iter().filter(is_revoked).cloned().collect();
        let unsettled = self.unsettled(&kept, &revoked, &status);
        kept.retain(|owned| unsettled.iter().all(|other| other.log_id != owned.log_id));
        let (mut sources, mut withholds) = (Vec::new(), false);
        for owned in &kept {
            // without: its topic is being deleted
            let (Some(ends), Some((topic, partition))) =
                (owned.watermarks, names.get(&owned.log_id))
            else {
                continue;
            };
            let (log_start_offset, high_watermark) = ends;
            let watermarks = Watermarks { log_start_offset, high_watermark, history };
            let found = self.find_position(owned, &status, watermarks);
            let found = found.map_err(|error| in_partition(error, topic, *partition))?;
            let Some(position) = found else {
                withholds = true;
                continue;
            };
            let (topic, partition) = (topic.clone(), *partition);
            sources.push(FetchSource { topic, partition, position, watermarks });
        }
        Ok(FetchContext { status, seen_at, membership, sources, unsettled, withholds })
    }

    /// The position of a partition, ignored if it belongs to another ownership.
    fn known_position(&self, owned: &Owned) -> Option<Position> {
        let known = self.known.get(&owned.log_id);
        let known = known.filter(|known| known.owned_since == owned.since).copied()?;
        let settled = [owned.committed_offset, owned.pinned_offset];
        let began = run_began(self.run, known.offset, known.began, settled);
        Some(Position { began, ..known })
    }

    /// Fetched but uncommitted positions of partitions to be released; and, if the run continues,
    /// also those of partitions that were lost.
    fn unsettled(&self, kept: &[Owned], revoked: &[Owned], status: &MemberStatus) -> Vec<Position> {
        let is_unsettled = |owned: &Owned, known: &Position| {
            let Owned { committed_offset, pinned_offset, starts, watermarks, .. } = *owned;
            let ends = watermarks.unwrap_or_default();
            let begins = position(committed_offset, starts, status.auto_offset_reset, ends);
            begins != Ok(known.offset) && pinned_offset != Some(known.offset)
        };
        let revoked_at = revoked.iter().filter_map(|owned| {
            let known = self.known_position(owned)?;
            is_unsettled(owned, &known).then_some(known)
        });
        let is_lost = |position: &&Position| {
            let is_here = |owned: &Owned| {
                (owned.log_id, owned.since) == (position.log_id, position.owned_since)
            };
            !kept.iter().chain(revoked).any(is_here)
        };
        let has_read = |position: &&Position| position.began != Some(Some(position.offset));
        let lost = self.known.values().filter(|_| self.continues).filter(is_lost).filter(has_read);
        revoked_at.chain(lost.copied()).collect()
    }

    /// Where the partition is read from; none: its records are withheld.
    fn find_position(
        &mut self,
        owned: &Owned,
        status: &MemberStatus,
        watermarks: Watermarks,
    ) -> Result<Option<Position>, Error> {
        let Owned { log_id, since: owned_since, committed_offset, starts, pinned_offset, .. } =
            *owned;
        let known = self.known_position(owned);
        let at: Option<Offset> = known.map(|known| known.offset);
        if is_withheld(at, pinned_offset) {
            return Ok(None);
        }
        let from = at.or(committed_offset);
        let offset = position(from, starts, status.auto_offset_reset, watermarks.ends())?;
        let began = known.map_or(Some(committed_offset), |known| known.began);
        let found = Position { log_id, owned_since, offset, began };
        self.known.insert(log_id, found);
        Ok(Some(found))
    }

    /// The logs that the cursor names and from which nothing is read.
    fn other_logs(&self, context: &FetchContext) -> Vec<LogId> {
        let read: BTreeSet<LogId> =
            context.sources.iter().map(|source| source.position.log_id).collect();
        self.known.keys().filter(|log_id| !read.contains(log_id)).copied().collect()
    }

    /// `others`: the names of the other logs.
    fn answer(
        &self,
        context: FetchContext,
        page: FairRead,
        others: impl Iterator<Item = (Name, Partition)>,
    ) -> GroupFetched {
        let FetchContext { status, mut membership, sources, unsettled, .. } = context;
        let FairRead { parts, first } = page;
        let told = Some(membership.generation).filter(|_| !membership.revoked.is_empty());
        let mut positions: Vec<Position> = sources.iter().map(|source| source.position).collect();
        for part in &parts {
            positions[part.source].offset = part.next_offset;
        }
        positions.extend(unsettled);
        positions.sort_unstable_by_key(|position| position.log_id);
        let part = |LogSlice { source, slices, .. }| {
            let FetchSource { topic, partition, .. } = &sources[source];
            PartitionRecords { origin: origin(Some(topic), *partition), slices }
        };
        let parts = parts.into_iter().map(part).collect();
        // what the member does not keep is revoked, also if it was let go of in this very call
        for (topic, partition) in others {
            let kept = membership.assignment.get(&topic);
            if !kept.is_some_and(|kept| kept.contains(&partition)) {
                membership.revoked.entry(topic).or_default().insert(partition);
            }
        }
        let cursor = GroupCursor { positions, first, told }.encode(self.tenant, status.group_id);
        GroupFetched { membership, parts, cursor }
    }
}

impl FetchContext {
    fn sources(&self) -> Vec<Source> {
        let source = |source: &FetchSource| Source {
            log: source.position.log_id,
            from: source.position.offset,
            high_watermark: source.watermarks.high_watermark,
            history: source.watermarks.history,
            origin_bytes: origin_bytes(Some(&source.topic), source.partition),
        };
        self.sources.iter().map(source).collect()
    }
}

/// The partition of an error.
fn in_partition(error: Error, topic: &Name, partition: Partition) -> Error {
    let detail = format!("{topic}/{partition}: {}", error.detail);
    let error = Error { detail, ..error };
    error.fact("topic", topic.to_string()).fact("partition", partition)
}
