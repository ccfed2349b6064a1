//! Data keys of epochs, opened with an identity when they are first needed.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use holdfast_core::{Epoch, Error, RepoId, Result, sink::Range};

use crate::{
    chain::Access,
    epoch::{EPOCH_MAX, EpochObject},
    keys::Identity,
    seal::Key,
};

/// The data keys of one lineage.
pub struct DataKeys {
    access: Access,
    repo: RepoId,
    identity: Option<Identity>,
    known: Mutex<BTreeMap<Epoch, Key>>,
}

impl DataKeys {
    pub fn new(access: Access, repo: RepoId, identity: Option<Identity>) -> Self {
        Self { access, repo, identity, known: Mutex::default() }
    }

    /// With keys that somebody opened before, and no others.
    pub fn with_keys(access: Access, repo: RepoId, keys: BTreeMap<Epoch, Key>) -> Self {
        Self { access, repo, identity: None, known: Mutex::new(keys) }
    }

    pub fn repo(&self) -> RepoId {
        self.repo
    }

    /// # Errors
    /// `Configure` without an identity, or when the epoch was not sealed to it; `Corrupt`, naming the epoch
    /// object, when that is damaged or missing.
    pub async fn get(&self, epoch: Epoch) -> Result<Key> {
        if let Some(key) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&epoch) {
            return Ok(key.clone());
        }
        let Some(identity) = &self.identity else {
            return Err(Error::configure(format!(
                "contents and log bytes of {} are sealed to its recipients: give one of their identities to read them",
                self.access.stream
            )));
        };
        let key = self.object(epoch).await?.data_key(self.repo, identity)?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(epoch, key.clone());
        Ok(key)
    }

    /// The epoch object, proved.
    pub async fn object(&self, epoch: Epoch) -> Result<EpochObject> {
        let name = self.access.stream.epoch(epoch);
        let range = Range::Part { from: 0, length: EPOCH_MAX as u64 + 1 };
        let bytes = self.access.sink.read(&name, range).await?.ok_or_else(|| {
            Error::corrupt(format!(
                "{name} is missing from {}: what its epoch wrote cannot be opened",
                self.access.sink.address()
            ))
        })?;
        EpochObject::open(&self.access.source_key, self.access.stream, epoch, &bytes)
    }

    /// Is there an identity to open keys with?
    pub fn can_open(&self) -> bool {
        self.identity.is_some()
    }
}
