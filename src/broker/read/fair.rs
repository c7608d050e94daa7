//! Reads records of one or several logs into one answer.
//!
//! FairRead logs share the budget: each with records first gets an equal share, at least one record
//! while the budget lasts, and unused shares go to logs with more records. What a log contributes
//! is always the beginning of its records, so the same positions return the same records again. The
//! first turn advances with every answer that has records, and never past a log that got nothing,
//! so each log gets its records within as many answers as there are logs.
//!
//! Records above the watermarks that this read saw are not returned, even if other reads have seen
//! them: the answer is as of the instant of its watermarks.

use std::sync::Arc;

use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::{
    budget::ReadBudget,
    page_cache::{Loaded, LogOf, PAGE_BYTES, Pages},
};
use crate::{
    broker::{Broker, Error},
    model::{
        LogId, Offset, TenantId,
        read::{BatchRow, Slice},
    },
    store::History,
};

/// Maximum number of logs with records in one answer, as each may cost a page.
const MAX_LOGS: usize = 100;
/// How many pages an answer loads concurrently.
const PAGES_AT_ONCE: usize = 4;
/// The pages of logs that share an answer hold enough for several such answers ...
const ANSWERS_PER_PAGE: usize = 4;
/// ... and at least this much.
const MIN_PAGE_BYTES: usize = 64 * 1024;
/// A read of at least this many bytes counts as a bulk read, for which the next page is prefetched.
const BULK_BYTES: usize = 64 * 1024;

/// A log to read from `from` on, which is within its watermarks.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    pub log: LogId,
    pub from: Offset,
    pub high_watermark: Offset,
    /// The history in which the watermark was read.
    pub history: History,
    /// The size of the origin in each of its lines.
    pub origin_bytes: usize,
}

/// The records of an answer from several sources.
#[derive(Debug, Default)]
pub struct FairRead {
    /// In the order in which they are answered.
    pub parts: Vec<LogSlice>,
    /// The source whose turn is first next time.
    pub first: usize,
}

/// The records of one source; empty if there are none before `next_offset`.
#[derive(Debug)]
pub struct LogSlice {
    /// The index of the source.
    pub source: usize,
    pub slices: Vec<Slice>,
    pub next_offset: Offset,
}

impl FairRead {
    pub fn has_records(&self) -> bool {
        self.parts.iter().any(|part| !part.slices.is_empty())
    }
}

impl LogSlice {
    pub fn records(&self) -> u64 {
        self.slices.iter().map(|slice| slice.record_count() as u64).sum()
    }

    pub fn size_bytes(&self) -> usize {
        self.slices.iter().map(|slice| slice.end - slice.start).sum()
    }
}

impl Broker {
    /// Reads records of several logs, starting with `first`, within the budget. None: rows of a log
    /// were removed since its watermarks were read.
    pub(in crate::broker) async fn fair_read(
        &self,
        tenant: TenantId,
        sources: &[Source],
        first: usize,
        budget: &mut ReadBudget,
    ) -> Result<Option<FairRead>, Error> {
        let first = if first < sources.len() { first } else { 0 };
        let in_turn = (first..sources.len()).chain(0..first);
        let active: Vec<usize> =
            in_turn.filter(|index| sources[*index].has_more(sources[*index].from)).collect();
        let Some(leader) = active.first() else {
            return Ok(Some(FairRead { parts: Vec::new(), first }));
        };
        let (limit, max_bytes) =
            (budget.free_records() / active.len(), budget.free_bytes() / active.len());
        let page_bytes = if active.len() == 1 {
            PAGE_BYTES
        } else {
            (max_bytes * ANSWERS_PER_PAGE).clamp(MIN_PAGE_BYTES, PAGE_BYTES)
        };
        let (seated, waiting) = active.split_at(active.len().min(MAX_LOGS));
        let reading = Reading { sources, pages: &self.pages, tenant, page_bytes };
        let mut turns = reading.begin(seated, budget.free_records()).await?;
        for turn in &mut turns {
            if budget.is_full() {
                break;
            }
            let mut share = budget.part(limit.max(1), max_bytes);
            if !reading.take(turn, &mut share).await? {
                return Ok(None);
            }
            budget.add(&share);
        }
        for turn in turns.iter_mut().filter(|_| active.len() > 1) {
            if budget.is_full() {
                break;
            }
            let mut rest = budget.part(usize::MAX, usize::MAX);
            reading.take(turn, &mut rest).await?;
            budget.add(&rest);
        }
        let without = turns.iter().find(|turn| turn.slices.is_empty()).map(|turn| turn.source);
        let first = without.or(waiting.first().copied()).unwrap_or((leader + 1) % sources.len());
        let parts: Vec<LogSlice> =
            turns.into_iter().filter_map(|turn| turn.into_slice(sources)).collect();
        for part in parts.iter().filter(|part| part.size_bytes() >= BULK_BYTES) {
            let source = &sources[part.source];
            let log = source.log_of(tenant);
            self.pages.read_ahead(log, part.next_offset, source.high_watermark);
        }
        Ok(Some(FairRead { parts, first }))
    }
}

