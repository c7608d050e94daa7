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
            GROUND_ATTEMPTS,
            budget::ReadBudget,
            fair::{LogSlice, Several, Source},
            watermarks::Watermarks,
        },
        wakeup::{
            Awaited, Wake, patient,
            watch::{Change, Observed, Watch, number},
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
        self,
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
    watches: BTreeMap<LogId, Watch>,
}

/// The state of a round.
struct FetchContext {
    beat: Arc<MemberStatus>,
    /// The time before the lease check.
    seen_at: Instant,
    membership: Membership,
    /// The positions to read, by log.
    places: Vec<FetchPosition>,
    /// Other positions of the run, from which nothing more is read.
    unsettled: Vec<Position>,
    /// Whether records are withheld.
    withholds: bool,
}

struct FetchPosition {
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
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(fetch.wait_ms);
        let mut fetching = Fetching::new(tenant, group, member_id);
        let (mut is_first, mut woken) = (true, None);
        let mut attempts = 0..GROUND_ATTEMPTS;
        while attempts.next().is_some() {
            let patience = if is_first { begun } else { deadline };
            let seen_at = Instant::now();
            let beat = patient(patience, || self.leases.check(tenant, group, member_id)).await?;
            let Some(beat) = beat else { return Err(self.no_member(tenant, group).await) };
            if is_first && let Some(text) = &fetch.cursor {
                fetching.begin(text, fetch.run, beat.group_id)?;
            }
            self.permit_all(tenant, &beat, &permit).await?;
            let ground = self.fetch_ground(&mut fetching, (beat, seen_at)).await?;
            is_first = false;
            let sources = ground.sources();
            let found = || async {
                let mut room = ReadBudget::new(fetch.limit, fetch.max_bytes);
                self.several(tenant, &sources, fetching.first, &mut room).await
            };
            // without: rows are gone since the look, so the ground is another
            let Some(found) = patient(patience, found).await? else { continue };
            let has_news = found.has_records() || !ground.membership.revoked.is_empty();
            if has_news || Instant::now() >= deadline || self.draining() {
                self.reads.answered(found.records(), found.size_bytes());
                if let Some(Observed { source, since, .. }) = woken {
                    self.reads.woken(source, since);
                }
                return self.answer_fetch(&fetching, ground, found).await;
            }
            woken = self.await_news(&mut fetching, ground, deadline).await?;
            attempts.start = 0;
        }
        let what = format!("partitions of group {group} lack expected rows");
        Err(Error::from(store::Error::Unexpected(what)))
    }

    /// Checks that the caller may read all partitions that the member owns, before anything is
    /// released.
    async fn permit_all(
        &self,
        tenant: TenantId,
        beat: &MemberStatus,
        permit: impl Fn(&Name) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let logs = beat.owned.iter().map(|owned| owned.log_id).collect();
        let names = self.names.of(tenant, logs).await?;
        let topics: BTreeSet<&Name> = names.values().map(|(topic, _)| topic).collect();
        topics.into_iter().try_for_each(permit)
    }

    /// The partitions that the member owns and keeps, with their positions.
    async fn fetch_ground(
        &self,
        fetching: &mut Fetching<'_>,
        (beat, seen_at): (Arc<MemberStatus>, Instant),
    ) -> Result<FetchContext, Error> {
        let Fetching { tenant, group, member_id, .. } = *fetching;
        // once: what is told from now on is not shown by it
        let shown = fetching.shown.take();
        let membership = self.membership(tenant, group, member_id, &beat, shown).await?;
        let logs: Vec<LogId> = beat.owned.iter().map(|owned| owned.log_id).collect();
        let names = self.names.of(tenant, logs).await?;
        let is_in = |owned: &&Owned, list: &Partitions| {
            let name = names.get(&owned.log_id);
            name.is_some_and(|(topic, n)| list.get(topic).is_some_and(|list| list.contains(n)))
        };
        let is_kept =
            |owned: &&Owned| owned.revoked.is_none() && is_in(owned, &membership.assignment);
        let is_revoked = |owned: &&Owned| is_in(owned, &membership.revoked);
        let mut kept: Vec<Owned> = beat.owned.iter().filter(is_kept).cloned().collect();
        kept.sort_by_key(|owned| owned.log_id);
        let history = self.store.saw(beat.server);
        let revoked: Vec<Owned> = beat.owned.iter().filter(is_revoked).cloned().collect();
        let unsettled = fetching.unsettled(&kept, &revoked, &beat);
        kept.retain(|owned| unsettled.iter().all(|other| other.log_id != owned.log_id));
        let (mut places, mut withholds) = (Vec::new(), false);
        for owned in &kept {
            // without: its topic is being deleted
            let (Some(ends), Some((topic, partition))) =
                (owned.watermarks, names.get(&owned.log_id))
            else {
                continue;
            };
            let (log_start_offset, high_watermark) = ends;
            let watermarks = Watermarks { log_start_offset, high_watermark, history };
            let position = fetching.position(owned, &beat, watermarks);
            let Some(position) = position.map_err(|error| named(error, topic, *partition))? else {
                withholds = true;
                continue;
            };
            let (topic, partition) = (topic.clone(), *partition);
            places.push(FetchPosition { topic, partition, position, watermarks });
        }
        Ok(FetchContext { beat, seen_at, membership, places, unsettled, withholds })
    }

    /// How long to wait until the answer may change or the lease must be renewed; zero if a log was
    /// not watched until now.
    async fn await_news(
        &self,
        fetching: &mut Fetching<'_>,
        ground: FetchContext,
        deadline: Instant,
    ) -> Result<Option<Observed>, Error> {
        let FetchContext { beat, seen_at, places, withholds, .. } = ground;
        let timeout_ms = u64::try_from(beat.session_timeout_ms).unwrap_or_default();
        let mut until = deadline.min(Instant::now() + Duration::from_millis(timeout_ms / 3));
        if withholds {
            until = until.min(Instant::now() + WITHHELD_INTERVAL);
        }
        let log = |place: &FetchPosition| (place.position.log_id, place.watermarks.high_watermark);
        let of_group = (number(beat.group_id), beat.generation);
        let wanted = places.iter().map(log).chain([of_group]);
        let (mut keys, mut awaited, mut is_new) = (Vec::new(), Vec::new(), false);
        for (key, beyond) in wanted {
            let watch = fetching.watches.remove(&key);
            is_new |= watch.is_none();
            let watch = watch.unwrap_or_else(|| self.watches.watch(fetching.tenant, key));
            keys.push(key);
            awaited.push(Awaited { watch, beyond, seen_at });
        }
        let woken = if is_new {
            Wake::Nothing
        } else {
            self.wait(fetching.tenant, &mut awaited, until).await?
        };
        let watches = awaited.into_iter().map(|awaited| awaited.watch);
        fetching.watches = keys.into_iter().zip(watches).collect();
        Ok(match woken {
            Wake::Log(index, heard) if index < places.len() => {
                Some(heard).filter(|heard| matches!(heard.news, Change::HighWatermark(_)))
            }
            Wake::Log(..) | Wake::Nothing => None,
        })
    }

    async fn answer_fetch(
        &self,
        fetching: &Fetching<'_>,
        ground: FetchContext,
        found: Several,
    ) -> Result<GroupFetched, Error> {
        let Fetching { tenant, .. } = *fetching;
        let FetchContext { beat, mut membership, places, unsettled, .. } = ground;
        let Several { parts, first } = found;
        let told = Some(membership.generation).filter(|_| !membership.revoked.is_empty());
        let mut positions: Vec<Position> = places.iter().map(|place| place.position).collect();
        for part in &parts {
            positions[part.source].offset = part.next_offset;
        }
        let part = |LogSlice { source, slices, .. }| {
            let FetchPosition { topic, partition, .. } = &places[source];
            PartitionRecords { origin: origin(Some(topic), *partition), slices }
        };
        let parts = parts.into_iter().map(part).collect();
        // what the cursor names and the member keeps not, let go of in this very call as well
        let read: BTreeSet<LogId> = positions.iter().map(|position| position.log_id).collect();
        let other = fetching.known.keys().filter(|log_id| !read.contains(log_id));
        positions.extend(unsettled);
        positions.sort_unstable_by_key(|position| position.log_id);
        for (topic, partition) in
            self.names.of(tenant, other.copied().collect()).await?.into_values()
        {
            let kept = membership.assignment.get(&topic);
            if !kept.is_some_and(|kept| kept.contains(&partition)) {
                membership.revoked.entry(topic).or_default().insert(partition);
            }
        }
        let cursor = GroupCursor { positions, first, told }.encode(tenant, beat.group_id);
        Ok(GroupFetched { membership, parts, cursor })
    }
}

