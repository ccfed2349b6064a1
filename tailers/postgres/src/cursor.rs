//! Where a writer goes on, and proof that the server it finds there is the one it left.
//!
//! A snapshot clone shares system identifier and timeline history with its source; what it cannot share is
//! WAL written after the two parted. So a cursor holds the hash of the newest bytes of its open page, which
//! are fetched again and compared at each start.

use holdfast_core::{Cursor, Error, Place, Result};
use serde::{Deserialize, Serialize};

use crate::{
    records::place,
    wal::{Lsn, Memory, PAGE},
};

/// A decoded cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub system_identifier: u64,
    pub timeline: u32,
    /// The next byte lies there.
    pub lsn: Lsn,
    pub proof: Proof,
    /// What the parser of records knew there.
    pub memory: Memory,
}

/// BLAKE3 of the bytes from `from` to the cursor's position: the open page, or the page before when the
/// position is a page's start. Nothing is proven when `from` is the position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    pub from: Lsn,
    pub hash: [u8; 32],
}

#[derive(Serialize, Deserialize)]
enum Form {
    V1(Position),
}

impl Position {
    pub fn place(&self) -> Place {
        place(self.timeline, self.lsn)
    }

    pub fn encode(&self) -> Result<Cursor> {
        postcard::to_stdvec(&Form::V1(self.clone()))
            .map(|bytes| Cursor(bytes.into()))
            .map_err(|cause| Error::bug("a cursor could not be encoded").because(cause))
    }

    pub fn decode(cursor: &Cursor) -> Result<Self> {
        let bad =
            "the cursor in the repository cannot be read: it is damaged, or of a newer version of holdfast";
        match postcard::take_from_bytes(&cursor.0) {
            Ok((Form::V1(position), [])) if position.proof.from <= position.lsn => Ok(position),
            Ok(_) => Err(Error::corrupt(bad)),
            Err(cause) => Err(Error::corrupt(bad).because(cause)),
        }
    }
}

/// The newest bytes of the stream, at most one page, from which proofs are made.
#[derive(Clone, Debug)]
pub struct OpenPage {
    from: Lsn,
    bytes: Vec<u8>,
}

impl OpenPage {
    /// Nothing is known of what lies before `at`.
    pub fn new(at: Lsn) -> Self {
        Self { from: at, bytes: Vec::with_capacity(PAGE as usize) }
    }

    pub fn end(&self) -> Lsn {
        self.from.saturating_add(self.bytes.len() as u64)
    }

    /// Takes the bytes at [`Self::end`].
    pub fn push(&mut self, mut bytes: &[u8]) {
        let end = self.end().saturating_add(bytes.len() as u64);
        // Only the last page counts, and it is kept whole until the next one has its first byte.
        let last = Lsn(end.0.saturating_sub(1)).page_start(PAGE);
        if last > self.from && !bytes.is_empty() {
            let keep = end.since(last) as usize;
            if keep <= bytes.len() {
                bytes = bytes.get(bytes.len() - keep..).unwrap_or_default();
                self.bytes.clear();
            } else {
                self.bytes.drain(..last.since(self.from).min(self.bytes.len() as u64) as usize);
            }
            self.from = last;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Forgets what lies behind `at`, a place that may be before all we know.
    pub fn cut(&mut self, at: Lsn) {
        if at < self.from {
            *self = Self::new(at);
        } else {
            self.bytes.truncate(at.since(self.from) as usize);
        }
    }

    pub fn proof(&self) -> Proof {
        Proof { from: self.from, hash: *blake3::hash(&self.bytes).as_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_open_page_is_the_last_one(start in 0u64..20_000, chunks in proptest::collection::vec(0usize..20_000, 0..12)) {
            let all: Vec<u8> = (0..chunks.iter().sum::<usize>()).map(|i| (i % 251) as u8).collect();
            let mut page = OpenPage::new(Lsn(start));
            let mut rest = all.as_slice();
            for chunk in chunks {
                let (head, tail) = rest.split_at(chunk);
                page.push(head);
                rest = tail;
            }
            let end = start + all.len() as u64;
            let from = if all.is_empty() { start } else { ((end - 1) / PAGE * PAGE).max(start) };
            prop_assert_eq!(page.end(), Lsn(end));
            let hash = *blake3::hash(&all[(from - start) as usize..]).as_bytes();
            prop_assert_eq!(page.proof(), Proof { from: Lsn(from), hash });
        }

        #[test]
        fn hostile_cursors_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Position::decode(&Cursor(bytes.into()));
        }
    }

    #[test]
    fn a_cursor_comes_back() {
        let mut page = OpenPage::new(Lsn(8192));
        page.push(b"some bytes");
        let position = Position {
            system_identifier: 7,
            timeline: 1,
            lsn: page.end(),
            proof: page.proof(),
            memory: Memory::default(),
        };
        assert_eq!(Position::decode(&position.encode().unwrap()).unwrap(), position);
    }
}
