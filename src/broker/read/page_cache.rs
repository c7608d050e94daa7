//! The page cache. Rows below the high watermark change only by compaction, so all readers share
//! them in pages, which are found by any offset they cover, including gaps. Each page is read from
//! the database once, however many readers wait for it, and evicted by least recent use. Bulk
//! readers get the next page prefetched.
//!
//! A page belongs to one history of the database, and is returned only to reads that saw the log's
//! watermarks in the same history.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use metrics::Counter;
use tokio::sync::OnceCell;

use crate::{
    broker::Error,
    model::{LogId, Offset, TenantId, read::BatchRow},
    rules::compaction::PAGE_LIFE_MS,
    store::{self, History, Store},
    telemetry,
};

/// A page takes rows until it has this many bytes of lines ...
pub const PAGE_BYTES: usize = 512 * 1024;
/// ... or covers this many offsets.
const PAGE_RECORDS: i64 = 4_096;
/// Maximum number of rows of a page after a gap: there its offsets do not limit their number.
const SPARSE_ROWS: i64 = 1_000;
/// A page older than this is read again: a tombstone may be removed by compaction, but the records
/// that it deletes must not be served for longer.
const PAGE_LIFE: Duration = Duration::from_millis(PAGE_LIFE_MS.unsigned_abs());
/// The memory of a page or a row beside its lines.
const OVERHEAD_BYTES: usize = 256;

/// Consecutive rows.
pub struct CachedPage {
    pub rows: Vec<Arc<BatchRow>>,
    /// The offset after its last record, and after the gap that follows, as far as known.
    pub end: Offset,
}

/// A page that is loaded or being loaded.
pub type Loaded = Arc<OnceCell<CachedPage>>;

#[derive(Clone)]
struct CacheEntry {
    page: Arc<OnceCell<CachedPage>>,
    last_used: u64,
    made_at: Instant,
    /// 0 until it is loaded.
    size_bytes: usize,
}

impl CacheEntry {
    fn is_outdated(&self) -> bool {
        self.made_at.elapsed() > PAGE_LIFE
    }
}

/// A log in one history; its id may be assigned again in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogOf {
    pub history: History,
    pub tenant: TenantId,
    pub log: LogId,
}

type PageKey = (LogOf, Offset);

#[derive(Default)]
struct PageIndex {
    pages: BTreeMap<PageKey, CacheEntry>,
    by_use: BTreeMap<u64, PageKey>,
    size_bytes: usize,
    clock: u64,
}

pub struct Pages {
    store: Store,
    capacity_bytes: usize,
    index: Mutex<PageIndex>,
    hits: Counter,
    misses: Counter,
    loaded_bytes: Counter,
    evictions: Counter,
}

impl Pages {
    pub fn new(store: Store, capacity_bytes: usize) -> Self {
        let lookups = |result: &'static str| metrics::counter!(telemetry::PAGE_LOOKUPS_TOTAL, "result" => result);
        Self {
            store,
            capacity_bytes,
            index: Mutex::default(),
            hits: lookups("hit"),
            misses: lookups("miss"),
            loaded_bytes: metrics::counter!(telemetry::PAGE_LOADED_BYTES_TOTAL),
            evictions: metrics::counter!(telemetry::PAGE_EVICTIONS_TOTAL),
        }
    }

    /// The memory in use.
    pub fn size_bytes(&self) -> usize {
        self.index().size_bytes
    }

    /// Returns a page that covers `from`, which must be below `high_watermark`, a watermark read
    /// before. None: no row contains `from`, because since then it was trimmed, its topic deleted,
    /// or its history ended. `size_bytes` is the size of the page, if it must be loaded.
    pub async fn covering(
        &self,
        log: LogOf,
        from: Offset,
        high_watermark: Offset,
        size_bytes: usize,
    ) -> Result<Option<Loaded>, Error> {
        let (key, cell) = self.index().find(log, from);
        if cell.initialized() { &self.hits } else { &self.misses }.increment(1);
        let load = || async {
            match self.load(log, from, high_watermark, size_bytes).await {
                Ok(Some(page)) => Ok(page),
                // another server answers
                Ok(None) | Err(store::Error::Contended(_)) => Err(None),
                Err(error) => Err(Some(Error::from(error))),
            }
        };
        match cell.get_or_try_init(load).await {
            Ok(page) => {
                let evicted = self.index().loaded(key, page, self.capacity_bytes);
                self.evictions.increment(evicted);
                Ok(Some(cell))
            }
            Err(failed) => {
                self.index().drop_empty(key);
                failed.map_or(Ok(None), Err)
            }
        }
    }

