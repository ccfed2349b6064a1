//! Follows a Postgres cluster (13 to 18) over the replication protocol, and brings it back.
//!
//! `wal` and `records` are pure. The stream of a lineage is WAL at record granularity; a branch is a
//! timeline, a position an LSN; a checkpoint is a base backup.

mod base;
mod cursor;
mod doctor;
mod fuzz;
mod health;
pub mod records;
pub mod restore;
mod settings;
mod sql;
mod tail;
pub mod wal;

pub use base::BackupRequests;
pub use cursor::{Position, Proof};
pub use doctor::{Finding, Verdict};
pub use fuzz::fuzz_decode;
pub use health::{BaseHealth, Health, SharedHealth};
pub use settings::{Ack, Settings, StandbyPolicy};
pub use tail::Postgres;
