//! Many marks in few bytes: a commit takes about eight. Each mark is written as differences to the one before.

use std::fmt;

use holdfast_core::{Branch, Error, Mark, MarkKind, Place, Result, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    entry::MARKS_MAX,
    wire::{Reader, put_signed, put_varint},
};

const COMMIT: u8 = 0;
const NAME: u8 = 1;
const TICK: u8 = 2;
/// Not a mark: those that follow lie in another branch.
const BRANCH: u8 = 3;

/// Marks in stream order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(pub Vec<Mark>);

/// What differences are taken from.
#[derive(Default)]
struct Last {
    branch: u64,
    position: u64,
    time: i64,
    id: u64,
}

fn differ(new: u64, old: u64) -> i64 {
    new.wrapping_sub(old).cast_signed()
}

pub fn encode(marks: &[Mark]) -> Vec<u8> {
    let mut out = Vec::with_capacity(marks.len() * 9);
    let mut last = Last::default();
    for mark in marks {
        let branch = mark.place.branch.0;
        if branch != last.branch {
            out.push(BRANCH);
            put_varint(&mut out, branch);
            last.branch = branch;
        }
        out.push(match mark.kind {
            MarkKind::Commit { .. } => COMMIT,
            MarkKind::Name(_) => NAME,
            MarkKind::Tick => TICK,
        });
        put_signed(&mut out, differ(mark.place.position, last.position));
        put_signed(&mut out, differ(mark.place.position, mark.begin));
        put_signed(&mut out, mark.time.0.wrapping_sub(last.time));
        last.position = mark.place.position;
        last.time = mark.time.0;
        match &mark.kind {
            MarkKind::Commit { id } => {
                put_signed(&mut out, differ(*id, last.id));
                last.id = *id;
            }
            MarkKind::Name(name) => {
                put_varint(&mut out, name.len() as u64);
                out.extend_from_slice(name.as_bytes());
            }
            MarkKind::Tick => {}
        }
    }
    out
}

pub fn decode(bytes: &[u8]) -> Result<Vec<Mark>> {
    let mut reader = Reader::new(bytes);
    let mut marks = Vec::new();
    let mut last = Last::default();
    while !reader.is_empty() {
        let kind = reader.u8()?;
        if kind == BRANCH {
            last.branch = reader.varint()?;
            continue;
        }
        last.position = last.position.wrapping_add_signed(reader.signed()?);
        let begin = last.position.wrapping_sub(reader.signed()?.cast_unsigned());
        last.time = last.time.wrapping_add(reader.signed()?);
        let kind = match kind {
            COMMIT => {
                last.id = last.id.wrapping_add_signed(reader.signed()?);
                MarkKind::Commit { id: last.id }
            }
            NAME => {
                let length = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
                let name = std::str::from_utf8(reader.slice(length)?)
                    .map_err(|cause| Error::corrupt("a mark's name is no text").because(cause))?;
                MarkKind::Name(name.to_owned())
            }
            TICK => MarkKind::Tick,
            _ => return Err(Error::corrupt(format!("a mark is of the unknown kind {kind}"))),
        };
        let place = Place { branch: Branch(last.branch), position: last.position };
        if marks.len() == MARKS_MAX {
            return Err(Error::corrupt("an entry says that it holds more marks than any"));
        }
        marks.push(Mark { begin, place, time: Timestamp(last.time), kind });
    }
    Ok(marks)
}

impl Serialize for Marks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Marks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Marks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("encoded marks")
            }
            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Marks, E> {
                decode(bytes).map(Marks).map_err(E::custom)
            }
        }
        deserializer.deserialize_bytes(Visitor)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn any_mark() -> impl Strategy<Value = Mark> {
        let kind = prop_oneof![
            any::<u64>().prop_map(|id| MarkKind::Commit { id }),
            ".{0,12}".prop_map(MarkKind::Name),
            Just(MarkKind::Tick),
        ];
        (any::<u64>(), 0u64..3, any::<u64>(), any::<i64>(), kind).prop_map(
            |(begin, branch, position, time, kind)| Mark {
                begin,
                place: Place { branch: Branch(branch), position },
                time: Timestamp(time),
                kind,
            },
        )
    }

    proptest! {
        #[test]
        fn marks_are_read_back(marks in prop::collection::vec(any_mark(), 0..20)) {
            prop_assert_eq!(decode(&encode(&marks)).unwrap(), marks);
        }
        #[test]
        fn any_bytes_are_marks_or_an_error(bytes: Vec<u8>) {
            if let Ok(marks) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&marks)).unwrap(), marks);
            }
        }
    }

    #[test]
    fn a_commit_takes_eight_bytes() {
        let marks: Vec<_> = (0..1000u64)
            .map(|i| Mark {
                begin: 0x1_0000_0000 + i * 300,
                place: Place { branch: Branch(1), position: 0x1_0000_0000 + i * 300 + 46 },
                time: Timestamp(1_790_000_000_000_000 + (i as i64) * 5_000),
                kind: MarkKind::Commit { id: 800 + i },
            })
            .collect();
        let bytes = encode(&marks).len();
        assert!(bytes < 8 * marks.len(), "{bytes}");
    }
}
