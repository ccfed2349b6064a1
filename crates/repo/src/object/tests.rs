use holdfast_core::{Branch, LineageId, WriterId};
use proptest::prelude::*;

use super::{prelude::CRC, *};
use crate::entry::tests::any_entry;

const ID: ObjectId =
    ObjectId { lineage: LineageId([1; 8]), epoch: Epoch { number: 2, writer: WriterId([3; 8]) }, number: 4 };

fn source_key() -> Key {
    Key::new([11; 32])
}
fn epoch_key() -> Key {
    Key::new([12; 32])
}

fn header() -> Header {
    Header {
        spans: vec![Span { branch: Branch(1), from: 100, to: 140 }],
        written: Timestamp(1_790_000_000_000_000),
        uptime: 5_000_000,
        vouched: Some(Timestamp(1_789_999_999_000_000)),
        marks: None,
        mark_count: 0,
        heartbeat: 20_000,
        catalog: Some((ID.epoch, 3)),
        release: false,
    }
}

fn sealed(id: ObjectId, entries: &[Entry], closed: &[Bytes], previous: [u8; 32]) -> SealedObject {
    let body = seal_body(&source_key(), &epoch_key(), id, [9; 16], entries, closed).unwrap();
    seal_header(&source_key(), &header(), &body, previous).unwrap()
}

/// Opens all of an object, as a reader with all keys does.
fn open_all(bytes: &Bytes) -> Result<(OpenFront, Vec<Entry>, Bytes)> {
    let front = open_front(&source_key(), bytes)?;
    front.prelude.expect(ID)?;
    let part = |range: std::ops::Range<usize>| {
        bytes.get(range).ok_or_else(|| Error::corrupt("the object is cut short"))
    };
    let entries = open_entries(&source_key(), &front.prelude, part(front.prelude.key_range())?)?;
    let closed = open_closed(&epoch_key(), &front.prelude, part(front.prelude.closed_range())?)?;
    Ok((front, entries, closed))
}

proptest! {
    #[test]
    fn an_object_is_read_back(
        entries in prop::collection::vec(any_entry(), 0..6),
        closed in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..4),
        previous: [u8; 32],
    ) {
        let closed: Vec<Bytes> = closed.into_iter().map(Bytes::from).collect();
        let object = sealed(ID, &entries, &closed, previous);
        let bytes = object.body.concat();
        let (front, read, log) = open_all(&bytes).unwrap();
        prop_assert_eq!(front.front, Front::Data(header()));
        prop_assert_eq!(front.digest, object.digest);
        prop_assert_eq!(front.prelude.previous, previous);
        prop_assert_eq!(read, entries);
        prop_assert_eq!(log, closed.concat());
        prop_assert_eq!(check_object(&bytes).unwrap(), front.prelude);
    }

    #[test]
    fn any_bytes_are_refused(bytes: Vec<u8>) {
        prop_assert!(open_front(&source_key(), &bytes).is_err());
        prop_assert!(check_object(&bytes.into()).is_err());
    }
}

fn example() -> SealedObject {
    let span = Span { branch: Branch(1), from: 100, to: 140 };
    let entries = [Entry::Log { span, offset: 0, length: 40, whole: true }, Entry::Release];
    sealed(ID, &entries, &[Bytes::from(vec![5; 40])], [7; 32])
}

#[test]
fn the_front_is_small_and_read_alone() {
    let object = example();
    let front = object.body.0[0].clone();
    assert!(front.len() < 300, "{}", front.len());
    let read = open_front(&source_key(), &front).unwrap();
    assert_eq!((read.front, read.digest), (Front::Data(header()), object.digest));
    assert_eq!(read.prelude.object_len(), object.body.len());
}

