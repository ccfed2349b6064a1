//! One lineage as a restorer sees it.
//!
//! Invariants: opening reads the catalog and no rows; log and marks are read from the objects that hold them,
//! a bounded number of bytes at a time; nothing is given out that did not prove itself. With the source key
//! alone all but contents and log bytes can be read.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Catalog, Error, Held, Layer, LogChunk, Marks, Place, Result, Row, Span, Timestamp, View,
};

use super::{
    CACHE_BYTES, Contents, DataKeys, Tables,
    locate::{Locator, held},
    reading::LogReading,
};
use crate::{
    catalog,
    chain::{Access, At, Chain, Depth, Found, Object},
    entry::Entry,
};

/// Marks of one answer, and objects looked at for it, at most.
const MARKS: usize = 20_000;
const MARK_OBJECTS: usize = 512;

/// A [`View`] over a sink.
pub struct LineageView {
    chain: Chain,
    catalog: Catalog,
    vouched: Option<Timestamp>,
    damage: Vec<String>,
    tables: Tables,
    contents: Contents,
    keys: Arc<DataKeys>,
    pub(super) locator: Locator,
    pub(super) reading: LogReading,
}

impl LineageView {
    /// Opens a lineage as it is now; `None` when nobody began it.
    pub async fn open(access: Access, keys: Arc<DataKeys>) -> Result<Option<Self>> {
        let Some(chain) = Chain::open(access.clone()).await? else { return Ok(None) };
        let known = chain.catalog().await?;
        for damage in &known.damage {
            tracing::warn!(stream = %access.stream, "{damage}");
        }
        Ok(Some(Self {
            chain,
            catalog: known.catalog,
            vouched: known.vouched,
            damage: known.damage,
            tables: Tables::new(access.clone(), CACHE_BYTES),
            contents: Contents::new(access, keys.clone()),
            keys,
            locator: Locator::new(),
            reading: LogReading::new(),
        }))
    }

    pub fn chain(&self) -> &Chain {
        &self.chain
    }
    pub fn keys(&self) -> &Arc<DataKeys> {
        &self.keys
    }
    pub fn tables(&self) -> &Tables {
        &self.tables
    }
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }
    /// Objects that should have told more and are damaged, one sentence each.
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    fn entries(&self, object: &Object) -> Result<Vec<Entry>> {
        object.entries(&self.chain.access().source_key)
    }

    pub(super) async fn start(&self, span: Span) -> Result<Option<At>> {
        self.locator.find(&self.chain, &self.catalog.samples, span).await
    }
}

fn at(object: &Object) -> At {
    (object.id().epoch, object.id().number)
}

#[async_trait]
impl View for LineageView {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }
    fn heads(&self) -> Vec<Place> {
        catalog::heads(&self.catalog)
    }
    fn vouched(&self) -> Option<Timestamp> {
        self.vouched
    }

    /// Marks that end in `(span.from, span.to]`.
    async fn marks(&self, span: Span) -> Result<Marks> {
        let mut answer = Marks { marks: Vec::new(), covered: Span { to: span.from, ..span } };
        let Some(start) = self.start(span).await? else { return Ok(answer) };
        let mut walk = self.chain.walk(start, Depth::Entries);
        let mut objects = 0;
        while let Some(found) = walk.next().await? {
            let object = match found {
                Found::Object(object) => object,
                // What was found before it is an answer; asked again, the next answer is the error.
                Found::Lost { .. } if !answer.covered.is_empty() => break,
                Found::Lost { error, .. } => return Err(error),
            };
            objects += 1;
            if let Some(part) = held(&object, span.branch) {
                if part.from >= span.to {
                    break;
                }
                if object.header.mark_count > 0 {
                    for entry in self.entries(&object)? {
                        let Entry::Marks(marks) = entry else { continue };
                        let wanted = |mark: &holdfast_core::Mark| {
                            mark.place.branch == span.branch
                                && mark.place.position > span.from
                                && mark.place.position <= span.to
                        };
                        answer.marks.extend(marks.0.into_iter().filter(wanted));
                    }
                }
                answer.covered.to = part.to.min(span.to).max(answer.covered.to);
                if part.to > span.to {
                    break;
                }
            }
            if (answer.marks.len() >= MARKS || objects >= MARK_OBJECTS) && !answer.covered.is_empty() {
                let (epoch, number) = at(&object);
                self.locator.remember(span.branch, answer.covered.to, (epoch, number + 1));
                break;
            }
        }
        Ok(answer)
    }

    async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> Result<Vec<Row>> {
        self.tables.rows(layers, from, limit).await
    }

    async fn content(&self, held: &Held) -> Result<Bytes> {
        let mut contents = self.contents.read(std::slice::from_ref(held)).await?;
        contents.pop().ok_or_else(|| Error::bug("content was read and is gone"))
    }

    async fn contents(&self, held: &[Held]) -> Result<Vec<Bytes>> {
        self.contents.read(held).await
    }

    async fn log(&self, span: Span) -> Result<Vec<LogChunk>> {
        self.read_log(span).await
    }

    async fn cost(&self, path: &[Span]) -> Result<(u64, u64)> {
        let (mut bytes, mut objects) = (0, 0);
        for span in path.iter().filter(|span| !span.is_empty()) {
            let Some(start) = self.start(*span).await? else { continue };
            // Up to the first sample behind the span; what lies between two samples is few objects.
            let behind = self
                .catalog
                .samples
                .iter()
                .find(|sample| sample.place.branch == span.branch && sample.place.position >= span.to);
            let until = behind.map_or(self.chain.head().at, |sample| (sample.epoch, sample.number));
            let (more_bytes, more_objects) = self.chain.size(start, until).await?;
            bytes += more_bytes;
            objects += more_objects;
        }
        Ok((bytes, objects))
    }
}
