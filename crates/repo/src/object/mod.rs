//! The log object and END: a clear prelude, a sealed header, and a body of two sealed halves (FORMAT.md).
//!
//! Invariants: the header authenticates the prelude, the prelude holds the digests of the body and of the
//! header before it, and the digest of prelude and header is the object's. Bodies are sealed in parallel
//! ([`seal_body`]), headers in order ([`seal_header`]). Identity is bound, place is not: merging and mirroring
//! move sealed bytes.

mod prelude;

use bytes::Bytes;
use holdfast_core::{
    Epoch, Error, Result, Span, Timestamp,
    sink::{Body, OBJECT_MAX},
};
use prelude::HEADER_MAX;
pub use prelude::{Kind, ObjectId, PRELUDE, Prelude, parse_prelude};
use serde::{Deserialize, Serialize};

use crate::{
    entry::{self, Entry},
    seal::{self, Key, purpose},
    wire::Reader,
};

/// A read of this length from the front holds the whole front of an object with few spans.
pub const FRONT_READ: u64 = 4096;

/// What a data object says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// What the closed half and the rows hold, per branch, in order.
    pub spans: Vec<Span>,
    /// The writer's clocks when the batch was closed: wall, and microseconds since the writer started.
    pub written: Timestamp,
    pub uptime: u64,
    /// Newest time of the source of which all that it held is durable up to here.
    pub vouched: Option<Timestamp>,
    /// Oldest and newest time of the marks of this object.
    pub marks: Option<(Timestamp, Timestamp)>,
    pub mark_count: u32,
    /// Milliseconds after which the next object comes at the latest.
    pub heartbeat: u32,
    /// The newest object, this one included, whose entries hold a whole catalog.
    pub catalog: Option<(Epoch, u64)>,
    /// The writer ended in order with this object.
    pub release: bool,
}

/// What an END says: nothing of its epoch counts from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The epoch that closes.
    pub by: Epoch,
    pub written: Timestamp,
}

/// A header that proved itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Front {
    Data(Header),
    End(End),
}

/// A front that proved itself, with the object's digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFront {
    pub prelude: Prelude,
    pub front: Front,
    pub digest: [u8; 32],
}

/// A body, sealed before its header's turn came.
#[derive(Clone, Debug)]
pub struct SealedBody {
    id: ObjectId,
    salt: [u8; 16],
    key_half: Bytes,
    closed_half: Bytes,
    key_digest: [u8; 32],
    closed_digest: [u8; 32],
}

