//! Rows of tables, read page by page through one small cache. The writer's look-ups and every restore read
//! tables through here.
//!
//! Invariant: the cache holds opened bytes up to its cap, whatever the table's size; nothing is read before a
//! row is asked for.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Catalog, Epoch, Error, Layer, Result, Row, State, StateObject,
    sink::{OBJECT_MAX, Range},
};
use lru::LruCache;

use crate::{
    chain::Access,
    layer::{END_READ, End, Merge, PAGE_BYTES, PageRows, StateIndex, Step},
};

/// Opened bytes that the cache may hold by default.
pub const CACHE_BYTES: usize = 16 << 20;
/// Pages that one read brings at most, when rows are read in order.
const AHEAD_MAX: usize = 16;
/// Objects whose reading order is remembered.
const HINTS: usize = 64;

type ObjectKey = (Epoch, u64);

/// Reads table layers of one stream.
pub struct Tables {
    access: Access,
    cache: Mutex<Cache>,
}

struct Cache {
    held: LruCache<(ObjectKey, Option<usize>), Cached>,
    bytes: usize,
    cap: usize,
    /// Page expected next and pages brought by the last read, of objects read lately.
    hints: VecDeque<(ObjectKey, usize, usize)>,
}

#[derive(Clone)]
enum Cached {
    Index(Arc<StateIndex>),
    Page(Bytes),
}

impl Cached {
    fn bytes(&self) -> usize {
        match self {
            Self::Index(index) => index.bytes(),
            Self::Page(page) => page.len() + 128,
        }
    }
}

impl Tables {
    pub fn new(access: Access, cache_bytes: usize) -> Self {
        let cache = Cache { held: LruCache::unbounded(), bytes: 0, cap: cache_bytes, hints: VecDeque::new() };
        Self { access, cache: Mutex::new(cache) }
    }

    /// Rows with keys from `from` on, merged over the layers, at most `limit`.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when one is damaged or missing.
    pub async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> Result<Vec<Row>> {
        let mut scan = self.scan(layers, from);
        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some(row) = scan.next().await?
        {
            rows.push(row);
        }
        Ok(rows)
    }

    /// All rows from `from` on, one at a time: for merging layers and for long reads.
    pub fn scan<'a>(&'a self, layers: &'a [Layer], from: &[u8]) -> Scan<'a> {
        let lanes = layers.iter().map(|layer| Lane { layer, object: 0, page: None }).collect();
        let from = Bytes::copy_from_slice(from);
        Scan { tables: self, merge: Merge::new(layers.len(), from.clone()), lanes, from }
    }

    async fn index(&self, object: &StateObject) -> Result<Arc<StateIndex>> {
        let key = (object.epoch, object.number);
        if let Some(Cached::Index(index)) = self.cache().get(key, None) {
            return Ok(index);
        }
        if object.bytes > OBJECT_MAX as u64 {
            let name = self.access.stream.state(object.epoch, object.number);
            return Err(Error::corrupt(format!("{name} is said to be larger than any object")));
        }
        let mut length = END_READ.min(object.bytes);
        loop {
            let end = self.read(object, object.bytes.saturating_sub(length), length).await?;
            match StateIndex::read(&self.access.source_key, self.access.stream, object, &end)? {
                End::Index(index) => {
                    let index = Arc::new(index);
                    self.cache().put(key, None, Cached::Index(index.clone()));
                    return Ok(index);
                }
                End::More(more) if more > length => length = more,
                End::More(_) => return Err(Error::bug("the end of a layer was asked for twice")),
            }
        }
    }

    async fn page(&self, object: &StateObject, index: &StateIndex, page: usize) -> Result<Bytes> {
        let key = (object.epoch, object.number);
        let ahead = {
            let mut cache = self.cache();
            if let Some(Cached::Page(page)) = cache.get(key, Some(page)) {
                return Ok(page);
            }
            cache.ahead(key, page)
        };
        let last = (page + ahead).min(index.pages()).saturating_sub(1).max(page);
        let extents = index.extent(page).zip(index.extent(last));
        let ((from, _), (end, length)) = extents.ok_or_else(|| Error::bug("a page that a layer has not"))?;
        let sealed = self.read(object, from, end + length - from).await?;
        let mut first = None;
        let mut at = 0;
        for number in page..=last {
            let length = index.extent(number).map_or(0, |(_, length)| length as usize);
            let opened = index.open(number, sealed.get(at..at + length).unwrap_or_default());
            at += length;
            // Damage to a page that nobody asked for is not yet an error.
            match opened {
                Ok(opened) => {
                    self.cache().put(key, Some(number), Cached::Page(opened.clone()));
                    first.get_or_insert(opened);
                }
                Err(error) if number == page => return Err(error),
                Err(_) => break,
            }
        }
        first.ok_or_else(|| Error::bug("a page that was read is gone"))
    }

