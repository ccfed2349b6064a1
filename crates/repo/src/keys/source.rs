//! The source key's file: all that a sidecar needs besides its configuration.

use std::{fmt, str::FromStr};

use holdfast_core::{Error, Random, RepoId, Result, SourceId};
use zeroize::Zeroizing;

use super::token;
use crate::{seal::Key, wire::Reader};

const KIND: &str = "source-key";

/// One source's key, with where it belongs.
#[derive(Clone, Debug)]
pub struct SourceKey {
    pub repo: RepoId,
    pub source: SourceId,
    pub key: Key,
}

impl SourceKey {
    pub fn generate(repo: RepoId, random: &Random) -> Self {
        Self { repo, source: SourceId(random.array()), key: Key::new(random.array()) }
    }
    /// The one line that is the key.
    pub fn text(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new([&self.repo.0[..], &self.source.0, self.key.bytes()].concat());
        token::write(KIND, &bytes)
    }
    /// The file that `source add` writes. `name` is for people.
    pub fn file(&self, name: &str) -> Zeroizing<String> {
        let name: String = name.chars().filter(|c| !c.is_control()).collect();
        Zeroizing::new(format!(
            "# holdfast source key of «{name}»: lets its host write backups of this source and resume them,\n\
             # but not read contents. Mode 0600, and on no other host.\n\
             # repository {}\n# source {}\n{}\n",
            self.repo,
            self.source,
            *self.text()
        ))
    }
}

impl FromStr for SourceKey {
    type Err = Error;
    /// Takes the line or the whole file.
    fn from_str(text: &str) -> Result<Self> {
        let bytes = token::read(KIND, "a source key", text)?;
        let mut reader = Reader::new(&bytes);
        let mut read = || -> Result<Self> {
            let key = Self {
                repo: RepoId(reader.array()?),
                source: SourceId(reader.array()?),
                key: Key::new(reader.array()?),
            };
            reader.end().map(|()| key)
        };
        read().map_err(|_| Error::configure("a source key has another length than source keys have"))
    }
}

impl fmt::Display for SourceKey {
    /// Where it belongs; never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source {} of repository {}", self.source, self.repo)
    }
}
