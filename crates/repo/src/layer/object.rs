//! The table-layer object, `state/<epoch>/<number>`: building it. Owns its layout (FORMAT.md, «state»):
//!
//! ```text
//! magic | page 0 … page n-1 | summary | index | trailer
//! ```
//!
//! Pages, summary and index are sealed each by itself, under keys of their own derived from the source key,
//! the object's salt and their place in it, with the object's name as associated data. Readers take the end
//! of the object in one ranged read (index and trailer), then single pages.

use std::collections::BTreeMap;

use bytes::Bytes;
use holdfast_core::{Epoch, Error, PackId, Random, Result, Row, StateObject, sink::Body};
use serde::{Deserialize, Serialize};

use super::page::{PAGE_MAX, PageBuilder};
use crate::{
    names::Stream,
    seal::{self, Key, purpose},
    trailer::{self, TRAILER, Trailer},
    wire::Reader,
};

const MAGIC: [u8; 8] = *b"HFstate1";
/// An object is closed when its opened pages reach this many bytes.
const STATE_BYTES: usize = 24 << 20;
/// Pages of one object, and the opened bytes of its index and of its summary, at most.
const PAGES_MAX: usize = 16 << 10;
const INDEX_MAX: usize = 16 << 20;
/// What a reader asks for first: the trailer and, nearly always, the whole index.
pub const END_READ: u64 = 64 << 10;

/// A part of an object, as it enters the derivation of its key.
#[derive(Clone, Copy)]
enum Part {
    Page(u32),
    Summary,
    Index,
}

/// What binds the parts of one object together.
struct Binding {
    source: Key,
    name: String,
    salt: [u8; 16],
}

impl Binding {
    fn key(&self, part: Part) -> Key {
        let (kind, number) = match part {
            Part::Page(number) => (0, number),
            Part::Summary => (1, 0),
            Part::Index => (2, 0),
        };
        let mut salt = [0; 21];
        salt[..16].copy_from_slice(&self.salt);
        salt[16] = kind;
        salt[17..].copy_from_slice(&number.to_le_bytes());
        self.source.derive(purpose::LAYER, &salt)
    }
    fn seal(&self, part: Part, plain: &[u8]) -> Result<Vec<u8>> {
        seal::seal(&self.key(part), self.name.as_bytes(), plain)
    }
    fn open(&self, part: Part, sealed: &[u8], cap: usize) -> Result<Vec<u8>> {
        seal::open(&self.key(part), self.name.as_bytes(), sealed, cap)
            .map_err(|error| error.during(format!("{} is damaged", self.name)))
    }
    fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!("{} is damaged: {what}", self.name))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PageEntry {
    first: Bytes,
    rows: u32,
    length: u32,
}

/// Sealed bytes of each pack that the rows of an object name (an extent named twice counts twice).
pub type Summary = BTreeMap<PackId, u64>;

/// Builds one object from rows in ascending order.
pub struct StateBuilder {
    binding: Binding,
    epoch: Epoch,
    number: u64,
    page: PageBuilder,
    pages: Vec<PageEntry>,
    parts: Vec<Bytes>,
    opened: usize,
    summary: Summary,
    keys: Option<(Bytes, Bytes)>,
    rows: u64,
}

impl StateBuilder {
    pub fn new(source: &Key, stream: Stream, epoch: Epoch, number: u64, random: &Random) -> Self {
        let name = stream.state(epoch, number);
        Self {
            binding: Binding { source: source.clone(), name, salt: random.array() },
            epoch,
            number,
            page: PageBuilder::default(),
            pages: Vec::new(),
            parts: vec![Bytes::from_static(&MAGIC)],
            opened: 0,
            summary: Summary::new(),
            keys: None,
            rows: 0,
        }
    }

