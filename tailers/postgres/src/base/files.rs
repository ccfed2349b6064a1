//! Files cut into pieces, and pieces turned into rows once their packs are durable.
//!
//! Invariants: a row with content is made only from an extent (R1); pieces begin at multiples of 1 MiB; what
//! waits for its pack is bounded in number here and in bytes by the content's own budget.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc};

use futures::FutureExt;
use holdfast_core::{Bytes, BytesMut, Content, Error, Extent, Held, Result, Row, Run, digest};

use super::known::Known;
use crate::{
    health::SharedHealth,
    records::{Entry, EntryKind, PIECE, PieceKey},
};

/// Pieces that may wait for their packs: those of small files are many.
const WAITING: usize = 16 << 10;

type Durable = Pin<Box<dyn Future<Output = Result<Extent>> + Send>>;

struct Waiting {
    key: Bytes,
    value: Bytes,
    hash: [u8; 32],
    durable: Durable,
}

/// A file being received.
struct Open {
    tablespace: u32,
    path: String,
    entry: Entry,
    piece: u32,
    buffer: BytesMut,
    /// The size is not known yet: the first piece, whose row tells it, is written last.
    first: Option<Bytes>,
    unsized_yet: bool,
}

/// Takes files and writes the rows of one run.
pub(super) struct Files {
    content: Arc<dyn Content>,
    run: Box<dyn Run>,
    known: Known,
    waiting: VecDeque<Waiting>,
    open: Option<Open>,
    health: SharedHealth,
    pub taken: u64,
    pub sent: u64,
    pub count: u64,
}

impl Files {
    pub fn new(content: Arc<dyn Content>, run: Box<dyn Run>, known: Known, health: SharedHealth) -> Self {
        let waiting = VecDeque::new();
        Self { content, run, known, waiting, open: None, health, taken: 0, sent: 0, count: 0 }
    }

    /// Begins a file, folder or link. A file's size is what its data will add up to.
    pub fn begin(&mut self, tablespace: u32, path: String, entry: Entry) {
        let (buffer, first) = (BytesMut::new(), None);
        self.open = Some(Open { tablespace, path, entry, piece: 0, buffer, first, unsized_yet: false });
    }

    /// Begins a file whose size [`Self::end`] tells.
    pub fn begin_unsized(&mut self, path: &str, mode: u32, mtime: i64) {
        self.begin(0, path.to_owned(), Entry { kind: EntryKind::File { size: PIECE }, mode, mtime });
        if let Some(open) = &mut self.open {
            open.unsized_yet = true;
        }
    }

    pub async fn data(&mut self, mut bytes: Bytes) -> Result<()> {
        self.taken += bytes.len() as u64;
        while !bytes.is_empty() {
            let open = self.open.as_mut().ok_or_else(|| Error::bug("file data without a file"))?;
            let room = (PIECE as usize).saturating_sub(open.buffer.len());
            if open.buffer.capacity() == 0 {
                let EntryKind::File { size } = open.entry.kind else {
                    return Err(Error::corrupt("a folder or link of the base backup has data"));
                };
                let left = match open.unsized_yet {
                    true => PIECE,
                    false => size.saturating_sub(u64::from(open.piece) * PIECE),
                };
                open.buffer.reserve(left.clamp(1024, PIECE) as usize);
            }
            open.buffer.extend_from_slice(&bytes.split_to(room.min(bytes.len())));
            if open.buffer.len() as u64 == PIECE {
                let piece = std::mem::take(&mut open.buffer).freeze();
                self.piece(piece).await?;
            }
        }
        Ok(())
    }

    /// The open file is whole. `size` corrects what was said at its beginning.
    pub async fn end(&mut self, size: Option<u64>) -> Result<()> {
        let Some(open) = self.open.as_mut() else {
            return Err(Error::bug("a file ended that did not begin"));
        };
        if let (Some(size), EntryKind::File { size: stated }) = (size, &mut open.entry.kind) {
            *stated = size;
        }
        open.unsized_yet = false;
        let (first, rest) = (open.first.take(), std::mem::take(&mut open.buffer).freeze());
        if let Some(first) = first {
            if !rest.is_empty() {
                self.piece(rest).await?;
            }
            if let Some(open) = self.open.as_mut() {
                open.piece = 0;
            }
            self.piece(first).await?;
        } else if !rest.is_empty() || open.piece == 0 {
            self.piece(rest).await?;
        }
        self.open = None;
        self.count += 1;
        if self.count.is_multiple_of(64) {
            self.report();
        }
        Ok(())
    }

    fn report(&self) {
        let (taken, sent, files) = (self.taken, self.sent, self.count);
        self.health.change(|health| {
            health.base_backup.taken = taken;
            health.base_backup.sent = sent;
            health.base_backup.files = files;
        });
    }

    async fn piece(&mut self, bytes: Bytes) -> Result<()> {
        let Some(open) = self.open.as_mut() else { return Err(Error::bug("a piece without a file")) };
        if open.unsized_yet && open.piece == 0 {
            open.first = Some(bytes);
            open.piece = 1;
            return Ok(());
        }
        let key =
            PieceKey { tablespace: open.tablespace, path: open.path.clone(), piece: open.piece }.encode();
        let value = if open.piece == 0 { open.entry.encode()? } else { Bytes::new() };
        open.piece = open.piece.checked_add(1).ok_or_else(|| {
            Error::corrupt("a file of the base backup has more pieces than a file can have")
        })?;
        if bytes.is_empty() {
            return self.run.row(Row { key, value, held: Vec::new() }).await;
        }
        if bytes.len() as u64 == PIECE {
            self.report();
        }
        let hash = digest(&bytes);
        if let Some(held) = self.known.find(&key, &hash, bytes.len()).await? {
            return self.run.row(Row { key, value, held: vec![held] }).await;
        }
        self.sent += bytes.len() as u64;
        let ticket = self.content.put(bytes).await?;
        self.waiting.push_back(Waiting { key, value, hash, durable: Box::pin(ticket.extent()) });
        self.settle(WAITING).await
    }

    /// Writes rows of what is durable by now, and waits until at most `most` wait.
    async fn settle(&mut self, most: usize) -> Result<()> {
        while let Some(front) = self.waiting.front_mut() {
            let extent = match (&mut front.durable).now_or_never() {
                Some(extent) => extent?,
                None if self.waiting.len() <= most => break,
                None => match self.waiting.front_mut() {
                    Some(front) => (&mut front.durable).await?,
                    None => break,
                },
            };
            if let Some(Waiting { key, value, hash, .. }) = self.waiting.pop_front() {
                self.run.row(Row { key, value, held: vec![Held { extent, hash }] }).await?;
            }
        }
        Ok(())
    }

    /// Everything is durable and in the run's table.
    pub async fn finish(mut self) -> Result<Box<dyn Run>> {
        self.report();
        self.content.flush().await?;
        self.settle(0).await?;
        Ok(self.run)
    }
}
