//! Reads of all partitions of a topic: fresh, fair, waiting without a connection, and including new
//! partitions. An answer is as of one instant, that of the last watermark query; a read that has
//! waited queries again.

use std::{sync::Arc, time::Duration};

use futures_util::stream::{StreamExt, TryStreamExt, iter};
use tokio::time::Instant;

use super::{
    GROUND_ATTEMPTS, RESOLVE_ATTEMPTS,
    budget::ReadBudget,
    fair::{LogSlice, Several, Source},
    watermarks::Watermarks,
};
use crate::{
    broker::{
        Broker, Error,
        wakeup::{
            Awaited, Wake, patient,
            watch::{Change, Observed},
        },
    },
    model::{
        Code, Name, Offset, Partition, TenantId, Timestamp,
        cursor::TopicCursor,
        read::{
            PartitionEnds, PartitionRecords, Start, TopicFetched, TopicRead, TopicStart, origin,
            origin_bytes,
        },
    },
    store::{self, catalog::topics::StoredTopic},
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
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(read.wait_ms);
        let (mut cursor, mut woken) = (None, None);
        let mut attempts = 0..GROUND_ATTEMPTS;
        while attempts.next().is_some() {
            let patience = if cursor.is_some() { deadline } else { begun };
            let ground = || self.topic_ground(tenant, topic, read.wait_ms > 0);
            let mut ground = patient(patience, ground).await?;
            if cursor.is_none() {
                cursor = self.beginning(tenant, &ground, &read.start).await?;
            }
            let Some(cursor) = &cursor else { continue };
            let is_given = matches!(read.start, TopicStart::Cursor(_));
            let positions = positions(cursor, &ground, is_given)?;
            let may_wait = Instant::now() < deadline && !self.draining();
            if may_wait && ground.is_read_up_to(&positions) {
                woken = match self.wait(tenant, &mut ground.awaited, deadline).await? {
                    Wake::Log(_, Observed { news: Change::Gone, .. }) => {
                        return Err(Error::topic_not_found(topic));
                    }
                    Wake::Log(index, heard) => Some(heard).filter(|_| index < positions.len()),
                    Wake::Nothing => None,
                };
                attempts.start = 0;
                continue;
            }
            let sources = ground.sources(&positions);
            let found = || async {
                let mut room = ReadBudget::new(read.limit, read.max_bytes);
                self.several(tenant, &sources, cursor.first, &mut room).await
            };
            // without: rows are gone since the look, so the ground is another
            let Some(found) = patient(deadline, found).await? else { continue };
            self.reads.answered(found.records(), found.size_bytes());
            if let Some(Observed { source, since, .. }) = woken {
                self.reads.woken(source, since);
            }
            return Ok(ground.answer(tenant, positions, found));
        }
        let what = format!("topic {topic} lacks expected rows");
        Err(Error::from(store::Error::Unexpected(what)))
    }

    /// Resolves the name, registers the watches, and queries the watermarks, in this order, so that
    /// no commit is missed. The cached name may be stale, but not older than the query.
    async fn topic_ground(
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
    async fn beginning(
        &self,
        tenant: TenantId,
        ground: &TopicReadContext,
        start: &TopicStart,
    ) -> Result<Option<TopicCursor>, Error> {
        let positions = match start {
            TopicStart::Earliest => Some(Vec::new()),
            TopicStart::Latest => {
                Some(ground.watermarks.iter().map(|seen| seen.high_watermark).collect())
            }
            TopicStart::Timestamp(instant) => self.search(tenant, ground, *instant).await?,
            TopicStart::Cursor(text) => {
                let cursor = TopicCursor::parse(text, tenant, ground.topic.topic_id);
                return cursor.map(Some).ok_or_else(|| invalid_cursor(&ground.topic.summary.topic));
            }
        };
        Ok(positions.map(|positions| TopicCursor { positions, first: 0 }))
    }

    async fn search(
        &self,
        tenant: TenantId,
        ground: &TopicReadContext,
        instant: Timestamp,
    ) -> Result<Option<Vec<Offset>>, Error> {
        let logs = ground.topic.logs.iter().zip(&ground.watermarks);
        let searches: Vec<_> = logs
            .map(|(log, seen)| self.position(tenant, *log, seen, Start::Timestamp(instant)))
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

    fn answer(self, tenant: TenantId, mut positions: Vec<Offset>, found: Several) -> TopicFetched {
        let Several { parts, first } = found;
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
fn positions(
    cursor: &TopicCursor,
    ground: &TopicReadContext,
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
    (0..).zip(&ground.watermarks).map(position).collect()
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
