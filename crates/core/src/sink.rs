//! A place where objects are stored. No object is ever overwritten.
//!
//! [`decorate`] puts what every store needs around an implementation: retries, the upload rate, the meter.

mod limit;
mod limited;
mod meter;
mod name;
mod retrying;
mod store_clock;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

pub use limited::Limited;
pub use meter::{Figures, LATENCY_MS, Meter, Metered, Operation};
pub use name::{NAME_MAX, check_name, is_name_byte};
pub use retrying::{RetrySettings, Retrying};
pub use store_clock::StoreClock;

use crate::{Clock, Instant, Random, Result, Timestamp};

/// Largest object we ever write: one PUT, no multipart.
pub const OBJECT_MAX: usize = 64 << 20;

/// What a store can do, probed at each start and never assumed from a vendor's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `create` refuses an existing name, for two writes in a row and for writes that race.
    pub create_only: bool,
    /// What we know of overwriting (bucket versions, object lock): a sentence for `check`.
    pub history: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// Our bytes are durable under this name.
    New,
    /// The name was taken. Only from a store with create-only writes. It may have been an earlier attempt of
    /// our own: the caller reads back and compares.
    Exists,
}

/// A body is a list of shared slices, so that a retry copies nothing.
#[derive(Clone, Debug, Default)]
pub struct Body(pub Vec<Bytes>);

impl Body {
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Does it hold exactly these bytes?
    pub fn is(&self, bytes: &[u8]) -> bool {
        let mut rest = Some(bytes);
        for part in &self.0 {
            rest = rest.and_then(|rest| rest.strip_prefix(part.as_ref()));
        }
        rest.is_some_and(<[u8]>::is_empty)
    }
    /// One contiguous slice; copies unless there is only one part.
    pub fn concat(&self) -> Bytes {
        match self.0.as_slice() {
            [one] => one.clone(),
            parts => parts.concat().into(),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(vec![bytes])
    }
}
impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self(vec![bytes.into()])
    }
}

/// Which bytes of an object to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    All,
    /// `[from, from + length)`; a shorter answer means that the object ends there.
    Part {
        from: u64,
        length: u64,
    },
}

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub size: u64,
    /// The store's own clock.
    pub modified: Timestamp,
}

/// Names in bytewise order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// Ask again with `after` = the last name.
    pub more: bool,
}

/// Names are relative, `/`-separated, of `[0-9A-Za-z._-]`. A finished write is shown by every later read and list.
///
/// Implementations do not retry and do not limit; the decorators in this module do. Every call ends within
/// the implementation's deadline, with an answer or an error whose act is `Retry` or `SlowDown` when nothing
/// is known of the outcome.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Probes the store: writes (and where it may, removes) objects under `probe/`.
    async fn capabilities(&self) -> Result<Capabilities>;
    /// Creates `name`. On a store without create-only writes this is a plain put and always answers `New`.
    async fn create(&self, name: &str, body: Body) -> Result<Created>;
    /// `None` when there is no such object.
    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>>;
    /// Objects whose names begin with `prefix`, from after `after`, at most `limit` (the store may give fewer).
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page>;
    /// Removes all versions; what is not there counts as removed.
    async fn remove(&self, names: &[String]) -> Result<()>;
    /// What a person would recognise (`s3://bucket/prefix`, a folder).
    fn address(&self) -> String;
    /// What the store's own clock showed, and our instant then, as of its newest answer that said so; `None`
    /// before, or of a store that never tells. Asks nothing. Decorators hand it on.
    fn clock(&self) -> Option<(Instant, Timestamp)> {
        None
    }
}

/// Tells by its name whether somebody may be waiting for an object (log objects and epochs, not packs).
pub type Urgent = fn(&str) -> bool;

/// Retries around the upload rate around the meter around `raw`. `upload_rate` is in bytes per second.
pub fn decorate(
    raw: Arc<dyn Sink>,
    retry: RetrySettings,
    upload_rate: Option<u64>,
    urgent: Urgent,
    clock: Clock,
    random: Random,
) -> (Arc<dyn Sink>, Arc<Meter>) {
    let meter = Meter::new(clock.clone());
    let mut sink: Arc<dyn Sink> = Arc::new(Metered::new(raw, meter.clone()));
    if let Some(rate) = upload_rate {
        sink = Arc::new(Limited::new(sink, rate, urgent, clock.clone()));
    }
    let sink = Arc::new(Retrying::new(sink, retry, urgent, clock, random, meter.clone()));
    (sink, meter)
}

/// Creates `name` with these bytes. That they stand there already is success: an earlier attempt of ours, whose
/// answer was lost. `false`: other bytes do.
pub async fn create_same(sink: &dyn Sink, name: &str, body: &Body) -> Result<bool> {
    loop {
        if sink.create(name, body.clone()).await? == Created::New {
            return Ok(true);
        }
        // Gone again since: removed by whoever made it.
        if let Some(found) = sink.read(name, Range::All).await? {
            return Ok(body.is(&found));
        }
    }
}

/// All objects under a prefix.
pub async fn list_all(sink: &dyn Sink, prefix: &str, after: Option<&str>) -> Result<Vec<Entry>> {
    let mut all: Vec<Entry> = Vec::new();
    loop {
        let last = all.last().map(|e| e.name.clone());
        let page = sink.list(prefix, last.as_deref().or(after), 1000).await?;
        let done = !page.more || page.entries.is_empty();
        all.extend(page.entries);
        if done {
            return Ok(all);
        }
    }
}
