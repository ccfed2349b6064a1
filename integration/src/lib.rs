//! What the end-to-end tests, the demo and the comparison share: the built `holdfast` program, a place with settings
//! and keys to run it from, a running sidecar, and a workload that remembers what was acknowledged.

#![allow(clippy::disallowed_methods, reason = "real programs live in real time")]

pub mod compare;
mod journal;
mod metrics;
mod program;
mod refusal;
mod rows;
mod settled;
mod sidecar;
mod site;
mod workload;

pub use journal::{Journal, Verdict, judge};
pub use metrics::{Metrics, Sampler};
pub use program::program;
pub use rows::{held, insert, up_to};
pub use settled::settled;
pub use sidecar::Sidecar;
pub use site::{Place, Site};
pub use workload::{Workload, digest};
