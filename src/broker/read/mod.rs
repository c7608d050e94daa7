//! Reads of one partition: fresh, coalesced, and waiting without a connection.

pub mod budget;
pub mod fair;
pub mod metrics;
pub mod page_cache;
pub mod topic;
pub mod watermarks;

use std::time::Duration;

use tokio::time::Instant;

use self::{budget::ReadBudget, fair::Source, watermarks::Watermarks};
use super::{
    Broker, Error,
    coalesce::When,
    wakeup::{
        Awaited, Wake, patient,
        watch::{Change, Observed, Watch},
    },
};
use crate::{
    model::{
        Code, LogId, Name, Offset, Partition, TenantId,
        read::{Fetched, Isolation, Read, Slice, Staged, Start},
    },
    store,
};

/// How often a name is resolved again if its log was deleted meanwhile.
pub const RESOLVE_ATTEMPTS: usize = 5;
/// How often a read starts again because its rows were trimmed meanwhile.
pub const GROUND_ATTEMPTS: usize = 5;

/// From this many waiting readers on, a new one waits with them and shares their next watermark
/// query.
const CROWD: usize = 16;

/// The state of a read after its first watermark query.
struct ReadContext {
    log: LogId,
    watermarks: Watermarks,
    /// The time before the watermark query.
    seen_at: Instant,
    /// Registered before the query, if the read may wait.
    watch: Option<Watch>,
    /// How long the read has waited before its query.
    heard: Option<Observed>,
}

impl Broker {
    pub async fn read(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition: Partition,
        read: Read,
    ) -> Result<Fetched, Error> {
        let deadline = Instant::now() + Duration::from_millis(read.wait_ms);
        let mut position = None;
        let mut attempts = 0..GROUND_ATTEMPTS;
        while attempts.next().is_some() {
            let ground = self.ground(tenant, topic, partition, &read, deadline).await?;
            let ReadContext { log, watermarks, seen_at, watch, heard } = ground;
            let Watermarks { log_start_offset, mut high_watermark, history } = watermarks;
            let from = match position {
                // a position once found is kept, as far as the log still holds it
                Some(from) if !matches!(read.start, Start::Offset(_)) => {
                    log_start_offset.max(from).min(high_watermark)
                }
                _ => match self.position(tenant, log, &watermarks, read.start).await? {
                    Some(from) => from,
                    None => continue,
                },
            };
            position = Some(from);
            let mut woken = heard;
            if from == high_watermark
                && let Some(watch) = watch
            {
                let awaited = &mut [Awaited { watch, beyond: from, seen_at }];
                if let Wake::Log(_, heard) = self.wait(tenant, awaited, deadline).await? {
                    match heard.news {
                        Change::HighWatermark(now) if now > from => high_watermark = now,
                        // the log has lost its end
                        Change::HighWatermark(_) => {
                            attempts.start = 0;
                            continue;
                        }
                        Change::Gone => return Err(Error::topic_not_found(topic)),
                    }
                    woken = Some(heard);
                }
            }
            let source = Source { log, from, high_watermark, history, origin_bytes: 0 };
            let page = || self.page(tenant, source, &read);
            // without: its rows are gone since the look, so the ground is another
            if let Some(ReadAttempt { slices, next_offset, staged }) =
                patient(deadline, page).await?
            {
                let records = slices.iter().map(|slice| slice.record_count() as u64).sum();
                let bytes = slices.iter().map(|slice| slice.end - slice.start).sum();
                self.reads.answered(records, bytes);
                if let Some(Observed { source, since, .. }) = woken {
                    self.reads.woken(source, since);
                }
                return Ok(Fetched {
                    slices,
                    next_offset,
                    log_start_offset,
                    high_watermark,
                    staged,
                });
            }
        }
        let what = format!("topic {topic}, partition {partition} lacks expected rows");
        Err(Error::from(store::Error::Unexpected(what)))
    }

    /// Resolves the name, registers the watch, and queries the watermarks, in this order, so that
    /// no commit is missed.
    async fn ground(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition: Partition,
        read: &Read,
        deadline: Instant,
    ) -> Result<ReadContext, Error> {
        for attempt in 0..RESOLVE_ATTEMPTS {
            let resolved = self.topics.partition(tenant, topic, partition, attempt > 0).await?;
            let log = resolved.logs[partition as usize];
            let mut watch = (read.wait_ms > 0).then(|| self.watches.watch(tenant, log));
            let joined = self.join_crowd(tenant, &mut watch, read.start, deadline).await?;
            let seen_at = Instant::now();
            let seen = match joined {
                Some(_) => self.watermarks.read_when(tenant, log, When::AfterWindow).await?,
                None => self.watermarks.read(tenant, log).await?,
            };
            // under another history the name may mean another log
            let is_same = |seen: &Watermarks| seen.history.server == resolved.server;
            if let Some(watermarks) = seen.filter(is_same) {
                return Ok(ReadContext {
                    log,
                    watermarks,
                    seen_at,
                    watch,
                    heard: joined.flatten(),
                });
            }
        }
        Err(Error::topic_not_found(topic))
    }

