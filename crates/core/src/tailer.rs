//! The seam between a source and the pipeline. The stream is pulled (`Follower::next`), content is pushed
//! (`Content::put`): a base backup never delays a commit.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    Catalog, Checkpoint, Cursor, Error, Extent, Gap, Instant, Layer, Mark, Note, Place, Result, Row, RunId,
    Span, Timestamp,
};

/// Who a source says it is. `text` is compared for equality and shown to people (system identifier, …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub text: String,
}

/// The code that follows one kind of source.
#[async_trait]
pub trait Tailer: Send + Sync {
    /// Connects and asks. A writer claims its stream only after this answered (R2).
    async fn identity(&self) -> Result<Identity>;
    /// Goes on after `cursor`, or begins where the source is now when there is none. Refuses with
    /// `LostLineage` when the source is not the one that the cursor was written from.
    async fn open(
        &self,
        cursor: Option<Cursor>,
        content: Arc<dyn Content>,
        state: Arc<dyn State>,
    ) -> Result<(Box<dyn Follower>, Box<dyn Settler>)>;
}

/// The pulled half of a tailer.
#[async_trait]
pub trait Follower: Send {
    /// The next step, in stream order; at most [`Item::BYTES_MAX`] of log each. Cancel-safe: a dropped call
    /// loses nothing. Waits for as long as nothing happens, but yields `Quiet` at least every second while
    /// the source answers. An error with a passing act means: open again.
    async fn next(&mut self) -> Result<Step>;
}

/// The half that tells the source what it may forget. Never waits for the follower.
#[async_trait]
pub trait Settler: Send {
    /// Everything up to `cursor` is durable and can be found from the sink alone.
    async fn settle(&mut self, cursor: &Cursor) -> Result<()>;
    /// The writer will not come back soon (`source retire` aside, nothing is dropped at the source): say
    /// good-bye so that the source does not wait for us.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// One step of a stream.
#[derive(Debug)]
pub struct Step {
    pub item: Item,
    /// Where a writer goes on that took this item in.
    pub cursor: Cursor,
    /// The newest instant of which all that the source held is in the stream up to this item.
    pub vouched: Option<(Instant, Timestamp)>,
    /// Somebody waits for this to be durable (`ack = "remote"`, a shutdown): close the batch early.
    pub waits: bool,
}

#[derive(Debug)]
pub enum Item {
    /// Bytes of the source's own log. `whole` when a record ends at `span.to`, so that a batch may end here
    /// without splitting one. `span.len() == bytes.len()`.
    Log {
        span: Span,
        bytes: Bytes,
        whole: bool,
        marks: Vec<Mark>,
    },
    Note(Note),
    Gap(Gap),
    /// A run ended and its checkpoint holds from here on.
    Finished(Finished),
    /// Nothing new, the source answered; only `vouched` counts.
    Quiet,
    /// All that the source held when we began is in the stream (ends a backfill).
    CaughtUp,
}

impl Item {
    /// Upper bound of the log bytes of one step: the permit taken before `next`.
    pub const BYTES_MAX: usize = 512 << 10;
}

/// Proof that content was accepted; becomes an extent once its pack is durable (R1).
#[derive(Debug)]
pub struct Ticket(oneshot::Receiver<Result<Extent>>);

impl Ticket {
    pub fn new() -> (oneshot::Sender<Result<Extent>>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self(receiver))
    }
    pub async fn extent(self) -> Result<Extent> {
        self.0.await.unwrap_or_else(|_| Err(Error::fenced("the writer ended before its pack was durable")))
    }
}

/// Where bulk content goes.
#[async_trait]
pub trait Content: Send + Sync {
    /// Takes one piece (at most 4 MiB), waiting for budget.
    async fn put(&self, bytes: Bytes) -> Result<Ticket>;
    /// Closes the open pack now instead of after half a second.
    async fn flush(&self) -> Result<()>;
    /// Begins a run. `body` is the tailer's own and is kept with the unfinished run.
    async fn begin(&self, began: Timestamp, body: Bytes) -> Result<Box<dyn Run>>;
}

/// A bulk job that writes a table of its own; invisible until its [`Finished`] is in the stream.
/// Dropping it abandons the run: its packs are forgotten by the next writer, its table stays readable for
/// look-ups as an unfinished run until then.
#[async_trait]
pub trait Run: Send {
    fn id(&self) -> RunId;
    /// Adds a row; any order, a later row of the same key wins. Not cancel-safe: a run of which a step was given up
    /// must be dropped.
    async fn row(&mut self, row: Row) -> Result<()>;
    /// Writes the last layer. The caller yields the result as [`Item::Finished`] when the stream has
    /// reached `serves`.
    async fn finish(
        self: Box<Self>,
        begin: Place,
        serves: Place,
        ended: Timestamp,
        suspect: Option<String>,
        body: Bytes,
    ) -> Result<Finished>;
}

/// A complete run, not yet in the stream. Only the pipeline makes it.
#[derive(Debug)]
pub struct Finished {
    pub checkpoint: Checkpoint,
}

/// Our own tables, as of the head of the stream.
#[async_trait]
pub trait State: Send + Sync {
    /// Checkpoints, unfinished runs, notes, gaps.
    fn catalog(&self) -> Arc<Catalog>;
    /// Rows of a table with keys from `from` on, in key order, merged over its layers: at least one unless
    /// the table ends there, at most `limit`. Pages are cached, so nearby calls cost nothing.
    async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> Result<Vec<Row>>;
}
