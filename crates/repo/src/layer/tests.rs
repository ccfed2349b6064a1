use std::collections::BTreeMap;

use bytes::Bytes;
use holdfast_core::{
    Act, Epoch, Extent, Held, LineageId, PackId, PieceId, Random, Row, SourceId, StateObject,
};
use proptest::prelude::*;

use super::*;
use crate::{names::Stream, seal::Key};

const STREAM: Stream = Stream { source: SourceId([1; 8]), lineage: LineageId([2; 8]) };

fn key() -> Key {
    Key::new([5; 32])
}

fn held(number: u64) -> Held {
    let extent = Extent {
        pack: PackId { epoch: Epoch::numbered(1), number },
        offset: 8,
        length: 100,
        opened: 400,
        key_epoch: Epoch::numbered(1),
        piece: PieceId([number as u8; 16]),
    };
    Held { extent, hash: [3; 32] }
}

fn row(key: &[u8], value: &[u8], packs: &[u64]) -> Row {
    Row {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(value),
        held: packs.iter().map(|n| held(*n)).collect(),
    }
}

/// Cuts rows into one layer, in memory.
fn build(rows: impl IntoIterator<Item = Row>) -> (Bytes, StateObject) {
    let mut builder = StateBuilder::new(&key(), STREAM, Epoch::numbered(4), 9, &Random::seeded(1));
    for row in rows {
        builder.push(&row).unwrap();
    }
    let (body, object) = builder.finish().unwrap();
    (body.concat(), object)
}

fn index(bytes: &[u8], object: &StateObject) -> StateIndex {
    let from = bytes.len().saturating_sub(END_READ as usize);
    match StateIndex::read(&key(), STREAM, object, &bytes[from..]).unwrap() {
        End::Index(index) => index,
        End::More(length) => {
            let from = bytes.len() - length as usize;
            match StateIndex::read(&key(), STREAM, object, &bytes[from..]).unwrap() {
                End::Index(index) => index,
                End::More(_) => panic!("asked for more twice"),
            }
        }
    }
}

fn page(index: &StateIndex, bytes: &[u8], page: usize) -> PageRows {
    let (from, length) = index.extent(page).unwrap();
    PageRows::new(index.open(page, &bytes[from as usize..(from + length) as usize]).unwrap())
}

/// All rows of several layers from `from` on, merged.
fn merged(layers: &[(Bytes, StateObject)], from: &[u8]) -> Vec<Row> {
    let mut lanes: Vec<(StateIndex, usize)> = layers
        .iter()
        .map(|(bytes, object)| index(bytes, object))
        .map(|index| {
            let first = index.find(from);
            (index, first)
        })
        .collect();
    let mut merge = Merge::new(layers.len(), Bytes::copy_from_slice(from));
    let mut rows = Vec::new();
    loop {
        match merge.step().unwrap() {
            Step::End => return rows,
            Step::Row(row) => rows.push(row),
            Step::Feed(lane) => {
                let (index, next) = &mut lanes[lane];
                let fed = (*next < index.pages()).then(|| page(index, &layers[lane].0, *next));
                *next += 1;
                merge.feed(lane, fed);
            }
        }
    }
}

