//! Format version 1 is what lies in `tests/golden/1`: a whole small repository, byte by byte. It is never
//! written again; a change that does not read it, or that writes other bytes, needs a new version.
//!
//! `HOLDFAST_GOLDEN=write` writes the files that are not there yet (for a new version, or a new kind of object).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod world;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use holdfast_core::{Bytes, PackId, RepoId};
use holdfast_repo::{
    entry,
    epoch::EpochObject,
    keys::{Identity, ProtectedIdentity, SourceKey},
    layer, merged,
    names::{Name, lineage_id},
    object::{self, End, Front, ObjectId, OpenFront},
    pack,
    record::{Hold, LineageRecord, Origin},
    ring::{RepoRecord, RepositoryRing, SourceRing},
};
use world::{FIRST, HOLD, IDENTITY_TEXT, PASSPHRASE, SECOND, World, at, entries_of, header, log_of, world};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/1")
}

/// What stands beside the repository: keys as people hold them, and the entries alone.
fn beside(world: &World) -> BTreeMap<String, Vec<u8>> {
    let World { identity, paper, source_key, state, root, .. } = world;
    let mut files = BTreeMap::new();
    let mut add = |name: &str, bytes: &[u8]| assert!(files.insert(name.to_owned(), bytes.to_vec()).is_none());
    add("identity.txt", identity.file().unwrap().as_bytes());
    add("protected-identity.txt", paper.file().unwrap().as_bytes());
    add("source-key.txt", source_key.file("main").as_bytes());
    add("repository-id.txt", root.public().unwrap().repo().to_string().as_bytes());
    add("entries.bin", &entry::encode(&world::all_entries(state)).unwrap());
    files
}

/// All that must lie in the folder, by path.
fn expected(world: &World) -> BTreeMap<String, Vec<u8>> {
    let objects = world.objects.iter().map(|(name, bytes)| (format!("repository/{name}"), bytes.clone()));
    beside(world).into_iter().chain(objects).collect()
}

fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn stored(name: Name) -> Bytes {
    read(&format!("repository/{name}")).into()
}

#[test]
fn this_version_writes_the_same_bytes() {
    let world = world();
    let expected = expected(&world);
    if std::env::var_os("HOLDFAST_GOLDEN").is_some_and(|value| value == "write") {
        for (name, bytes) in &expected {
            let path = folder().join(name);
            if !path.exists() {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, bytes).unwrap();
            }
        }
    }
    for (name, bytes) in &expected {
        assert!(
            read(name) == *bytes,
            "{name} would be written with other bytes. A change of ours: that is another format version. A new zstd, \
             whose output may differ: keep this folder, and add what it writes as one more folder that must be read"
        );
    }
}

