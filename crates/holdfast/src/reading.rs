//! The repository as reading commands open it: with an identity, or with the key files of the settings.

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

/// A repository, and what its sources are opened with.
pub struct Reader {
    pub store: Store,
    pub repository: Repository,
    pub identity: Option<Identity>,
}

/// A source that was found and opened.
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

impl Reader {
    pub async fn open(config: &Config, identity: &IdentityArgs) -> Result<Self> {
        let (store, repository) = repository(config).await?;
        let identity = keys::identity(identity, &repository).await?;
        Ok(Self { store, repository, identity })
    }

    /// As [`Self::open`], for a command that must have an identity.
    pub async fn open_with(config: &Config, identity: &IdentityArgs) -> Result<Self> {
        let (store, repository) = repository(config).await?;
        let identity = Some(keys::needed(identity, &repository).await?);
        Ok(Self { store, repository, identity })
    }

    /// The sources that were named; else all that the identity can open, or that the settings have.
    pub async fn chosen(&self, config: &Config, named: &[String]) -> Result<Vec<String>> {
        let names = match &self.identity {
            Some(identity) if named.is_empty() => {
                let sources = self.repository.sources(identity).await?;
                sources.into_iter().map(|source| source.name).collect()
            }
            _ => config.chosen(named),
        };
        if !names.is_empty() {
            return Ok(names);
        }
        Err(Error::configure(match &self.identity {
            Some(_) => "the repository has no source yet: add one with «holdfast source add NAME»",
            None => {
                "there is no source to look at: the settings have no section [source.NAME] with a key_file, and no \
                     identity was given (--identity FILE shows all sources of the repository)"
            }
        }))
    }

    /// Opens a source by its name: by the identity when there is one, else by the configured key file.
    pub async fn source(&self, config: &Config, name: &str) -> Result<Opened> {
        let source = match &self.identity {
            Some(identity) => self.repository.source(name, identity).await?,
            None => {
                let configured = config.source(name).map_err(|error| {
                    error.during(format!(
                        "«{name}» can be opened by --identity FILE, or by the key_file of its section"
                    ))
                })?;
                self.repository.source_by_key(&keys::source_key(&configured.common.key_file)?).await?
            }
        };
        let lineages = self.repository.lineages(&source).await?;
        Ok(Opened {
            store: self.store.clone(),
            repository: self.repository.clone(),
            source,
            lineages,
            identity: self.identity.clone(),
        })
    }
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
