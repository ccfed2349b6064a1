//! What tests of more than one crate share. Knows core only.

mod memory_sink;
mod sink_suite;

pub use memory_sink::{MemorySink, Traffic};
pub use sink_suite::SinkSuite;
