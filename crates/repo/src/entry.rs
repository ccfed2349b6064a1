//! Entries: what the key half of a log object says, in order. Append-only: a variant keeps its place and its
//! fields for ever, new ones are added at the end.

use holdfast_core::{
    Catalog, Checkpoint, Cursor, Epoch, Error, Gap, Note, Result, RunId, RunProgress, Span, Timestamp,
};
use serde::{Deserialize, Serialize};

pub use crate::marks::Marks;
use crate::wire::{Reader, put_varint};

/// One entry of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// Bytes of the source's log: `length` bytes from `offset` of the opened closed half. A record ends at
    /// `span.to` when `whole`.
    Log {
        span: Span,
        offset: u32,
        length: u32,
        whole: bool,
    },
    Marks(Marks),
    Note(Note),
    Gap(Gap),
    /// An unfinished run; replaces what was known of it.
    Progress(RunProgress),
    /// A finished run; ends its progress.
    Checkpoint(Box<Checkpoint>),
    /// A run that will not be finished.
    Abandoned(RunId),
    /// Where a writer goes on that took over everything up to the end of this object. The last one counts.
    Cursor(Cursor),
    /// Replaces all that earlier objects said of what is rare.
    Catalog(Box<Catalog>),
    /// First entry of number 0.
    Took(Took),
    /// The three clocks at one moment, as far as they told.
    Clocks {
        source: Option<Timestamp>,
        host: Timestamp,
        store: Option<Timestamp>,
    },
    /// A cut across sources: this stream holds all that was acknowledged before `began`.
    Cut {
        name: String,
        began: Timestamp,
    },
    /// Names this stream will never name again (R8).
    Doom {
        names: Vec<String>,
    },
    /// The writer ended in order: anybody may claim at once.
    Release,
}

/// Number of variants; entries above it were written by a newer holdfast.
const VARIANTS: u32 = 14;

/// What an epoch took over, said once and never counted again (R3, R4).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Took {
    /// `None` for the first epoch of a lineage.
    pub predecessor: Option<Predecessor>,
    /// Epochs above the predecessor that never had a number 0.
    pub dead: Vec<Epoch>,
    /// Epochs that have an END because of this one.
    pub closed: Vec<Epoch>,
}

/// The end of the stream before this epoch; what came before is reached through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    pub epoch: Epoch,
    /// Last number taken over.
    pub last: u64,
    /// Its object's digest.
    pub digest: [u8; 32],
}

