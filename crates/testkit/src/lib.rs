//! What tests of more than one crate share. Knows core only.

mod cruel_sink;
mod memory_content;
mod memory_sink;
mod memory_view;
pub mod scripted;
mod sink_suite;

pub use cruel_sink::{AHEAD, CruelSink, Cruelty};
pub use memory_content::MemoryContent;
pub use memory_sink::{MemorySink, Traffic};
pub use memory_view::MemoryView;
pub use sink_suite::SinkSuite;
