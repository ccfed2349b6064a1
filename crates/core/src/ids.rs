//! Identifiers. All are random or derived under a key, so a path tells nothing; text form is lower-case hex.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }
        impl FromStr for $name {
            type Err = crate::Error;
            fn from_str(text: &str) -> crate::Result<Self> {
                let mut raw = [0; $len];
                hex::decode_to_slice(text, &mut raw).map_err(|_| {
                    crate::Error::configure(format!(
                        "«{text}» is no {}: {} hexadecimal digits are expected", stringify!($name), $len * 2
                    ))
                })?;
                Ok(Self(raw))
            }
        }
    };
}

id!(
    /// Hash of the repository's root public key; stands in the user's configuration.
    RepoId, 32);
id!(
    /// One configured thing to protect.
    SourceId, 8);
id!(
    /// One life of a source: derived from the source key and the source's own identity.
    LineageId, 8);
id!(
    /// One start of one writer; part of an epoch's name on stores without create-only writes.
    WriterId, 8);
id!(
    /// A piece's own id: salt of its key, so it is never used twice.
    PieceId, 16);
id!(
    /// A bulk job that writes a table of its own.
    RunId, 8);

/// One writer's tenure of a stream. On a store with create-only writes the number alone is the name and
/// `writer` is zero; elsewhere both are, and the order is (number, writer).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    pub number: u64,
    pub writer: WriterId,
}

impl Epoch {
    pub const fn numbered(number: u64) -> Self {
        Self { number, writer: WriterId([0; 8]) }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.number)?;
        if self.writer.0 != [0; 8] {
            write!(f, "-{}", self.writer)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Epoch({self})")
    }
}

impl FromStr for Epoch {
    type Err = crate::Error;
    fn from_str(text: &str) -> crate::Result<Self> {
        let bad = || crate::Error::corrupt(format!("«{text}» is no epoch name"));
        let (number, writer) = match text.split_once('-') {
            Some((number, writer)) => (number, writer.parse().map_err(|_| bad())?),
            None => (text, WriterId([0; 8])),
        };
        if number.len() != 16 {
            return Err(bad());
        }
        let number = u64::from_str_radix(number, 16).map_err(|_| bad())?;
        let epoch = Self { number, writer };
        if epoch.to_string() == text { Ok(epoch) } else { Err(bad()) }
    }
}

/// The object that holds a run of pieces: `packs/<epoch>/<number>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PackId {
    pub epoch: Epoch,
    pub number: u64,
}
