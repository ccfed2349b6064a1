//! What tests of more than one crate share. Knows core only.

mod memory_content;
mod memory_sink;
mod memory_view;
mod sink_suite;

pub use memory_content::MemoryContent;
pub use memory_sink::{MemorySink, Traffic};
pub use memory_view::MemoryView;
pub use sink_suite::SinkSuite;
