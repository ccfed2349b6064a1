//! One lineage in memory, for tests of restorers: catalog, marks, rows, content and log, without seal or sink.
//! Tests build it up, damage it, and read from it through core's [`View`]. A delay per call stands for a store.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Branch, Catalog, Checkpoint, Clock, Epoch, Error, Extent, Gap, Held, Layer, LogChunk, Mark, Marks, Note,
    PackId, PieceId, Place, Result, Row, Sample, Span, StateObject, Timestamp, View, digest,
};

/// Opened bytes after which a pack counts as full.
const PACK: u64 = 16 << 20;

/// A lineage. The fields that a test changes are public; what must stay consistent has methods.
#[derive(Debug)]
pub struct MemoryView {
    pub catalog: Catalog,
    pub heads: Vec<Place>,
    pub vouched: Option<Timestamp>,
    /// In stream order.
    pub marks: Vec<Mark>,
    /// Waited in each call that would go to the store.
    pub delay: Duration,
    /// Longest chunk of log in one answer.
    pub chunk: usize,
    /// Most marks in one answer.
    pub most_marks: usize,
    tables: BTreeMap<u64, BTreeMap<Bytes, Row>>,
    content: HashMap<PieceId, Bytes>,
    log: BTreeMap<(Branch, u64), Bytes>,
    pack: (u64, u64),
    clock: Clock,
    calls: AtomicU64,
}

impl Default for MemoryView {
    fn default() -> Self {
        Self {
            catalog: Catalog::default(),
            heads: Vec::new(),
            vouched: None,
            marks: Vec::new(),
            delay: Duration::ZERO,
            chunk: 1 << 20,
            most_marks: 10_000,
            tables: BTreeMap::new(),
            content: HashMap::new(),
            log: BTreeMap::new(),
            pack: (0, 0),
            clock: Clock::system(),
            calls: AtomicU64::new(0),
        }
    }
}

impl MemoryView {
    /// Keeps a piece of content.
    pub fn put(&mut self, bytes: Bytes) -> Held {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if self.pack.1 + u64::from(length) > PACK {
            self.pack = (self.pack.0 + 1, 0);
        }
        let mut piece = [0; 16];
        piece[..8].copy_from_slice(&(self.content.len() as u64).to_be_bytes());
        let piece = PieceId(piece);
        let extent = Extent {
            pack: PackId { epoch: Epoch::numbered(0), number: self.pack.0 },
            offset: u32::try_from(self.pack.1).unwrap_or(u32::MAX),
            length,
            opened: length,
            key_epoch: Epoch::numbered(0),
            piece,
        };
        self.pack.1 += u64::from(length);
        let held = Held { extent, hash: digest(&bytes) };
        self.content.insert(piece, bytes);
        held
    }

    /// Keeps rows as one layer.
    pub fn layer(&mut self, rows: impl IntoIterator<Item = Row>) -> Layer {
        let number = self.tables.len() as u64;
        let table: BTreeMap<Bytes, Row> = rows.into_iter().map(|row| (row.key.clone(), row)).collect();
        let (Some((first, _)), Some((last, _))) = (table.first_key_value(), table.last_key_value()) else {
            return Layer { objects: Vec::new() };
        };
        let object = StateObject {
            epoch: Epoch::numbered(0),
            number,
            first: first.clone(),
            last: last.clone(),
            rows: table.len() as u64,
            bytes: 0,
        };
        self.tables.insert(number, table);
        Layer { objects: vec![object] }
    }

    pub fn checkpoint(&mut self, checkpoint: Checkpoint) {
        self.catalog.checkpoints.push(checkpoint);
    }
    pub fn note(&mut self, note: Note) {
        self.catalog.notes.push(note);
    }
    pub fn gap(&mut self, gap: Gap) {
        self.catalog.gaps.push(gap);
    }

    /// Appends log; moves the head and joins spans as the repository does.
    pub fn add_log(&mut self, branch: Branch, from: u64, bytes: Bytes) {
        let to = from + bytes.len() as u64;
        self.log.insert((branch, from), bytes);
        let touching = |span: &&mut Span| span.branch == branch && span.to == from;
        match self.catalog.spans.iter_mut().find(touching) {
            Some(span) => span.to = to,
            None => self.catalog.spans.push(Span { branch, from, to }),
        }
        self.heads.retain(|head| head.branch != branch);
        self.heads.push(Place { branch, position: to });
    }

