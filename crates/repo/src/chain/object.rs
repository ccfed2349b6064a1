//! A log object as far as it was read.

use bytes::Bytes;
use holdfast_core::{Error, Result};

use crate::{
    entry::Entry,
    object::{self, Header, ObjectId, Prelude},
    seal::Key,
};

/// How much of an object is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// What the header says.
    Front,
    /// And the entries.
    Entries,
    /// And the closed half.
    Whole,
}

/// A data object whose header proved itself; the halves are there as deep as it was read, still sealed.
#[derive(Clone, Debug)]
pub struct Object {
    pub prelude: Prelude,
    pub header: Header,
    pub digest: [u8; 32],
    key_half: Option<Bytes>,
    closed_half: Option<Bytes>,
}

impl Object {
    pub(super) fn new(
        prelude: Prelude,
        header: Header,
        digest: [u8; 32],
        key_half: Option<Bytes>,
        closed_half: Option<Bytes>,
    ) -> Self {
        Self { prelude, header, digest, key_half, closed_half }
    }

    pub fn id(&self) -> ObjectId {
        self.prelude.id
    }

    /// # Errors
    /// `Corrupt` when the entries are damaged; `Bug` when the object was not read that deep.
    pub fn entries(&self, source_key: &Key) -> Result<Vec<Entry>> {
        let half = self.key_half.as_ref().ok_or_else(|| self.shallow())?;
        object::open_entries(source_key, &self.prelude, half)
    }

    /// # Errors
    /// `Corrupt` when the log bytes are damaged; `Bug` when the object was not read that deep.
    pub fn closed(&self, epoch_key: &Key) -> Result<Bytes> {
        let half = self.closed_half.as_ref().ok_or_else(|| self.shallow())?;
        object::open_closed(epoch_key, &self.prelude, half)
    }

    /// Checks both halves against the digests in the header: rot shows without the epoch's key.
    ///
    /// # Errors
    /// `Corrupt` when one is damaged; `Bug` when the object was not read that deep.
    pub fn check(&self) -> Result<()> {
        let halves = [
            ("key half", &self.key_half, self.prelude.key_half, self.prelude.key_digest),
            ("closed half", &self.closed_half, self.prelude.closed_half, self.prelude.closed_digest),
        ];
        for (which, half, length, digest) in halves {
            let half = half.as_ref().ok_or_else(|| self.shallow())?;
            if half.len() != length as usize || blake3::hash(half) != digest {
                return Err(Error::corrupt(format!("the {which} of {} is damaged", self.id())));
            }
        }
        Ok(())
    }

    /// Sealed bytes that were read, without the front.
    pub fn len(&self) -> usize {
        [&self.key_half, &self.closed_half].into_iter().flatten().map(Bytes::len).sum()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shallow(&self) -> Error {
        Error::bug(format!("more of {} was asked for than was read", self.id()))
    }
}
