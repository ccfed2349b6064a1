//! What a test wants of a Postgres server.

use std::path::PathBuf;

use anyhow::Result;

use super::{Major, Server, template::Shape};

/// Settings of a server to be started. The defaults suit tests: `wal_level = replica`, no fsync (a killed process
/// loses nothing; only a lost machine would), trust on the socket and on 127.0.0.1, a data folder under /tmp.
#[derive(Clone, Debug)]
pub struct Options {
    pub(super) major: Major,
    pub(super) debian: bool,
    pub(super) shape: Shape,
    pub(super) settings: Vec<(String, String)>,
    pub(super) access: Option<String>,
    pub(super) tls: Option<(String, String)>,
    pub(super) home: Option<PathBuf>,
}

impl From<Major> for Options {
    fn from(major: Major) -> Self {
        Self::new(major)
    }
}

impl Options {
    pub fn new(major: Major) -> Self {
        let defaults = [
            ("wal_level", "replica"),
            ("fsync", "off"),
            ("max_wal_senders", "10"),
            ("max_replication_slots", "10"),
            ("max_connections", "60"),
            ("shared_buffers", "32MB"),
            ("timezone", "UTC"),
            ("log_line_prefix", "%m [%p] "),
            ("log_replication_commands", "on"),
        ];
        Self {
            major,
            debian: false,
            shape: Shape { segment_mib: 16, checksums: true },
            settings: defaults
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            access: None,
            tls: None,
            home: None,
        }
    }

    /// Debian's own build of Postgres 15, with everything it can do (server-side zstd and lz4 among it).
    pub fn debian() -> Self {
        Self { debian: true, ..Self::new(Major::V15) }
    }

    /// One line of postgresql.conf; a later one wins.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn fsync(self, on: bool) -> Self {
        self.set("fsync", if on { "on" } else { "off" })
    }

    /// WAL segment size in MiB: a power of two from 1 to 1024.
    pub fn segment_mib(mut self, mib: u32) -> Self {
        self.shape.segment_mib = mib;
        self
    }

    /// Page checksums; on unless told otherwise.
    pub fn checksums(mut self, on: bool) -> Self {
        self.shape.checksums = on;
        self
    }

    /// The whole of pg_hba.conf.
    pub fn access(mut self, lines: &str) -> Self {
        self.access = Some(format!("{lines}\n"));
        self
    }

    /// Serves TLS with this certificate and key (PEM).
    pub fn tls(mut self, certificate: &str, key: &str) -> Self {
        self.tls = Some((certificate.to_owned(), key.to_owned()));
        self
    }

    /// Puts the server's folder below this one (a small file system, say) instead of under /tmp.
    pub fn home(mut self, folder: impl Into<PathBuf>) -> Self {
        self.home = Some(folder.into());
        self
    }

    pub fn major(&self) -> Major {
        self.major
    }

    pub async fn start(self) -> Result<Server> {
        Server::start(self).await
    }
}