    /// # Errors
    /// `Bug` when keys do not ascend; `Configure` when the row is too large for a table.
    pub fn push(&mut self, row: &Row) -> Result<()> {
        if self.keys.as_ref().is_some_and(|(_, last)| row.key <= *last) {
            return Err(Error::bug("rows came to a table layer out of order"));
        }
        self.page.push(row)?;
        match &mut self.keys {
            Some((_, last)) => *last = row.key.clone(),
            None => self.keys = Some((row.key.clone(), row.key.clone())),
        }
        self.rows += 1;
        for held in &row.held {
            *self.summary.entry(held.extent.pack).or_default() += u64::from(held.extent.length);
        }
        if self.page.is_full() {
            self.close_page()?;
        }
        Ok(())
    }

    /// Time to [`Self::finish`] and go on in the next object.
    pub fn is_full(&self) -> bool {
        self.opened + self.page.len() >= STATE_BYTES || self.pages.len() + 1 >= PAGES_MAX
    }
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }
    /// Memory that the object takes so far.
    pub fn bytes(&self) -> usize {
        self.page.len() + self.parts.iter().map(Bytes::len).sum::<usize>()
    }

    fn close_page(&mut self) -> Result<()> {
        let (first, rows, raw) = self.page.take();
        let sealed = self.binding.seal(Part::Page(self.pages.len() as u32), &raw)?;
        self.opened += raw.len();
        self.pages.push(PageEntry { first, rows, length: sealed.len() as u32 });
        self.parts.push(sealed.into());
        Ok(())
    }

    /// The bytes to store, and how a layer names them.
    ///
    /// # Errors
    /// `Bug` when no row was pushed.
    pub fn finish(mut self) -> Result<(Body, StateObject)> {
        if !self.page.is_empty() {
            self.close_page()?;
        }
        let Some((first, last)) = self.keys else {
            return Err(Error::bug("a table-layer object without rows was to be written"));
        };
        let encode = |cause| Error::bug("a table-layer object could not be encoded").because(cause);
        let summary: Vec<(PackId, u64)> = self.summary.into_iter().collect();
        let summary = self.binding.seal(Part::Summary, &postcard::to_allocvec(&summary).map_err(encode)?)?;
        let index = self.binding.seal(Part::Index, &postcard::to_allocvec(&self.pages).map_err(encode)?)?;
        let lengths = [summary.len() as u32, index.len() as u32];
        self.parts.push(summary.into());
        self.parts.push(index.into());
        Trailer { salt: self.binding.salt, lengths }.close(&mut self.parts);
        let body = Body(self.parts);
        let bytes = body.len() as u64;
        let object =
            StateObject { epoch: self.epoch, number: self.number, first, last, rows: self.rows, bytes };
        Ok((body, object))
    }
}

/// Checks the digest of a whole object: rot shows without any key.
///
/// # Errors
/// `Corrupt`, naming the object.
pub fn check_digest(name: &str, bytes: &[u8]) -> Result<()> {
    trailer::check_digest(name, &MAGIC, bytes)
}

/// What came of reading the end of an object.
#[derive(Debug)]
pub enum End {
    Index(StateIndex),
    /// The index is longer than the end that was read: read this much of it.
    More(u64),
}

/// Which pages an object has, and the keys to open them.
pub struct StateIndex {
    binding: Binding,
    pages: Vec<PageEntry>,
    /// Where page n begins; one more for the end of the last.
    starts: Vec<u64>,
}

impl std::fmt::Debug for StateIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateIndex({}, {} pages)", self.binding.name, self.pages.len())
    }
}

