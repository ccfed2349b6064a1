//! The root key (Ed25519): signs rings. Its public half proves itself by its hash, the repository id.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use holdfast_core::{Error, Random, RepoId, Result};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The private half. Lies in the repository's ring, sealed to the recipients; no sidecar needs it.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct RootKey([u8; 32]);

/// The public half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPublic(pub [u8; 32]);

impl RootKey {
    pub fn generate(random: &Random) -> Self {
        Self(random.array())
    }
    pub fn public(&self) -> Result<RootPublic> {
        let public = self.pair()?.public_key().as_ref().try_into();
        public.map(RootPublic).map_err(|_| Error::bug("a root key has a public half of another length"))
    }
    pub fn sign(&self, message: &[u8]) -> Result<[u8; 64]> {
        let signature =
            self.pair()?.try_sign(message).map_err(|_| Error::bug("the root key could not sign a ring"))?;
        signature.as_ref().try_into().map_err(|_| Error::bug("a signature has another length"))
    }
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
    fn pair(&self) -> Result<Ed25519KeyPair> {
        Ed25519KeyPair::from_seed_unchecked(&self.0)
            .map_err(|_| Error::bug("a root key of 32 bytes was refused"))
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootKey(…)")
    }
}

impl RootPublic {
    /// The repository that this key is the root of.
    pub fn repo(&self) -> RepoId {
        RepoId(*blake3::hash(&self.0).as_bytes())
    }
    pub fn verify(&self, message: &[u8], signature: &[u8; 64]) -> Result<()> {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).map_err(|_| {
            Error::corrupt("a signature is not of this repository's root key: somebody else wrote it")
        })
    }
}
