//! AES-256-GCM by two libraries that give the same bytes. Knows nothing of frames or objects.

#[cfg(any(test, not(feature = "portable")))]
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use holdfast_core::{Error, Result};

pub const TAG: usize = 16;

/// One key, ready for use. The caller never uses a nonce twice.
pub trait Cipher: Sized {
    fn new(key: &[u8; 32]) -> Result<Self>;
    /// Encrypts in place.
    fn seal(&self, nonce: [u8; 12], aad: &[u8], bytes: &mut [u8]) -> Result<[u8; TAG]>;
    /// Decrypts from one slice into another of the same length; `out` is worthless after an error.
    fn open(&self, nonce: [u8; 12], aad: &[u8], sealed: &[u8], tag: &[u8; TAG], out: &mut [u8])
    -> Result<()>;
}

fn refused() -> Error {
    Error::corrupt("sealed bytes do not open: they, their name or the key are not those of the sealing")
}

/// aws-lc-rs: the default.
#[cfg(any(test, not(feature = "portable")))]
pub struct Fast(LessSafeKey);

#[cfg(any(test, not(feature = "portable")))]
impl Cipher for Fast {
    fn new(key: &[u8; 32]) -> Result<Self> {
        UnboundKey::new(&AES_256_GCM, key)
            .map(|key| Self(LessSafeKey::new(key)))
            .map_err(|_| Error::bug("the cipher refused a key of 32 bytes"))
    }
    fn seal(&self, nonce: [u8; 12], aad: &[u8], bytes: &mut [u8]) -> Result<[u8; TAG]> {
        let tag = self
            .0
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(aad), bytes)
            .map_err(|_| Error::bug("the cipher refused to seal a frame"))?;
        tag.as_ref().try_into().map_err(|_| Error::bug("the cipher made a tag of another length"))
    }
    fn open(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG],
        out: &mut [u8],
    ) -> Result<()> {
        self.0
            .open_separate_gather(Nonce::assume_unique_for_key(nonce), Aad::from(aad), sealed, tag, out)
            .map_err(|_| refused())
    }
}

/// The `aes-gcm` crate: pure Rust, for machines where the other does not build.
#[cfg(any(test, feature = "portable"))]
pub struct Portable(aes_gcm::Aes256Gcm);

#[cfg(any(test, feature = "portable"))]
impl Cipher for Portable {
    fn new(key: &[u8; 32]) -> Result<Self> {
        Ok(Self(aes_gcm::KeyInit::new(key.into())))
    }
    fn seal(&self, nonce: [u8; 12], aad: &[u8], bytes: &mut [u8]) -> Result<[u8; TAG]> {
        aes_gcm::AeadInOut::encrypt_inout_detached(&self.0, &nonce.into(), aad, bytes.into())
            .map(Into::into)
            .map_err(|_| Error::bug("the cipher refused to seal a frame"))
    }
    fn open(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        sealed: &[u8],
        tag: &[u8; TAG],
        out: &mut [u8],
    ) -> Result<()> {
        if sealed.len() != out.len() {
            return Err(Error::bug("a frame was opened into a slice of another length"));
        }
        out.copy_from_slice(sealed);
        aes_gcm::AeadInOut::decrypt_inout_detached(&self.0, &nonce.into(), aad, out.into(), &(*tag).into())
            .map_err(|_| refused())
    }
}
