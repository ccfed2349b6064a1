//! A position in Postgres's log.

use std::{fmt, str::FromStr};

/// Byte position in the log of one timeline. As a text `X/Y` in hexadecimal, as the server prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl Lsn {
    /// What the server uses for «none».
    pub const ZERO: Self = Self(0);

    /// The position `bytes` further on; stays at the end of the number range.
    pub fn plus(self, bytes: u64) -> Self {
        Self(self.0.saturating_add(bytes))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// The text is no `X/Y`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("«{0}» is no position in Postgres's log: two hexadecimal numbers as in 1/5A2B0C are expected")]
pub struct BadLsn(String);

impl FromStr for Lsn {
    type Err = BadLsn;
    fn from_str(text: &str) -> Result<Self, BadLsn> {
        let half = |part: &str| {
            let plain = (1..=8).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
            if plain { u64::from_str_radix(part, 16).ok() } else { None }
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Self((half(high)? << 32) | half(low)?)))
            .ok_or_else(|| BadLsn(text.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_goes_both_ways() {
        assert_eq!("16/B374D848".parse(), Ok(Lsn(0x16_B374_D848)));
        assert_eq!(Lsn(0x16_0000_0A00).to_string(), "16/A00");
        for bad in ["", "1", "1/", "/1", "+1/0", "1/123456789", "1/2/3", "g/0"] {
            assert!(bad.parse::<Lsn>().is_err(), "{bad}");
        }
    }
}
