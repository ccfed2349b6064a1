//! Keys and their text forms.
//!
//! An [`Identity`] (X25519) restores; its public half is a [`Recipient`]. The [`RootKey`] (Ed25519) signs
//! rings; the hash of its public half is the repository's id. A [`SourceKey`] authenticates one source's objects
//! and seals what its writer reads back. Invariants: secrets are wiped when dropped and never printed by
//! `Debug`; text forms carry a check sum, so that a slip of the pen is noticed before it is believed.

mod envelope;
mod identity;
mod passphrase;
mod root;
mod source;
mod token;

pub use envelope::{Envelope, Purpose};
pub use identity::{Identity, Recipient, RecipientId};
pub use passphrase::{Cost, ProtectedIdentity};
pub use root::{RootKey, RootPublic};
pub use source::SourceKey;

#[cfg(test)]
mod tests;
