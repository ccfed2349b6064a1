//! `repo.json`: what a reader with nothing but the repository id begins with.

use holdfast_core::{Error, RepoId, Result, Timestamp};
use serde::{Deserialize, Serialize};

use super::RING_MAX;
use crate::keys::RootPublic;

/// The newest format that this holdfast knows.
pub const FORMAT: u64 = 1;

/// The repository's birth certificate. Written once; proves itself by the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepoRecord {
    pub root: RootPublic,
    pub created: Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    holdfast: u64,
    repository: String,
    root: String,
    created: String,
}

impl RepoRecord {
    pub fn repo(&self) -> RepoId {
        self.root.repo()
    }

    pub fn write(&self) -> Result<Vec<u8>> {
        let json = Json {
            holdfast: FORMAT,
            repository: self.repo().to_string(),
            root: hex::encode(self.root.0),
            created: self.created.to_string(),
        };
        let mut bytes = serde_json::to_vec_pretty(&json)
            .map_err(|cause| Error::bug("repo.json could not be encoded").because(cause))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Reads `repo.json` of the repository that the configuration names.
    ///
    /// # Errors
    /// `Configure` when it is another repository, or of a newer format; `Corrupt` when it is none.
    pub fn read(bytes: &[u8], expected: RepoId) -> Result<Self> {
        let record = Self::read_any(bytes)?;
        if record.repo() == expected {
            Ok(record)
        } else {
            Err(Error::configure(format!(
                "the repository here is {}, the configuration names {expected}: wrong address, or another one was \
                 put in its place",
                record.repo()
            )))
        }
    }

    /// As [`RepoRecord::read`] for somebody who does not know the id: proves nothing about whose it is.
    pub fn read_any(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &str| Error::corrupt(format!("repo.json {what}"));
        if bytes.len() > RING_MAX {
            return Err(bad("is larger than it can be"));
        }
        let json: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|cause| bad("is no JSON").because(cause))?;
        match json.get("holdfast").and_then(serde_json::Value::as_u64) {
            Some(FORMAT) => {}
            Some(version) => {
                return Err(Error::configure(format!(
                    "the repository was made in format {version}, which this holdfast does not know: use a newer one"
                )));
            }
            None => return Err(bad("is not of a holdfast repository")),
        }
        let json: Json =
            serde_json::from_value(json).map_err(|cause| bad("cannot be read").because(cause))?;
        let mut root = [0; 32];
        hex::decode_to_slice(&json.root, &mut root).map_err(|_| bad("holds no root key"))?;
        let created = json.created.parse().map_err(|_| bad("does not say when it was made"))?;
        let record = Self { root: RootPublic(root), created };
        let claimed: RepoId = json.repository.parse().map_err(|_| bad("holds no repository id"))?;
        if record.repo() == claimed {
            Ok(record)
        } else {
            Err(bad("names an id that is not the hash of its root key"))
        }
    }
}
