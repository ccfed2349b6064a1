//! One lineage as restores and reports read it.

mod tables;

pub use tables::{CACHE_BYTES, Scan, TableReader, Tables};
