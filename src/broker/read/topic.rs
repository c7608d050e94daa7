//! Reads of all partitions of a topic: fresh, fair, waiting without a connection, and including new
//! partitions. An answer is as of one instant, that of the last watermark query; a read that has
//! waited queries again.

use std::sync::Arc;

use futures_util::stream::{StreamExt, TryStreamExt, iter};
use tokio::time::Instant;

use super::{
    RESOLVE_ATTEMPTS,
    budget::ReadBudget,
    fair::{FairRead, LogSlice, Source},
    watermarks::Watermarks,
};
use crate::{
    broker::{
        Broker, Error,
        wakeup::{Awaited, LongPoll, Wake, watch::Change},
    },
    model::{
        Code, Name, Offset, Partition, TenantId, Timestamp,
        cursor::TopicCursor,
        read::{
            PartitionEnds, PartitionRecords, Start, TopicFetched, TopicRead, TopicStart, origin,
            origin_bytes,
        },
    },
    store::catalog::topics::StoredTopic,
};

/// How many partitions are searched for an instant concurrently.
const SEARCHES_AT_ONCE: usize = 4;

/// The state of a read after a watermark query.
struct TopicReadContext {
    topic: Arc<StoredTopic>,
    /// By partition.
    watermarks: Vec<Watermarks>,
    /// Registered before the query, if the read may wait: the partitions, and after them the
    /// journal, which announces new partitions.
    awaited: Vec<Awaited>,
}

impl Broker {
    pub async fn read_topic(
        &self,
        tenant: TenantId,
        topic: &Name,
        read: TopicRead,
    ) -> Result<TopicFetched, Error> {
        let mut poll = LongPoll::new(self, tenant, read.wait_ms);
        let mut cursor = None;
        loop {
            poll.begin_attempt(format_args!("topic {topic}"))?;
            let prepare = || self.prepare_topic_read(tenant, topic, read.wait_ms > 0);
            let mut context = poll.query(prepare).await?;
            if cursor.is_none() {
                cursor = poll.query(|| self.find_start(tenant, &context, &read.start)).await?;
            }
            let Some(cursor) = &cursor else { continue };
            let is_given = matches!(read.start, TopicStart::Cursor(_));
            let positions = find_positions(cursor, &context, is_given)?;
            if context.is_read_up_to(&positions) && !poll.is_over() {
                match poll.wait(&mut context.awaited, poll.deadline).await? {
                    Wake::Log(_, Change::Gone) => return Err(Error::topic_not_found(topic)),
                    // a new partition, not records
                    Wake::Log(index, _) if index == positions.len() => poll.start_over(),
                    Wake::Log(..) | Wake::Nothing => {}
                }
                continue;
            }
            let sources = context.sources(&positions);
            let page = poll.query(|| async {
                let mut budget = ReadBudget::new(read.limit, read.max_bytes);
                self.fair_read(tenant, &sources, cursor.first, &mut budget).await
            });
            // none: rows were removed since the watermark query
            let Some(page) = page.await? else { continue };
            poll.answered(page.parts.iter().map(|part| (topic, part.records(), part.size_bytes())));
            return Ok(context.answer(tenant, positions, page));
        }
    }

    /// Resolves the name, registers the watches, and queries the watermarks, in this order, so that
    /// no commit is missed. The cached name may be stale, but not older than the query.
    async fn prepare_topic_read(
        &self,
        tenant: TenantId,
        name: &Name,
        may_wait: bool,
    ) -> Result<TopicReadContext, Error> {
        for attempt in 0..RESOLVE_ATTEMPTS {
            let topic = self.topics.resolve(tenant, name, attempt > 0).await?;
            let logs: Vec<_> = topic.logs.iter().chain([&topic.journal]).copied().collect();
            let watched = logs.iter().filter(|_| may_wait);
            let watches: Vec<_> = watched.map(|log| self.watches.watch(tenant, *log)).collect();
            let seen_at = Instant::now();
            let seen = self.watermarks.read_all(tenant, logs).await?;
            let Some(mut watermarks) = seen.into_iter().collect::<Option<Vec<_>>>() else {
                continue;
            };
            // under another history the name may mean another topic
            if watermarks.iter().any(|seen| seen.history.server != topic.server) {
                continue;
            }
            let ends = watermarks.iter().map(|seen| seen.high_watermark);
            let awaited = watches.into_iter().zip(ends);
            let awaited =
                awaited.map(|(watch, beyond)| Awaited { watch, beyond, seen_at }).collect();
            let count = watermarks.pop().map(|journal| journal.high_watermark);
            if count.and_then(|count| usize::try_from(count).ok()) == Some(topic.logs.len()) {
                return Ok(TopicReadContext { topic, watermarks, awaited });
            }
        }
        Err(Error::topic_not_found(name))
    }

