//! The path of one batch (design.md sections 5 and 6): budget, tail, batch, seal, store, ledger, settle; and
//! who may write a stream.

mod batcher;
mod claim;
mod compose;
mod content;
mod gauges;
mod lane;
mod ledger;
mod lineage;
mod link;
mod merge;
mod parts;
mod pool;
mod settings;
mod standby;
mod store;
mod tenure;
mod writer;

pub use gauges::{BATCH_BYTES, Content as ContentFigures, Figures, Gauges, Phase};
pub use ledger::{Amount, Counts};
pub use parts::Parts;
pub use pool::Pool;
pub use settings::{Budget, Settings, Takeover};
pub use writer::{Outcome, Writer};