fn some_rows() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>, Vec<u64>)>> {
    let key = prop_oneof![
        proptest::collection::vec(0u8..3, 0..6),
        proptest::collection::vec(any::<u8>(), 1..40),
        Just(vec![7; 5_000]),
    ];
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..50),
        (any::<u8>(), 10_000usize..90_000).prop_map(|(b, n)| vec![b; n]),
    ];
    proptest::collection::vec((key, value, proptest::collection::vec(0u64..5, 0..3)), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn layers_are_a_sorted_map(tables in proptest::collection::vec(some_rows(), 1..5), from in proptest::collection::vec(0u8..4, 0..4)) {
        let mut model: BTreeMap<Vec<u8>, Row> = BTreeMap::new();
        let mut layers = Vec::new();
        for table in tables {
            let mut buffer = RowBuffer::default();
            for (key, value, packs) in table {
                let row = row(&key, &value, &packs);
                buffer.push(&row);
                model.insert(key, row);
            }
            if !buffer.is_empty() {
                layers.push(build(std::iter::from_fn(|| buffer.pop())));
                prop_assert_eq!(buffer.bytes(), 0);
            }
        }
        let expected: Vec<Row> = model.range(from.clone()..).map(|(_, row)| row.clone()).collect();
        prop_assert_eq!(merged(&layers, &from), expected);
    }

    #[test]
    fn a_damaged_object_never_gives_other_rows(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<bool>()) {
        let rows: Vec<Row> = (0..3_000u32).map(|n| row(&n.to_be_bytes(), &[n as u8; 60], &[n.into()])).collect();
        let (bytes, object) = build(rows.clone());
        let mut raw = bytes.to_vec();
        let at = at.index(raw.len());
        if cut { raw.truncate(at) } else { raw[at] ^= 1 << bit }
        prop_assert_eq!(check_digest("x", &raw).unwrap_err().act(), Act::Corrupt);
        // What does open is what was written.
        let end = &raw[raw.len().saturating_sub(END_READ as usize)..];
        if let Ok(End::Index(index)) = StateIndex::read(&key(), STREAM, &object, end) {
            let mut seen = 0;
            for number in 0..index.pages() {
                let (from, length) = index.extent(number).unwrap();
                let sealed = raw.get(from as usize..(from + length) as usize).unwrap_or_default();
                match index.open(number, sealed) {
                    Ok(page) => {
                        let mut page = PageRows::new(page);
                        while let Some(row) = page.next().unwrap() {
                            prop_assert_eq!(&row, &rows[seen]);
                            seen += 1;
                        }
                    }
                    Err(error) => {
                        prop_assert_eq!(error.act(), Act::Corrupt);
                        prop_assert!(error.to_string().contains("state/"), "{}", error);
                        seen += index.rows(number) as usize;
                    }
                }
            }
        }
    }
}

#[test]
fn pages_are_small_and_found_by_key() {
    let rows: Vec<Row> =
        (0..20_000u32).map(|n| row(&n.to_be_bytes(), &n.to_le_bytes().repeat(8), &[])).collect();
    let (bytes, object) = build(rows);
    let index = index(&bytes, &object);
    assert!(index.pages() > 5, "{}", index.pages());
    let at = index.find(&12_345u32.to_be_bytes());
    let mut found = page(&index, &bytes, at);
    let mut keys = std::iter::from_fn(|| found.next().unwrap());
    assert!(keys.any(|row| row.key[..] == 12_345u32.to_be_bytes()));
    assert_eq!(
        (&object.first[..], &object.last[..]),
        (&0u32.to_be_bytes()[..], &19_999u32.to_be_bytes()[..])
    );
    assert_eq!(object.rows, 20_000);
}

#[test]
fn an_object_opens_under_its_own_name_only() {
    let (bytes, mut object) = build([row(b"a", b"b", &[])]);
    object.number += 1;
    assert_eq!(StateIndex::read(&key(), STREAM, &object, &bytes).unwrap_err().act(), Act::Corrupt);
    object.number -= 1;
    assert!(StateIndex::read(&Key::new([6; 32]), STREAM, &object, &bytes).is_err());
    assert!(StateIndex::read(&key(), STREAM, &object, &bytes).is_ok());
}

#[test]
fn an_object_says_what_it_keeps_alive() {
    let (bytes, object) = build([row(b"a", b"", &[1, 2]), row(b"b", b"", &[2])]);
    let named = summary(&key(), STREAM, &object, &bytes).unwrap();
    let pack = |number| PackId { epoch: Epoch::numbered(1), number };
    assert_eq!(named, BTreeMap::from([(pack(1), 100), (pack(2), 200)]));
}

#[test]
fn a_long_index_is_asked_for() {
    let long = |n: u32| {
        let mut key = n.to_be_bytes().to_vec();
        key.extend((0..8_000u32).flat_map(|i| (i.wrapping_mul(n + 7)).to_le_bytes()));
        key
    };
    let rows: Vec<Row> = (0..200).map(|n| row(&long(n), &[0; 40_000], &[])).collect();
    let (bytes, object) = build(rows.clone());
    let end = &bytes[bytes.len() - END_READ as usize..];
    assert!(matches!(StateIndex::read(&key(), STREAM, &object, end).unwrap(), End::More(_)));
    assert_eq!(merged(&[(bytes, object)], b""), rows);
}

#[test]
fn rows_out_of_order_are_our_own_mistake() {
    let mut builder = StateBuilder::new(&key(), STREAM, Epoch::numbered(1), 0, &Random::seeded(1));
    builder.push(&row(b"b", b"", &[])).unwrap();
    assert_eq!(builder.push(&row(b"b", b"", &[])).unwrap_err().act(), Act::Bug);
    let huge = row(b"c", &vec![0; ROW_MAX + 1], &[]);
    assert_eq!(builder.push(&huge).unwrap_err().act(), Act::Configure);
}
