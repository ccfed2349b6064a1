use holdfast_core::{Epoch, LineageId, Random, RepoId, SourceId};

use super::*;
use crate::seal::Key;

const CHEAP: Cost = Cost { memory: 19 << 10, passes: 2, lanes: 1 };
const REPO: RepoId = RepoId([9; 32]);

#[test]
fn keys_are_read_back_from_their_files() {
    let random = Random::seeded(1);
    let identity = Identity::generate(&random);
    let file = identity.file().unwrap();
    assert_eq!(*file.parse::<Identity>().unwrap().text(), *identity.text());
    let recipient = identity.recipient().unwrap();
    assert_eq!(recipient.to_string().parse::<Recipient>().unwrap(), recipient);
    assert!(file.contains(&recipient.to_string()));

    let source = SourceKey::generate(REPO, &random);
    let again: SourceKey = source.file("main\ndb").parse().unwrap();
    assert_eq!((again.repo, again.source), (source.repo, source.source));
    assert_eq!(again.key.bytes(), source.key.bytes());
}

#[test]
fn a_slip_of_the_pen_is_noticed() {
    let identity = Identity::generate(&Random::seeded(1));
    let text = identity.text();
    for at in "hf-identity-".len()..text.len() {
        let mut wrong = text.as_bytes().to_vec();
        wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
        assert!(String::from_utf8(wrong).unwrap().parse::<Identity>().is_err(), "digit {at}");
        assert!(text[..at].parse::<Identity>().is_err(), "cut at {at}");
    }
    let grouped: String = text
        .char_indices()
        .map(|(i, c)| if i > 20 && i % 8 == 0 { format!(" {c}") } else { c.to_string() })
        .collect();
    assert!(grouped.parse::<Identity>().is_ok(), "{grouped}");
    assert!(identity.recipient().unwrap().to_string().parse::<Identity>().is_err());
    assert!("".parse::<SourceKey>().is_err());
}

#[test]
fn secrets_are_not_printed() {
    let random = Random::seeded(1);
    let identity = Identity::generate(&random);
    let source = SourceKey::generate(REPO, &random);
    let root = RootKey::generate(&random);
    let printed = format!("{identity:?} {source:?} {source} {root:?}");
    for secret in [identity.bytes(), source.key.bytes(), root.bytes()] {
        assert!(!printed.contains(&hex::encode(secret)), "{printed}");
        assert!(!printed.contains(&format!("{:?}", &secret[..4])), "{printed}");
    }
}

#[test]
fn an_envelope_opens_for_its_recipient_and_purpose_only() {
    let random = Random::seeded(2);
    let (mine, other) = (Identity::generate(&random), Identity::generate(&random));
    let key = Key::new([7; 32]);
    let purpose = Purpose::Data { lineage: LineageId([1; 8]), epoch: Epoch::numbered(3) };
    let envelopes = [
        Envelope::seal(REPO, purpose, &key, &other.recipient().unwrap(), &random).unwrap(),
        Envelope::seal(REPO, purpose, &key, &mine.recipient().unwrap(), &random).unwrap(),
    ];
    let found = Envelope::find(&envelopes, REPO, purpose, &mine).unwrap();
    assert_eq!(found.bytes(), key.bytes());
    assert_eq!(Envelope::from_bytes(&envelopes[1].bytes()).unwrap(), envelopes[1]);

    for wrong in [
        Purpose::Data { lineage: LineageId([1; 8]), epoch: Epoch::numbered(4) },
        Purpose::Data { lineage: LineageId([2; 8]), epoch: Epoch::numbered(3) },
        Purpose::Source { source: SourceId([1; 8]) },
        Purpose::Ring { generation: 3 },
    ] {
        assert!(Envelope::find(&envelopes, REPO, wrong, &mine).is_err(), "{wrong:?}");
    }
    assert!(Envelope::find(&envelopes, RepoId([8; 32]), purpose, &mine).is_err());
    assert!(
        Envelope::find(&envelopes[..1], REPO, purpose, &mine)
            .unwrap_err()
            .to_string()
            .contains("nothing here")
    );
    for at in 0..Envelope::LEN {
        let mut bytes = envelopes[1].bytes();
        bytes[at] ^= 1;
        let flipped = Envelope::from_bytes(&bytes).unwrap();
        assert!(Envelope::find(&[flipped], REPO, purpose, &mine).is_err(), "byte {at}");
    }
}

#[test]
fn a_key_of_no_order_is_refused() {
    let zero = super::token::write("recipient", &[0; 32]).parse::<Recipient>().unwrap();
    let purpose = Purpose::Ring { generation: 1 };
    assert!(Envelope::seal(REPO, purpose, &Key::new([1; 32]), &zero, &Random::seeded(1)).is_err());
}

#[test]
fn a_passphrase_opens_its_identity() {
    let random = Random::seeded(3);
    let identity = Identity::generate(&random);
    let protected = ProtectedIdentity::protect(&identity, "correct horse", CHEAP, &random).unwrap();
    let file = protected.file().unwrap();
    assert!(ProtectedIdentity::is(&file) && !ProtectedIdentity::is(&identity.text()));
    assert!(file.parse::<Identity>().unwrap_err().to_string().contains("passphrase"));
    let again: ProtectedIdentity = file.parse().unwrap();
    assert_eq!(*again.open("correct horse").unwrap().text(), *identity.text());
    assert_eq!(again.recipient().unwrap(), identity.recipient().unwrap());
    assert!(again.open("wrong horse").unwrap_err().to_string().contains("does not open"));
    assert!(ProtectedIdentity::protect(&identity, " ", CHEAP, &random).is_err());
}

#[test]
fn the_cost_of_a_passphrase_has_a_floor_and_a_cap() {
    let random = Random::seeded(3);
    let identity = Identity::generate(&random);
    for cost in [
        Cost { memory: 8 << 10, ..CHEAP },
        Cost { memory: 2 << 20, ..CHEAP },
        Cost { passes: 1, ..CHEAP },
        Cost { passes: 1000, ..CHEAP },
        Cost { lanes: 0, ..CHEAP },
        Cost { lanes: 64, ..CHEAP },
    ] {
        assert!(ProtectedIdentity::protect(&identity, "p", cost, &random).is_err(), "{cost:?}");
    }
    // A hostile file: its check sum is right, its cost is not.
    let bytes = [&[1; 32][..], &u32::MAX.to_le_bytes(), &[255; 8], &[0; 16 + 53]].concat();
    let hostile = super::token::write("protected-identity", &bytes);
    assert!(hostile.parse::<ProtectedIdentity>().unwrap_err().to_string().contains("accepted"));
}

#[test]
fn only_the_root_signs() {
    let random = Random::seeded(4);
    let root = RootKey::generate(&random);
    let public = root.public().unwrap();
    let signature = root.sign(b"ring").unwrap();
    public.verify(b"ring", &signature).unwrap();
    assert!(public.verify(b"rinh", &signature).is_err());
    assert!(RootKey::generate(&random).public().unwrap().verify(b"ring", &signature).is_err());
    assert_eq!(public.repo(), RootKey::from_bytes(*root.bytes()).public().unwrap().repo());
}
