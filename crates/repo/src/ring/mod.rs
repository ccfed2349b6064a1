//! Rings: who may read, and what there is to read. Signed by the root key, so the store's owner can add neither.
//!
//! Invariants: nothing in a ring is believed before its signature was checked against a root key whose hash is
//! the configured repository id; a ring that says another repository, source or generation than its name is
//! refused. Names of recipients and sources are sealed: in the clear stand keys only.

mod repo;
mod repository;
mod source;

use holdfast_core::{Error, Result};
pub use repo::{FORMAT, RepoRecord};
pub use repository::{Member, RepositoryRing, RingContent, RingSecrets, SourceEntry};
use serde::{Deserialize, Serialize};
pub use source::{SourceContent, SourceRing, SourceRingDraft};

use crate::{
    epoch::RECIPIENTS_MAX,
    keys::{Envelope, Recipient, RootKey, RootPublic},
};

/// Largest ring and largest `repo.json` that is read.
pub const RING_MAX: usize = 4 << 20;
const SIGNATURE: usize = 128;

/// `<title>\n<signature in hexadecimal>\n<JSON>`; the signature is over title, line feed and JSON.
fn sign<T: Serialize>(title: &str, root: &RootKey, body: &T) -> Result<Vec<u8>> {
    let json = serde_json::to_string_pretty(body)
        .map_err(|cause| Error::bug("a ring could not be encoded").because(cause))?;
    sign_text(title, root, &json)
}

fn sign_text(title: &str, root: &RootKey, json: &str) -> Result<Vec<u8>> {
    let signature = root.sign(format!("{title}\n{json}").as_bytes())?;
    let bytes = format!("{title}\n{}\n{json}", hex::encode(signature)).into_bytes();
    if bytes.len() > RING_MAX {
        return Err(Error::configure(format!("a ring of {} bytes is larger than {RING_MAX}", bytes.len())));
    }
    Ok(bytes)
}

/// The body of a ring whose signature holds.
fn verify<T: for<'de> Deserialize<'de>>(title: &str, root: &RootPublic, bytes: &[u8]) -> Result<T> {
    let no_ring = || Error::corrupt("the bytes are no ring");
    if bytes.len() > RING_MAX {
        return Err(no_ring());
    }
    let text = std::str::from_utf8(bytes).map_err(|_| no_ring())?;
    let rest = text.strip_prefix(title).and_then(|rest| rest.strip_prefix('\n'));
    let Some(rest) = rest else {
        // The last word of a title is its version.
        let kind = title.rsplit_once(' ').map_or(title, |(kind, _)| kind);
        return Err(if text.starts_with(kind) {
            Error::configure("the ring was written by a newer holdfast: use that version or a later one")
        } else {
            no_ring()
        });
    };
    let (signature, json) = rest.split_once('\n').ok_or_else(no_ring)?;
    let mut raw = [0; SIGNATURE / 2];
    if signature.bytes().any(|digit| digit.is_ascii_uppercase()) {
        return Err(no_ring());
    }
    hex::decode_to_slice(signature, &mut raw).map_err(|_| no_ring())?;
    root.verify(format!("{title}\n{json}").as_bytes(), &raw)?;
    serde_json::from_str(json).map_err(|cause| Error::corrupt("a signed ring cannot be read").because(cause))
}

fn encode_base64(bytes: &[u8]) -> String {
    base64::Engine::encode(&base64::prelude::BASE64_STANDARD, bytes)
}

fn decode_base64(text: &str) -> Result<Vec<u8>> {
    base64::Engine::decode(&base64::prelude::BASE64_STANDARD, text)
        .map_err(|cause| Error::corrupt("a ring holds bytes that are no base64").because(cause))
}

fn write_envelopes(envelopes: &[Envelope]) -> Vec<String> {
    envelopes.iter().map(|envelope| encode_base64(&envelope.bytes())).collect()
}

fn read_envelopes(texts: &[String]) -> Result<Vec<Envelope>> {
    let read = |text: &String| {
        let bytes = decode_base64(text)?;
        let bytes = bytes.as_slice().try_into();
        Envelope::from_bytes(bytes.map_err(|_| Error::corrupt("a ring holds an envelope of another length"))?)
    };
    texts.iter().map(read).collect()
}

fn check_recipients(recipients: &[Recipient]) -> Result<()> {
    let mut sorted = recipients.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != recipients.len() {
        return Err(Error::configure("a ring names the same recipient twice"));
    }
    if (1..=RECIPIENTS_MAX).contains(&recipients.len()) {
        Ok(())
    } else {
        Err(Error::configure(format!(
            "a ring must have 1 to {RECIPIENTS_MAX} recipients, not {}: without one, nothing could ever be restored",
            recipients.len()
        )))
    }
}

/// Reads `json` as both kinds of ring, as if the root key had signed it.
pub(crate) fn read_as_signed(root: &RootKey, json: &str) -> Result<()> {
    let public = root.public()?;
    let _ = RepositoryRing::open(&public, 1, &sign_text(repository::TITLE, root, json)?);
    let _ =
        SourceRing::open(&public, holdfast_core::SourceId([1; 8]), 1, &sign_text(source::TITLE, root, json)?);
    Ok(())
}

#[cfg(test)]
mod tests;