/// Each entry with its length before it.
pub fn encode(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for entry in entries {
        let bytes = postcard::to_stdvec(entry)
            .map_err(|cause| Error::bug("an entry could not be encoded").because(cause))?;
        put_varint(&mut out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
    Ok(out)
}

/// # Errors
/// `Corrupt` for bytes that no version writes, `Configure` for entries of a newer holdfast.
pub fn decode(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut reader = Reader::new(bytes);
    let mut entries = Vec::new();
    while !reader.is_empty() {
        let length = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
        entries.push(decode_one(reader.slice(length)?)?);
    }
    Ok(entries)
}

fn decode_one(bytes: &[u8]) -> Result<Entry> {
    let bad = |cause| Error::corrupt("an entry cannot be read").because(cause);
    let (variant, _) = postcard::take_from_bytes::<u32>(bytes).map_err(bad)?;
    if variant >= VARIANTS {
        return Err(Error::configure(format!(
            "an entry of kind {variant} was written by a newer holdfast: use that version or a later one"
        )));
    }
    let (entry, rest) = postcard::take_from_bytes(bytes).map_err(bad)?;
    if rest.is_empty() { Ok(entry) } else { Err(Error::corrupt("an entry is longer than it should be")) }
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use holdfast_core::{Branch, Layer, MarkKind, Place, Sample, StateObject, WriterId};
    use proptest::prelude::*;

    use super::*;
    use crate::marks::tests::any_mark;

    prop_compose! {
        fn any_span()(branch in 0u64..4, from: u64, to: u64) -> Span {
            Span { branch: Branch(branch), from, to }
        }
    }
    prop_compose! {
        fn any_epoch()(number: u64, writer: [u8; 8]) -> Epoch {
            Epoch { number, writer: WriterId(writer) }
        }
    }
    fn any_bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..30).prop_map(Bytes::from)
    }
    prop_compose! {
        fn any_layer()(objects in prop::collection::vec((any_epoch(), any::<u64>(), any_bytes(), any_bytes()), 0..3)) -> Layer {
            let object = |(epoch, number, first, last)| StateObject { epoch, number, first, last, rows: 1, bytes: 2 };
            Layer { objects: objects.into_iter().map(object).collect() }
        }
    }
    prop_compose! {
        fn any_checkpoint()(id: [u8; 8], span in any_span(), time: i64, layers in prop::collection::vec(any_layer(), 0..2),
            suspect in prop::option::of(".{0,9}"), body in any_bytes()) -> Checkpoint {
            let (began, ended) = (Timestamp(time), Timestamp(!time));
            Checkpoint { id: RunId(id), begin: span.start(), serves: span.end(), began, ended, layers, rows: 3, bytes: 4, sent: 5, suspect, body }
        }
    }
    prop_compose! {
        fn any_progress()(id: [u8; 8], time: i64, layers in prop::collection::vec(any_layer(), 0..2), body in any_bytes()) -> RunProgress {
            RunProgress { id: RunId(id), began: Timestamp(time), layers, body }
        }
    }
    prop_compose! {
        fn any_note()(span in any_span(), time: i64, body in any_bytes()) -> Note {
            Note { place: span.start(), time: Timestamp(time), body }
        }
    }
    prop_compose! {
        fn any_gap()(span in any_span(), cause in ".{0,9}", time: i64) -> Gap {
            Gap { span, cause, noticed: Timestamp(time) }
        }
    }
    prop_compose! {
        fn any_catalog()(checkpoints in prop::collection::vec(any_checkpoint(), 0..2), runs in prop::collection::vec(any_progress(), 0..2),
            gaps in prop::collection::vec(any_gap(), 0..2), notes in prop::collection::vec(any_note(), 0..2),
            samples in prop::collection::vec((any_epoch(), any_span()), 0..3), spans in prop::collection::vec(any_span(), 0..3)) -> Catalog {
            let sample = |(epoch, span): (Epoch, Span)| Sample { epoch, number: span.from, place: span.end(), time: Timestamp(1) };
            Catalog { checkpoints, runs, gaps, notes, samples: samples.into_iter().map(sample).collect(), spans }
        }
    }

    pub fn any_entry() -> impl Strategy<Value = Entry> {
        let took = (
            prop::option::of((any_epoch(), any::<u64>(), any::<[u8; 32]>())),
            prop::collection::vec(any_epoch(), 0..3),
        );
        prop_oneof![
            (any_span(), any::<u32>(), any::<u32>(), any::<bool>())
                .prop_map(|(span, offset, length, whole)| Entry::Log { span, offset, length, whole }),
            prop::collection::vec(any_mark(), 0..9).prop_map(|marks| Entry::Marks(Marks(marks))),
            any_note().prop_map(Entry::Note),
            any_gap().prop_map(Entry::Gap),
            any_progress().prop_map(Entry::Progress),
            any_checkpoint().prop_map(|checkpoint| Entry::Checkpoint(Box::new(checkpoint))),
            any::<[u8; 8]>().prop_map(|id| Entry::Abandoned(RunId(id))),
            any_bytes().prop_map(|bytes| Entry::Cursor(Cursor(bytes))),
            any_catalog().prop_map(|catalog| Entry::Catalog(Box::new(catalog))),
            took.prop_map(|(predecessor, dead)| {
                let predecessor =
                    predecessor.map(|(epoch, last, digest)| Predecessor { epoch, last, digest });
                Entry::Took(Took { predecessor, closed: dead.clone(), dead })
            }),
            any::<[i64; 3]>().prop_map(|[a, b, c]| Entry::Clocks {
                source: Some(Timestamp(a)),
                host: Timestamp(b),
                store: Some(Timestamp(c))
            }),
            (".{0,9}", any::<i64>()).prop_map(|(name, began)| Entry::Cut { name, began: Timestamp(began) }),
            prop::collection::vec(".{0,9}", 0..3).prop_map(|names| Entry::Doom { names }),
            Just(Entry::Release),
        ]
    }

    proptest! {
        #[test]
        fn entries_are_read_back(entries in prop::collection::vec(any_entry(), 0..9)) {
            prop_assert_eq!(decode(&encode(&entries).unwrap()).unwrap(), entries);
        }
        #[test]
        fn any_bytes_are_entries_or_an_error(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }

    #[test]
    fn entries_of_a_newer_holdfast_say_so() {
        let error = decode(&[1, VARIANTS as u8]).unwrap_err();
        assert_eq!(error.act(), holdfast_core::Act::Configure);
        assert!(error.to_string().contains("newer"), "{error}");
        // The last variant that we know is no error, and has the number that we think.
        assert_eq!(decode(&[1, VARIANTS as u8 - 1]).unwrap(), [Entry::Release]);
        assert!(decode(&[2, VARIANTS as u8 - 1, 0]).is_err(), "trailing bytes");
    }

    #[test]
    fn a_claimed_length_allocates_nothing() {
        // A catalog of 2^60 checkpoints, a text of 2^60 bytes.
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f];
        for variant in [2u8, 8, 12] {
            let bytes = [&[10, variant][..], &huge].concat();
            assert!(decode(&bytes).is_err(), "variant {variant}");
        }
        assert!(decode(&huge).is_err());
    }

    #[test]
    fn marks_keep_their_kinds() {
        let place = Place { branch: Branch(1), position: 9 };
        let mark = |kind| holdfast_core::Mark { begin: 8, place, time: Timestamp(7), kind };
        let marks =
            vec![mark(MarkKind::Tick), mark(MarkKind::Name("é".into())), mark(MarkKind::Commit { id: 3 })];
        let entries = [Entry::Marks(Marks(marks))];
        assert_eq!(decode(&encode(&entries).unwrap()).unwrap(), entries);
    }
}
