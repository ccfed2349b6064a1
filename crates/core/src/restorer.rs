//! The seam between the repository and what is brought back. A restorer never sees the sink.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Catalog, Held, Layer, Mark, Place, Result, Row, RunId, Span, Timestamp};

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Latest,
    /// As soon as the checkpoint is consistent.
    Immediate,
    Time(Timestamp),
    /// A position as the source writes it (Postgres: `0/16B3748`).
    Position(String),
    /// A transaction id.
    Transaction(u64),
    Name(String),
}

/// A moment that can be restored: one checkpoint and the log from `begin` to `place` along `path`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub checkpoint: RunId,
    pub place: Place,
    /// Where the log entry that ends at `place` begins (on the same branch or, across a switch, before it).
    pub begin: u64,
    /// Is the entry that ends at `place` part of it?
    pub inclusive: bool,
    /// The source's clock at that moment, where a mark tells it.
    pub time: Option<Timestamp>,
    /// The log to be applied, in order; one span a branch.
    pub path: Vec<Span>,
}

/// Bytes of the source's log.
#[derive(Clone, Debug)]
pub struct LogChunk {
    pub span: Span,
    pub bytes: Bytes,
}

/// One lineage as a restorer may read it.
#[async_trait]
pub trait View: Send + Sync {
    /// As of the newest log object (or the one the view was opened at).
    fn catalog(&self) -> &Catalog;
    /// Newest place of each branch that is durable, in the order in which the stream wrote to the branches
    /// last: the last one is where the stream goes on. And the newest time that the source vouched for.
    fn heads(&self) -> Vec<Place>;
    fn vouched(&self) -> Option<Timestamp>;
    /// Marks of `span` in stream order, in chunks, from the object that holds `span.from` on. Ask again from
    /// the end of `covered`; an empty `covered` means that nothing follows.
    async fn marks(&self, span: Span) -> Result<Marks>;
    /// Rows of a table with keys from `from` on, in key order, at most `limit`.
    async fn rows(&self, layers: &[Layer], from: &[u8], limit: usize) -> Result<Vec<Row>>;
    /// Opened bytes of an extent, checked against the hash.
    async fn content(&self, held: &Held) -> Result<Bytes>;
    /// Several extents of one pack at once: one ranged read where they lie close together.
    async fn contents(&self, held: &[Held]) -> Result<Vec<Bytes>>;
    /// Log bytes from `span.from` on, at least one chunk unless the log ends there, at most about
    /// `span.len()`; contiguous. The first chunk may be cut to begin at `span.from`.
    async fn log(&self, span: Span) -> Result<Vec<LogChunk>>;
    /// Sealed bytes and number of objects that reading `extents` and `path` would take: for plans.
    async fn cost(&self, path: &[Span]) -> Result<(u64, u64)>;
}

/// See [`View::marks`].
#[derive(Clone, Debug)]
pub struct Marks {
    pub marks: Vec<Mark>,
    pub covered: Span,
}

/// What a plan says of itself; printed by `--plan`, as text or JSON.
#[derive(Clone, Debug, Serialize)]
pub struct PlanSummary {
    pub moment: Moment,
    pub lines: Vec<(String, String)>,
    /// Reasons why it cannot be applied as it stands; empty when it can.
    pub conflicts: Vec<String>,
    pub bytes: u64,
    pub objects: u64,
}

/// Progress of a long step.
pub trait Progress: Send + Sync {
    fn total(&self, bytes: u64);
    fn done(&self, bytes: u64);
    fn say(&self, line: &str);
}

/// What was restored, for the last lines a person reads.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub files: u64,
    pub bytes: u64,
    pub lines: Vec<String>,
}

/// A checked intention. Its text is what `--plan` prints.
#[async_trait]
pub trait Plan: Send {
    fn summary(&self) -> PlanSummary;
    /// Resumable: a second `apply` of the same plan finishes what the first one began.
    async fn apply(self: Box<Self>, view: Arc<dyn View>, progress: Arc<dyn Progress>) -> Result<Report>;
}

/// The code that brings one kind of source back. Settings and target are given when it is made.
#[async_trait]
pub trait Restorer: Send + Sync {
    /// Turns a wish into a moment, or says why not. Nothing is written before this succeeded.
    async fn resolve(&self, wish: &Wish, view: &dyn View) -> Result<Moment>;
    async fn plan(&self, moment: &Moment, view: &dyn View) -> Result<Box<dyn Plan>>;
}

impl fmt::Display for PlanSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|(k, _)| k.chars().count()).max().unwrap_or(0);
        for (key, value) in &self.lines {
            writeln!(f, "{key:width$}  {value}")?;
        }
        for conflict in &self.conflicts {
            writeln!(f, "cannot go on: {conflict}")?;
        }
        Ok(())
    }
}
