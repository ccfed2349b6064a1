//! The path of one batch (design.md section 5), and who may write a stream (section 6).
//!
//! A [`Writer`] asks its source who it is (`writer.rs`), finds the stream and its ring (`lineage.rs`), waits for
//! its turn (`standby.rs`), claims and closes what came before (`claim.rs`: R2 to R4), and streams until its epoch
//! ends (`tenure.rs`). There a step comes from the tailer (`link.rs`), joins a batch (`batcher.rs`, `compose.rs`),
//! is sealed and stored in order (`lane.rs`, `pool.rs`, `store.rs`), counted (`ledger.rs`) and settled (`settling.rs`:
//! R7). Content goes beside it into packs and layers (`content/`: R1), small objects are merged (`merge.rs`: R6), and
//! what asks for a new epoch is looked for (`lookout.rs`).
//!
//! Invariants: all of a writer is one future that may be dropped, or not polled for hours, at any await; nothing
//! above the ledger's watermark is settled; memory is bounded by [`Budget`].

mod batcher;
mod claim;
mod compose;
mod content;
mod gauges;
mod lane;
mod ledger;
mod lineage;
mod link;
mod lookout;
mod merge;
mod parts;
mod pool;
mod settings;
mod settling;
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
