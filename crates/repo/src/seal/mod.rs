//! Seal: compress, then encrypt. Open: decrypt, then decompress. The only place that meets a cipher.
//!
//! Invariants: a key seals one thing only (callers derive it with a fresh salt), so frame counters are
//! nonces; the opened length is written before the frames, bound to each of them, and checked against the
//! caller's cap before anything is allocated; a cut, a swap or a flip of any byte is refused.

mod aead;

use std::{cell::RefCell, io::Cursor};

use aead::{Cipher, TAG};
use holdfast_core::{Error, Result, sink::OBJECT_MAX};
use zeroize::{Zeroize, ZeroizeOnDrop};
use zstd::bulk::{Compressor, Decompressor};

#[cfg(not(feature = "portable"))]
type Default = aead::Fast;
#[cfg(feature = "portable")]
type Default = aead::Portable;

/// Ciphertext bytes of one frame (the last one may be shorter).
const FRAME: usize = 1 << 20;
/// Codec and opened length.
const PREFIX: usize = 5;
/// Below this zstd wins nothing.
const COMPRESS_MIN: usize = 48;
const STORED: u8 = 0;
const ZSTD: u8 = 1;
const LEVEL: i32 = 1;

/// The purposes keys are derived for. Each is used in one place, with one kind of parent key.
pub mod purpose {
    /// From the source key and the object's salt.
    pub const LOG_HEADER: &str = "holdfast 1 log object header";
    /// From the source key and the object's salt.
    pub const LOG_KEY_HALF: &str = "holdfast 1 log object key half";
    /// From the epoch data key and the object's salt.
    pub const LOG_CLOSED_HALF: &str = "holdfast 1 log object closed half";
    /// From the epoch data key and the piece id.
    pub const PIECE: &str = "holdfast 1 piece";
    /// From the source key and the pack's salt.
    pub const PACK_FOOTER: &str = "holdfast 1 pack footer";
    /// From the source key and the layer object's salt.
    pub const LAYER: &str = "holdfast 1 table layer";
    /// From the source key: authenticates epoch objects.
    pub const EPOCH: &str = "holdfast 1 epoch object";
    /// From the source key: authenticates merged objects.
    pub const MERGED: &str = "holdfast 1 merged object";
    /// From the source key and the record's salt.
    pub const SOURCE_RECORD: &str = "holdfast 1 source record";
    /// From the source key and the record's salt.
    pub const LINEAGE_RECORD: &str = "holdfast 1 lineage record";
    /// From the source key: names a lineage after what the source says it is.
    pub const LINEAGE_ID: &str = "holdfast 1 lineage id";
    /// From the source key and the hold's salt.
    pub const HOLD: &str = "holdfast 1 hold";
    /// From a passphrase's Argon2id output.
    pub const PASSPHRASE: &str = "holdfast 1 passphrase";
}

/// A secret of 32 bytes; wiped when dropped, never printed.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Key([u8; 32]);

impl Key {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
    /// The key for one purpose and one salt: BLAKE3's key derivation over this key and the salt.
    pub fn derive(&self, purpose: &'static str, salt: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        hasher.update(&self.0).update(salt);
        Self(*hasher.finalize().as_bytes())
    }
    /// Authenticates `bytes`. Compare with [`Key::check`].
    pub fn mac(&self, bytes: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, bytes).as_bytes()
    }
    /// Is `mac` ours over `bytes`? Takes the same time wherever they differ.
    pub fn check(&self, bytes: &[u8], mac: &[u8; 32]) -> bool {
        blake3::keyed_hash(&self.0, bytes) == blake3::Hash::from_bytes(*mac)
    }
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Largest sealed length that `plain` bytes can take.
pub fn sealed_max(plain: usize) -> usize {
    PREFIX + plain + TAG * frames(plain)
}

/// Seals `plain` under a key that seals nothing else. `aad` is authenticated with it and not written.
pub fn seal(key: &Key, aad: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    seal_into(&mut out, key, aad, plain)?;
    out.shrink_to_fit();
    Ok(out)
}

/// As [`seal`], appended to `out`; answers the sealed length.
pub fn seal_into(out: &mut Vec<u8>, key: &Key, aad: &[u8], plain: &[u8]) -> Result<usize> {
    seal_by::<Default>(out, key, aad, plain, true)
}

/// As [`seal_into`], never compressed: the sealed length is [`sealed_max`] of the plain one.
pub fn seal_stored_into(out: &mut Vec<u8>, key: &Key, aad: &[u8], plain: &[u8]) -> Result<usize> {
    seal_by::<Default>(out, key, aad, plain, false)
}

/// Opens what [`seal`] made, at most `cap` bytes.
///
/// # Errors
/// `Corrupt` when key, `aad` or bytes are not those of the sealing, or more than `cap` would come out.
pub fn open(key: &Key, aad: &[u8], sealed: &[u8], cap: usize) -> Result<Vec<u8>> {
    open_by::<Default>(key, aad, sealed, cap)
}

fn seal_by<C: Cipher>(
    out: &mut Vec<u8>,
    key: &Key,
    aad: &[u8],
    plain: &[u8],
    smaller: bool,
) -> Result<usize> {
    let opened = u32::try_from(plain.len())
        .ok()
        .filter(|_| plain.len() <= OBJECT_MAX)
        .ok_or_else(|| Error::bug(format!("{} bytes are too many to seal as one", plain.len())))?;
    let start = out.len();
    let body = start + PREFIX;
    out.reserve(sealed_max(plain.len()));
    out.resize(body, 0);
    let codec = if smaller && compress(out, plain) { ZSTD } else { STORED };
    if codec == STORED {
        out.extend_from_slice(plain);
    }
    let prefix = Prefix { codec, opened };
    out[start..body].copy_from_slice(&prefix.bytes());
    encrypt::<C>(out, body, &prefix, key, aad)?;
    Ok(out.len() - start)
}

