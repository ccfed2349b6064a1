//! The clear part of a log object: what it is, how long its parts are, and their digests.

use std::fmt;

use holdfast_core::{Epoch, Error, LineageId, Result, sink::OBJECT_MAX};

use crate::wire::{Reader, put_epoch};

const MAGIC: [u8; 8] = *b"HFlog\0\0\0";
const VERSION: u16 = 1;
const DATA: u16 = 0;
const END: u16 = 1;
/// Bytes of the prelude.
pub const PRELUDE: usize = 168;
/// Bytes of the prelude that the halves are bound to: all up to and with the salt.
const BOUND: usize = 60;
/// Bytes of the check sum that ends the front.
pub(super) const CRC: usize = 4;
/// Most sealed bytes of a header.
pub(super) const HEADER_MAX: usize = 1 << 20;

/// Which log object: bound to its bytes as associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub lineage: LineageId,
    pub epoch: Epoch,
    pub number: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/log/{}/{:016x}", self.lineage, self.epoch, self.number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Data,
    End,
}

/// The clear part. Until [`open_front`](super::open_front) has accepted it, it is a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prelude {
    pub kind: Kind,
    pub id: ObjectId,
    pub salt: [u8; 16],
    /// Digest of the object before this one, across epochs; zero for the first of a lineage.
    pub previous: [u8; 32],
    /// BLAKE3 of the sealed halves.
    pub key_digest: [u8; 32],
    pub closed_digest: [u8; 32],
    /// Sealed lengths.
    pub header: u32,
    pub key_half: u32,
    pub closed_half: u32,
}

impl Prelude {
    /// Prelude, sealed header and check sum.
    pub fn front_len(&self) -> usize {
        PRELUDE + self.header as usize + CRC
    }
    /// Where the key half lies in the object.
    pub fn key_range(&self) -> std::ops::Range<usize> {
        let from = self.front_len();
        from..from + self.key_half as usize
    }
    /// Where the closed half lies in the object.
    pub fn closed_range(&self) -> std::ops::Range<usize> {
        let from = self.key_range().end;
        from..from + self.closed_half as usize
    }
    /// Length of the whole object.
    pub fn object_len(&self) -> usize {
        self.closed_range().end
    }
    /// Is this the object that was asked for?
    pub fn expect(&self, id: ObjectId) -> Result<()> {
        if self.id == id {
            Ok(())
        } else {
            Err(Error::corrupt(format!("where {id} should be stands {}: objects were swapped", self.id)))
        }
    }

    /// A prelude of this identity without lengths and digests.
    pub(super) fn of(kind: Kind, id: ObjectId, salt: [u8; 16]) -> Self {
        let nothing = *blake3::hash(&[]).as_bytes();
        Self {
            kind,
            id,
            salt,
            previous: [0; 32],
            key_digest: nothing,
            closed_digest: nothing,
            header: 0,
            key_half: 0,
            closed_half: 0,
        }
    }
    /// What the halves are bound to.
    pub(super) fn bound(&self) -> Vec<u8> {
        let mut bytes = self.bytes();
        bytes.truncate(BOUND);
        bytes
    }
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PRELUDE + self.header as usize + CRC);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let kind = match self.kind {
            Kind::Data => DATA,
            Kind::End => END,
        };
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&self.id.lineage.0);
        put_epoch(&mut out, self.id.epoch);
        out.extend_from_slice(&self.id.number.to_le_bytes());
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.previous);
        out.extend_from_slice(&self.key_digest);
        out.extend_from_slice(&self.closed_digest);
        for length in [self.header, self.key_half, self.closed_half] {
            out.extend_from_slice(&length.to_le_bytes());
        }
        out
    }
}

/// Reads the clear part of an object from its first bytes.
///
/// # Errors
/// `Corrupt` when it is none, `Configure` when a newer holdfast wrote it.
pub fn parse_prelude(bytes: &[u8]) -> Result<Prelude> {
    let mut reader = Reader::new(bytes);
    reader.begin(MAGIC, VERSION, "a log object")?;
    let kind = match reader.u16()? {
        DATA => Kind::Data,
        END => Kind::End,
        other => return Err(Error::corrupt(format!("a log object is of the unknown kind {other}"))),
    };
    let lineage = reader.lineage()?;
    let epoch = reader.epoch()?;
    let id = ObjectId { lineage, epoch, number: reader.u64()? };
    let prelude = Prelude {
        kind,
        id,
        salt: reader.array()?,
        previous: reader.array()?,
        key_digest: reader.array()?,
        closed_digest: reader.array()?,
        header: reader.u32()?,
        key_half: reader.u32()?,
        closed_half: reader.u32()?,
    };
    let total = [prelude.header, prelude.key_half, prelude.closed_half].map(u64::from).iter().sum::<u64>();
    if prelude.header as usize > HEADER_MAX || total > (OBJECT_MAX - PRELUDE - CRC) as u64 {
        return Err(Error::corrupt(format!("{id} claims lengths that no object has")));
    }
    if kind == Kind::End && (prelude.key_half, prelude.closed_half) != (0, 0) {
        return Err(Error::corrupt(format!("{id} is an END with a body")));
    }
    Ok(prelude)
}
