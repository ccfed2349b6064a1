//! Replays the committed corpus of `integration/fuzz` through every decoder, and small changes of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::{fs, path::Path};

use holdfast_core::Random;
use holdfast_repo::fuzzing::TARGETS;

fn fuzz() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../integration/fuzz"))
}

#[test]
fn the_corpus_and_its_neighbours_are_read_or_refused() {
    for (name, decode) in TARGETS {
        let random = Random::seeded(1);
        let mut seen = 0;
        for file in
            fs::read_dir(fuzz().join("corpus").join(name)).unwrap_or_else(|e| panic!("corpus of {name}: {e}"))
        {
            let bytes = fs::read(file.unwrap().path()).unwrap();
            seen += 1;
            decode(&bytes);
            for _ in 0..300 {
                let mut changed = bytes.clone();
                for _ in 0..=random.below(3) {
                    let at = random.below(changed.len() as u64) as usize;
                    match (random.below(4), changed.get_mut(at)) {
                        (0, Some(byte)) => *byte ^= 1 << random.below(8),
                        (1, Some(byte)) => *byte = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                        (2, Some(_)) => changed.truncate(at),
                        _ => changed.insert(at, random.u64() as u8),
                    }
                }
                decode(&changed);
            }
        }
        assert!(seen > 0, "{name} has no corpus");
    }
}

#[test]
fn each_decoder_has_a_target() {
    let mut targets: Vec<String> = fs::read_dir(fuzz().join("fuzz_targets"))
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    targets.sort();
    let mut names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(targets, names);
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is missing in Cargo.toml");
    }
}