#[test]
fn every_flip_shows_with_the_keys_and_without() {
    let bytes = example().body.concat();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            let flipped = Bytes::from(flipped);
            assert!(open_all(&flipped).is_err(), "byte {at} bit {bit}");
            assert!(check_object(&flipped).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn every_flip_of_a_thief_without_the_key_shows() {
    // He repairs check sum and digests after each change, as the store's owner could.
    let object = example();
    let bytes = object.body.concat();
    let front = object.body.0[0].len();
    for at in 0..bytes.len() {
        let mut forged = bytes.to_vec();
        forged[at] ^= 1;
        if let Ok(prelude) = parse_prelude(&forged) {
            if let (Some(key), Some(closed)) =
                (forged.get(prelude.key_range()), forged.get(prelude.closed_range()))
            {
                let (key, closed) = (digest(key), digest(closed));
                forged[92..124].copy_from_slice(&key);
                forged[124..156].copy_from_slice(&closed);
            }
            let crc = crc32c::crc32c(&forged[..front - CRC]);
            forged[front - CRC..front].copy_from_slice(&crc.to_le_bytes());
        }
        // A check sum that he flips and repairs is the old object again.
        if forged != bytes[..] {
            assert!(open_all(&forged.into()).is_err(), "byte {at}");
        }
    }
}

#[test]
fn every_cut_and_every_tail_is_refused() {
    let bytes = example().body.concat();
    for at in 0..bytes.len() {
        assert!(open_all(&bytes.slice(..at)).is_err(), "cut at {at}");
        assert!(check_object(&bytes.slice(..at)).is_err(), "cut at {at}");
    }
    assert!(check_object(&[&bytes[..], b"x"].concat().into()).is_err());
}

#[test]
fn swaps_are_refused() {
    let other_id = ObjectId { number: 5, ..ID };
    let (one, other) = (example(), sealed(other_id, &[Entry::Release], &[Bytes::from(vec![6; 40])], [7; 32]));
    let error = open_front(&source_key(), &other.body.concat()).unwrap().prelude.expect(ID).unwrap_err();
    assert!(error.to_string().contains("swapped") && error.to_string().contains(&ID.to_string()), "{error}");
    // A half of one object under the front of another, with the digests that fit it.
    let prelude = parse_prelude(&one.body.0[0]).unwrap();
    let strange =
        Prelude { key_digest: digest(&other.body.0[1]), key_half: other.body.0[1].len() as u32, ..prelude };
    assert!(open_entries(&source_key(), &strange, &other.body.0[1]).is_err());
    // Keys of others.
    assert!(open_front(&epoch_key(), &one.body.0[0]).is_err());
    let prelude = parse_prelude(&one.body.0[0]).unwrap();
    assert!(open_closed(&source_key(), &prelude, &one.body.0[2]).is_err());
    assert!(open_entries(&epoch_key(), &prelude, &one.body.0[1]).is_err());
}

#[test]
fn an_end_says_who_closed() {
    let end = End { by: Epoch::numbered(9), written: Timestamp(3) };
    let object = seal_end(&source_key(), ID, [2; 16], end, [7; 32]).unwrap();
    let bytes = object.body.concat();
    let front = open_front(&source_key(), &bytes).unwrap();
    assert_eq!(front.front, Front::End(end));
    assert_eq!((front.prelude.kind, front.digest), (Kind::End, object.digest));
    check_object(&bytes).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 4;
        assert!(open_front(&source_key(), &flipped).is_err(), "byte {at}");
    }
}

#[test]
fn lengths_are_capped_and_newer_versions_named() {
    let bytes = example().body.concat();
    let change = |at: usize, to: &[u8]| {
        let mut changed = bytes.to_vec();
        changed[at..at + to.len()].copy_from_slice(to);
        parse_prelude(&changed).unwrap_err()
    };
    assert!(change(8, &[2, 0]).to_string().contains("newer"));
    assert!(change(10, &[7, 0]).to_string().contains("unknown kind"));
    for at in [156, 160, 164] {
        assert!(change(at, &[255; 4]).to_string().contains("lengths"), "{at}");
    }
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    assert_eq!(example().body.concat(), example().body.concat());
}