    /// What was added from `at` on can no longer be read, though the catalog knows of no gap.
    pub fn damage(&mut self, at: u64) {
        self.log.retain(|(_, from), _| *from < at);
    }

    /// Every `step` marks one sample, with times that never fall.
    pub fn sample(&mut self, step: usize) {
        let mut newest: BTreeMap<Branch, Timestamp> = BTreeMap::new();
        for (at, mark) in self.marks.iter().enumerate() {
            let time = newest.entry(mark.place.branch).or_insert(mark.time);
            *time = (*time).max(mark.time);
            if (at + 1) % step.max(1) == 0 {
                let sample =
                    Sample { epoch: Epoch::numbered(0), number: at as u64, place: mark.place, time: *time };
                self.catalog.samples.push(sample);
            }
        }
    }

    /// Calls so far that would have gone to the store.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    async fn ask(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if !self.delay.is_zero() {
            self.clock.sleep(self.delay).await;
        }
    }
}

#[async_trait]
impl View for MemoryView {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }
    fn heads(&self) -> Vec<Place> {
        self.heads.clone()
    }
    fn vouched(&self) -> Option<Timestamp> {
        self.vouched
    }

    async fn marks(&self, span: Span) -> Result<Marks> {
        self.ask().await;
        let within = |mark: &&Mark| {
            mark.place.branch == span.branch && (span.from..=span.to).contains(&mark.place.position)
        };
        let marks: Vec<Mark> = self.marks.iter().filter(within).take(self.most_marks).cloned().collect();
        let full = marks.len() == self.most_marks;
        let to = if full { marks.last().map_or(span.to, |mark| mark.place.position) } else { span.to };
        Ok(Marks { marks, covered: Span { to, ..span } })
    }

    async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> Result<Vec<Row>> {
        self.ask().await;
        let mut merged: BTreeMap<&Bytes, &Row> = BTreeMap::new();
        for object in layers.iter().flat_map(|layer| &layer.objects) {
            let table = self
                .tables
                .get(&object.number)
                .ok_or_else(|| Error::corrupt(format!("layer object {} is missing", object.number)))?;
            let later = table.range(Bytes::copy_from_slice(from)..).take(limit);
            merged.extend(later);
        }
        Ok(merged.into_values().take(limit).cloned().collect())
    }

    async fn content(&self, held: &Held) -> Result<Bytes> {
        self.ask().await;
        self.piece(held)
    }

    async fn contents(&self, held: &[Held]) -> Result<Vec<Bytes>> {
        self.ask().await;
        held.iter().map(|held| self.piece(held)).collect()
    }

    async fn log(&self, span: Span) -> Result<Vec<LogChunk>> {
        self.ask().await;
        let mut chunks = Vec::new();
        let mut at = span.from;
        while at < span.to && at - span.from < self.chunk as u64 {
            let Some(((of, from), bytes)) = self.log.range(..=(span.branch, at)).next_back() else { break };
            let skip = usize::try_from(at.saturating_sub(*from)).unwrap_or(usize::MAX);
            if *of != span.branch || skip >= bytes.len() {
                break;
            }
            let take = (bytes.len() - skip).min(self.chunk);
            let bytes = bytes.slice(skip..skip + take);
            let to = at + take as u64;
            chunks.push(LogChunk { span: Span { branch: span.branch, from: at, to }, bytes });
            at = to;
        }
        Ok(chunks)
    }

    async fn cost(&self, path: &[Span]) -> Result<(u64, u64)> {
        let bytes: u64 = path.iter().map(Span::len).sum();
        Ok((bytes / 3, bytes.div_ceil(8 << 20)))
    }
}

impl MemoryView {
    fn piece(&self, held: &Held) -> Result<Bytes> {
        let bytes = self.content.get(&held.extent.piece);
        match bytes {
            Some(bytes) if digest(bytes) == held.hash => Ok(bytes.clone()),
            Some(_) => Err(Error::corrupt(format!("piece {} is not what its row says", held.extent.piece))),
            None => Err(Error::corrupt(format!("piece {} is missing", held.extent.piece))),
        }
    }
}
