//! The ordered log of one lineage, as tailers write it and restorers read it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Epoch, Layer, RunId, Timestamp};

/// A part of a stream that has an order of its own: a timeline, a filer, a table set, a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Branch(pub u64);

/// A position within a branch (Postgres: timeline and LSN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    pub branch: Branch,
    pub position: u64,
}

/// A half-open range of one branch, `from <= to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Span {
    pub branch: Branch,
    pub from: u64,
    pub to: u64,
}

impl Span {
    pub fn start(&self) -> Place {
        Place { branch: self.branch, position: self.from }
    }
    pub fn end(&self) -> Place {
        Place { branch: self.branch, position: self.to }
    }
    pub fn len(&self) -> u64 {
        self.to.saturating_sub(self.from)
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All a tailer needs to go on after an item; opaque to everybody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(pub Bytes);

/// A restore point: everything up to and including `place` (the position *after* the entry).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Where the entry begins, within the same branch as `place`.
    pub begin: u64,
    pub place: Place,
    /// The source's clock. Not monotone (Postgres: commit times are taken before the record is placed).
    pub time: Timestamp,
    pub kind: MarkKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MarkKind {
    /// A commit, with the source's transaction id.
    Commit { id: u64 },
    /// A point the user named at the source.
    Name(String),
    /// A tick or snapshot.
    Tick,
}

/// Something rare that a restore must know without reading the log (timeline history, changed parameters).
/// The body is the tailer's own; all notes of a lineage are kept in its catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub place: Place,
    pub time: Timestamp,
    pub body: Bytes,
}

/// A range of the stream known to be missing. Restores refuse to cross it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub span: Span,
    pub cause: String,
    pub noticed: Timestamp,
}

/// A complete table, the place from which the log must be applied to it, and the first place it serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub id: RunId,
    pub begin: Place,
    pub serves: Place,
    /// Source clock when the run began and when it ended (its newest content may be as new as `ended`).
    pub began: Timestamp,
    pub ended: Timestamp,
    pub layers: Vec<Layer>,
    pub rows: u64,
    /// Opened bytes that it stands for, and sealed bytes that the run itself sent.
    pub bytes: u64,
    pub sent: u64,
    /// The source reported damage (failed page checksums): kept, flagged, never counted as clean.
    pub suspect: Option<String>,
    /// The tailer's own.
    pub body: Bytes,
}

/// An unfinished run as the stream names it: what it names is never sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunProgress {
    pub id: RunId,
    pub began: Timestamp,
    pub layers: Vec<Layer>,
    pub body: Bytes,
}

/// A sparse index of the log: object `number` of `epoch` ends here. Per branch, in stream order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub epoch: Epoch,
    pub number: u64,
    pub place: Place,
    /// Newest mark or vouched time up to that object: never falls along a branch, so every mark before
    /// `place` is at most this new.
    pub time: Timestamp,
}

/// All that is rare in a lineage, complete as of some log object: read it and no scan is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    pub checkpoints: Vec<Checkpoint>,
    pub runs: Vec<RunProgress>,
    pub gaps: Vec<Gap>,
    pub notes: Vec<Note>,
    pub samples: Vec<Sample>,
    /// Per branch, what the log holds: spans that join are joined; a gap separates them.
    pub spans: Vec<Span>,
}
