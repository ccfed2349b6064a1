//! Reading WAL without a server: positions, pages, records, timeline histories. Pure and sync; nothing here
//! panics on hostile bytes, and memory is bounded by the longest record head we look into.

mod history;
mod lsn;

pub use history::{Ancestor, History};
pub use lsn::{Lsn, SegmentSize};
