//! A client of Postgres's physical replication protocol, for servers 13 to 18. No policy: when to connect,
//! what to acknowledge and what an error means for a backup is decided above.
//!
//! The way through: [`Config`] says where ([`Connection::open`] finds a host, protects the way, signs in), a
//! [`Connection`] runs commands, and becomes a [`Stream`] of the log or a [`BackupStream`] and, when that
//! ended well, a connection again.
//!
//! Decoders ([`fuzz_decode`]) are pure: bytes in, events out; lengths are capped before room is made for
//! them, and no bytes of a server can make them panic.

mod auth;
mod backup;
mod config;
mod connect;
mod connection;
mod error;
mod frame;
mod inbox;
mod lsn;
mod message;
mod replay;
mod socket;
mod stream;
mod tls;

pub use backup::{BackupEvent, BackupOptions, BackupStream, ManifestChecksums, Tablespace};
pub use config::{
    Address, Binding, Config, Host, Keepalives, Methods, Roots, Secret, Surroundings, Target, Tls, TlsMode,
};
pub use connection::{Connection, Lifetime, Reserve, SlotState, SystemIdentity, TimelineHistory};
pub use error::{Error, Result, ServerError, Severity, SqlState};
pub use lsn::{BadLsn, Lsn};
pub use replay::{fuzz_decode, replay_backup, replay_stream};
pub use stream::{Event, Started, Status, Stream, StreamReader, StreamWriter};
