//! What tests of more than one crate share. Knows core only.

mod memory_sink;

pub use memory_sink::{MemorySink, Traffic};
