//! Reading one partition: fresh, shared, waiting without a connection.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    Broker, Error,
    looks::Watermarks,
    measures::Waited,
    watches::{Heard, News, Watch},
};
use crate::{
    model::{
        Code, LogId, Name, Offset, Partition, TenantId,
        transfer::{Fetched, Isolation, Read, Row, Slice, Staged, Start},
    },
    store, telemetry,
};

/// How soon a woken read tries again when the database is away.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How often a name is resolved again when its log has vanished meanwhile.
const RESOLVE_ATTEMPTS: usize = 5;
/// Who takes so many bytes at once reads in bulk, and will want the next ones.
const BULK_BYTES: usize = 64 * 1024;
/// How often a read starts again because the rows it was to read were trimmed meanwhile.
const GROUND_ATTEMPTS: usize = 5;

/// What a read stands on after its first look.
struct Ground {
    log: LogId,
    watermarks: Watermarks,
    /// Registered before the look, if the read may wait.
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
        let deadline = Instant::now() + Duration::from_millis(read.wait_ms);
        let may_wait = read.wait_ms > 0;
        let mut position = None;
        for _ in 0..GROUND_ATTEMPTS {
            let Ground { log, watermarks, watch } =
                self.ground(tenant, topic, partition, may_wait).await?;
            let Watermarks { log_start_offset, mut high_watermark } = watermarks;
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
            let mut woken = None;
            if from == high_watermark
                && let Some(watch) = watch
            {
                woken = self.wait(watch, from, deadline).await?;
                match woken.map(|heard| heard.news) {
                    Some(News::HighWatermark(now)) => high_watermark = now.max(high_watermark),
                    Some(News::Gone) => return Err(Error::topic_not_found(topic)),
                    None => {}
                }
            }
            let page = self.patient_page(tenant, log, from, high_watermark, &read, deadline);
            // without: its rows are gone since the look, so the ground is another
            if let Some(Found { slices, next_offset, staged }) = page.await? {
                let records = u64::try_from(next_offset - from).unwrap_or(0);
                let bytes = slices.iter().map(|slice| slice.end - slice.start).sum();
                self.reads.answered(records, bytes);
                if let Some(Heard { source, since, .. }) = woken {
                    self.reads.woken(source, since);
                }
                if bytes >= BULK_BYTES {
                    self.pages.read_ahead(tenant, log, next_offset, high_watermark);
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
        let what = format!("topic {topic}, partition {partition} lacks rows it should have");
        Err(Error::from(store::Error::Corrupt(what)))
    }

    /// A read that has waited does not fail because the database is just away.
    async fn patient_page(
        &self,
        tenant: TenantId,
        log: LogId,
        from: Offset,
        high_watermark: Offset,
        read: &Read,
        deadline: Instant,
    ) -> Result<Option<Found>, Error> {
        loop {
            match self.page(tenant, log, from, high_watermark, read).await {
                Err(error) if error.code == Code::Unavailable && Instant::now() < deadline => {
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                result => return result,
            }
        }
    }

    /// Resolves, registers, looks; in that order, so that no commit slips between.
    async fn ground(
        &self,
        tenant: TenantId,
        topic: &Name,
        partition: Partition,
        may_wait: bool,
    ) -> Result<Ground, Error> {
        for attempt in 0..RESOLVE_ATTEMPTS {
            let resolved = self.topics.partition(tenant, topic, partition, attempt > 0).await?;
            let log = resolved.logs[partition as usize];
            let watch = may_wait.then(|| self.watches.watch(tenant, log));
            if let Some(watermarks) = self.looks.look(tenant, log).await? {
                return Ok(Ground { log, watermarks, watch });
            }
        }
        Err(Error::topic_not_found(topic))
    }

    /// Where a read begins. None: the rows that would tell are gone since the look.
    async fn position(
        &self,
        tenant: TenantId,
        log: LogId,
        watermarks: &Watermarks,
        start: Start,
    ) -> Result<Option<Offset>, Error> {
        let Watermarks { log_start_offset, high_watermark } = *watermarks;
        match start {
            Start::Earliest => Ok(Some(log_start_offset)),
            Start::Latest => Ok(Some(high_watermark)),
            Start::Offset(offset) if (log_start_offset..=high_watermark).contains(&offset) => {
                Ok(Some(offset))
            }
            Start::Offset(offset) => {
                let detail = format!(
                    "Offset {offset} lies outside the log: its first offset is \
                     {log_start_offset}, the next to be given is {high_watermark}."
                );
                Err(Error::new(Code::OffsetOutOfRange, detail)
                    .fact("log_start_offset", log_start_offset)
                    .fact("high_watermark", high_watermark))
            }
            Start::Timestamp(instant) => {
                let (low, high) = (log_start_offset, high_watermark);
                let search = self.store.run(move |connection| {
                    Box::pin(store::reads::search(connection, tenant, log, low, high, instant))
                });
                Ok(search.await?)
            }
        }
    }

    /// Waits until the log has grown past `from` or is gone; None: the wait is over, or the server
    /// drains.
    async fn wait(
        &self,
        mut watch: Watch,
        from: Offset,
        deadline: Instant,
    ) -> Result<Option<Heard>, Error> {
        let Ok(_permit) = self.waiting_reads.try_acquire() else {
            metrics::counter!(telemetry::REFUSED_FOR_LOAD_TOTAL, "limit" => "waiting_reads")
                .increment(1);
            return Err(Error::unavailable("Too many reads are waiting here already."));
        };
        let _counted = self.reads.waiting();
        let begun = Instant::now();
        let arrived = async {
            loop {
                let heard = watch.news().await;
                match heard.news {
                    News::HighWatermark(now) if now <= from => {}
                    _ => break heard,
                }
            }
        };
        let woken = timeout_at(deadline, self.drain.run_until_cancelled(arrived)).await;
        let woken = woken.ok().flatten();
        let how = match woken.map(|heard| heard.news) {
            Some(News::HighWatermark(_)) => Waited::Records,
            Some(News::Gone) => Waited::Gone,
            None => Waited::Nothing,
        };
        self.reads.waited(begun, &how);
        Ok(woken)
    }

    /// Records from `from` on, up to the read's limits, and behind the last of the log what is
    /// staged, if that is asked for. None: the first is gone.
    async fn page(
        &self,
        tenant: TenantId,
        log: LogId,
        from: Offset,
        high_watermark: Offset,
        read: &Read,
    ) -> Result<Option<Found>, Error> {
        let mut room = Room { records: read.limit, bytes: read.max_bytes, is_empty: true };
        let slices = self.slices(tenant, log, from, high_watermark, &mut room).await?;
        let Some(slices) = slices else { return Ok(None) };
        let next_offset = slices.last().map_or(from, |slice| slice.end_offset);
        let staged = match read.isolation {
            Isolation::ReadCommitted => None,
            Isolation::ReadUncommitted if next_offset < high_watermark => Some(Vec::new()),
            Isolation::ReadUncommitted => Some(self.staged(tenant, log, room).await?),
        };
        Ok(Some(Found { slices, next_offset, staged }))
    }

    async fn slices(
        &self,
        tenant: TenantId,
        log: LogId,
        from: Offset,
        high_watermark: Offset,
        room: &mut Room,
    ) -> Result<Option<Vec<Slice>>, Error> {
        let mut slices = Vec::new();
        let mut next = from;
        while next < high_watermark && room.records > 0 {
            let cell = self.pages.covering(tenant, log, next, high_watermark).await?;
            let Some(page) = cell.as_ref().and_then(|cell| cell.get()) else {
                return Ok((!slices.is_empty()).then_some(slices));
            };
            let first = page.rows.partition_point(|row| row.base_offset + row.record_count <= next);
            for row in &page.rows[first..] {
                let Some(slice) = room.take(row, next) else { return Ok(Some(slices)) };
                let whole = slice.end_offset == row.base_offset + row.record_count;
                next = slice.end_offset;
                slices.push(slice);
                if !whole {
                    return Ok(Some(slices));
                }
            }
        }
        Ok(Some(slices))
    }

    /// What open transactions have staged, as far as there is room. Read after the log: whatever
    /// commits in between is shown by neither, and by the next read as committed.
    async fn staged(
        &self,
        tenant: TenantId,
        log: LogId,
        mut room: Room,
    ) -> Result<Vec<Staged>, Error> {
        let mut staged: Vec<Staged> = Vec::new();
        if room.is_full() {
            return Ok(staged);
        }
        let number = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let (max_bytes, limit) = (number(room.bytes), number(room.records));
        let read = self.store.run(move |connection| {
            Box::pin(store::reads::staged(connection, tenant, log, max_bytes, limit))
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

/// What one attempt has found.
struct Found {
    slices: Vec<Slice>,
    next_offset: Offset,
    staged: Option<Vec<Staged>>,
}

/// What still fits into an answer.
struct Room {
    records: usize,
    bytes: usize,
    is_empty: bool,
}

impl Room {
    /// The part of a row from an offset on that fits; none if nothing does. The first record of an
    /// answer always does.
    fn take(&mut self, row: &Arc<Row>, from: Offset) -> Option<Slice> {
        let skipped = usize::try_from(from - row.base_offset).unwrap_or(0);
        let bytes = row.lines.as_bytes();
        let mut lines = memchr::memchr_iter(b'\n', bytes).map(|end| end + 1);
        let start = if skipped == 0 { 0 } else { lines.nth(skipped - 1)? };
        let (mut end, mut end_offset) = (start, from);
        for line_end in lines {
            if !self.admits(row.answered_bytes(end_offset, line_end - end)) {
                break;
            }
            (end, end_offset) = (line_end, end_offset + 1);
        }
        let slice = Slice { row: row.clone(), first_offset: from, start, end, end_offset };
        (end > start).then_some(slice)
    }

    /// How many bytes of lines without offsets fit: whole lines.
    fn take_lines(&mut self, lines: &str) -> usize {
        let mut end = 0;
        for line_end in memchr::memchr_iter(b'\n', lines.as_bytes()).map(|end| end + 1) {
            if !self.admits(line_end - end) {
                break;
            }
            end = line_end;
        }
        end
    }

    /// Takes one record more, if it fits.
    fn admits(&mut self, size_bytes: usize) -> bool {
        let fits = self.records > 0 && (size_bytes <= self.bytes || self.is_empty);
        if fits {
            self.records -= 1;
            self.bytes = self.bytes.saturating_sub(size_bytes);
            self.is_empty = false;
        }
        fits
    }

    fn is_full(&self) -> bool {
        self.records == 0 || self.bytes == 0
    }
}
