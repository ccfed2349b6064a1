//! The repository as reading commands open it: with an identity (restores), or with a sidecar's key.

use std::path::Path;

use holdfast_core::{Clock, Error, Random, Result};
use holdfast_repo::{
    keys::Identity,
    view::{Lineage, LineageView, Repository, Source},
};

use crate::{
    cli::IdentityArgs,
    config::Config,
    keys,
    store::{self, Patience, Store},
};

pub struct Opened {
    pub store: Store,
    pub repository: Repository,
    pub source: Source,
    pub lineages: Vec<Lineage>,
    identity: Option<Identity>,
}

/// The repository alone.
pub async fn repository(config: &Config) -> Result<(Store, Repository)> {
    let (clock, random) = (Clock::system(), Random::system());
    let store = store::open(&config.repository, Patience::Reader, &clock, &random).await?;
    let repository = Repository::open(store.sink.clone(), Some(config.id()?)).await?;
    Ok((store, repository))
}

/// Opens a source by its name: by the identity when there is one, else by the configured key file.
pub async fn open(config: &Config, name: &str, identity: Option<Identity>) -> Result<Opened> {
    let (store, repository) = repository(config).await?;
    source(config, name, store, repository, identity).await
}

/// As [`open`], for a command that must have an identity.
pub async fn open_with(config: &Config, name: &str, identity: &IdentityArgs) -> Result<Opened> {
    let (store, repository) = repository(config).await?;
    let identity = keys::identity(identity, &repository).await?;
    source(config, name, store, repository, Some(identity)).await
}

async fn source(
    config: &Config,
    name: &str,
    store: Store,
    repository: Repository,
    identity: Option<Identity>,
) -> Result<Opened> {
    let source = match &identity {
        Some(identity) => repository.source(name, identity).await?,
        None => repository.source_by_key(&keys::source_key(&config.source(name)?.common.key_file)?).await?,
    };
    let lineages = repository.lineages(&source).await?;
    Ok(Opened { store, repository, source, lineages, identity })
}

/// An identity where the command was given one.
pub fn identity(path: Option<&Path>, passphrase_file: Option<&Path>) -> Result<Option<Identity>> {
    path.map(|path| keys::identity_from(path, passphrase_file)).transpose()
}

impl Opened {
    /// A lineage's view; the newest one unless it is named.
    pub async fn view(&self, lineage: Option<&str>) -> Result<LineageView> {
        let chosen = match lineage {
            Some(wanted) => {
                let mut all = self.lineages.iter();
                all.find(|known| {
                    known.stream.lineage.to_string() == wanted || known.record.identity == wanted
                })
                .ok_or_else(|| {
                    Error::configure(format!("«{}» has no lineage {wanted}", self.source.content.name))
                })?
            }
            None => self.lineages.last().ok_or_else(|| self.nothing())?,
        };
        self.view_of(chosen).await?.ok_or_else(|| self.nothing())
    }

    pub async fn view_of(&self, lineage: &Lineage) -> Result<Option<LineageView>> {
        self.repository.view(&self.source, lineage.stream, self.identity.clone()).await
    }

    fn nothing(&self) -> Error {
        Error::unreachable(format!(
            "nothing of «{}» is in the repository yet: no writer ever began its stream",
            self.source.content.name
        ))
    }
}