/// Encrypts in place what lies in `out` from `body` on, and appends the tags.
fn encrypt<C: Cipher>(out: &mut Vec<u8>, body: usize, prefix: &Prefix, key: &Key, aad: &[u8]) -> Result<()> {
    let aad = prefix.bind(aad);
    let cipher = C::new(key.bytes())?;
    let length = out.len() - body;
    let count = frames(length);
    let mut tags = Vec::with_capacity(count * TAG);
    for index in 0..count {
        let from = body + index * FRAME;
        let to = (from + FRAME).min(body + length);
        tags.extend_from_slice(&cipher.seal(nonce(index, count), &aad, &mut out[from..to])?);
    }
    out.extend_from_slice(&tags);
    Ok(())
}

/// Seals bytes of an author who has the key and no scruples: any codec, any length, any text.
pub(crate) fn forge(key: &Key, aad: &[u8], codec: u8, opened: u32, text: &[u8]) -> Result<Vec<u8>> {
    let prefix = Prefix { codec, opened };
    let mut out = [&prefix.bytes()[..], text].concat();
    encrypt::<Default>(&mut out, PREFIX, &prefix, key, aad)?;
    Ok(out)
}

fn open_by<C: Cipher>(key: &Key, aad: &[u8], sealed: &[u8], cap: usize) -> Result<Vec<u8>> {
    let prefix = Prefix::read(sealed)?;
    let opened = prefix.opened as usize;
    if opened > cap {
        return Err(Error::corrupt(format!(
            "sealed bytes claim to open to {opened} bytes where at most {cap} are expected"
        )));
    }
    let bad = || Error::corrupt("sealed bytes have an impossible length");
    let body = sealed.get(PREFIX..).ok_or_else(bad)?;
    let count = body.len().div_ceil(FRAME + TAG).max(1);
    let length = body.len().checked_sub(count * TAG).ok_or_else(bad)?;
    if frames(length) != count || (prefix.codec == STORED && length != opened) {
        return Err(bad());
    }
    let (text, tags) = body.split_at(length);

    let aad = prefix.bind(aad);
    let cipher = C::new(key.bytes())?;
    let mut out = vec![0; length];
    for (index, tag) in tags.as_chunks::<TAG>().0.iter().enumerate() {
        let from = index * FRAME;
        let to = (from + FRAME).min(length);
        cipher.open(nonce(index, count), &aad, &text[from..to], tag, &mut out[from..to])?;
    }
    if prefix.codec == STORED { Ok(out) } else { decompress(&out, opened) }
}

/// Even nothing has one frame, so that its absence shows.
fn frames(length: usize) -> usize {
    length.div_ceil(FRAME).max(1)
}

fn nonce(index: usize, count: usize) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&(index as u64).to_le_bytes());
    nonce[11] = u8::from(index + 1 == count);
    nonce
}

struct Prefix {
    codec: u8,
    opened: u32,
}

impl Prefix {
    fn bytes(&self) -> [u8; PREFIX] {
        let [a, b, c, d] = self.opened.to_le_bytes();
        [self.codec, a, b, c, d]
    }
    fn read(sealed: &[u8]) -> Result<Self> {
        match *sealed {
            [codec @ (STORED | ZSTD), a, b, c, d, ..] => {
                Ok(Self { codec, opened: u32::from_le_bytes([a, b, c, d]) })
            }
            [codec, _, _, _, _, ..] => {
                Err(Error::corrupt(format!("sealed bytes name an unknown codec {codec}")))
            }
            _ => Err(Error::corrupt("sealed bytes are cut short")),
        }
    }
    /// Associated data of every frame.
    fn bind(&self, aad: &[u8]) -> Vec<u8> {
        [&self.bytes(), aad].concat()
    }
}

thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Appends the compressed form when it is smaller; otherwise leaves `out` as it was.
fn compress(out: &mut Vec<u8>, plain: &[u8]) -> bool {
    if plain.len() < COMPRESS_MIN {
        return false;
    }
    let start = out.len();
    let written = COMPRESSOR.with_borrow_mut(|compressor| {
        if compressor.is_none() {
            *compressor = Compressor::new(LEVEL).ok();
        }
        let mut end = Cursor::new(&mut *out);
        end.set_position(start as u64);
        compressor.as_mut().and_then(|c| c.compress_to_buffer(plain, &mut end).ok())
    });
    let smaller = written.is_some_and(|written| written < plain.len());
    if !smaller {
        out.truncate(start);
    }
    smaller
}

fn decompress(bytes: &[u8], opened: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(opened);
    let written = DECOMPRESSOR.with_borrow_mut(|decompressor| {
        if decompressor.is_none() {
            *decompressor = Decompressor::new().ok();
        }
        decompressor.as_mut().map(|d| d.decompress_to_buffer(bytes, &mut out))
    });
    match written {
        Some(Ok(written)) if written == opened => Ok(out),
        Some(Err(cause)) => Err(Error::corrupt("sealed bytes do not decompress").because(cause)),
        _ => Err(Error::corrupt("sealed bytes open to another length than they claim")),
    }
}

#[cfg(test)]
mod tests;
