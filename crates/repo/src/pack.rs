//! Packs, `packs/<epoch>/<number>`: pieces one after another, each sealed by itself. Owns their layout
//! (FORMAT.md, «packs»):
//!
//! ```text
//! magic | piece … piece | list | trailer
//! ```
//!
//! Invariants: a piece's id is the salt of its key and its associated data, so a piece is the same wherever
//! it lies and moves to another pack unopened; the list of pieces is sealed under the source key with the
//! pack's name as associated data, so who holds no data key can still tell which pieces a pack has.

use bytes::Bytes;
use holdfast_core::{Epoch, Error, Extent, PackId, PieceId, Random, Result, sink::Body};
use serde::{Deserialize, Serialize};

use crate::{
    names::Stream,
    seal::{self, Key, purpose},
    trailer::{self, TRAILER, Trailer},
};

const MAGIC: [u8; 8] = *b"HFpack01";
/// A pack is closed when it reaches this size.
const PACK_BYTES: usize = 16 << 20;
/// Largest piece, opened.
pub const PIECE_MAX: usize = 4 << 20;
/// Pieces of one pack, and bytes of its opened list, at most.
const PIECES_MAX: usize = 64 << 10;
const LIST_MAX: usize = PIECES_MAX * 64;
/// What a reader of the list asks for first; nearly always all of it.
pub const END_READ: u64 = 64 << 10;

/// A piece, sealed under its own key.
#[derive(Clone, Debug)]
pub struct SealedPiece {
    pub piece: PieceId,
    pub key_epoch: Epoch,
    pub opened: u32,
    pub bytes: Bytes,
}

/// Compresses and seals one piece: CPU work, for the sealing threads. `piece` must be fresh and random.
///
/// # Errors
/// `Bug` when the piece is larger than [`PIECE_MAX`].
pub fn seal_piece(data_key: &Key, key_epoch: Epoch, piece: PieceId, plain: &[u8]) -> Result<SealedPiece> {
    let opened = u32::try_from(plain.len())
        .ok()
        .filter(|_| plain.len() <= PIECE_MAX)
        .ok_or_else(|| Error::bug(format!("a piece of {} bytes is larger than {PIECE_MAX}", plain.len())))?;
    let key = data_key.derive(purpose::PIECE, &piece.0);
    let bytes = seal::seal(&key, &piece.0, plain)?.into();
    Ok(SealedPiece { piece, key_epoch, opened, bytes })
}

/// Opens one piece; whether it is the promised content is for the caller to check against its hash.
///
/// # Errors
/// `Corrupt` when the bytes are not those of this piece.
pub fn open_piece(data_key: &Key, extent: &Extent, sealed: &[u8]) -> Result<Bytes> {
    let opened = extent.opened as usize;
    if sealed.len() != extent.length as usize || opened > PIECE_MAX {
        return Err(Error::corrupt(format!("piece {} has another length than its row says", extent.piece)));
    }
    let key = data_key.derive(purpose::PIECE, &extent.piece.0);
    let plain = seal::open(&key, &extent.piece.0, sealed, opened)?;
    if plain.len() == opened {
        Ok(plain.into())
    } else {
        Err(Error::corrupt(format!("piece {} opens to another length than its row says", extent.piece)))
    }
}

#[derive(Serialize, Deserialize)]
struct Listed {
    piece: PieceId,
    length: u32,
    opened: u32,
    key_epoch: Epoch,
}

/// Collects sealed pieces into one pack.
pub struct PackBuilder {
    source: Key,
    name: String,
    pack: PackId,
    salt: [u8; 16],
    parts: Vec<Bytes>,
    listed: Vec<Listed>,
    length: usize,
}

impl PackBuilder {
    pub fn new(source: &Key, stream: Stream, pack: PackId, random: &Random) -> Self {
        Self {
            source: source.clone(),
            name: stream.pack(pack.epoch, pack.number),
            pack,
            salt: random.array(),
            parts: vec![Bytes::from_static(&MAGIC)],
            listed: Vec::new(),
            length: MAGIC.len(),
        }
    }

