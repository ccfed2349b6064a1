//! The committed corpus of the fuzz target, replayed and varied; log pages of every major among it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{fs, path::PathBuf};

use holdfast_core::{Cursor, Random};
use holdfast_postgres::{
    Position, fuzz_decode,
    records::{Base, NoteBody, PieceKey},
    wal::{Entry, Lsn, Parser, SegmentSize, Start, What},
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../integration/fuzz/corpus/postgres")
}

#[test]
fn the_corpus_and_its_neighbours_are_read_or_refused() {
    let random = Random::seeded(7);
    let mut seen = 0;
    for file in fs::read_dir(folder()).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        fuzz_decode(&bytes);
        for _ in 0..40 {
            let mut changed = bytes.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(changed.len() as u64) as usize;
                changed[at] = random.u64() as u8;
            }
            changed.truncate(random.below(changed.len() as u64 * 2).max(1) as usize);
            fuzz_decode(&changed);
        }
        seen += 1;
    }
    assert!(seen >= 10, "{seen} files");
}

/// Two pages of each major, with a commit and a named restore point of which we know.
#[test]
fn log_of_every_major_is_understood() {
    for major in 13..=18 {
        let bytes = fs::read(folder().join(format!("log-{major}"))).unwrap();
        let page = &bytes[1..];
        let at = u64::from_le_bytes(page[8..16].try_into().unwrap());
        let mut parser = Parser::new(Lsn(at), Start::Anywhere, SegmentSize::DEFAULT);
        let mut found = Vec::new();
        parser.push(page, &mut found);
        let named = found.iter().any(|one| {
            matches!(&one.what, What::Entry(Entry::RestorePoint { name, .. }) if name == &format!("corpus {major}"))
        });
        let commits =
            found.iter().filter(|one| matches!(one.what, What::Entry(Entry::Commit { .. }))).count();
        assert!(named && commits >= 3, "{major}: {found:?}");
        assert!(!found.iter().any(|one| matches!(one.what, What::Damage(_))), "{major}: {found:?}");
    }
}

/// Written by the first version: every later one reads them.
#[test]
fn persisted_records_stay_readable() {
    for major in [13, 18] {
        let record = |name: &str| fs::read(folder().join(format!("{name}-{major}"))).unwrap().split_off(1);
        let base = Base::decode(&record("checkpoint")).unwrap();
        assert_eq!((base.version / 10_000, base.segment_size, base.timeline), (major, 16 << 20, 1));
        assert_eq!(base.encode().unwrap(), record("checkpoint"));
        let cursor = Cursor(record("cursor").into());
        let position = Position::decode(&cursor).unwrap();
        assert_eq!(position.system_identifier, base.system_identifier);
        assert_eq!(position.encode().unwrap(), cursor);
        let note = NoteBody::decode(&record("note")).unwrap();
        assert!(matches!(note, NoteBody::Parameters(parameters) if parameters.max_connections == 60));
        assert_eq!(note.encode().unwrap(), record("note"));
        let key = PieceKey::decode(&record("key")).unwrap();
        assert_eq!(key.encode(), record("key"));
    }
}