impl StateIndex {
    /// Reads the index from the last bytes of an object of `size` bytes ([`END_READ`] of them, or what
    /// [`End::More`] said).
    ///
    /// # Errors
    /// `Corrupt`, naming the object.
    pub fn read(source: &Key, stream: Stream, object: &StateObject, end: &[u8]) -> Result<End> {
        let name = stream.state(object.epoch, object.number);
        let bad = |what: &str| Error::corrupt(format!("{name} is damaged: {what}"));
        let trailer = Trailer::read(end).ok_or_else(|| bad("it is cut short"))?;
        let [summary, index] = trailer.lengths.map(u64::from);
        let needed = index + TRAILER as u64;
        if needed + MAGIC.len() as u64 + summary > object.bytes {
            return Err(bad("its trailer does not fit its size"));
        }
        let Some(at) = (end.len() as u64).checked_sub(needed) else {
            if end.len() as u64 >= object.bytes.min(END_READ) {
                return Ok(End::More(needed));
            }
            return Err(bad("it is cut short"));
        };
        let sealed = end.get(at as usize..end.len() - TRAILER).unwrap_or_default();
        let binding = Binding { source: source.clone(), name, salt: trailer.salt };
        let raw = binding.open(Part::Index, sealed, INDEX_MAX)?;
        // The count stands first; an entry takes forty bytes in memory for three here.
        if Reader::new(&raw).varint().is_ok_and(|count| count > PAGES_MAX as u64) {
            return Err(binding.corrupt("its index does not fit its size"));
        }
        let pages: Vec<PageEntry> =
            postcard::from_bytes(&raw).map_err(|cause| binding.corrupt("its index").because(cause))?;
        let mut starts = vec![MAGIC.len() as u64];
        for page in &pages {
            let start = starts.last().copied().unwrap_or_default();
            starts.push(start + u64::from(page.length));
        }
        let end = object.bytes.checked_sub(needed + summary);
        if starts.last().copied() != end {
            return Err(binding.corrupt("its index does not fit its size"));
        }
        Ok(End::Index(Self { binding, pages, starts }))
    }

    pub fn pages(&self) -> usize {
        self.pages.len()
    }
    /// The page that holds the first key at or after `from`, or the one before it.
    pub fn find(&self, from: &[u8]) -> usize {
        self.pages.partition_point(|page| page.first <= from).saturating_sub(1)
    }
    /// Offset and length of the sealed bytes of a page.
    pub fn extent(&self, page: usize) -> Option<(u64, u64)> {
        let entry = self.pages.get(page)?;
        Some((*self.starts.get(page)?, u64::from(entry.length)))
    }
    /// Opens a page's sealed bytes.
    ///
    /// # Errors
    /// `Corrupt`, naming the object.
    pub fn open(&self, page: usize, sealed: &[u8]) -> Result<Bytes> {
        let known = self.extent(page).is_some_and(|(_, length)| length == sealed.len() as u64);
        if !known {
            return Err(self.binding.corrupt(&format!("page {page} is cut short")));
        }
        self.binding.open(Part::Page(page as u32), sealed, PAGE_MAX).map(Bytes::from)
    }
    /// Memory that the index takes.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|page| page.first.len() + 96).sum::<usize>() + 512
    }
    /// Names the object an error of its rows came from.
    pub fn name(&self) -> &str {
        &self.binding.name
    }
    /// Rows of a page, as the index counts them.
    pub fn rows(&self, page: usize) -> u32 {
        self.pages.get(page).map_or(0, |entry| entry.rows)
    }
}

/// Reads the summary from `bytes`, the object or its last part: what expiry needs, without opening rows.
///
/// # Errors
/// `Corrupt`, naming the object.
pub fn summary(source: &Key, stream: Stream, object: &StateObject, bytes: &[u8]) -> Result<Summary> {
    let name = stream.state(object.epoch, object.number);
    let bad = |what: &str| Error::corrupt(format!("{name} is damaged: {what}"));
    let trailer = Trailer::read(bytes).ok_or_else(|| bad("it is cut short"))?;
    let [summary, index] = trailer.lengths.map(u64::from);
    let end = (bytes.len() as u64).checked_sub(TRAILER as u64 + index);
    let sealed = end
        .and_then(|end| Some((end.checked_sub(summary)?, end)))
        .and_then(|(from, to)| bytes.get(from as usize..to as usize))
        .ok_or_else(|| bad("its trailer does not fit its size"))?;
    let binding = Binding { source: source.clone(), name: name.clone(), salt: trailer.salt };
    let raw = binding.open(Part::Summary, sealed, INDEX_MAX)?;
    let pairs: Vec<(PackId, u64)> =
        postcard::from_bytes(&raw).map_err(|cause| bad("its summary").because(cause))?;
    Ok(pairs.into_iter().collect())
}
