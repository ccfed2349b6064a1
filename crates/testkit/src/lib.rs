//! What tests of more than one crate share. Knows core only.

mod memory_content;
mod cruel_sink;
mod memory_sink;
mod memory_view;
pub mod scripted;
mod sink_suite;

pub use memory_content::MemoryContent;
pub use cruel_sink::{CruelSink, Cruelty};
pub use memory_sink::{MemorySink, Traffic};
pub use memory_view::MemoryView;
pub use sink_suite::SinkSuite;
