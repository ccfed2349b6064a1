//! Entries: what the key half of a log object says, in order. Append-only: a variant keeps its place and its
//! fields for ever, new ones are added at the end.

use holdfast_core::{
    Catalog, Checkpoint, Cursor, Epoch, Error, Gap, Note, Result, RunId, RunProgress, Span, Timestamp,
};
use serde::{Deserialize, Serialize};

pub use crate::marks::Marks;
use crate::wire::{Reader, put_varint};

/// One entry of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Bytes of the source's log: `length` bytes from `offset` of the opened closed half. A record ends at
    /// `span.to` when `whole`.
    Log {
        span: Span,
        offset: u32,
        length: u32,
        whole: bool,
    },
    Marks(Marks),
    Note(Note),
    Gap(Gap),
    /// An unfinished run; replaces what was known of it.
    Progress(RunProgress),
    /// A finished run; ends its progress.
    Checkpoint(Box<Checkpoint>),
    /// A run that will not be finished.
    Abandoned(RunId),
    /// Where a writer goes on that took over everything up to the end of this object. The last one counts.
    Cursor(Cursor),
    /// Replaces all that earlier objects said of what is rare.
    Catalog(Box<Catalog>),
    /// First entry of number 0.
    Took(Took),
    /// The three clocks side by side, as far as they could be asked.
    Clocks {
        source: Option<Timestamp>,
        host: Timestamp,
        store: Option<Timestamp>,
    },
    /// A cut across sources: this stream holds all that was acknowledged before `began`.
    Cut {
        name: String,
        began: Timestamp,
    },
    /// Names this stream will never name again (R8).
    Doom {
        names: Vec<String>,
    },
    /// The writer ended in order: anybody may claim at once.
    Release,
}

/// Number of variants; entries above it were written by a newer holdfast.
const VARIANTS: u32 = 14;

/// What an epoch took over, said once and never counted again (R3, R4).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Took {
    /// `None` for the first epoch of a lineage.
    pub predecessor: Option<Predecessor>,
    /// Epochs above the predecessor that never had a number 0.
    pub dead: Vec<Epoch>,
    /// Epochs that have an END because of this one.
    pub closed: Vec<Epoch>,
}

/// The end of the stream before this epoch; what came before is reached through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    pub epoch: Epoch,
    /// Last number taken over.
    pub last: u64,
    /// Its object's digest.
    pub digest: [u8; 32],
}

/// Each entry with its length before it.
pub fn encode(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for entry in entries {
        let bytes = postcard::to_stdvec(entry)
            .map_err(|cause| Error::bug("an entry could not be encoded").because(cause))?;
        put_varint(&mut out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

/// # Errors
/// `Corrupt` for bytes that no version writes, `Configure` for entries of a newer holdfast.
pub fn decode(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while !reader.is_empty() {
        let length = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
        entries.push(decode_one(reader.slice(length)?)?);
    }
    Ok(entries)
}

fn decode_one(bytes: &[u8]) -> Result<Entry> {
    let bad = |cause| Error::corrupt("an entry cannot be read").because(cause);
    let (variant, _) = postcard::take_from_bytes::<u32>(bytes).map_err(bad)?;
    if variant >= VARIANTS {
        return Err(Error::configure(format!(
            "an entry of kind {variant} was written by a newer holdfast: use that version or a later one"
        )));
    }
    let (entry, rest) = postcard::take_from_bytes(bytes).map_err(bad)?;
    if rest.is_empty() { Ok(entry) } else { Err(Error::corrupt("an entry is longer than it should be")) }
}
