//! Small sealed records that stand alone: what a lineage is, and a reader's hold.
//!
//! Invariant: bound to their name. They are written once and copied only under the same name.

use holdfast_core::{Error, Random, Result, SourceId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    names::{Name, Stream},
    seal::{self, Key, purpose},
    wire::Reader,
};

const VERSION: u16 = 1;
/// Largest record that is read.
pub const RECORD_MAX: usize = 64 << 10;

/// What a lineage is: `<source>/<lineage>/lineage`, written by its first writer before its first claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineageRecord {
    /// As the source says who it is.
    pub identity: String,
    pub created: Timestamp,
    pub origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The first lineage of its source.
    FirstStart,
    /// `source adopt`, and who says so.
    Adopted { by: String },
}

/// A reader's wish that nothing it may need is removed: `<source>/holds/<random>/<k>`. How old it is, the
/// store's time of `k` = 0 says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub host: String,
    /// For people: what the reader is doing.
    pub purpose: String,
    pub written: Timestamp,
}

impl LineageRecord {
    pub fn seal(&self, source_key: &Key, stream: Stream, random: &Random) -> Result<Vec<u8>> {
        seal_record(*b"HFline\0\0", purpose::LINEAGE_RECORD, source_key, Name::Lineage(stream), random, self)
    }
    pub fn open(source_key: &Key, stream: Stream, bytes: &[u8]) -> Result<Self> {
        open_record(*b"HFline\0\0", purpose::LINEAGE_RECORD, source_key, Name::Lineage(stream), bytes)
    }
}

impl Hold {
    pub fn seal(
        &self,
        source_key: &Key,
        source: SourceId,
        hold: [u8; 8],
        renewal: u64,
        random: &Random,
    ) -> Result<Vec<u8>> {
        let name = Name::Hold { source, hold, renewal };
        seal_record(*b"HFhold\0\0", purpose::HOLD, source_key, name, random, self)
    }
    pub fn open(
        source_key: &Key,
        source: SourceId,
        hold: [u8; 8],
        renewal: u64,
        bytes: &[u8],
    ) -> Result<Self> {
        let name = Name::Hold { source, hold, renewal };
        open_record(*b"HFhold\0\0", purpose::HOLD, source_key, name, bytes)
    }
}

fn seal_record<T: Serialize>(
    magic: [u8; 8],
    purpose: &'static str,
    source_key: &Key,
    name: Name,
    random: &Random,
    record: &T,
) -> Result<Vec<u8>> {
    let plain = postcard::to_stdvec(record)
        .map_err(|cause| Error::bug(format!("{name} could not be encoded")).because(cause))?;
    if plain.len() > RECORD_MAX / 2 {
        return Err(Error::configure(format!("{name} would be too large: shorten its texts")));
    }
    let salt: [u8; 16] = random.array();
    let mut out = [&magic[..], &VERSION.to_le_bytes(), &salt].concat();
    let aad = [&out[..], name.to_string().as_bytes()].concat();
    seal::seal_into(&mut out, &source_key.derive(purpose, &salt), &aad, &plain)?;
    Ok(out)
}

fn open_record<T: for<'de> Deserialize<'de>>(
    magic: [u8; 8],
    purpose: &'static str,
    source_key: &Key,
    name: Name,
    bytes: &[u8],
) -> Result<T> {
    let read = || -> Result<T> {
        let mut reader = Reader::new(bytes);
        if bytes.len() > RECORD_MAX {
            return Err(Error::corrupt("the record is larger than it can be"));
        }
        reader.begin(magic, VERSION, "such a record")?;
        let salt: [u8; 16] = reader.array()?;
        let (clear, sealed) = bytes.split_at(8 + 2 + 16);
        let aad = [clear, name.to_string().as_bytes()].concat();
        let plain = seal::open(&source_key.derive(purpose, &salt), &aad, sealed, RECORD_MAX)?;
        match postcard::take_from_bytes(&plain) {
            Ok((record, [])) => Ok(record),
            Ok(_) => Err(Error::corrupt("the record is longer than it should be")),
            Err(cause) => Err(Error::corrupt("the record is of an unknown shape").because(cause)),
        }
    };
    read().map_err(|e| e.during(format!("{name} cannot be read")))
}

#[cfg(test)]
mod tests {
    use holdfast_core::LineageId;

    use super::*;

    #[test]
    fn records_open_under_their_own_name_and_refuse_every_flip() {
        let random = Random::seeded(1);
        let key = Key::new([3; 32]);
        let stream = Stream { source: SourceId([1; 8]), lineage: LineageId([2; 8]) };
        let record = LineageRecord {
            identity: "system identifier 7301".into(),
            created: Timestamp(77),
            origin: Origin::Adopted { by: "anna".into() },
        };
        let bytes = record.seal(&key, stream, &random).unwrap();
        assert_eq!(LineageRecord::open(&key, stream, &bytes).unwrap(), record);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert!(LineageRecord::open(&key, stream, &flipped).is_err(), "byte {at}");
            assert!(LineageRecord::open(&key, stream, &bytes[..at]).is_err(), "cut at {at}");
        }
        let other = Stream { lineage: LineageId([3; 8]), ..stream };
        assert!(LineageRecord::open(&key, other, &bytes).is_err());

        let hold = Hold { host: "h".into(), purpose: "restore".into(), written: Timestamp(1) };
        let bytes = hold.seal(&key, stream.source, [5; 8], 3, &random).unwrap();
        assert_eq!(Hold::open(&key, stream.source, [5; 8], 3, &bytes).unwrap(), hold);
        assert!(Hold::open(&key, stream.source, [5; 8], 4, &bytes).is_err());
        assert!(Hold::open(&Key::new([4; 32]), stream.source, [5; 8], 3, &bytes).is_err());
    }
}
