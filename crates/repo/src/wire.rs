//! Fixed-width and variable-width numbers of the clear parts, little-endian. Reading never panics.

use holdfast_core::{Epoch, Error, LineageId, Result, WriterId};

/// Reads from the front of a slice.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or_else(cut)?;
        self.rest = rest;
        Ok(*array)
    }
    pub fn slice(&mut self, length: usize) -> Result<&'a [u8]> {
        let (slice, rest) = self.rest.split_at_checked(length).ok_or_else(cut)?;
        self.rest = rest;
        Ok(slice)
    }
    /// The magic and the version that begin `what` (with its article).
    ///
    /// # Errors
    /// `Corrupt` when it is something else, `Configure` when a newer holdfast wrote it.
    pub fn begin(&mut self, magic: [u8; 8], known: u16, what: &str) -> Result<()> {
        if self.array()? != magic {
            return Err(Error::corrupt(format!("the bytes do not begin as {what} does")));
        }
        let version = self.u16()?;
        if version == known {
            return Ok(());
        }
        Err(Error::configure(format!(
            "{what} has format version {version}, which this holdfast does not know: use a newer one"
        )))
    }
    pub fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }
    pub fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }
    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }
    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }
    pub fn lineage(&mut self) -> Result<LineageId> {
        self.array().map(LineageId)
    }
    pub fn epoch(&mut self) -> Result<Epoch> {
        Ok(Epoch { number: self.u64()?, writer: WriterId(self.array()?) })
    }
    /// Seven bits a byte, lowest first; one spelling for each number.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::corrupt("a number is written in a way that nothing writes"))
    }
    /// A signed difference, by [`put_signed`].
    pub fn signed(&mut self) -> Result<i64> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }
    /// Refuses trailing bytes.
    pub fn end(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(Error::corrupt("bytes follow where the end should be")) }
    }
}

fn cut() -> Error {
    Error::corrupt("bytes are cut short")
}

pub fn put_epoch(out: &mut Vec<u8>, epoch: Epoch) {
    out.extend_from_slice(&epoch.number.to_le_bytes());
    out.extend_from_slice(&epoch.writer.0);
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Small differences of either sign take few bytes.
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, (value << 1 ^ value >> 63).cast_unsigned());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_back(unsigned: u64, signed: i64, shift in 0u32..64) {
            let mut out = Vec::new();
            put_varint(&mut out, unsigned >> shift);
            put_signed(&mut out, signed >> shift);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint().unwrap(), unsigned >> shift);
            prop_assert_eq!(reader.signed().unwrap(), signed >> shift);
            reader.end().unwrap();
        }
    }

    #[test]
    fn a_number_has_one_spelling() {
        assert!(Reader::new(&[0x80, 0x00]).varint().is_err());
        assert!(Reader::new(&[0xff; 10]).varint().is_err());
        assert!(Reader::new(&[0x80]).varint().is_err());
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Reader::new(&most).varint().unwrap(), u64::MAX);
    }
}