    /// Where the piece will lie once the pack is durable; until then nobody may name it (R1).
    pub fn push(&mut self, piece: SealedPiece) -> Extent {
        let extent = Extent {
            pack: self.pack,
            offset: self.length as u32,
            length: piece.bytes.len() as u32,
            opened: piece.opened,
            key_epoch: piece.key_epoch,
            piece: piece.piece,
        };
        self.length += piece.bytes.len();
        self.listed.push(Listed {
            piece: piece.piece,
            length: extent.length,
            opened: piece.opened,
            key_epoch: piece.key_epoch,
        });
        self.parts.push(piece.bytes);
        extent
    }

    pub fn is_full(&self) -> bool {
        self.length >= PACK_BYTES || self.listed.len() >= PIECES_MAX
    }
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }
    /// Bytes of the object so far.
    pub fn len(&self) -> usize {
        self.length
    }
    pub fn id(&self) -> PackId {
        self.pack
    }

    /// The bytes to store; the same bytes for every attempt.
    pub fn finish(mut self) -> Result<Body> {
        let list = postcard::to_allocvec(&self.listed)
            .map_err(|cause| Error::bug("the list of a pack could not be encoded").because(cause))?;
        let key = self.source.derive(purpose::PACK_FOOTER, &self.salt);
        let sealed = seal::seal(&key, self.name.as_bytes(), &list)?;
        let lengths = [self.listed.len() as u32, sealed.len() as u32];
        self.parts.push(sealed.into());
        Trailer { salt: self.salt, lengths }.close(&mut self.parts);
        Ok(Body(self.parts))
    }
}

/// What came of reading the end of a pack.
#[derive(Debug)]
pub enum End {
    /// The extents it holds, in order of place.
    Pieces(Vec<Extent>),
    /// The list is longer than the end that was read: read this much of it.
    More(u64),
}

/// Reads which pieces a pack of `size` bytes has from its last bytes ([`END_READ`] of them, or what
/// [`End::More`] said).
///
/// # Errors
/// `Corrupt`, naming the pack.
pub fn read_end(source: &Key, stream: Stream, pack: PackId, size: u64, end: &[u8]) -> Result<End> {
    let name = stream.pack(pack.epoch, pack.number);
    let bad = |what: &str| Error::corrupt(format!("{name} is damaged: {what}"));
    let trailer = Trailer::read(end).ok_or_else(|| bad("it is cut short"))?;
    let [_, length] = trailer.lengths;
    let needed = u64::from(length) + TRAILER as u64;
    if needed + MAGIC.len() as u64 > size {
        return Err(bad("its trailer does not fit its size"));
    }
    let Some(at) = (end.len() as u64).checked_sub(needed) else {
        if end.len() as u64 >= size.min(END_READ) {
            return Ok(End::More(needed));
        }
        return Err(bad("it is cut short"));
    };
    let sealed = end.get(at as usize..end.len() - TRAILER).unwrap_or_default();
    let key = source.derive(purpose::PACK_FOOTER, &trailer.salt);
    let raw = seal::open(&key, name.as_bytes(), sealed, LIST_MAX)
        .map_err(|error| error.during(format!("{name} is damaged")))?;
    let listed: Vec<Listed> =
        postcard::from_bytes(&raw).map_err(|cause| bad("its list of pieces").because(cause))?;
    let mut offset = MAGIC.len() as u64;
    let mut extents = Vec::with_capacity(listed.len());
    for entry in listed {
        extents.push(Extent {
            pack,
            offset: u32::try_from(offset).map_err(|_| bad("its list of pieces"))?,
            length: entry.length,
            opened: entry.opened,
            key_epoch: entry.key_epoch,
            piece: entry.piece,
        });
        offset += u64::from(entry.length);
    }
    if offset + needed != size {
        return Err(bad("its list does not fit its size"));
    }
    Ok(End::Pieces(extents))
}