    /// Reads a window of rows; if it ends in a gap, also the rows after the gap.
    async fn load(
        &self,
        log: LogOf,
        from: Offset,
        high_watermark: Offset,
        size_bytes: usize,
    ) -> Result<Option<CachedPage>, store::Error> {
        let to = high_watermark.min(from + PAGE_RECORDS);
        let Read { mut rows, mut end } =
            self.rows(log, (from, to), size_bytes, PAGE_RECORDS).await?;
        let holds = rows.first().is_some_and(|row| row.base_offset <= from);
        let is_dense = holds && rows.last().is_some_and(|row| row.end() >= end);
        if is_dense {
            return Ok(Some(CachedPage { rows, end }));
        }
        // compacted; or trimmed or deleted since the watermarks were seen
        let LogOf { history: History { server, .. }, tenant, log: id } = log;
        let read = self.store.of(tenant).run(async move |connection| {
            store::read::is_compacted(connection, tenant, id, from, server).await
        });
        if !read.await? {
            return Ok(None);
        }
        let left_bytes = size_bytes.saturating_sub(size_of(&rows));
        if end == to && end < high_watermark && left_bytes > 0 {
            let range = (end, high_watermark);
            let more = self.rows(log, range, left_bytes, SPARSE_ROWS).await?;
            rows.extend(more.rows);
            end = more.end;
        }
        Ok(Some(CachedPage { rows, end }))
    }

    /// Reads the rows of a range within the limits; also returns how far there are no others.
    async fn rows(
        &self,
        LogOf { history: History { server, .. }, tenant, log }: LogOf,
        (from, to): (Offset, Offset),
        max_bytes: usize,
        limit: i64,
    ) -> Result<Read, store::Error> {
        let bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
        let read = self.store.of(tenant).run(async move |connection| {
            let most = (bytes, limit);
            store::read::rows(connection, tenant, log, (from, to), most, server).await
        });
        let rows = read.await?;
        let size_bytes = size_of(&rows);
        self.loaded_bytes.increment(size_bytes as u64);
        let is_full = size_bytes >= max_bytes || rows.len() as i64 >= limit;
        let end = match rows.last() {
            Some(last) if is_full => last.end(),
            last => last.map_or(to, |last| last.end().max(to)),
        };
        Ok(Read { rows, end })
    }

    /// Loads the page after the one that covers `from` in the background, unless it is cached.
    pub fn read_ahead(self: &Arc<Self>, log: LogOf, from: Offset, high_watermark: Offset) {
        let missing = self.index().first_missing(log, from);
        if missing < high_watermark {
            let pages = self.clone();
            // a read that needs the page loads it again if this fails
            tokio::spawn(
                async move { pages.covering(log, missing, high_watermark, PAGE_BYTES).await },
            );
        }
    }

    fn index(&self) -> MutexGuard<'_, PageIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rows as they were read.
struct Read {
    rows: Vec<Arc<BatchRow>>,
    /// There are no other rows before this offset.
    end: Offset,
}

/// Bytes of their lines.
fn size_of(rows: &[Arc<BatchRow>]) -> usize {
    rows.iter().map(|row| row.lines.len()).sum()
}

impl PageIndex {
    /// Returns the page that covers an offset, or an empty one to be loaded from there on.
    fn find(&mut self, log: LogOf, from: Offset) -> (PageKey, Arc<OnceCell<CachedPage>>) {
        let before = self.pages.range(..=(log, from)).next_back();
        let covering = before.filter(|((found, start), entry)| {
            let end = entry.page.get().map(|page| page.end);
            let covers = *found == log && end.map_or(*start == from, |end| end > from);
            covers && !entry.is_outdated()
        });
        let key = covering.map_or((log, from), |(key, _)| *key);
        if self.pages.get(&key).is_some_and(CacheEntry::is_outdated) {
            self.remove(key);
        }
        self.clock += 1;
        let clock = self.clock;
        let entry = self.pages.entry(key).or_insert_with(|| CacheEntry {
            page: Arc::default(),
            last_used: clock,
            made_at: Instant::now(),
            size_bytes: 0,
        });
        self.by_use.remove(&entry.last_used);
        entry.last_used = clock;
        self.by_use.insert(clock, key);
        (key, entry.page.clone())
    }