impl Source {
    fn has_more(&self, next: Offset) -> bool {
        next < self.high_watermark
    }

    fn log_of(&self, tenant: TenantId) -> LogOf {
        LogOf { history: self.history, tenant, log: self.log }
    }
}

/// A source with its share of an answer.
struct Turn {
    source: usize,
    next: Offset,
    slices: Vec<Slice>,
    /// Where it continues.
    page: Option<Loaded>,
}

impl Turn {
    /// What it contributes, if it has advanced, by records or over a gap.
    fn into_slice(self, sources: &[Source]) -> Option<LogSlice> {
        let Turn { source, next: next_offset, slices, .. } = self;
        (next_offset > sources[source].from).then_some(LogSlice { source, slices, next_offset })
    }
}

/// Reads the sources of an answer.
struct Reading<'a> {
    sources: &'a [Source],
    pages: &'a Pages,
    tenant: TenantId,
    page_bytes: usize,
}

impl Reading<'_> {
    /// Gives each of these sources a turn; the first one comes with its loaded page.
    async fn begin(&self, sources: &[usize], first: usize) -> Result<Vec<Turn>, Error> {
        let turns: Vec<_> = (0..).zip(sources).map(|(n, s)| self.turn(*s, n < first)).collect();
        iter(turns).buffered(PAGES_AT_ONCE).try_collect().await
    }

    async fn turn(&self, source: usize, with_page: bool) -> Result<Turn, Error> {
        let next = self.sources[source].from;
        let page = match with_page {
            true => self.page(&self.sources[source], next).await?,
            false => None,
        };
        Ok(Turn { source, next, slices: Vec::new(), page })
    }

    async fn page(&self, source: &Source, next: Offset) -> Result<Option<Loaded>, Error> {
        let log = source.log_of(self.tenant);
        self.pages.covering(log, next, source.high_watermark, self.page_bytes).await
    }

    /// Takes what fits into the budget. False: nothing has been taken yet, and the rows are gone.
    async fn take(&self, turn: &mut Turn, budget: &mut ReadBudget) -> Result<bool, Error> {
        let source = &self.sources[turn.source];
        while source.has_more(turn.next) && budget.free_records() > 0 {
            let page = turn.page.take().filter(|page| covers(page, turn.next));
            turn.page = match page {
                None => self.page(source, turn.next).await?,
                page => page,
            };
            let Some(page) = turn.page.as_ref().and_then(|page| page.get()) else {
                return Ok(turn.next > source.from);
            };
            let begin = page.rows.partition_point(|row| !row.reaches(turn.next));
            let seen = |row: &&Arc<BatchRow>| row.base_offset < source.high_watermark;
            for row in page.rows[begin..].iter().take_while(seen) {
                let Some(slice) = budget.take(row, turn.next, source.origin_bytes) else {
                    return Ok(true);
                };
                turn.next = slice.end_offset;
                turn.slices.push(slice);
                if turn.next < row.end() {
                    return Ok(true);
                }
            }
            // behind its last record there is nothing up to where the page ends
            turn.next = turn.next.max(page.end.min(source.high_watermark));
        }
        Ok(true)
    }
}

fn covers(page: &Loaded, offset: Offset) -> bool {
    page.get().is_some_and(|page| page.end > offset)
}