/// Checks a whole pack against its digest.
///
/// # Errors
/// `Corrupt`, naming the pack.
pub fn check_digest(name: &str, bytes: &[u8]) -> Result<()> {
    trailer::check_digest(name, &MAGIC, bytes)
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Act, LineageId, SourceId};
    use proptest::prelude::*;

    use super::*;

    const STREAM: Stream = Stream { source: SourceId([1; 8]), lineage: LineageId([2; 8]) };
    const PACK: PackId = PackId { epoch: Epoch::numbered(3), number: 4 };

    fn source() -> Key {
        Key::new([1; 32])
    }
    fn data() -> Key {
        Key::new([2; 32])
    }

    fn pack(contents: &[Vec<u8>]) -> (Bytes, Vec<Extent>) {
        let random = Random::seeded(9);
        let mut builder = PackBuilder::new(&source(), STREAM, PACK, &random);
        let extents = contents
            .iter()
            .map(|plain| {
                let piece = PieceId(random.array());
                builder.push(seal_piece(&data(), Epoch::numbered(2), piece, plain).unwrap())
            })
            .collect();
        (builder.finish().unwrap().concat(), extents)
    }

    fn slice<'a>(bytes: &'a [u8], extent: &Extent) -> &'a [u8] {
        bytes.get(extent.offset as usize..(extent.offset + extent.length) as usize).unwrap_or_default()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_pack_gives_back_what_was_pushed(contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20)) {
            let (bytes, extents) = pack(&contents);
            check_digest("x", &bytes).unwrap();
            let End::Pieces(listed) = read_end(&source(), STREAM, PACK, bytes.len() as u64, &bytes).unwrap() else { panic!("more") };
            prop_assert_eq!(&listed, &extents);
            for (extent, plain) in extents.iter().zip(&contents) {
                prop_assert_eq!(&open_piece(&data(), extent, slice(&bytes, extent)).unwrap()[..], &plain[..]);
            }
        }

        #[test]
        fn damage_shows(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()) {
            let contents: Vec<Vec<u8>> = (0..9).map(|n| vec![n; 400]).collect();
            let (bytes, extents) = pack(&contents);
            let mut raw = bytes.to_vec();
            let at = at.index(raw.len());
            if cut { raw.truncate(at) } else { raw[at] ^= 1 << bit }
            prop_assert_eq!(check_digest("x", &raw).unwrap_err().act(), Act::Corrupt);
            for (extent, plain) in extents.iter().zip(&contents) {
                match open_piece(&data(), extent, slice(&raw, extent)) {
                    Ok(opened) => prop_assert_eq!(&opened[..], &plain[..]),
                    Err(error) => prop_assert_eq!(error.act(), Act::Corrupt),
                }
            }
            if let Ok(End::Pieces(listed)) = read_end(&source(), STREAM, PACK, bytes.len() as u64, &raw) {
                prop_assert_eq!(listed, extents);
            }
        }
    }

    #[test]
    fn a_piece_moves_unopened_but_not_under_another_id() {
        let (bytes, extents) = pack(&[b"one".to_vec(), b"two".to_vec()]);
        let mut moved = PackBuilder::new(&source(), STREAM, PackId { number: 5, ..PACK }, &Random::seeded(3));
        let old = extents[1];
        let new = moved.push(SealedPiece {
            piece: old.piece,
            key_epoch: old.key_epoch,
            opened: old.opened,
            bytes: Bytes::copy_from_slice(slice(&bytes, &old)),
        });
        let bytes = moved.finish().unwrap().concat();
        assert_eq!(&open_piece(&data(), &new, slice(&bytes, &new)).unwrap()[..], b"two");
        let swapped = Extent { piece: extents[0].piece, ..new };
        assert_eq!(open_piece(&data(), &swapped, slice(&bytes, &new)).unwrap_err().act(), Act::Corrupt);
    }

    #[test]
    fn a_pack_under_another_name_is_refused() {
        let (bytes, _) = pack(&[b"one".to_vec()]);
        let other = PackId { number: 5, ..PACK };
        let error = read_end(&source(), STREAM, other, bytes.len() as u64, &bytes).unwrap_err();
        assert!(error.to_string().contains("packs/0000000000000003/0000000000000005"), "{error}");
    }

    #[test]
    fn a_long_list_is_asked_for() {
        let contents: Vec<Vec<u8>> = (0..9_000u32).map(|n| n.to_le_bytes().to_vec()).collect();
        let (bytes, extents) = pack(&contents);
        let size = bytes.len() as u64;
        let end = &bytes[bytes.len() - END_READ as usize..];
        let End::More(more) = read_end(&source(), STREAM, PACK, size, end).unwrap() else { panic!("all") };
        let end = &bytes[bytes.len() - more as usize..];
        let End::Pieces(listed) = read_end(&source(), STREAM, PACK, size, end).unwrap() else {
            panic!("more")
        };
        assert_eq!(listed, extents);
    }
}