#[test]
fn with_the_files_alone_everything_is_read() {
    let World { stream, ring, source, extent, state, digests, .. } = world();
    let text = |name: &str| String::from_utf8(read(name)).unwrap();
    let identity: Identity = text("identity.txt").parse().unwrap();
    let repo: RepoId = text("repository-id.txt").parse().unwrap();

    let record = RepoRecord::read(&stored(Name::Repo), repo).unwrap();
    assert_eq!(record.created, at(0));
    let repository_ring = RepositoryRing::open(&record.root, 1, &stored(Name::Ring(1))).unwrap();
    let secrets = repository_ring.secrets(&identity).unwrap();
    assert_eq!(secrets.content, ring);
    let protected: ProtectedIdentity = text("protected-identity.txt").parse().unwrap();
    assert_eq!(protected, repository_ring.identities[0]);
    let paper = protected.open(PASSPHRASE).unwrap();
    assert_eq!(repository_ring.secrets(&paper).unwrap().root.public().unwrap(), record.root);

    let name = Name::SourceRing { source: stream.source, generation: 1 };
    let source_ring = SourceRing::open(&record.root, stream.source, 1, &stored(name)).unwrap();
    let source_key = source_ring.source_key(&identity).unwrap();
    assert_eq!(source_ring.content(&source_key.key).unwrap(), source);
    assert_eq!(*text("source-key.txt").parse::<SourceKey>().unwrap().text(), *source_key.text());
    let key = &source_key.key;
    assert_eq!(lineage_id(key, repo, stream.source, IDENTITY_TEXT), stream.lineage);

    let lineage = LineageRecord::open(key, stream, &stored(Name::Lineage(stream))).unwrap();
    assert_eq!(
        (&lineage.identity[..], &lineage.origin),
        (IDENTITY_TEXT, &Origin::Adopted { by: "Anna".into() })
    );
    let name = Name::Hold { source: stream.source, hold: HOLD, renewal: 0 };
    assert_eq!(Hold::open(key, stream.source, HOLD, 0, &stored(name)).unwrap().host, "restore-1");

    let claim =
        |epoch| EpochObject::open(key, stream, epoch, &stored(Name::Epoch { stream, epoch })).unwrap();
    assert_eq!(claim(SECOND).ring, 1);
    let data_key = claim(FIRST).data_key(repo, &identity).unwrap();
    claim(FIRST).data_key(repo, &paper).unwrap();

    for number in 0..4 {
        let bytes = stored(Name::Log { stream, epoch: FIRST, number });
        let OpenFront { prelude, front, digest } = object::open_front(key, &bytes).unwrap();
        prelude.expect(ObjectId { lineage: stream.lineage, epoch: FIRST, number }).unwrap();
        assert_eq!((front, digest), (Front::Data(header(number)), digests[number as usize]), "{number}");
        let entries = object::open_entries(key, &prelude, &bytes[prelude.key_range()]).unwrap();
        assert_eq!(entries, entries_of(number, &state), "{number}");
        let log = object::open_closed(&data_key, &prelude, &bytes[prelude.closed_range()]).unwrap();
        assert_eq!(log, log_of(number).concat(), "{number}");
    }
    let end = object::open_front(key, &stored(Name::Log { stream, epoch: FIRST, number: 4 })).unwrap();
    assert_eq!(end.front, Front::End(End { by: SECOND, written: at(60) }));
    assert_eq!(end.prelude.previous, digests[3]);
    let head = object::open_front(key, &stored(Name::Log { stream, epoch: SECOND, number: 0 })).unwrap();
    assert_eq!(head.prelude.previous, digests[3]);

    let bytes = stored(Name::Merged { stream, epoch: FIRST, from: 1, to: 2 });
    let merged = merged::Head::open(key, stream, FIRST, 1, 2, &bytes).unwrap();
    assert_eq!((merged.previous, merged.last), (digests[0], digests[2]));
    assert_eq!(merged::check_merged(&bytes).unwrap(), merged);
    for original in merged.originals() {
        let part = |range: std::ops::Range<u64>| &bytes[range.start as usize..range.end as usize];
        let whole = [part(original.front), part(original.body)].concat();
        assert!(whole == stored(Name::Log { stream, epoch: FIRST, number: original.number }));
    }

    let bytes = stored(Name::Pack { stream, epoch: FIRST, number: 0 });
    let id = PackId { epoch: FIRST, number: 0 };
    let pack::End::Pieces(pieces) = pack::read_end(key, stream, id, bytes.len() as u64, &bytes).unwrap()
    else {
        panic!("the list of a small pack lies in its end");
    };
    assert_eq!(pieces, [extent]);
    let sealed = bytes.slice(extent.offset as usize..).slice(..extent.length as usize);
    assert_eq!(pack::open_piece(&data_key, &extent, &sealed).unwrap(), world::CONTENT);

    let bytes = stored(Name::State { stream, epoch: FIRST, number: 0 });
    let layer::End::Index(index) = layer::StateIndex::read(key, stream, &state, &bytes).unwrap() else {
        panic!("the index of a small object lies in its end");
    };
    let (from, length) = index.extent(0).unwrap();
    let page = index.open(0, &bytes[from as usize..(from + length) as usize]).unwrap();
    let mut rows = layer::Merge::new(1, Bytes::new());
    rows.feed(0, Some(layer::PageRows::new(page)));
    assert_eq!(rows.step().unwrap(), layer::Step::Row(world::row(extent)));

    assert_eq!(entry::decode(&read("entries.bin")).unwrap(), world::all_entries(&state));
}

