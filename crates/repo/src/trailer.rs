//! The last bytes of packs and table-layer objects: salt, two lengths, and the digest of every byte before
//! it, so that rot shows without any key. The lengths prove themselves: what they point to is sealed.

use bytes::Bytes;
use holdfast_core::{Error, Result};

/// Salt, two lengths, digest.
pub const TRAILER: usize = 16 + 4 + 4 + 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub salt: [u8; 16],
    pub lengths: [u32; 2],
}

impl Trailer {
    /// Appends itself to the parts of an object.
    pub fn close(self, parts: &mut Vec<Bytes>) {
        let mut raw = Vec::with_capacity(TRAILER);
        raw.extend_from_slice(&self.salt);
        for length in self.lengths {
            raw.extend_from_slice(&length.to_le_bytes());
        }
        let mut hasher = blake3::Hasher::new();
        for part in parts.iter() {
            hasher.update(part);
        }
        hasher.update(&raw);
        raw.extend_from_slice(hasher.finalize().as_bytes());
        parts.push(raw.into());
    }

    /// Reads the trailer at the end of `bytes`; `None` when they are too few.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (_, raw) = bytes.split_last_chunk::<TRAILER>()?;
        let word = |at: usize| Some(u32::from_le_bytes(*raw.get(at..)?.first_chunk()?));
        Some(Self { salt: *raw.first_chunk()?, lengths: [word(16)?, word(20)?] })
    }
}

/// Checks a whole object against the digest in its trailer.
///
/// # Errors
/// `Corrupt`, naming the object.
pub fn check_digest(name: &str, magic: &[u8], bytes: &[u8]) -> Result<()> {
    let sound = bytes.starts_with(magic)
        && bytes.len() >= magic.len() + TRAILER
        && bytes.split_last_chunk().is_some_and(|(all, digest)| blake3::hash(all) == *digest);
    if sound {
        Ok(())
    } else {
        Err(Error::corrupt(format!("{name} is damaged: its bytes do not match their digest")))
    }
}
