//! One row as it stands in a page. Owns the row encoding: postcard of (bytes shared with the key before,
//! rest of the key, value, held extents). Pinned by a test; FORMAT.md describes it.

use std::fmt;

use bytes::Bytes;
use holdfast_core::{Error, Held, Result, Row};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Visitor};

/// Longest key and longest encoded row that a layer takes.
pub const KEY_MAX: usize = 64 << 10;
pub const ROW_MAX: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Encoded<'a> {
    shared: u32,
    #[serde(borrow)]
    rest: Raw<'a>,
    #[serde(borrow)]
    value: Raw<'a>,
    held: Vec<Held>,
}

/// A byte string read without copying.
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = Raw<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }
            fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> std::result::Result<Self::Value, E> {
                Ok(Raw(bytes))
            }
        }
        deserializer.deserialize_bytes(Borrow)
    }
}

/// Appends `row` to `out`; `before` is the key of the row before it in the same page, or empty.
///
/// # Errors
/// `Configure` when key or row are larger than a layer takes; `out` is then unchanged.
pub fn encode(row: &Row, before: &[u8], out: &mut Vec<u8>) -> Result<()> {
    if row.key.len() > KEY_MAX {
        return Err(too_large("key", row.key.len(), KEY_MAX));
    }
    let shared = row.key.iter().zip(before).take_while(|(a, b)| a == b).count();
    let encoded = Encoded {
        shared: shared as u32,
        rest: Raw(row.key.get(shared..).unwrap_or_default()),
        value: Raw(&row.value),
        held: row.held.clone(),
    };
    let start = out.len();
    let all = postcard::to_extend(&encoded, std::mem::take(out))
        .map_err(|cause| Error::bug("a row could not be encoded").because(cause))?;
    *out = all;
    let length = out.len() - start;
    if length > ROW_MAX {
        out.truncate(start);
        return Err(too_large("row", length, ROW_MAX));
    }
    Ok(())
}

fn too_large(what: &str, length: usize, max: usize) -> Error {
    Error::configure(format!("a {what} of {length} bytes does not fit into a table (at most {max})"))
}

/// Takes the first row off `raw`; `key` holds the key of the row before it and then that of this row.
///
/// # Errors
/// `Corrupt` when the bytes are no row, or when keys do not ascend.
pub fn decode<'a>(raw: &'a [u8], key: &mut Vec<u8>, first: bool) -> Result<(Row, &'a [u8])> {
    let (encoded, rest) = postcard::take_from_bytes::<Encoded<'_>>(raw)
        .map_err(|cause| Error::corrupt("a page of a table layer holds no valid row").because(cause))?;
    let shared = encoded.shared as usize;
    if shared > key.len() || shared + encoded.rest.0.len() > KEY_MAX {
        return Err(Error::corrupt("a page of a table layer holds a key that cannot be"));
    }
    // `rest` must be greater than what it replaces, or the row is out of order.
    if !first && key.get(shared..).is_some_and(|old| encoded.rest.0 <= old) {
        return Err(Error::corrupt("a page of a table layer holds rows out of order"));
    }
    key.truncate(shared);
    key.extend_from_slice(encoded.rest.0);
    let row = Row {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(encoded.value.0),
        held: encoded.held,
    };
    Ok((row, rest))
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Epoch, Extent, PackId, PieceId};

    use super::*;

    #[test]
    fn the_bytes_of_a_row_stay() {
        let extent = Extent {
            pack: PackId { epoch: Epoch::numbered(3), number: 300 },
            offset: 8,
            length: 1_000,
            opened: 4_000,
            key_epoch: Epoch::numbered(2),
            piece: PieceId([7; 16]),
        };
        let row = Row {
            key: Bytes::from_static(b"base/1/2"),
            value: Bytes::from_static(b"v"),
            held: vec![Held { extent, hash: [9; 32] }],
        };
        let mut out = Vec::new();
        encode(&row, b"base/1/17", &mut out).unwrap();
        let expected = concat!(
            "07",
            "0132",
            "0176",
            "01", // shared, rest, value, one extent
            "03",
            "0000000000000000",
            "ac02",
            "08",
            "e807",
            "a01f", // pack, offset, length, opened
            "02",
            "0000000000000000",
            "07070707070707070707070707070707", // key epoch, piece
            "0909090909090909090909090909090909090909090909090909090909090909",
        );
        assert_eq!(hex::encode(&out), expected);
        let mut key = b"base/1/17".to_vec();
        let (back, rest) = decode(&out, &mut key, false).unwrap();
        assert_eq!(back, row);
        assert!(rest.is_empty());
    }

    #[test]
    fn a_row_out_of_order_is_refused() {
        let row = Row { key: Bytes::from_static(b"a"), value: Bytes::new(), held: Vec::new() };
        let mut out = Vec::new();
        encode(&row, b"b", &mut out).unwrap();
        let mut key = b"b".to_vec();
        assert_eq!(decode(&out, &mut key, false).unwrap_err().act(), holdfast_core::Act::Corrupt);
    }
}