#[test]
fn nothing_else_lies_there() {
    let expected = expected(&world());
    let mut folders = vec![folder()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                let name = entry.strip_prefix(folder()).unwrap().to_str().unwrap().to_owned();
                let known = expected.contains_key(&name) || name == ".gitattributes";
                assert!(known, "{name} is in no list: was a kind of object given up?");
            }
        }
    }
}

/// What `integration/reader`, written from FORMAT.md alone, reads; `None` where it cannot run.
fn second_opinion(
    repository: &Path,
    identity: &str,
    passphrase: Option<&str>,
) -> Option<Result<String, String>> {
    let python = |arguments: &[&str]| Command::new("python3").args(arguments).output();
    let has_cipher = python(&["-c", "import cryptography.hazmat.primitives.kdf.argon2"]);
    let has_zstd = Command::new("zstd").arg("--version").output();
    if !has_cipher.is_ok_and(|output| output.status.success()) || has_zstd.is_err() {
        eprintln!("SKIPPED: the reader in Python needs python3, its package cryptography, and zstd");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration/reader/read.py");
    let (identity, id) = (folder().join(identity), String::from_utf8(read("repository-id.txt")).unwrap());
    let mut arguments: Vec<&str> = [&script, repository, &identity].map(|path| path.to_str().unwrap()).into();
    arguments.splice(0..0, ["-B"]);
    arguments.extend(["--repository", &id]);
    let mut command = Command::new("python3");
    command.args(arguments).env("HOLDFAST_PASSPHRASE", passphrase.unwrap_or_default());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Some(if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) })
}

#[test]
fn another_language_reads_it() {
    let repository = folder().join("repository");
    let Some(found) = second_opinion(&repository, "identity.txt", None) else { return };
    let found = found.unwrap();
    let json: serde_json::Value = serde_json::from_str(&found).unwrap();
    let stream = &json[0]["streams"][0];
    assert_eq!(stream["identity"], IDENTITY_TEXT);
    let objects = &stream["epochs"][0]["objects"];
    assert_eq!(objects.as_array().unwrap().len(), 4);
    for (number, object) in objects.as_array().unwrap().iter().enumerate() {
        let log = String::from_utf8(log_of(number as u64).concat()).unwrap();
        assert_eq!(object["log"], log, "{number}");
    }
    assert_eq!(objects[1]["entries"][1]["value"][1]["name"], "before the release");
    assert_eq!(objects[3]["entries"].as_array().unwrap().len(), 14);
    assert_eq!(objects[3]["entries"][5]["table"][0][0]["content"][0], "the content of a piece");
    assert_eq!(stream["epochs"][1]["objects"].as_array().unwrap().len(), 1);
    let by_passphrase = second_opinion(&repository, "protected-identity.txt", Some(PASSPHRASE)).unwrap();
    assert_eq!(by_passphrase.unwrap(), found);
}

#[test]
fn format_md_names_every_purpose_and_magic() {
    let format = include_str!("../../FORMAT.md");
    let sources = [
        include_str!("../../src/seal/mod.rs"),
        include_str!("../../src/object/prelude.rs"),
        include_str!("../../src/epoch.rs"),
        include_str!("../../src/merged.rs"),
        include_str!("../../src/record.rs"),
        include_str!("../../src/pack.rs"),
        include_str!("../../src/layer/object.rs"),
        include_str!("../../src/keys/envelope.rs"),
        include_str!("../../src/ring/repository.rs"),
        include_str!("../../src/ring/source.rs"),
    ];
    let words = sources.iter().flat_map(|source| source.split('"'));
    let words: Vec<&str> =
        words.filter(|word| word.starts_with("holdfast ") || word.starts_with("HF")).collect();
    assert!(words.len() > 20, "{words:?}");
    for word in words.into_iter().filter(|word| !word.contains('\n')) {
        assert!(format.contains(word), "FORMAT.md does not say «{word}»");
    }
}
