//! Log bytes by span. Remembers how much smaller than its log an object is, so that little is read in vain,
//! and keeps the opened objects that a call ended within, since the next call begins there.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use holdfast_core::{Error, LogChunk, Result, Span};
use lru::LruCache;

use super::{LineageView, locate::held};
use crate::{
    chain::{At, Depth, Found, Object},
    entry::Entry,
};

/// Log bytes of one answer, whatever was asked for.
const LOG_MAX: u64 = 32 << 20;
/// The least that is read ahead.
const AHEAD_MIN: u64 = 256 << 10;
/// Opened bytes that are kept.
const KEPT_BYTES: usize = 24 << 20;

/// An opened object: the part of each branch that it holds, and its log.
struct Opened {
    parts: Vec<Span>,
    chunks: Vec<LogChunk>,
    bytes: usize,
}

pub(super) struct LogReading {
    kept: Mutex<LruCache<At, std::sync::Arc<Opened>>>,
    /// Sealed bytes of a thousand log bytes, as seen last.
    density: AtomicU64,
}

impl LogReading {
    pub fn new() -> Self {
        Self { kept: Mutex::new(LruCache::unbounded()), density: AtomicU64::new(200) }
    }

    fn ahead(&self, log_bytes: u64) -> u64 {
        let density = self.density.load(Ordering::Relaxed);
        (log_bytes.saturating_mul(density) / 1000).max(AHEAD_MIN)
    }

    fn learn(&self, sealed: u64, log_bytes: u64) {
        if log_bytes >= AHEAD_MIN {
            let seen = (sealed * 1000 / log_bytes).clamp(10, 1100);
            let before = self.density.load(Ordering::Relaxed);
            self.density.store((before + seen) / 2, Ordering::Relaxed);
        }
    }

    fn kept(&self, at: At) -> Option<std::sync::Arc<Opened>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(&at).cloned()
    }

    fn keep(&self, at: At, opened: std::sync::Arc<Opened>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.put(at, opened);
        let mut bytes: usize = kept.iter().map(|(_, opened)| opened.bytes).sum();
        while bytes > KEPT_BYTES
            && let Some((_, old)) = kept.pop_lru()
        {
            bytes -= old.bytes;
        }
    }
}

impl Opened {
    /// Adds what follows at `next` to `chunks`; where it goes on.
    fn take(&self, span: Span, mut next: u64, chunks: &mut Vec<LogChunk>) -> u64 {
        for chunk in &self.chunks {
            let part = chunk.span;
            if part.branch != span.branch || next >= span.to || part.from > next || part.to <= next {
                continue;
            }
            let to = part.to.min(span.to);
            let bytes = chunk.bytes.slice((next - part.from) as usize..(to - part.from) as usize);
            chunks.push(LogChunk { span: Span { from: next, to, ..part }, bytes });
            next = to;
        }
        next
    }
    fn part(&self, span: Span) -> Option<Span> {
        self.parts.iter().find(|part| part.branch == span.branch).copied()
    }
}

impl LineageView {
    /// Contiguous log from `span.from` on.
    pub(super) async fn read_log(&self, span: Span) -> Result<Vec<LogChunk>> {
        let span = Span { to: span.to.min(span.from.saturating_add(LOG_MAX)), ..span };
        let mut chunks: Vec<LogChunk> = Vec::new();
        let Some(mut at) = self.start(span).await? else { return Ok(chunks) };
        let mut next = span.from;
        while next < span.to
            && let Some(opened) = self.reading.kept(at)
        {
            next = opened.take(span, next, &mut chunks);
            if opened.part(span).is_some_and(|part| part.to > next) {
                self.locator.remember(span.branch, next, at);
                return Ok(chunks);
            }
            at.1 += 1;
        }
        if next >= span.to {
            self.locator.remember(span.branch, next, at);
            return Ok(chunks);
        }
        let mut walk = self.chain().walk(at, Depth::Whole).bounded(self.reading.ahead(span.to - next));
        while next < span.to
            && let Some(found) = walk.next().await?
        {
            let object = match found {
                Found::Object(object) => object,
                // What was found before it is an answer; asked again, the next answer is the error.
                Found::Lost { .. } if !chunks.is_empty() => break,
                Found::Lost { error, .. } => return Err(error),
            };
            let Some(part) = held(&object, span.branch) else { continue };
            if part.from > next {
                break;
            }
            let opened = std::sync::Arc::new(self.open_log(&object).await?);
            self.reading.learn(object.len() as u64, opened.bytes as u64);
            let before = next;
            next = opened.take(span, next, &mut chunks);
            let (epoch, number) = (object.id().epoch, object.id().number);
            if part.to > next {
                self.reading.keep((epoch, number), opened);
                self.locator.remember(span.branch, next, (epoch, number));
                if next == before || next < span.to {
                    // A hole within the object.
                    break;
                }
            } else {
                self.locator.remember(span.branch, next, (epoch, number + 1));
            }
        }
        Ok(chunks)
    }

    /// Opens what an object holds of the log.
    async fn open_log(&self, object: &Object) -> Result<Opened> {
        let mut closed: Option<Bytes> = None;
        let mut chunks = Vec::new();
        for entry in object.entries(&self.chain().access().source_key)? {
            let Entry::Log { span, offset, length, .. } = entry else { continue };
            if span.is_empty() {
                continue;
            }
            let closed = match &closed {
                Some(closed) => closed,
                None => {
                    let key = self.keys().get(object.id().epoch).await?;
                    closed.insert(object.closed(&key)?)
                }
            };
            let end = u64::from(offset) + u64::from(length);
            let bytes = closed
                .get(offset as usize..end as usize)
                .filter(|_| u64::from(length) == span.len())
                .ok_or_else(|| {
                    Error::corrupt(format!("{} names log bytes that it does not hold", object.id()))
                })?;
            chunks.push(LogChunk { span, bytes: closed.slice_ref(bytes) });
        }
        let branches = object.header.spans.iter().map(|span| span.branch);
        let mut parts: Vec<Span> = branches.filter_map(|branch| held(object, branch)).collect();
        parts.dedup();
        Ok(Opened { parts, chunks, bytes: closed.map_or(0, |closed| closed.len()) })
    }
}
