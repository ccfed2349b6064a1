//! One lineage as restores and reports read it.

mod contents;
mod keys;
mod tables;

pub use contents::Contents;
pub use keys::DataKeys;
pub use tables::{CACHE_BYTES, Scan, TableReader, Tables};
