//! The words, errors and seams that every part of holdfast shares (design.md sections 2 and 8).
//!
//! `core` knows nothing of ours. Tailers and sinks know `core` only, so whatever crosses between them
//! and the pipeline is defined here: the [`Tailer`] and its two halves, the [`Restorer`], the [`Sink`].

mod clock;
mod error;
mod ids;
mod random;
mod restorer;
mod row;
pub mod sink;
mod stream;
mod tailer;
pub mod task;
pub mod text;
mod time;

pub use clock::{Clock, Instant};
pub use error::{Act, Error, Result};
pub use ids::{Epoch, LineageId, PackId, PieceId, RepoId, RunId, SourceId, WriterId};
pub use random::Random;
pub use restorer::{LogChunk, Marks, Moment, Plan, PlanSummary, Progress, Report, Restorer, View, Wish};
pub use row::{Extent, Held, Layer, Row, StateObject, digest};
pub use sink::Sink;
pub use stream::{
    Branch, Catalog, Checkpoint, Cursor, Gap, Mark, MarkKind, Note, Place, RunProgress, Sample, Span,
};
pub use tailer::{Content, Finished, Follower, Identity, Item, Run, Settler, State, Step, Tailer, Ticket};
pub use time::Timestamp;

pub use bytes::{Bytes, BytesMut};