    /// If many reads already wait at the end of the log, this one waits with them before its query,
    /// so that one query serves all of them. Its answer still includes everything acknowledged
    /// before it arrived. None: there are too few of them.
    async fn join_crowd(
        &self,
        tenant: TenantId,
        watch: &mut Option<Watch>,
        start: Start,
        deadline: Instant,
    ) -> Result<Option<Option<Observed>>, Error> {
        let Start::Offset(beyond) = start else { return Ok(None) };
        let stands = |watch: &mut Watch| {
            watch.company >= CROWD && watch.known() == Change::HighWatermark(beyond)
        };
        let Some(waiting) = watch.take_if(stands) else { return Ok(None) };
        let mut awaited = [Awaited { watch: waiting, beyond, seen_at: Instant::now() }];
        let woken = self.wait(tenant, &mut awaited, deadline).await?;
        *watch = awaited.into_iter().next().map(|awaited| awaited.watch);
        Ok(Some(match woken {
            Wake::Log(_, heard) => Some(heard),
            Wake::Nothing => None,
        }))
    }

    /// Where a read starts. None: the rows that determine it were removed since the watermark
    /// query.
    pub(super) async fn position(
        &self,
        tenant: TenantId,
        log: LogId,
        watermarks: &Watermarks,
        start: Start,
    ) -> Result<Option<Offset>, Error> {
        let Watermarks { log_start_offset, high_watermark, .. } = *watermarks;
        match start {
            Start::Earliest => Ok(Some(log_start_offset)),
            Start::Latest => Ok(Some(high_watermark)),
            Start::Offset(offset) if (log_start_offset..=high_watermark).contains(&offset) => {
                Ok(Some(offset))
            }
            Start::Offset(offset) => {
                let detail = format!(
                    "Offset {offset} is outside the log: the log start offset is \
                     {log_start_offset}, the high watermark is {high_watermark}."
                );
                Err(Error::new(Code::OffsetOutOfRange, detail)
                    .fact("log_start_offset", log_start_offset)
                    .fact("high_watermark", high_watermark))
            }
            Start::Timestamp(_) if log_start_offset == high_watermark => Ok(Some(high_watermark)),
            Start::Timestamp(instant) => {
                let (low, high) = (log_start_offset, high_watermark);
                let search = self.store.of(tenant).run(move |connection| {
                    Box::pin(store::read::search(connection, tenant, log, low, high, instant))
                });
                Ok(search.await?)
            }
        }
    }

    /// Returns records of the source, within the read's limits, and at the end of the log the
    /// uncommitted records, if requested. None: the first record was removed.
    async fn page(
        &self,
        tenant: TenantId,
        source: Source,
        read: &Read,
    ) -> Result<Option<ReadAttempt>, Error> {
        let Source { log, from, high_watermark, .. } = source;
        let mut room = ReadBudget::new(read.limit, read.max_bytes);
        let found = self.several(tenant, &[source], 0, &mut room).await?;
        let Some(found) = found else { return Ok(None) };
        let part = found.parts.into_iter().next();
        let (slices, next_offset) =
            part.map_or((Vec::new(), from), |part| (part.slices, part.next_offset));
        let staged = match read.isolation {
            Isolation::ReadCommitted => None,
            Isolation::ReadUncommitted if next_offset < high_watermark => Some(Vec::new()),
            Isolation::ReadUncommitted => Some(self.staged(tenant, log, room).await?),
        };
        Ok(Some(ReadAttempt { slices, next_offset, staged }))
    }

    /// The uncommitted records of open transactions, within the budget. They are read after the
    /// log: a transaction that commits in between is in neither, and the next read returns it as
    /// committed.
    async fn staged(
        &self,
        tenant: TenantId,
        log: LogId,
        mut room: ReadBudget,
    ) -> Result<Vec<Staged>, Error> {
        let mut staged: Vec<Staged> = Vec::new();
        if room.is_full() {
            return Ok(staged);
        }
        let number = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let (max_bytes, limit) = (number(room.free_bytes()), number(room.free_records()));
        let read = self.store.of(tenant).run(move |connection| {
            Box::pin(store::read::staged(connection, tenant, log, max_bytes, limit))
        });
        for mut row in read.await? {
            let (stored_bytes, fitting_bytes) = (row.lines.len(), room.take_lines(&row.lines));
            row.lines.truncate(fitting_bytes);
            match staged.last_mut() {
                _ if fitting_bytes == 0 => {}
                Some(last) if last.transaction_id == row.transaction_id => {
                    last.lines.push_str(&row.lines);
                }
                _ => staged.push(row),
            }
            if fitting_bytes < stored_bytes {
                break;
            }
        }
        Ok(staged)
    }
}

/// The result of one attempt.
struct ReadAttempt {
    slices: Vec<Slice>,
    next_offset: Offset,
    staged: Option<Vec<Staged>>,
}