    /// The starting positions. None: the rows that determine them were removed since the watermark
    /// query.
    async fn find_start(
        &self,
        tenant: TenantId,
        context: &TopicReadContext,
        start: &TopicStart,
    ) -> Result<Option<TopicCursor>, Error> {
        let positions = match start {
            TopicStart::Earliest => Some(Vec::new()),
            TopicStart::Latest => {
                Some(context.watermarks.iter().map(|seen| seen.high_watermark).collect())
            }
            TopicStart::Timestamp(instant) => self.search(tenant, context, *instant).await?,
            TopicStart::Cursor(text) => {
                let cursor = TopicCursor::parse(text, tenant, context.topic.topic_id);
                return cursor
                    .map(Some)
                    .ok_or_else(|| invalid_cursor(&context.topic.summary.topic));
            }
        };
        Ok(positions.map(|positions| TopicCursor { positions, first: 0 }))
    }

    async fn search(
        &self,
        tenant: TenantId,
        context: &TopicReadContext,
        instant: Timestamp,
    ) -> Result<Option<Vec<Offset>>, Error> {
        let logs = context.topic.logs.iter().zip(&context.watermarks);
        let searches: Vec<_> = logs
            .map(|(log, seen)| self.find_position(tenant, *log, seen, Start::Timestamp(instant)))
            .collect();
        let found: Vec<_> = iter(searches).buffered(SEARCHES_AT_ONCE).try_collect().await?;
        Ok(found.into_iter().collect())
    }
}

impl TopicReadContext {
    fn is_read_up_to(&self, positions: &[Offset]) -> bool {
        let mut ends = self.watermarks.iter().zip(positions);
        ends.all(|(seen, position)| seen.high_watermark == *position)
    }

    fn sources(&self, positions: &[Offset]) -> Vec<Source> {
        let logs = self.topic.logs.iter().zip(&self.watermarks).zip(positions);
        let sources = logs.zip(0..).map(|(((log, seen), from), partition)| Source {
            log: *log,
            from: *from,
            high_watermark: seen.high_watermark,
            history: seen.history,
            origin_bytes: origin_bytes(None, partition),
        });
        sources.collect()
    }

    fn answer(self, tenant: TenantId, mut positions: Vec<Offset>, page: FairRead) -> TopicFetched {
        let FairRead { parts, first } = page;
        for part in &parts {
            positions[part.source] = part.next_offset;
        }
        let partitions = (0..).zip(&self.watermarks).zip(&positions);
        let partitions = partitions.map(|((partition, seen), next_offset)| PartitionEnds {
            partition,
            next_offset: *next_offset,
            log_start_offset: seen.log_start_offset,
            high_watermark: seen.high_watermark,
        });
        let partitions = partitions.collect();
        let part = |part: LogSlice| PartitionRecords {
            origin: origin(None, Partition::try_from(part.source).unwrap_or(Partition::MAX)),
            slices: part.slices,
        };
        let parts = parts.into_iter().map(part).collect();
        let cursor = TopicCursor { positions, first }.encode(tenant, self.topic.topic_id);
        TopicFetched { parts, partitions, cursor }
    }
}

/// The position of every partition. A position from a cursor must be within the log; a position
/// found in this read is kept as long as the log has it. New partitions start at their log start.
fn find_positions(
    cursor: &TopicCursor,
    context: &TopicReadContext,
    is_given: bool,
) -> Result<Vec<Offset>, Error> {
    let mut named = cursor.positions.iter();
    let position = |(partition, seen): (Partition, &Watermarks)| {
        let range = seen.log_start_offset..=seen.high_watermark;
        match named.next() {
            None => Ok(seen.log_start_offset),
            Some(named) if is_given && !range.contains(named) => {
                Err(out_of_range(partition, *named, seen))
            }
            Some(named) => Ok(*named.clamp(range.start(), range.end())),
        }
    };
    (0..).zip(&context.watermarks).map(position).collect()
}

fn invalid_cursor(topic: &Name) -> Error {
    let detail = format!(
        "This is not a valid cursor of topic {topic}: it is damaged, or belongs to another topic \
         or tenant, or to a deleted topic with this name. Send a cursor from an answer unchanged, \
         or none."
    );
    Error::new(Code::InvalidCursor, detail)
}

fn out_of_range(partition: Partition, offset: Offset, seen: &Watermarks) -> Error {
    let Watermarks { log_start_offset, high_watermark, .. } = *seen;
    let detail = format!(
        "The cursor is at offset {offset} of partition {partition}, which is outside the log: the \
         log start offset is {log_start_offset}, the high watermark is {high_watermark}. Earlier \
         records have been trimmed; start again without a cursor."
    );
    Error::new(Code::OffsetOutOfRange, detail)
        .fact("partition", partition)
        .fact("log_start_offset", log_start_offset)
        .fact("high_watermark", high_watermark)
}
