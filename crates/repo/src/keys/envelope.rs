//! HPKE (RFC 9180, base mode: X25519, HKDF-SHA256, AES-256-GCM): a key of ours, sealed to a recipient and
//! bound to what it is for. Base mode proves no author; that is the business of ring signatures and source keys.

use std::convert::Infallible;

use holdfast_core::{Epoch, Error, LineageId, Random, RepoId, Result, SourceId};
use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable,
    aead::AesGcm256,
    kdf::HkdfSha256,
    kem::X25519HkdfSha256,
    rand_core::{TryCryptoRng, TryRng},
};
use zeroize::Zeroizing;

use super::{Identity, Recipient, RecipientId};
use crate::{seal::Key, wire::put_epoch};

/// What a sealed key is for; an envelope opens for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Opens the secret part of a repository ring.
    Ring {
        generation: u64,
    },
    Source {
        source: SourceId,
    },
    Data {
        lineage: LineageId,
        epoch: Epoch,
    },
}

impl Purpose {
    fn info(self, repo: RepoId) -> Vec<u8> {
        let mut info = b"holdfast 1 envelope".to_vec();
        info.extend_from_slice(&repo.0);
        match self {
            Self::Ring { generation } => {
                info.push(0);
                info.extend_from_slice(&generation.to_le_bytes());
            }
            Self::Source { source } => {
                info.push(1);
                info.extend_from_slice(&source.0);
            }
            Self::Data { lineage, epoch } => {
                info.push(2);
                info.extend_from_slice(&lineage.0);
                put_epoch(&mut info, epoch);
            }
        }
        info
    }
}

/// A key, sealed to one recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    pub to: RecipientId,
    encapsulated: [u8; 32],
    sealed: [u8; 48],
}

impl Envelope {
    /// Bytes of an envelope.
    pub const LEN: usize = 88;

    pub fn seal(repo: RepoId, purpose: Purpose, key: &Key, to: &Recipient, random: &Random) -> Result<Self> {
        let (encapsulated, sealed) =
            hpke::single_shot_seal_with_rng::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
                &OpModeS::Base,
                &to.public()?,
                &purpose.info(repo),
                key.bytes(),
                &[],
                &mut Rng(random),
            )
            .map_err(|_| Error::configure(format!("nothing can be sealed to {to}: it is no usable key")))?;
        let sealed = sealed.try_into().map_err(|_| Error::bug("a sealed key has an unexpected length"))?;
        Ok(Self { to: to.id(), encapsulated: encapsulated.to_bytes().into(), sealed })
    }

    pub fn open(&self, repo: RepoId, purpose: Purpose, identity: &Identity) -> Result<Key> {
        let refused = |_| Error::corrupt("a key that was sealed to this identity does not open");
        let encapsulated =
            <X25519HkdfSha256 as Kem>::EncappedKey::from_bytes(&self.encapsulated).map_err(refused)?;
        let plain = hpke::single_shot_open::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
            &OpModeR::Base,
            &identity.private()?,
            &encapsulated,
            &purpose.info(repo),
            &self.sealed,
            &[],
        )
        .map(Zeroizing::new)
        .map_err(refused)?;
        plain
            .as_slice()
            .try_into()
            .map(Key::new)
            .map_err(|_| Error::corrupt("a sealed key has another length"))
    }

    /// The key out of the envelope that is addressed to `identity`.
    ///
    /// # Errors
    /// `Configure` when none is.
    pub fn find(envelopes: &[Self], repo: RepoId, purpose: Purpose, identity: &Identity) -> Result<Key> {
        let recipient = identity.recipient()?;
        let id = recipient.id();
        match envelopes.iter().find(|envelope| envelope.to == id) {
            Some(envelope) => envelope.open(repo, purpose, identity),
            None => Err(Error::configure(format!(
                "nothing here was sealed to {recipient}: use another identity, or the one that was in the ring then"
            ))),
        }
    }

    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.to.0);
        out[8..40].copy_from_slice(&self.encapsulated);
        out[40..].copy_from_slice(&self.sealed);
        out
    }
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self> {
        let mut reader = crate::wire::Reader::new(bytes);
        Ok(Self { to: RecipientId(reader.array()?), encapsulated: reader.array()?, sealed: reader.array()? })
    }
}

/// Our randomness as HPKE wants it.
struct Rng<'a>(&'a Random);

impl TryRng for Rng<'_> {
    type Error = Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.0.array()))
    }
    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.u64())
    }
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(out);
        Ok(())
    }
}
impl TryCryptoRng for Rng<'_> {}
