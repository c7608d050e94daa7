//! Reads of one partition: fresh, coalesced, and waiting without a connection.

pub mod budget;
pub mod fair;
pub mod metrics;
pub mod page_cache;
pub mod topic;
pub mod watermarks;

use tokio::time::Instant;

use self::{budget::ReadBudget, fair::Source, watermarks::Watermarks};
use super::{
    Broker, Error,
    coalesce::When,
    wakeup::{
        Awaited, LongPoll, Wake,
        watch::{Change, Watch},
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

/// The state of a read after its watermark query.
struct ReadContext {
    log: LogId,
    watermarks: Watermarks,
    /// The time before the watermark query.
    seen_at: Instant,
    /// Registered before the query, if the read may wait.
    watch: Option<Watch>,
}

impl Broker {
    pub async fn read(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition: Partition,
        read: Read,
    ) -> Result<Fetched, Error> {
        let mut poll = LongPoll::new(self, tenant, read.wait_ms);
        let may_wait = read.wait_ms > 0;
        let when = match read.start {
            Start::Offset(end) if may_wait => {
                self.join_crowd(tenant, topic, partition, end, &mut poll).await?
            }
            _ => When::Now,
        };
        let mut position = None;
        loop {
            poll.begin_attempt(format_args!("topic {topic}, partition {partition}"))?;
            let prepare = || self.prepare_read(tenant, topic, partition, may_wait, when);
            let ReadContext { log, watermarks, seen_at, watch } = poll.query(prepare).await?;
            let Watermarks { log_start_offset, mut high_watermark, history } = watermarks;
            let from = match position {
                // a position once found is kept, as far as the log still holds it
                Some(from) if !matches!(read.start, Start::Offset(_)) => {
                    log_start_offset.max(from).min(high_watermark)
                }
                _ => {
                    let find = || self.find_position(tenant, log, &watermarks, read.start);
                    let Some(from) = poll.query(find).await? else { continue };
                    from
                }
            };
            position = Some(from);
            if from == high_watermark
                && let Some(watch) = watch
            {
                let awaited = &mut [Awaited { watch, beyond: from, seen_at }];
                match poll.wait(awaited, poll.deadline).await? {
                    Wake::Log(_, Change::HighWatermark(now)) if now > from => high_watermark = now,
                    // the log has lost its end
                    Wake::Log(_, Change::HighWatermark(_)) => continue,
                    Wake::Log(_, Change::Gone) => return Err(Error::topic_not_found(topic)),
                    Wake::Nothing => {}
                }
            }
            let source = Source { log, from, high_watermark, history, origin_bytes: 0 };
            let page = poll.query(|| self.read_page(tenant, source, &read)).await?;
            // none: its first row was removed since the watermark query
            let Some(ReadPage { slices, next_offset, staged }) = page else { continue };
            let records = slices.iter().map(|slice| slice.record_count() as u64).sum();
            let bytes = slices.iter().map(|slice| slice.end - slice.start).sum();
            poll.answered(std::iter::once((topic, records, bytes)));
            return Ok(Fetched { slices, next_offset, log_start_offset, high_watermark, staged });
        }
    }

    /// If many reads already wait where this one begins, it waits with them before its query, so
    /// that one query serves all of them. Its answer still includes everything acknowledged before
    /// it arrived.
    async fn join_crowd(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition: Partition,
        end: Offset,
        poll: &mut LongPoll<'_>,
    ) -> Result<When, Error> {
        let resolved = self.topics.partition(tenant, topic, partition, false).await?;
        let log = resolved.logs[partition as usize];
        let Some(watch) = self.watches.watch_in_crowd(tenant, log, end) else {
            return Ok(When::Now);
        };
        let awaited = &mut [Awaited { watch, beyond: end, seen_at: Instant::now() }];
        poll.wait(awaited, poll.deadline).await?;
        Ok(When::AfterWindow)
    }

    /// Resolves the name, registers the watch, and queries the watermarks, in this order, so that
    /// no commit is missed.
    async fn prepare_read(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition: Partition,
        may_wait: bool,
        when: When,
    ) -> Result<ReadContext, Error> {
        for attempt in 0..RESOLVE_ATTEMPTS {
            let resolved = self.topics.partition(tenant, topic, partition, attempt > 0).await?;
            let log = resolved.logs[partition as usize];
            let watch = may_wait.then(|| self.watches.watch(tenant, log));
            let seen_at = Instant::now();
            let seen = self.watermarks.read_when(tenant, log, when).await?;
            // under another history the name may mean another log
            let is_same = |seen: &Watermarks| seen.history.server == resolved.server;
            if let Some(watermarks) = seen.filter(is_same) {
                return Ok(ReadContext { log, watermarks, seen_at, watch });
            }
        }
        Err(Error::topic_not_found(topic))
    }

    /// Where a read starts. None: the rows that determine it were removed since the watermark
    /// query.
    pub(super) async fn find_position(
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
                let search = self.store.of(tenant).run(async move |connection| {
                    store::read::search(connection, tenant, log, low, high, instant).await
                });
                Ok(search.await?)
            }
        }
    }

    /// Returns records of the source, within the read's limits, and at the end of the log the
    /// uncommitted records, if requested. None: the first record was removed.
    async fn read_page(
        &self,
        tenant: TenantId,
        source: Source,
        read: &Read,
    ) -> Result<Option<ReadPage>, Error> {
        let Source { log, from, high_watermark, .. } = source;
        let mut budget = ReadBudget::new(read.limit, read.max_bytes);
        let page = self.fair_read(tenant, &[source], 0, &mut budget).await?;
        let Some(page) = page else { return Ok(None) };
        let part = page.parts.into_iter().next();
        let (slices, next_offset) =
            part.map_or((Vec::new(), from), |part| (part.slices, part.next_offset));
        let staged = match read.isolation {
            Isolation::ReadCommitted => None,
            Isolation::ReadUncommitted if next_offset < high_watermark => Some(Vec::new()),
            Isolation::ReadUncommitted => Some(self.read_staged(tenant, log, budget).await?),
        };
        Ok(Some(ReadPage { slices, next_offset, staged }))
    }

    /// The uncommitted records of open transactions, within the budget. They are read after the
    /// log: a transaction that commits in between is in neither, and the next read returns it as
    /// committed.
    async fn read_staged(
        &self,
        tenant: TenantId,
        log: LogId,
        mut budget: ReadBudget,
    ) -> Result<Vec<Staged>, Error> {
        let mut staged: Vec<Staged> = Vec::new();
        if budget.is_full() {
            return Ok(staged);
        }
        let number = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let (max_bytes, limit) = (number(budget.free_bytes()), number(budget.free_records()));
        let read = self.store.of(tenant).run(async move |connection| {
            store::read::staged(connection, tenant, log, max_bytes, limit).await
        });
        for mut row in read.await? {
            let (stored_bytes, fitting_bytes) = (row.lines.len(), budget.take_lines(&row.lines));
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

/// What a read answers.
struct ReadPage {
    slices: Vec<Slice>,
    next_offset: Offset,
    staged: Option<Vec<Staged>>,
}
