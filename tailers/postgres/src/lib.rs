//! Follows a Postgres cluster (13 to 18) over the replication protocol, and brings it back.
//!
//! `wal` and `records` are pure. The stream of a lineage is WAL at record granularity; a branch is a
//! timeline, a position an LSN; a checkpoint is a base backup.

pub mod records;
pub mod restore;
pub mod wal;
