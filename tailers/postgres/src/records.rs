//! What this tailer persists and its restorer reads back: keys and values of a base backup's rows, the body
//! of its checkpoint, and the bodies of notes.
//!
//! Invariants: keys sort in file order (tablespace, path, piece); every encoded body is an enum whose
//! variant is its version, so a later version adds a variant and changes none.

use bytes::Bytes;
use holdfast_core::{Branch, Error, Place, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::wal::{History, Lsn};

/// Bytes of a piece of a file: all pieces of a file are this long but the last one.
pub const PIECE: u64 = 1 << 20;
/// Longest path the server may send: a tar header holds 255 bytes, PATH_MAX is the honest bound.
const PATH_MAX: usize = 4096;

/// The path under which the server's backup manifest is kept, in the main folder, as in pg_basebackup.
pub const MANIFEST: &str = "backup_manifest";

/// Place and timeline as Postgres writes them: branch is the timeline, position the LSN.
pub fn place(timeline: u32, lsn: Lsn) -> Place {
    Place { branch: Branch(u64::from(timeline)), position: lsn.0 }
}

/// Key of a row: one piece of one file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceKey {
    /// Oid of the tablespace, 0 for the data folder itself.
    pub tablespace: u32,
    /// Relative to the tablespace's folder, `/` between names, without a leading `./` or trailing `/`.
    pub path: String,
    pub piece: u32,
}

impl PieceKey {
    /// Oid, path, NUL (which no path holds), piece number; numbers big-endian.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.path.len() + 9);
        out.extend_from_slice(&self.tablespace.to_be_bytes());
        out.extend_from_slice(self.path.as_bytes());
        out.push(0);
        out.extend_from_slice(&self.piece.to_be_bytes());
        out.into()
    }

    pub fn decode(key: &[u8]) -> Result<Self> {
        let bad = || Error::corrupt("a row of a base backup has a key that is none of ours");
        let (oid, rest) = key.split_first_chunk::<4>().ok_or_else(bad)?;
        let (rest, piece) = rest.split_last_chunk::<4>().ok_or_else(bad)?;
        let (nul, path) = rest.split_last().ok_or_else(bad)?;
        if *nul != 0 || path.len() > PATH_MAX || path.contains(&0) {
            return Err(bad());
        }
        Ok(Self {
            tablespace: u32::from_be_bytes(*oid),
            path: std::str::from_utf8(path).map_err(|_| bad())?.to_owned(),
            piece: u32::from_be_bytes(*piece),
        })
    }
}

/// Value of a file's first row (piece 0). Further pieces have an empty value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Seconds since 1970.
    pub mtime: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// `size` bytes in `size.div_ceil(PIECE)` rows (one row when empty), each holding one extent (none when empty).
    File {
        size: u64,
    },
    Folder,
    /// A symbolic link; tablespace links under `pg_tblspc` are not kept, see [`Base::tablespaces`].
    Link {
        target: String,
    },
}

#[derive(Serialize, Deserialize)]
enum EntryForm {
    V1(Entry),
}

impl Entry {
    pub fn encode(&self) -> Result<Bytes> {
        encode(&EntryForm::V1(self.clone()))
    }
    pub fn decode(value: &[u8]) -> Result<Self> {
        let EntryForm::V1(entry) = decode(value, "a row of a base backup")?;
        Ok(entry)
    }
}

/// Body of a base backup's checkpoint. Its `begin` is (`timeline`, `start`), its `serves`
/// (`end_timeline`, `end`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub label: String,
    /// Redo position of the backup's checkpoint and its timeline.
    pub timeline: u32,
    pub start: Lsn,
    pub end_timeline: u32,
    pub end: Lsn,
    /// Without the data folder itself.
    pub tablespaces: Vec<Tablespace>,
    /// Bytes of a WAL segment.
    pub segment_size: u32,
    /// As `server_version_num`: 150018.
    pub version: u32,
    pub system_identifier: u64,
    /// In force when the backup began: the least that a restored server needs.
    pub parameters: Parameters,
    /// `data_checksums` is on.
    pub checksums: bool,
    /// The data folder is readable by its group (`data_directory_mode` 0750).
    pub group_access: bool,
    /// The server itself was a standby.
    pub from_standby: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tablespace {
    pub oid: u32,
    /// Where it lay at the source.
    pub location: String,
}

/// Settings that a standby or a recovering server must not set lower than its source had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    pub max_connections: u32,
    pub max_worker_processes: u32,
    pub max_wal_senders: u32,
    pub max_prepared_transactions: u32,
    pub max_locks_per_transaction: u32,
    pub wal_level: WalLevel,
    pub wal_log_hints: bool,
    pub track_commit_timestamp: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WalLevel {
    Minimal,
    #[default]
    Replica,
    Logical,
}

#[derive(Serialize, Deserialize)]
enum BaseForm {
    V1(Base),
}

impl Base {
    pub fn encode(&self) -> Result<Bytes> {
        encode(&BaseForm::V1(self.clone()))
    }
    pub fn decode(body: &[u8]) -> Result<Self> {
        let BaseForm::V1(base) = decode(body, "the checkpoint of a base backup")?;
        Ok(base)
    }
}

/// Body of a note in the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoteBody {
    /// The history file of `timeline`, verbatim. The note's place is where that timeline begins (on the
    /// timeline itself), or the place at which it was fetched when it began long ago.
    History { timeline: u32, content: Bytes },
    /// Parameters in force from the note's place on (the end of the WAL record that changed them).
    Parameters(Parameters),
    /// A tablespace was made; its place is the end of the record that made it, and replay makes it at `location` again.
    Tablespace { oid: u32, location: String },
}

impl NoteBody {
    pub fn encode(&self) -> Result<Bytes> {
        encode(self)
    }
    pub fn decode(body: &[u8]) -> Result<Self> {
        decode(body, "a note")
    }
    /// The parsed history and its timeline, when this is one.
    pub fn history(&self) -> Option<Result<History>> {
        match self {
            Self::History { timeline, content } => Some(History::parse(*timeline, content)),
            Self::Parameters(_) | Self::Tablespace { .. } => None,
        }
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Bytes> {
    postcard::to_stdvec(value)
        .map(Bytes::from)
        .map_err(|cause| Error::bug("a record could not be encoded").because(cause))
}

fn decode<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(Error::corrupt(format!("{what} is longer than it says"))),
        Err(cause) => Err(Error::corrupt(format!(
            "{what} cannot be read: it is damaged, or of a newer version of holdfast"
        ))
        .because(cause)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_sort_in_file_order_and_come_back(
            a in (0u32..3, "[a-z_/.]{1,12}", 0u32..3),
            b in (0u32..3, "[a-z_/.]{1,12}", 0u32..3),
        ) {
            let key = |(tablespace, path, piece)| PieceKey { tablespace, path, piece };
            let (a, b) = (key(a), key(b));
            prop_assert_eq!(a.cmp(&b), a.encode().cmp(&b.encode()));
            prop_assert_eq!(&PieceKey::decode(&a.encode()).unwrap(), &a);
        }

        #[test]
        fn hostile_records_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (PieceKey::decode(&bytes), Entry::decode(&bytes), Base::decode(&bytes), NoteBody::decode(&bytes));
        }
    }

    #[test]
    fn a_longer_record_is_refused() {
        let entry = Entry { kind: EntryKind::File { size: 8192 }, mode: 0o600, mtime: 1 };
        let mut bytes = entry.encode().unwrap().to_vec();
        assert_eq!(Entry::decode(&bytes).unwrap(), entry);
        bytes.push(0);
        assert!(Entry::decode(&bytes).is_err());
    }
}
