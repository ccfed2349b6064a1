//! Identities and recipients: the two halves of an X25519 key pair.

use std::{fmt, str::FromStr};

use holdfast_core::{Error, Random, Result};
use hpke::{Deserializable, Kem, Serializable, kem::X25519HkdfSha256};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::token;

const IDENTITY: &str = "identity";
const RECIPIENT: &str = "recipient";

/// The private half: whoever has it and the sink can restore. Lives with people, never on protected hosts.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Identity([u8; 32]);

impl Identity {
    pub fn generate(random: &Random) -> Self {
        Self(random.array())
    }
    pub fn recipient(&self) -> Result<Recipient> {
        let public = X25519HkdfSha256::sk_to_pk(&self.private()?).to_bytes();
        Ok(Recipient(public.into()))
    }
    /// The one line that is the key.
    pub fn text(&self) -> Zeroizing<String> {
        token::write(IDENTITY, &self.0)
    }
    /// The file that `keygen` writes.
    pub fn file(&self) -> Result<Zeroizing<String>> {
        Ok(Zeroizing::new(format!(
            "# holdfast identity. Whoever has this file can restore everything that is sealed to it.\n\
             # Keep it away from the hosts that are backed up.\n\
             # {}\n{}\n",
            self.recipient()?,
            *self.text()
        )))
    }
    pub(super) fn private(&self) -> Result<<X25519HkdfSha256 as Kem>::PrivateKey> {
        <X25519HkdfSha256 as Kem>::PrivateKey::from_bytes(&self.0)
            .map_err(|_| Error::bug("an identity of 32 bytes was refused"))
    }
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        bytes.try_into().map(Self).map_err(|_| {
            Error::configure(
                "an identity must have 32 bytes, this one has another length: copy the whole line",
            )
        })
    }
}

impl FromStr for Identity {
    type Err = Error;
    /// Takes the line or the whole file.
    fn from_str(text: &str) -> Result<Self> {
        if super::ProtectedIdentity::is(text) {
            return Err(Error::configure(
                "this identity is protected by a passphrase: give the file with the passphrase too",
            ));
        }
        Self::from_bytes(&token::read(IDENTITY, "an identity", text)?)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.recipient() {
            Ok(recipient) => write!(f, "Identity(of {recipient})"),
            Err(_) => f.write_str("Identity(…)"),
        }
    }
}

/// The public half: what keys are sealed to. Taken from signed rings only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Recipient([u8; 32]);

/// Tells a reader which envelope is his.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecipientId(pub [u8; 8]);

impl Recipient {
    pub fn id(&self) -> RecipientId {
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(&self.0).as_bytes();
        RecipientId([a, b, c, d, e, f, g, h])
    }
    pub(super) fn public(&self) -> Result<<X25519HkdfSha256 as Kem>::PublicKey> {
        <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&self.0)
            .map_err(|_| Error::configure(format!("{self} is no usable key")))
    }
    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&token::write(RECIPIENT, &self.0))
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Recipient {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let bytes = token::read(RECIPIENT, "a recipient", text)?;
        let bytes = bytes.as_slice().try_into();
        bytes.map(Self).map_err(|_| {
            Error::configure(
                "a recipient must have 32 bytes, this one has another length: copy the whole line",
            )
        })
    }
}
