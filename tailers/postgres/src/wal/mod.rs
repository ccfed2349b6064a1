//! Reading WAL without a server: positions, pages, records, timeline histories. Pure and sync; nothing here
//! panics on hostile bytes, and memory is bounded by the longest record head we look into.

mod history;
mod lsn;
mod page;
mod parser;
mod record;
#[cfg(test)]
pub(crate) mod tests;

pub use history::{Ancestor, History};
pub use lsn::{Lsn, SegmentSize};
pub use page::{LongHeader, PAGE, PageHeader, major};
pub use parser::{Found, Memory, Open, Parser, Start, What};
pub use record::{Entry, server_time};