    async fn read(&self, object: &StateObject, from: u64, length: u64) -> Result<Bytes> {
        let name = self.access.stream.state(object.epoch, object.number);
        let range = Range::Part { from, length };
        let bytes = self.access.sink.read(&name, range).await?;
        bytes.ok_or_else(|| {
            Error::corrupt(format!(
                "{name} is missing from {}: the tables that need it cannot be read",
                self.access.sink.address()
            ))
        })
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    fn get(&mut self, object: ObjectKey, page: Option<usize>) -> Option<Cached> {
        self.held.get(&(object, page)).cloned()
    }
    fn put(&mut self, object: ObjectKey, page: Option<usize>, cached: Cached) {
        self.bytes += cached.bytes();
        if let Some(old) = self.held.put((object, page), cached) {
            self.bytes -= old.bytes();
        }
        while self.bytes > self.cap
            && let Some((_, old)) = self.held.pop_lru()
        {
            self.bytes -= old.bytes();
        }
    }
    /// How many pages to read from `page` on: twice as many as before when they are read in order.
    fn ahead(&mut self, object: ObjectKey, page: usize) -> usize {
        let known = self.hints.iter().position(|(of, ..)| *of == object).and_then(|at| self.hints.remove(at));
        let most = AHEAD_MAX.min(self.cap / (4 * PAGE_BYTES)).max(1);
        let ahead = match known {
            Some((_, next, before)) if next == page => (before * 2).min(most),
            _ => 1,
        };
        self.hints.push_back((object, page + ahead, ahead));
        if self.hints.len() > HINTS {
            self.hints.pop_front();
        }
        ahead
    }
}

/// Rows of a table in key order. Holds one page a layer.
pub struct Scan<'a> {
    tables: &'a Tables,
    merge: Merge,
    lanes: Vec<Lane<'a>>,
    from: Bytes,
}

struct Lane<'a> {
    layer: &'a Layer,
    object: usize,
    /// Next page of that object; `None` before its first.
    page: Option<usize>,
}

impl Scan<'_> {
    pub async fn next(&mut self) -> Result<Option<Row>> {
        loop {
            match self.merge.step()? {
                Step::Row(row) => return Ok(Some(row)),
                Step::End => return Ok(None),
                Step::Feed(at) => {
                    let page = match self.lanes.get_mut(at) {
                        Some(lane) => lane.next(self.tables, &self.from).await?,
                        None => None,
                    };
                    self.merge.feed(at, page.map(PageRows::new));
                }
            }
        }
    }
}

impl Lane<'_> {
    async fn next(&mut self, tables: &Tables, from: &[u8]) -> Result<Option<Bytes>> {
        while let Some(object) = self.layer.objects.get(self.object) {
            if object.last[..] >= *from {
                let index = tables.index(object).await?;
                let page = self.page.unwrap_or_else(|| index.find(from));
                if page < index.pages() {
                    self.page = Some(page + 1);
                    return tables.page(object, &index, page).await.map(Some);
                }
            }
            self.object += 1;
            self.page = None;
        }
        Ok(None)
    }
}

/// The tables as of the head of a stream: what a tailer looks its own state up in.
pub struct TableReader {
    tables: Arc<Tables>,
    catalog: Mutex<Arc<Catalog>>,
}

impl TableReader {
    pub fn new(tables: Arc<Tables>, catalog: Arc<Catalog>) -> Self {
        Self { tables, catalog: Mutex::new(catalog) }
    }
    /// The stream went on.
    pub fn set(&self, catalog: Arc<Catalog>) {
        *self.catalog.lock().unwrap_or_else(PoisonError::into_inner) = catalog;
    }
}

#[async_trait]
impl State for TableReader {
    fn catalog(&self) -> Arc<Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> Result<Vec<Row>> {
        self.tables.rows(layers, from, limit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_below_its_cap_and_counts_what_it_holds() {
        let mut cache = Cache { held: LruCache::unbounded(), bytes: 0, cap: 5000, hints: VecDeque::new() };
        let object = (Epoch::numbered(1), 7);
        for page in [3, 4, 3, 9, 60, 4, 5, 3, 9].into_iter().chain(0..100) {
            cache.put(object, Some(page), Cached::Page(Bytes::from(vec![0; page * 10])));
            let held: usize = cache.held.iter().map(|(_, cached)| cached.bytes()).sum();
            assert_eq!(cache.bytes, held);
            assert!((1..=5000).contains(&held), "{held}");
            assert!(cache.get(object, Some(page)).is_some());
        }
    }
}
