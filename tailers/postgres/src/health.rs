//! What metrics and `status` show of a source, kept by the tailer as it goes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use holdfast_core::Timestamp;
use serde::Serialize;

use crate::wal::Lsn;

/// A snapshot; positions are LSNs of `timeline`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Health {
    pub connected: bool,
    /// The host that answered last.
    pub host: String,
    pub server_version: u32,
    pub timeline: u32,
    /// The server is a standby.
    pub standby: bool,
    /// How far the server said that it could send.
    pub server_end: Lsn,
    pub received: Lsn,
    /// What the server was last told that it may forget.
    pub acknowledged: Lsn,
    /// Somebody waits for us: commits (`ack = "remote"`, or a server that counts on us), or a shutdown.
    pub waits: bool,
    /// The server's word for us in `pg_stat_replication` (`async`, `potential`, `sync`, `quorum`).
    pub sync_state: Option<String>,
    /// `reserved`, `extended`, `unreserved`, `lost`.
    pub slot_status: Option<String>,
    /// Bytes of log that the slot keeps at the server.
    pub slot_lag: Option<u64>,
    /// Bytes that the server may still write before it gives our slot up; `None` without a limit.
    pub slot_headroom: Option<u64>,
    /// Times that the slot was found lost and made anew, and how often that cost bytes.
    pub slots_lost: u64,
    pub gaps: u64,
    pub connections: u64,
    pub base_backup: BaseHealth,
    /// The newest thing that a person should know, empty when all is well.
    pub notice: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BaseHealth {
    pub running: bool,
    /// Bytes of files taken so far, bytes that had to be sent, and the server's estimate of all.
    pub taken: u64,
    pub sent: u64,
    pub total: Option<u64>,
    pub files: u64,
    /// How long the running or last backup waited for the server's next bytes, and how long for a place to put them:
    /// the larger one is what limits it (F8).
    pub source_wait: Duration,
    pub store_wait: Duration,
    pub last_ended: Option<Timestamp>,
    /// Why the last try failed.
    pub failure: Option<String>,
}

/// Shared and always readable; cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct SharedHealth(Arc<Mutex<Health>>);

impl SharedHealth {
    pub fn read(&self) -> Health {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    pub fn change(&self, change: impl FnOnce(&mut Health)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
