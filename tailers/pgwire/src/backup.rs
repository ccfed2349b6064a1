//! BASE_BACKUP: one stream of events for both shapes of answer (13 and 14: a copy for each tablespace and
//! one for the manifest; from 15 on: one copy of tagged messages).

use bytes::Bytes;

use crate::{Connection, Error, Lsn, Result, ServerError, socket::Incoming};

pub(crate) mod decode;
mod options;

use decode::BackupDecoder;
pub use options::{BackupOptions, ManifestChecksums};

/// What a base backup yields, in this order: `Start`, then for each archive `Archive` and its `Data`, then
/// (when asked for) `ManifestBegin` and its `Manifest`, then `End`. `Progress` may come in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupEvent {
    Start {
        /// Redo must begin here.
        start: Lsn,
        timeline: u32,
        tablespaces: Vec<Tablespace>,
    },
    /// A tar stream begins; the one before it is complete. Servers before 15 leave its two empty end blocks
    /// out.
    Archive {
        /// `None` for the main data folder.
        oid: Option<u32>,
        /// Where the tablespace lies at the server.
        path: Option<String>,
    },
    /// Bytes of the archive, sharing the read buffer.
    Data(Bytes),
    ManifestBegin,
    Manifest(Bytes),
    /// Bytes the server has read so far (from 15 on, when asked for).
    Progress(u64),
    /// All was sent. The cluster is consistent once the log up to `end` was applied.
    End {
        end: Lsn,
        timeline: u32,
        /// The server found pages whose checksums fail (XX001); it says so only after it sent everything.
        damage: Option<ServerError>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablespace {
    /// `None` for the main data folder.
    pub oid: Option<u32>,
    pub location: Option<String>,
    /// Estimated by the server when progress was asked for.
    pub kib: Option<u64>,
}

/// A running base backup. Dropping it closes the connection, which is the way to cancel.
pub struct BackupStream {
    connection: Connection,
    decoder: BackupDecoder,
}

impl Connection {
    /// Begins a base backup. The server first makes a checkpoint, so the first event may take long.
    pub async fn base_backup(mut self, options: &BackupOptions) -> Result<BackupStream> {
        let major = self.server_major();
        self.send(&options.command(major)?).await?;
        Ok(BackupStream { connection: self, decoder: BackupDecoder::new(major) })
    }
}

impl BackupStream {
    /// The next event. Cancel-safe. After [`BackupEvent::End`] nothing more comes ([`Error::Closed`]).
    pub async fn next(&mut self) -> Result<BackupEvent> {
        loop {
            if self.decoder.is_over() {
                return Err(Error::Closed);
            }
            let incoming: &mut Incoming = &mut self.connection.incoming;
            if let Some(event) = self.decoder.feed(incoming.message().await?)? {
                return Ok(event);
            }
        }
    }
    /// The connection, after [`BackupEvent::End`].
    pub fn into_connection(mut self) -> Result<Connection> {
        if !self.decoder.is_ready() {
            return Err(Error::Abandoned);
        }
        self.connection.busy = false;
        Ok(self.connection)
    }
}
