use holdfast_core::{LineageId, Random, SourceId, Timestamp};

use super::*;
use crate::{
    keys::{Cost, Identity, ProtectedIdentity, SourceKey},
    seal::Key,
};

struct World {
    random: Random,
    root: RootKey,
    identity: Identity,
    content: RingContent,
}

fn world() -> World {
    let random = Random::seeded(11);
    let root = RootKey::generate(&random);
    let identity = Identity::generate(&random);
    let paper = Identity::generate(&random);
    let cost = Cost { memory: 19 << 10, passes: 2, lanes: 1 };
    let content = RingContent {
        members: vec![
            Member { name: "Anna".into(), recipient: identity.recipient().unwrap() },
            Member { name: "paper".into(), recipient: paper.recipient().unwrap() },
        ],
        identities: vec![ProtectedIdentity::protect(&paper, "words", cost, &random).unwrap()],
        sources: vec![SourceEntry { id: SourceId([1; 8]), name: "main-db".into(), kind: "postgres".into() }],
    };
    World { random, root, identity, content }
}

#[test]
fn an_identity_and_the_id_give_the_whole_repository() {
    let World { random, root, identity, content } = world();
    let record = RepoRecord { root: root.public().unwrap(), created: Timestamp(1_700_000_000_000_000) };
    let json = record.write().unwrap();
    let read = RepoRecord::read(&json, record.repo()).unwrap();
    assert_eq!(read, record);

    let bytes = content.seal(&root, 4, Timestamp(5), &random).unwrap();
    let ring = RepositoryRing::open(&read.root, 4, &bytes).unwrap();
    let secrets = ring.secrets(&identity).unwrap();
    assert_eq!(secrets.content, content);
    assert_eq!(secrets.root.public().unwrap(), root.public().unwrap());
    // A person with a passphrase and the sink.
    let paper = ring.identities[0].open("words").unwrap();
    assert_eq!(ring.secrets(&paper).unwrap().content, content);
    assert!(ring.secrets(&Identity::generate(&random)).is_err());
    // Names do not show.
    let clear = String::from_utf8(bytes).unwrap();
    for name in ["Anna", "main-db", "postgres"] {
        assert!(!clear.contains(name), "{clear}");
    }
}

#[test]
fn another_repository_is_refused() {
    let World { root, random, .. } = world();
    let record = RepoRecord { root: root.public().unwrap(), created: Timestamp(0) };
    let json = String::from_utf8(record.write().unwrap()).unwrap();
    let other = RootKey::generate(&random).public().unwrap();
    let error = RepoRecord::read(json.as_bytes(), other.repo()).unwrap_err();
    assert_eq!(error.act(), holdfast_core::Act::Configure);
    // The owner of the store keeps the id and puts his own root key in.
    let forged = json.replace(&hex::encode(record.root.0), &hex::encode(other.0));
    assert!(RepoRecord::read(forged.as_bytes(), record.repo()).unwrap_err().to_string().contains("hash"));
    let newer = json.replace("\"holdfast\": 1", "\"holdfast\": 2, \"unheard\": true");
    assert!(RepoRecord::read(newer.as_bytes(), record.repo()).unwrap_err().to_string().contains("newer"));
    assert!(RepoRecord::read(b"{}", record.repo()).is_err());
}

#[test]
fn a_source_ring_gives_recipients_to_writers_and_the_key_to_readers() {
    let World { random, root, identity, .. } = world();
    let key = SourceKey::generate(root.public().unwrap().repo(), &random);
    let content =
        SourceContent { name: "main".into(), kind: "postgres".into(), lineages: vec!["7301".into()] };
    let recipients = [identity.recipient().unwrap()];
    let draft = SourceRingDraft {
        generation: 2,
        created: Timestamp(5),
        recipients: &recipients,
        key: &key,
        content: &content,
    };
    let bytes = draft.seal(&root, &random).unwrap();
    let ring = SourceRing::open(&root.public().unwrap(), key.source, 2, &bytes).unwrap();
    assert_eq!(ring.recipients, recipients);
    assert_eq!(ring.content(&key.key).unwrap(), content);
    let found = ring.source_key(&identity).unwrap();
    assert_eq!(*found.text(), *key.text());
    assert!(ring.source_key(&Identity::generate(&random)).is_err());
    assert!(ring.content(&Key::new([0; 32])).is_err());
    // Signed, but found under another name.
    assert!(SourceRing::open(&root.public().unwrap(), SourceId([9; 8]), 2, &bytes).is_err());
    assert!(SourceRing::open(&root.public().unwrap(), key.source, 3, &bytes).is_err());
    // Signed by somebody else's root key.
    let error =
        SourceRing::open(&RootKey::generate(&random).public().unwrap(), key.source, 2, &bytes).unwrap_err();
    assert!(error.chain().contains("somebody else"), "{}", error.chain());
}

#[test]
fn the_owner_of_the_store_cannot_add_a_recipient() {
    let World { random, root, identity, content } = world();
    let public = root.public().unwrap();
    let bytes = content.seal(&root, 1, Timestamp(0), &random).unwrap();
    let text = String::from_utf8(bytes.clone()).unwrap();
    let his = Identity::generate(&random).recipient().unwrap().to_string();

    let added = text.replacen("\"recipients\": [", &format!("\"recipients\": [\n    \"{his}\","), 1);
    let replaced = text.replacen(&identity.recipient().unwrap().to_string(), &his, 1);
    let his_root = RootKey::generate(&random);
    let signed_by_him = content.seal(&his_root, 1, Timestamp(0), &random).unwrap();
    for forged in [added.into_bytes(), replaced.into_bytes(), signed_by_him] {
        assert_ne!(forged, bytes);
        let error = RepositoryRing::open(&public, 1, &forged).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
    }
    assert!(RepositoryRing::open(&public, 2, &bytes).is_err(), "an old generation under a new name");
}

#[test]
fn every_flip_of_a_ring_is_refused() {
    let World { random, root, content, .. } = world();
    let public = root.public().unwrap();
    let bytes = content.seal(&root, 1, Timestamp(0), &random).unwrap();
    for at in 0..bytes.len() {
        for bit in [0, 5] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert!(RepositoryRing::open(&public, 1, &flipped).is_err(), "byte {at} bit {bit}");
        }
    }
    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        assert!(RepositoryRing::open(&public, 1, &bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_ring_needs_a_recipient_and_each_once() {
    let World { random, root, mut content, .. } = world();
    let twice = content.members[0].clone();
    content.members.push(twice);
    assert!(content.seal(&root, 1, Timestamp(0), &random).unwrap_err().to_string().contains("twice"));
    content.members.clear();
    assert!(content.seal(&root, 1, Timestamp(0), &random).is_err());
}

#[test]
fn who_may_write_is_whoever_came_first_or_was_adopted() {
    let (first, second) = (LineageId([1; 8]), LineageId([2; 8]));
    let mut content = SourceContent { name: "main".into(), kind: "postgres".into(), lineages: Vec::new() };
    assert!(content.accepts("a", first, &[]));
    assert!(content.accepts("a", first, &[first]));
    assert!(content.accepts("a", first, &[second, first]));
    assert!(!content.accepts("b", second, &[first]));
    content.lineages = vec!["b".into()];
    assert!(content.accepts("b", second, &[first]));
    assert!(!content.accepts("a", first, &[first]), "adopted ones alone, whatever is stored");
}