impl SealedBody {
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// Sealed bytes.
    pub fn len(&self) -> usize {
        self.key_half.len() + self.closed_half.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An object as it is stored, again and again with the same bytes.
#[derive(Clone, Debug)]
pub struct SealedObject {
    pub id: ObjectId,
    pub body: Body,
    pub digest: [u8; 32],
}

/// Seals entries and log bytes (`closed`, concatenated). CPU work, in any order. `salt` is fresh.
pub fn seal_body(
    source_key: &Key,
    epoch_key: &Key,
    id: ObjectId,
    salt: [u8; 16],
    entries: &[Entry],
    closed: &[Bytes],
) -> Result<SealedBody> {
    let bound = Prelude::of(Kind::Data, id, salt).bound();
    let half = |key: Key, plain: &[u8]| -> Result<Bytes> {
        if plain.is_empty() { Ok(Bytes::new()) } else { seal::seal(&key, &bound, plain).map(Bytes::from) }
    };
    let key_half = half(source_key.derive(purpose::LOG_KEY_HALF, &salt), &entry::encode(entries)?)?;
    let closed_key = epoch_key.derive(purpose::LOG_CLOSED_HALF, &salt);
    let closed_half = match closed {
        [one] => half(closed_key, one)?,
        parts => half(closed_key, &parts.concat())?,
    };
    Ok(SealedBody {
        id,
        salt,
        key_digest: digest(&key_half),
        closed_digest: digest(&closed_half),
        key_half,
        closed_half,
    })
}

/// Seals the header and closes the object. In stream order: `previous` is the digest of the object before.
pub fn seal_header(
    source_key: &Key,
    header: &Header,
    body: &SealedBody,
    previous: [u8; 32],
) -> Result<SealedObject> {
    let prelude = Prelude {
        previous,
        key_digest: body.key_digest,
        closed_digest: body.closed_digest,
        key_half: length(body.key_half.len())?,
        closed_half: length(body.closed_half.len())?,
        ..Prelude::of(Kind::Data, body.id, body.salt)
    };
    let (front, digest) = seal_front(source_key, prelude, header)?;
    let id = body.id;
    let body = Body(vec![front, body.key_half.clone(), body.closed_half.clone()]);
    if body.len() > OBJECT_MAX {
        return Err(Error::bug(format!("{id} of {} bytes is too large", body.len())));
    }
    Ok(SealedObject { id, body, digest })
}

/// Seals the END of an epoch at `id`.
pub fn seal_end(
    source_key: &Key,
    id: ObjectId,
    salt: [u8; 16],
    end: End,
    previous: [u8; 32],
) -> Result<SealedObject> {
    let prelude = Prelude { previous, ..Prelude::of(Kind::End, id, salt) };
    let (front, digest) = seal_front(source_key, prelude, &end)?;
    Ok(SealedObject { id, body: front.into(), digest })
}

/// Checks prelude and header for rot, without a key. `bytes` holds at least the front.
pub fn check_front(prelude: &Prelude, bytes: &[u8]) -> Result<()> {
    split_front(prelude, bytes).map(|_| ())
}

/// Opens and proves the front. `bytes` holds at least [`Prelude::front_len`] bytes of the object.
pub fn open_front(source_key: &Key, bytes: &[u8]) -> Result<OpenFront> {
    let prelude = parse_prelude(bytes)?;
    let id = prelude.id;
    let (clear, sealed) = split_front(&prelude, bytes)?;
    let key = source_key.derive(purpose::LOG_HEADER, &prelude.salt);
    let plain = seal::open(&key, clear, sealed, HEADER_MAX)
        .map_err(|e| e.during(format!("the header of {id} was not written with this source's key")))?;
    let front = match prelude.kind {
        Kind::Data => Front::Data(decode(id, &plain)?),
        Kind::End => Front::End(decode(id, &plain)?),
    };
    let digest = *blake3::Hasher::new().update(clear).update(sealed).finalize().as_bytes();
    Ok(OpenFront { prelude, front, digest })
}

/// Opens the key half: `bytes` lies at [`Prelude::key_range`].
pub fn open_entries(source_key: &Key, prelude: &Prelude, bytes: &[u8]) -> Result<Vec<Entry>> {
    check_half(prelude, "key half", bytes, prelude.key_half, &prelude.key_digest)?;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let key = source_key.derive(purpose::LOG_KEY_HALF, &prelude.salt);
    seal::open(&key, &prelude.bound(), bytes, OBJECT_MAX)
        .and_then(|plain| entry::decode(&plain))
        .map_err(|e| e.during(format!("the entries of {} cannot be read", prelude.id)))
}

/// Opens the closed half: `bytes` lies at [`Prelude::closed_range`].
pub fn open_closed(epoch_key: &Key, prelude: &Prelude, bytes: &[u8]) -> Result<Bytes> {
    check_half(prelude, "closed half", bytes, prelude.closed_half, &prelude.closed_digest)?;
    if bytes.is_empty() {
        return Ok(Bytes::new());
    }
    let key = epoch_key.derive(purpose::LOG_CLOSED_HALF, &prelude.salt);
    seal::open(&key, &prelude.bound(), bytes, OBJECT_MAX)
        .map(Bytes::from)
        .map_err(|e| e.during(format!("the log bytes of {} cannot be read", prelude.id)))
}

/// Checks a whole object for rot, without a key.
pub fn check_object(bytes: &Bytes) -> Result<Prelude> {
    let prelude = parse_prelude(bytes)?;
    let front = prelude.front_len();
    if bytes.len() != prelude.object_len() {
        let (is, should) = (bytes.len(), prelude.object_len());
        return Err(Error::corrupt(format!("{} has {is} bytes instead of {should}", prelude.id)));
    }
    check_parts(&prelude, &bytes[..front], &[bytes.slice(front..)])?;
    Ok(prelude)
}

/// As [`check_object`], of an object whose front and body lie apart; answers its digest. `body` may come in
/// parts that split where the halves meet, or in one.
pub fn check_parts(prelude: &Prelude, front: &[u8], body: &[Bytes]) -> Result<[u8; 32]> {
    check_front(prelude, front)?;
    let whole;
    let (key_half, closed_half) = match body {
        [key_half, closed_half] if key_half.len() == prelude.key_half as usize => {
            (&key_half[..], &closed_half[..])
        }
        _ => {
            whole = body.concat();
            whole.split_at_checked(prelude.key_half as usize).unwrap_or((&whole, &[]))
        }
    };
    check_half(prelude, "key half", key_half, prelude.key_half, &prelude.key_digest)?;
    check_half(prelude, "closed half", closed_half, prelude.closed_half, &prelude.closed_digest)?;
    Ok(digest(&front[..PRELUDE + prelude.header as usize]))
}

fn check_half(prelude: &Prelude, half: &str, bytes: &[u8], length: u32, expected: &[u8; 32]) -> Result<()> {
    if bytes.len() == length as usize && digest(bytes) == *expected {
        Ok(())
    } else {
        Err(Error::corrupt(format!(
            "the {half} of {} is not what its header says: it was damaged",
            prelude.id
        )))
    }
}

/// Clear and sealed part of a front whose check sum holds.
fn split_front<'a>(prelude: &Prelude, bytes: &'a [u8]) -> Result<(&'a [u8], &'a [u8])> {
    let damaged = || Error::corrupt(format!("the header of {} is damaged", prelude.id));
    let checked = PRELUDE + prelude.header as usize;
    let (front, rest) = bytes.split_at_checked(checked).ok_or_else(damaged)?;
    let crc = Reader::new(rest).u32().map_err(|_| damaged())?;
    if crc32c::crc32c(front) != crc {
        return Err(damaged());
    }
    Ok(front.split_at(PRELUDE))
}

fn seal_front<T: Serialize>(source_key: &Key, mut prelude: Prelude, header: &T) -> Result<(Bytes, [u8; 32])> {
    let plain = postcard::to_stdvec(header)
        .map_err(|cause| Error::bug("a header could not be encoded").because(cause))?;
    // A header is never compressed, so its sealed length is known before the prelude is bound to it.
    let sealed = seal::sealed_max(plain.len());
    if sealed > HEADER_MAX {
        return Err(Error::bug(format!("{} has a header of {sealed} bytes: too many spans", prelude.id)));
    }
    prelude.header = length(sealed)?;
    let mut out = prelude.bytes();
    let key = source_key.derive(purpose::LOG_HEADER, &prelude.salt);
    let clear = out.clone();
    seal::seal_stored_into(&mut out, &key, &clear, &plain)?;
    let digest = digest(&out);
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Ok((out.into(), digest))
}

pub(crate) fn decode<T: for<'de> Deserialize<'de>>(id: ObjectId, plain: &[u8]) -> Result<T> {
    match postcard::take_from_bytes(plain) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(Error::corrupt(format!("the header of {id} is longer than it should be"))),
        Err(cause) => Err(Error::corrupt(format!("the header of {id} cannot be read")).because(cause)),
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

fn length(bytes: usize) -> Result<u32> {
    u32::try_from(bytes).map_err(|_| Error::bug(format!("{bytes} bytes are too many for one object")))
}

#[cfg(test)]
mod tests;
