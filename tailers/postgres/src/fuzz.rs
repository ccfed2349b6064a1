//! One door to all decoders that meet bytes of a server or of a store, for fuzzing and for the committed corpus.

use holdfast_core::{Bytes, Cursor};

use crate::{
    base::{read_manifest, read_tar},
    cursor::Position,
    records::{Base, Entry, NoteBody, PieceKey},
    wal::{Found, History, Lsn, PAGE, Parser, SegmentSize, Start},
};

/// Decodes `bytes` as what their first byte says. Nothing may panic, allocate without bound or hang; log must be
/// found alike in one piece and in many.
pub fn fuzz_decode(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 5 {
        0 => log(rest),
        1 => drop(read_tar(rest)),
        2 => drop(read_manifest(rest)),
        3 => drop(History::parse(u32::from(*kind), rest)),
        _ => {
            drop((PieceKey::decode(rest), Entry::decode(rest), Base::decode(rest), NoteBody::decode(rest)));
            drop(Position::decode(&Cursor(Bytes::copy_from_slice(rest))));
        }
    }
}

fn log(bytes: &[u8]) {
    // The page's own address, so that real pages are read.
    let address =
        bytes.get(8..16).and_then(|raw| raw.first_chunk()).map_or(0, |raw| u64::from_le_bytes(*raw));
    let begin = Lsn(address).page_start(PAGE);
    let find = |chunk: usize| {
        let mut parser = Parser::new(begin, Start::Anywhere, SegmentSize::DEFAULT);
        let mut found: Vec<Found> = Vec::new();
        for part in bytes.chunks(chunk) {
            parser.push(part, &mut found);
        }
        (found, parser.memory(), parser.position())
    };
    assert!(find(usize::MAX) == find(1021), "log is read differently in many pieces");
}
