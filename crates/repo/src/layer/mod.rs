//! Tables in layers: sorted, immutable objects `state/<epoch>/<number>` of sealed pages, and the merge of
//! several layers into one table. Pure throughout; who reads or writes the objects is elsewhere.
//!
//! Invariants: keys ascend strictly within a layer; a later layer wins; memory is one page a layer for
//! reading and [`BUFFER_BYTES`] for writing.

mod buffer;
mod merge;
mod object;
mod page;
mod row;

pub use buffer::{BUFFER_BYTES, RowBuffer};
pub use merge::{Merge, Step};
pub use object::{END_READ, End, StateBuilder, StateIndex, Summary, check_digest, summary};
pub use page::{PAGE_BYTES, PAGE_MAX, PageRows};
pub use row::{KEY_MAX, ROW_MAX};

#[cfg(test)]
mod tests;
