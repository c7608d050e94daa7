//! Rows below the high watermark never change, so all readers share them: pages of a log, found by
//! any offset they cover, each read from the database once however many wait for it, and forgotten
//! least recently used first. Who reads in bulk has the page after his loaded while he is busy.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use metrics::Counter;
use tokio::sync::OnceCell;

use super::Error;
use crate::{
    model::{LogId, Offset, TenantId, transfer::Row},
    store::{self, Store},
    telemetry,
};

/// A page takes rows until it has this many bytes of lines ...
pub const PAGE_BYTES: usize = 512 * 1024;
/// ... or covers this many offsets.
const PAGE_RECORDS: i64 = 4_096;
/// What a page or a row costs beside its lines.
const OVERHEAD_BYTES: usize = 256;

/// Neighbouring rows.
pub struct Page {
    pub rows: Vec<Arc<Row>>,
    /// The offset behind its last record.
    pub end: Offset,
}

/// A page that is there.
pub type Loaded = Arc<OnceCell<Page>>;

#[derive(Clone)]
struct Entry {
    page: Arc<OnceCell<Page>>,
    last_used: u64,
    /// 0 until it is loaded.
    size_bytes: usize,
}

type Key = (LogId, Offset);

#[derive(Default)]
struct Shelf {
    pages: BTreeMap<Key, Entry>,
    by_use: BTreeMap<u64, Key>,
    size_bytes: usize,
    clock: u64,
}

pub struct Pages {
    store: Store,
    capacity_bytes: usize,
    shelf: Mutex<Shelf>,
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
            shelf: Mutex::default(),
            hits: lookups("hit"),
            misses: lookups("miss"),
            loaded_bytes: metrics::counter!(telemetry::PAGE_LOADED_BYTES_TOTAL),
            evictions: metrics::counter!(telemetry::PAGE_EVICTIONS_TOTAL),
        }
    }

    /// Memory in use.
    pub fn size_bytes(&self) -> usize {
        self.shelf().size_bytes
    }

    /// A page that covers `from`, which must be below `high_watermark`, a watermark seen before.
    /// None: no row holds `from`; it was trimmed, or its topic deleted, since the watermarks were
    /// seen. `size_bytes`: of the page, if it is to be loaded.
    pub async fn covering(
        &self,
        tenant: TenantId,
        log: LogId,
        from: Offset,
        high_watermark: Offset,
        size_bytes: usize,
    ) -> Result<Option<Loaded>, Error> {
        let (key, cell) = self.shelf().find(log, from);
        if cell.initialized() { &self.hits } else { &self.misses }.increment(1);
        let load = || async {
            let to = high_watermark.min(from + PAGE_RECORDS);
            let size_bytes = i64::try_from(size_bytes).unwrap_or(i64::MAX);
            let read = self.store.run(move |connection| {
                Box::pin(store::reads::rows(connection, tenant, log, from, to, size_bytes))
            });
            let rows = read.await.map_err(|error| Some(Error::from(error)))?;
            self.loaded_bytes.increment(rows.iter().map(|row| row.lines.len() as u64).sum());
            // the first row may lie behind `from`: what lay before it has been trimmed
            let holds = rows.first().is_some_and(|row| row.base_offset <= from);
            let end = rows.last().map_or(from, |row| row.base_offset + row.record_count);
            if holds && end > from { Ok(Page { rows, end }) } else { Err(None) }
        };
        match cell.get_or_try_init(load).await {
            Ok(page) => {
                let evicted = self.shelf().loaded(key, page, self.capacity_bytes);
                self.evictions.increment(evicted);
                Ok(Some(cell))
            }
            Err(failed) => {
                self.shelf().drop_empty(key);
                failed.map_or(Ok(None), Err)
            }
        }
    }

    /// Loads the page after the one that covers `from` in the background, if it is not there.
    pub fn read_ahead(
        self: &Arc<Self>,
        tenant: TenantId,
        log: LogId,
        from: Offset,
        high_watermark: Offset,
    ) {
        let missing = self.shelf().first_missing(log, from);
        if missing < high_watermark {
            let pages = self.clone();
            // whoever wants the page loads it again if this fails
            tokio::spawn(async move {
                pages.covering(tenant, log, missing, high_watermark, PAGE_BYTES).await
            });
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    /// The page that covers an offset, or an empty one to be loaded from there on.
    fn find(&mut self, log: LogId, from: Offset) -> (Key, Arc<OnceCell<Page>>) {
        let before = self.pages.range(..=(log, from)).next_back();
        let covering = before.filter(|((found, start), entry)| {
            let end = entry.page.get().map(|page| page.end);
            *found == log && end.map_or(*start == from, |end| end > from)
        });
        let key = covering.map_or((log, from), |(key, _)| *key);
        self.clock += 1;
        let clock = self.clock;
        let entry = self.pages.entry(key).or_insert_with(|| Entry {
            page: Arc::default(),
            last_used: clock,
            size_bytes: 0,
        });
        self.by_use.remove(&entry.last_used);
        entry.last_used = clock;
        self.by_use.insert(clock, key);
        (key, entry.page.clone())
    }

    /// The end of the page that covers an offset, or that offset; `Offset::MAX` if the page there
    /// is loaded or being loaded.
    fn first_missing(&self, log: LogId, from: Offset) -> Offset {
        let before = self.pages.range(..=(log, from)).next_back();
        let page = before.filter(|((found, _), _)| *found == log);
        let end = page.and_then(|(_, entry)| entry.page.get()).map(|page| page.end);
        let missing = end.map_or(from, |end| end.max(from));
        if self.pages.contains_key(&(log, missing)) { Offset::MAX } else { missing }
    }

    /// Makes room for a page; answers how many had to go.
    fn loaded(&mut self, key: Key, page: &Page, capacity_bytes: usize) -> u64 {
        let Some(entry) = self.pages.get_mut(&key) else { return 0 };
        if entry.size_bytes == 0 {
            let rows = page.rows.iter().map(|row| row.lines.len() + OVERHEAD_BYTES);
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

    fn drop_empty(&mut self, key: Key) {
        if self.pages.get(&key).is_some_and(|entry| entry.page.get().is_none())
            && let Some(entry) = self.pages.remove(&key)
        {
            self.by_use.remove(&entry.last_used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_after_is_loaded_once() {
        let (log, other) = (LogId(1), LogId(2));
        let mut shelf = Shelf::default();
        let mut load = |log, from, end| {
            let page = Page { rows: Vec::new(), end };
            assert!(shelf.find(log, from).1.set(page).is_ok());
        };
        load(log, 0, 10);
        load(log, 10, 20);
        load(other, 0, 5);
        assert_eq!(shelf.first_missing(log, 4), Offset::MAX, "its next page is there");
        assert_eq!(shelf.first_missing(log, 14), 20);
        assert_eq!(shelf.first_missing(log, 20), 20);
        assert_eq!(shelf.first_missing(other, 3), 5);
        assert_eq!(shelf.first_missing(LogId(3), 7), 7);
        // being loaded
        shelf.find(log, 20);
        assert_eq!(shelf.first_missing(log, 14), Offset::MAX);
    }
}