    /// Returns the end of the page that covers an offset, or that offset; `Offset::MAX` if the page
    /// there is loaded or being loaded.
    fn first_missing(&self, log: LogOf, from: Offset) -> Offset {
        let before = self.pages.range(..=(log, from)).next_back();
        let page = before.filter(|((found, _), _)| *found == log);
        let end = page.and_then(|(_, entry)| entry.page.get()).map(|page| page.end);
        let missing = end.map_or(from, |end| end.max(from));
        if self.pages.contains_key(&(log, missing)) { Offset::MAX } else { missing }
    }

    /// Evicts pages to make room for one; returns how many.
    fn loaded(&mut self, key: PageKey, page: &CachedPage, capacity_bytes: usize) -> u64 {
        let Some(entry) = self.pages.get_mut(&key) else { return 0 };
        if entry.size_bytes == 0 {
            let places = |row: &BatchRow| row.kept.as_ref().map_or(0, |kept| kept.count() * 4);
            let size = |row: &Arc<BatchRow>| row.lines.len() + places(row) + OVERHEAD_BYTES;
            let rows = page.rows.iter().map(size);
            entry.size_bytes = OVERHEAD_BYTES + rows.sum::<usize>();
            self.size_bytes += entry.size_bytes;
        }
        let mut evicted = 0;
        while self.size_bytes > capacity_bytes
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            let gone = self.pages.remove(&oldest);
            self.size_bytes -= gone.map_or(0, |entry| entry.size_bytes);
            evicted += 1;
        }
        evicted
    }

    fn drop_empty(&mut self, key: PageKey) {
        if self.pages.get(&key).is_some_and(|entry| entry.page.get().is_none()) {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: PageKey) {
        if let Some(entry) = self.pages.remove(&key) {
            self.by_use.remove(&entry.last_used);
            self.size_bytes -= entry.size_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(id: i64) -> LogOf {
        LogOf { history: History::default(), tenant: TenantId(1), log: LogId(id) }
    }

    #[test]
    fn the_page_after_is_loaded_once() {
        let (log, other) = (log(1), log(2));
        let mut index = PageIndex::default();
        let mut load = |log, from, end| {
            let page = CachedPage { rows: Vec::new(), end };
            assert!(index.find(log, from).1.set(page).is_ok());
        };
        load(log, 0, 10);
        load(log, 10, 20);
        load(other, 0, 5);
        assert_eq!(index.first_missing(log, 4), Offset::MAX, "its next page is there");
        assert_eq!(index.first_missing(log, 14), 20);
        assert_eq!(index.first_missing(log, 20), 20);
        assert_eq!(index.first_missing(other, 3), 5);
        assert_eq!(index.first_missing(LogOf { log: LogId(3), ..log }, 7), 7);
        assert_eq!(index.first_missing(LogOf { tenant: TenantId(2), ..log }, 7), 7);
        // being loaded
        index.find(log, 20);
        assert_eq!(index.first_missing(log, 14), Offset::MAX);
    }

    #[test]
    fn an_outdated_page_is_read_anew() {
        let log = log(1);
        let mut index = PageIndex::default();
        let (key, cell) = index.find(log, 0);
        assert!(cell.set(CachedPage { rows: Vec::new(), end: 10 }).is_ok());
        index.loaded(key, cell.get().unwrap(), 1 << 20);
        assert!(index.find(log, 4).1.initialized());
        let long_ago = Instant::now().checked_sub(PAGE_LIFE + Duration::from_secs(1));
        index.pages.get_mut(&key).unwrap().made_at = long_ago.unwrap();
        // from within, and from its start
        assert!(!index.find(log, 4).1.initialized());
        assert_eq!(index.size_bytes, OVERHEAD_BYTES);
        assert!(!index.find(log, 0).1.initialized());
        assert_eq!(index.size_bytes, 0);
    }
}