impl<'a> Fetching<'a> {
    fn new(tenant: TenantId, group: &'a Name, member_id: &'a str) -> Self {
        Self {
            tenant,
            group,
            member_id,
            known: BTreeMap::new(),
            first: 0,
            run: Run::default(),
            continues: false,
            shown: None,
            watches: BTreeMap::new(),
        }
    }

    fn begin(&mut self, cursor: &str, run: Run, group_id: GroupId) -> Result<(), Error> {
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

    /// The position of a partition, ignored if it belongs to another ownership.
    fn named(&self, owned: &Owned) -> Option<Position> {
        let named = self.known.get(&owned.log_id);
        let named = named.filter(|named| named.owned_since == owned.since).copied()?;
        let standing = [owned.committed_offset, owned.pinned_offset];
        let began = run_began(self.run, named.offset, named.began, standing);
        Some(Position { began, ..named })
    }

    /// Fetched but uncommitted positions of partitions to be released; and, if the run continues,
    /// also those of partitions that were lost.
    fn unsettled(&self, kept: &[Owned], revoked: &[Owned], beat: &MemberStatus) -> Vec<Position> {
        let is_unsettled = |owned: &Owned, named: &Position| {
            let Owned { committed_offset, pinned_offset, starts, watermarks, .. } = *owned;
            let ends = watermarks.unwrap_or_default();
            let begins = position(committed_offset, starts, beat.auto_offset_reset, ends);
            begins != Ok(named.offset) && pinned_offset != Some(named.offset)
        };
        let revoked_at = revoked.iter().filter_map(|owned| {
            let named = self.named(owned)?;
            is_unsettled(owned, &named).then_some(named)
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
    fn position(
        &mut self,
        owned: &Owned,
        beat: &MemberStatus,
        watermarks: Watermarks,
    ) -> Result<Option<Position>, Error> {
        let Owned { log_id, since: owned_since, committed_offset, starts, pinned_offset, .. } =
            *owned;
        let named = self.named(owned);
        let at: Option<Offset> = named.map(|named| named.offset);
        if is_withheld(at, pinned_offset) {
            return Ok(None);
        }
        let from = at.or(committed_offset);
        let offset = position(from, starts, beat.auto_offset_reset, watermarks.ends())?;
        let began = named.map_or(Some(committed_offset), |named| named.began);
        let position = Position { log_id, owned_since, offset, began };
        self.known.insert(log_id, position);
        Ok(Some(position))
    }
}

impl FetchContext {
    fn sources(&self) -> Vec<Source> {
        let source = |place: &FetchPosition| Source {
            log: place.position.log_id,
            from: place.position.offset,
            high_watermark: place.watermarks.high_watermark,
            history: place.watermarks.history,
            origin_bytes: origin_bytes(Some(&place.topic), place.partition),
        };
        self.places.iter().map(source).collect()
    }
}

/// The partition of an error.
fn named(error: Error, topic: &Name, partition: Partition) -> Error {
    let detail = format!("{topic}/{partition}: {}", error.detail);
    let error = Error { detail, ..error };
    error.fact("topic", topic.to_string()).fact("partition", partition)
}
