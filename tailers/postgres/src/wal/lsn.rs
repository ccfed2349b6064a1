//! Positions in WAL and the segments they lie in.

use std::{fmt, str::FromStr};

use holdfast_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// A byte position in the WAL of one timeline. Text form as the server writes it: `16/B374D848`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Nothing lies there; the server writes it for «none».
    pub const INVALID: Self = Self(0);

    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
    pub fn saturating_add(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
    /// Bytes from `earlier` to here; zero when it lies behind.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
    /// The start of the page (of `size` bytes) that holds this position.
    pub fn page_start(self, size: u64) -> Self {
        Self(self.0 - self.0 % size.max(1))
    }
    /// The next position whose value is a multiple of 8: records begin there.
    pub fn aligned(self) -> Self {
        Self(self.0.saturating_add(7) & !7)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lsn({self})")
    }
}

impl FromStr for Lsn {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let half = |part: &str| {
            let digits = (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            digits.then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Self(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| Error::configure(format!("«{text}» is no WAL position: write it like 0/16B3748")))
    }
}

/// Bytes of a WAL segment file: a power of two from 1 MiB to 1 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct SegmentSize(u32);

impl SegmentSize {
    pub const DEFAULT: Self = Self(16 << 20);

    pub fn new(bytes: u64) -> Result<Self> {
        match u32::try_from(bytes) {
            Ok(size) if size.is_power_of_two() && (1 << 20..=1 << 30).contains(&size) => Ok(Self(size)),
            _ => Err(Error::corrupt(format!(
                "a WAL segment of {bytes} bytes: Postgres knows powers of two from 1 MiB to 1 GiB"
            ))),
        }
    }
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }
    /// Number of the segment that holds `lsn`.
    pub fn number(self, lsn: Lsn) -> u64 {
        lsn.0 / self.bytes()
    }
    /// First position of segment `number`; `None` beyond the end of all WAL.
    pub fn start(self, number: u64) -> Option<Lsn> {
        number.checked_mul(self.bytes()).map(Lsn)
    }
    pub fn offset(self, lsn: Lsn) -> u64 {
        lsn.0 % self.bytes()
    }
    /// Name of the file that holds segment `number` of `timeline`: 24 hexadecimal digits.
    pub fn file_name(self, timeline: u32, number: u64) -> String {
        let per_id = (1u64 << 32) / self.bytes();
        format!("{timeline:08X}{:08X}{:08X}", number / per_id, number % per_id)
    }
    /// Timeline and number of a segment file's name; `None` when it is none (or none of this size).
    pub fn parse_name(self, name: &str) -> Option<(u32, u64)> {
        if name.len() != 24 || !name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F')) {
            return None;
        }
        let part = |from: usize| name.get(from..from + 8).and_then(|p| u32::from_str_radix(p, 16).ok());
        let per_id = (1u64 << 32) / self.bytes();
        let (timeline, high, low) = (part(0)?, u64::from(part(8)?), u64::from(part(16)?));
        (low < per_id).then_some((timeline, high * per_id + low))
    }
}

impl TryFrom<u32> for SegmentSize {
    type Error = Error;
    fn try_from(bytes: u32) -> Result<Self> {
        Self::new(u64::from(bytes))
    }
}

impl From<SegmentSize> for u32 {
    fn from(size: SegmentSize) -> u32 {
        size.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn positions_read_as_the_server_writes_them() {
        let lsn: Lsn = "16/B374D848".parse().unwrap();
        assert_eq!((lsn.0, lsn.to_string().as_str()), (0x16_B374_D848, "16/B374D848"));
        for bad in ["", "16", "/", "16/", "1/123456789", "x/1", "+1/2", "1/2/3"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn other_segment_sizes_are_refused() {
        for bad in [0, 1 << 19, (1 << 20) + 1, 3 << 20, 1 << 31, u64::MAX] {
            assert!(SegmentSize::new(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn segment_names_come_back(timeline: u32, lsn: u64, power in 20u32..=30) {
            let size = SegmentSize::new(1 << power).unwrap();
            let number = size.number(Lsn(lsn));
            prop_assert_eq!(size.parse_name(&size.file_name(timeline, number)), Some((timeline, number)));
            let start = size.start(number).unwrap();
            prop_assert_eq!(start.0 + size.offset(Lsn(lsn)), lsn);
        }
    }
}
