//! Brings a cluster back: which moment (`resolve` over `timelines`, `search` and `boundary`), onto which
//! folder (`plan`), the files themselves (`apply`), the WAL that Postgres asks for while it recovers
//! (`wal_fetch`), and proof that it arrived where it was promised (`start_check`).
//!
//! Knows a repository only as core's [`View`](holdfast_core::View).

pub mod boundary;
pub mod resolve;
pub mod search;
pub mod timelines;

#[cfg(test)]
mod resolve_tests;
