//! The pipeline's side of the tailer seam, in memory: content and tables kept, counted or refused on demand,
//! and a catalog that grows with the steps a test takes in.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Catalog, Checkpoint, Content, Epoch, Error, Extent, Finished, Held, Item, Layer, PackId, PieceId, Place,
    Result, Row, Run, RunId, RunProgress, Span, State, StateObject, Step, Ticket, Timestamp, digest,
};

/// See the module page. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct MemoryContent(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    pieces: HashMap<PieceId, Bytes>,
    tables: BTreeMap<u64, BTreeMap<Bytes, Row>>,
    catalog: Catalog,
    numbers: u64,
    puts: u64,
    bytes: u64,
    fenced: bool,
}

impl MemoryContent {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pieces and bytes that were put.
    pub fn traffic(&self) -> (u64, u64) {
        let kept = self.lock();
        (kept.puts, kept.bytes)
    }

    /// From now on every call says that another writer owns the stream.
    pub fn fence(&self) {
        self.lock().fenced = true;
    }

    /// Takes a step into the stream, as a writer does.
    pub fn append(&self, step: &Step) {
        let mut kept = self.lock();
        match &step.item {
            Item::Log { span, .. } => kept.extend(*span),
            Item::Note(note) => kept.catalog.notes.push(note.clone()),
            Item::Gap(gap) => kept.catalog.gaps.push(gap.clone()),
            Item::Finished(Finished { checkpoint }) => {
                kept.catalog.runs.retain(|run| run.id != checkpoint.id);
                kept.catalog.checkpoints.push(checkpoint.clone());
            }
            Item::Quiet | Item::CaughtUp => {}
        }
    }

    pub fn snapshot(&self) -> Catalog {
        self.lock().catalog.clone()
    }

    /// Changes the catalog behind the tailer's back.
    pub fn change(&self, change: impl FnOnce(&mut Catalog)) {
        change(&mut self.lock().catalog);
    }

    /// All rows of a table.
    pub fn table(&self, layers: &[Layer]) -> Vec<Row> {
        self.lock().merged(layers).into_values().collect()
    }

    /// The bytes of an extent; `None` for one that was never given out, or when they are not the promised ones.
    pub fn piece(&self, held: &Held) -> Option<Bytes> {
        let bytes = self.lock().pieces.get(&held.extent.piece).cloned();
        bytes.filter(|bytes| digest(bytes) == held.hash)
    }
}

impl Kept {
    fn extend(&mut self, span: Span) {
        match self.catalog.spans.last_mut() {
            Some(last) if last.branch == span.branch && last.to == span.from => last.to = span.to,
            _ => self.catalog.spans.push(span),
        }
    }

    fn merged(&self, layers: &[Layer]) -> BTreeMap<Bytes, Row> {
        let mut merged = BTreeMap::new();
        for object in layers.iter().flat_map(|layer| &layer.objects) {
            if let Some(table) = self.tables.get(&object.number) {
                merged.extend(table.clone());
            }
        }
        merged
    }

    fn refuse(&self) -> Result<()> {
        if self.fenced { Err(Error::fenced("another writer owns the stream")) } else { Ok(()) }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

#[async_trait]
impl Content for MemoryContent {
    async fn put(&self, bytes: Bytes) -> Result<Ticket> {
        let (sender, ticket) = Ticket::new();
        let extent = {
            let mut kept = self.lock();
            kept.refuse()?;
            let number = kept.number();
            let mut piece = PieceId([0; 16]);
            piece.0[..8].copy_from_slice(&number.to_be_bytes());
            let length = u32::try_from(bytes.len()).map_err(|_| Error::bug("a piece of more than 4 GiB"))?;
            kept.puts += 1;
            kept.bytes += u64::from(length);
            kept.pieces.insert(piece, bytes);
            let pack = PackId { epoch: Epoch::numbered(1), number };
            Extent { pack, offset: 0, length, opened: length, key_epoch: pack.epoch, piece }
        };
        drop(sender.send(Ok(extent)));
        Ok(ticket)
    }

    async fn flush(&self) -> Result<()> {
        self.lock().refuse()
    }

    async fn begin(&self, began: Timestamp, body: Bytes) -> Result<Box<dyn Run>> {
        let mut kept = self.lock();
        kept.refuse()?;
        let number = kept.number();
        let id = RunId(number.to_be_bytes());
        kept.tables.insert(number, BTreeMap::new());
        kept.catalog.runs.push(RunProgress { id, began, layers: vec![layer(number, 0)], body });
        drop(kept);
        Ok(Box::new(MemoryRun {
            content: self.clone(),
            id,
            number,
            began,
            bytes: 0,
            sent_before: self.traffic().1,
        }))
    }
}

fn layer(number: u64, rows: u64) -> Layer {
    let (first, last) = (Bytes::new(), Bytes::from_static(&[0xff]));
    Layer { objects: vec![StateObject { epoch: Epoch::numbered(1), number, first, last, rows, bytes: 0 }] }
}

struct MemoryRun {
    content: MemoryContent,
    id: RunId,
    number: u64,
    began: Timestamp,
    bytes: u64,
    sent_before: u64,
}

#[async_trait]
impl Run for MemoryRun {
    fn id(&self) -> RunId {
        self.id
    }

    async fn row(&mut self, row: Row) -> Result<()> {
        self.bytes += row.held.iter().map(|held| u64::from(held.extent.opened)).sum::<u64>();
        let mut kept = self.content.lock();
        kept.refuse()?;
        if let Some(table) = kept.tables.get_mut(&self.number) {
            table.insert(row.key.clone(), row);
        }
        Ok(())
    }

    async fn finish(
        self: Box<Self>,
        begin: Place,
        serves: Place,
        ended: Timestamp,
        suspect: Option<String>,
        body: Bytes,
    ) -> Result<Finished> {
        let kept = self.content.lock();
        kept.refuse()?;
        let rows = kept.tables.get(&self.number).map_or(0, |table| table.len() as u64);
        let checkpoint = Checkpoint {
            id: self.id,
            begin,
            serves,
            began: self.began,
            ended,
            layers: vec![layer(self.number, rows)],
            rows,
            bytes: self.bytes,
            sent: kept.bytes.saturating_sub(self.sent_before),
            suspect,
            body,
        };
        Ok(Finished { checkpoint })
    }
}

#[async_trait]
impl State for MemoryContent {
    fn catalog(&self) -> Arc<Catalog> {
        Arc::new(self.snapshot())
    }

    async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> Result<Vec<Row>> {
        let merged = self.lock().merged(layers);
        Ok(merged.range(Bytes::copy_from_slice(from)..).take(limit).map(|(_, row)| row.clone()).collect())
    }
}
