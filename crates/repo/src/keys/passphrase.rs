//! An identity behind a passphrase (Argon2id). May be stored in a ring, so that a person and the sink suffice.

use std::{fmt, str::FromStr};

use argon2::{Algorithm, Argon2, Params, Version};
use holdfast_core::{Error, Random, Result};

use super::{Identity, Recipient, token};
use crate::{
    seal::{self, Key, purpose},
    wire::Reader,
};

const KIND: &str = "protected-identity";
/// Below the floor a passphrase is guessed too cheaply; above the cap a hostile file eats the reader.
const MEMORY: std::ops::RangeInclusive<u32> = 19 << 10..=1 << 20;
const PASSES: std::ops::RangeInclusive<u32> = 2..=16;
const LANES: std::ops::RangeInclusive<u32> = 1..=8;
const SALT: usize = 16;

/// What one guess costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// KiB.
    pub memory: u32,
    pub passes: u32,
    pub lanes: u32,
}

impl Cost {
    /// RFC 9106, second recommendation.
    pub const DEFAULT: Self = Self { memory: 64 << 10, passes: 3, lanes: 4 };

    fn check(self) -> Result<Self> {
        if MEMORY.contains(&self.memory) && PASSES.contains(&self.passes) && LANES.contains(&self.lanes) {
            Ok(self)
        } else {
            Err(Error::configure(format!(
                "a protected identity asks for {} KiB, {} passes and {} lanes, which is outside of what is accepted",
                self.memory, self.passes, self.lanes
            )))
        }
    }
    fn bytes(self) -> [u8; 12] {
        let mut out = [0; 12];
        for (to, from) in out.chunks_exact_mut(4).zip([self.memory, self.passes, self.lanes]) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        out
    }
    fn stretch(self, passphrase: &str, salt: &[u8; SALT]) -> Result<Key> {
        let refused = |cause| Error::configure("the passphrase could not be used").because(cause);
        let params = Params::new(self.memory, self.passes, self.lanes, Some(32)).map_err(refused)?;
        let mut key = [0; 32];
        Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
            .hash_password_into(passphrase.as_bytes(), salt, &mut key)
            .map_err(refused)?;
        Ok(Key::new(key).derive(purpose::PASSPHRASE, salt))
    }
}

/// An identity that a passphrase opens.
#[derive(Clone, PartialEq, Eq)]
pub struct ProtectedIdentity {
    recipient: [u8; 32],
    cost: Cost,
    salt: [u8; SALT],
    sealed: Vec<u8>,
}

impl ProtectedIdentity {
    pub fn protect(identity: &Identity, passphrase: &str, cost: Cost, random: &Random) -> Result<Self> {
        if passphrase.trim().is_empty() {
            return Err(Error::configure("an empty passphrase protects nothing"));
        }
        let salt = random.array();
        let key = cost.check()?.stretch(passphrase, &salt)?;
        let recipient = *identity.recipient()?.bytes();
        let sealed = seal::seal(&key, &aad(&recipient, cost), identity.bytes())?;
        Ok(Self { recipient, cost, salt, sealed })
    }
    pub fn open(&self, passphrase: &str) -> Result<Identity> {
        let key = self.cost.check()?.stretch(passphrase, &self.salt)?;
        let bytes = seal::open(&key, &aad(&self.recipient, self.cost), &self.sealed, 32)
            .map(zeroize::Zeroizing::new)
            .map_err(|e| Error::configure("the passphrase does not open this identity").because(e))?;
        let identity = Identity::from_bytes(&bytes)?;
        if identity.recipient()?.bytes() == &self.recipient {
            Ok(identity)
        } else {
            Err(Error::corrupt("a protected identity is not the one that it names"))
        }
    }
    pub fn recipient(&self) -> Result<Recipient> {
        token::write("recipient", &self.recipient).parse()
    }
    /// Does `text` hold a protected identity rather than a plain one?
    pub fn is(text: &str) -> bool {
        token::is(KIND, text)
    }
    /// The file that `keygen --passphrase` writes.
    pub fn file(&self) -> Result<String> {
        Ok(format!(
            "# holdfast identity, protected by a passphrase. Without the passphrase it opens nothing.\n# {}\n{self}\n",
            self.recipient()?
        ))
    }
}

fn aad(recipient: &[u8; 32], cost: Cost) -> Vec<u8> {
    [&recipient[..], &cost.bytes()].concat()
}

impl fmt::Display for ProtectedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [&self.recipient[..], &self.cost.bytes(), &self.salt, &self.sealed].concat();
        f.write_str(&token::write(KIND, &bytes))
    }
}

impl fmt::Debug for ProtectedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectedIdentity").field("cost", &self.cost).finish_non_exhaustive()
    }
}

impl FromStr for ProtectedIdentity {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let bytes = token::read(KIND, "a protected identity", text)?;
        let short = |_| Error::configure("a protected identity is cut short");
        let mut reader = Reader::new(&bytes);
        let recipient = reader.array().map_err(short)?;
        let mut number = || reader.u32().map_err(short);
        let cost = Cost { memory: number()?, passes: number()?, lanes: number()? }.check()?;
        let salt = reader.array().map_err(short)?;
        let sealed = reader.slice(seal::sealed_max(32)).map_err(short)?.to_vec();
        reader.end()?;
        Ok(Self { recipient, cost, salt, sealed })
    }
}
