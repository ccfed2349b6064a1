//! One lineage as restores and reports read it.

mod contents;
mod keys;
mod lineage;
mod locate;
mod pass;
mod reading;
mod repository;
mod tables;

pub use contents::Contents;
pub use keys::DataKeys;
pub use lineage::LineageView;
pub use pass::Pass;
pub use repository::{Lineage, Repository, Source, newest};
pub use tables::{CACHE_BYTES, Scan, TableReader, Tables};
