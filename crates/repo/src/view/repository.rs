//! The way into a repository: from an identity (or a source key) and the sink alone to a lineage.
//!
//! Invariant: nothing is believed before the root key whose hash is the repository id has signed it. The
//! newest ring generation counts. A repository that was raised to a newer format is refused here, before
//! anybody reads, writes or removes.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::{
    Error, LineageId, RepoId, Result, Sink, SourceId,
    sink::{Range, list_all},
};

use super::{DataKeys, LineageView};
use crate::{
    chain::Access,
    keys::{Identity, ProtectedIdentity, SourceKey},
    names::{self, Name, Stream},
    record::{LineageRecord, RECORD_MAX},
    ring::{FORMAT, RING_MAX, RepoRecord, RepositoryRing, SourceContent, SourceEntry, SourceRing},
    seal::Key,
};

/// A repository whose record was checked.
#[derive(Clone)]
pub struct Repository {
    sink: Arc<dyn Sink>,
    record: RepoRecord,
}

/// A source and its key.
#[derive(Clone, Debug)]
pub struct Source {
    pub repo: RepoId,
    pub id: SourceId,
    pub key: Key,
    pub content: SourceContent,
    /// Generation of the ring that says so.
    pub ring: u64,
}

/// One life of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    pub stream: Stream,
    pub record: LineageRecord,
}

impl Repository {
    /// `expected` is the id from the configuration or the recovery kit. Without it nothing is proven: whoever
    /// owns the store can put a repository of his own there, sealed to the same recipients.
    ///
    /// # Errors
    /// `Configure` when there is no repository, another one, or one of a newer format.
    pub async fn open(sink: Arc<dyn Sink>, expected: Option<RepoId>) -> Result<Self> {
        let bytes = read(&*sink, names::REPO, RING_MAX).await?.ok_or_else(|| {
            Error::configure(format!(
                "there is no repository at {}: is the address right, or was `holdfast init` never run?",
                sink.address()
            ))
        })?;
        let record = match expected {
            Some(expected) => RepoRecord::read(&bytes, expected)?,
            None => RepoRecord::read_any(&bytes)?,
        };
        let repository = Self { sink, record };
        repository.refuse_newer().await?;
        Ok(repository)
    }

    /// Has the repository been raised above what we know? Who opened it long ago asks again before he begins to
    /// write.
    ///
    /// # Errors
    /// `Configure` when it was.
    pub async fn refuse_newer(&self) -> Result<()> {
        let known = Name::Format(FORMAT).to_string();
        let newer = list_all(&*self.sink, names::FORMATS_PREFIX, Some(&known)).await?;
        let Some(highest) = newer.last() else { return Ok(()) };
        let Name::Format(version) = highest.name.parse()? else {
            return Err(Error::corrupt(format!("«{}» lies where only formats belong", highest.name)));
        };
        Err(Error::configure(format!(
            "the repository at {} was raised to format {version}, this holdfast knows formats up to {FORMAT}: use a \
             newer holdfast",
            self.sink.address()
        )))
    }

    pub fn id(&self) -> RepoId {
        self.record.repo()
    }
    pub fn record(&self) -> &RepoRecord {
        &self.record
    }
    pub fn sink(&self) -> &Arc<dyn Sink> {
        &self.sink
    }

    /// The newest ring of the repository.
    pub async fn ring(&self) -> Result<RepositoryRing> {
        let generation =
            self.newest(names::RINGS_PREFIX).await?.ok_or_else(|| self.no_ring(names::RINGS_PREFIX))?;
        let name = Name::Ring(generation).to_string();
        let bytes = read(&*self.sink, &name, RING_MAX).await?.ok_or_else(|| self.no_ring(&name))?;
        RepositoryRing::open(&self.record.root, generation, &bytes)
    }

    /// The newest ring of a source.
    ///
    /// # Errors
    /// `Configure` when the repository has no such source.
    pub async fn source_ring(&self, source: SourceId) -> Result<SourceRing> {
        self.find_source_ring(source).await?.ok_or_else(|| {
            Error::configure(format!(
                "repository {} has no source {source}: run `holdfast source add`, or check which source key this host \
                 has",
                self.id()
            ))
        })
    }

    /// The newest generation of a source's ring that the store shows.
    pub async fn source_generation(&self, source: SourceId) -> Result<Option<u64>> {
        self.newest(&names::source_rings_prefix(source)).await
    }

    async fn find_source_ring(&self, source: SourceId) -> Result<Option<SourceRing>> {
        let Some(generation) = self.source_generation(source).await? else { return Ok(None) };
        let name = Name::SourceRing { source, generation }.to_string();
        let bytes = read(&*self.sink, &name, RING_MAX).await?.ok_or_else(|| self.no_ring(&name))?;
        SourceRing::open(&self.record.root, source, generation, &bytes).map(Some)
    }

    /// Identities that a passphrase opens, kept in the ring for people.
    pub async fn protected_identities(&self) -> Result<Vec<ProtectedIdentity>> {
        Ok(self.ring().await?.identities)
    }

    /// All sources, for one of the recipients.
    pub async fn sources(&self, identity: &Identity) -> Result<Vec<SourceEntry>> {
        Ok(self.ring().await?.secrets(identity)?.content.sources)
    }

    /// A source by its name, its key out of its ring.
    ///
    /// # Errors
    /// `Configure` when there is none of that name, or it is not sealed to this identity.
    pub async fn source(&self, name: &str, identity: &Identity) -> Result<Source> {
        let sources = self.sources(identity).await?;
        let Some(entry) = sources.iter().find(|entry| entry.name == name) else {
            let known: Vec<&str> = sources.iter().map(|entry| entry.name.as_str()).collect();
            return Err(Error::configure(format!(
                "there is no source «{name}» in repository {}; it has: {}",
                self.id(),
                known.join(", ")
            )));
        };
        let ring = self.find_source_ring(entry.id).await?;
        let ring = ring.ok_or_else(|| self.no_ring(&names::source_rings_prefix(entry.id)))?;
        let key = ring.source_key(identity)?.key;
        self.source_of(ring, key)
    }

    /// A source by its key: what a sidecar has.
    ///
    /// # Errors
    /// `Configure` when the key belongs to another repository.
    pub async fn source_by_key(&self, key: &SourceKey) -> Result<Source> {
        if key.repo != self.id() {
            return Err(Error::configure(format!(
                "the source key belongs to repository {}, but at {} is {}",
                key.repo,
                self.sink.address(),
                self.id()
            )));
        }
        let ring = self.source_ring(key.source).await?;
        self.source_of(ring, key.key.clone())
    }

    fn source_of(&self, ring: SourceRing, key: Key) -> Result<Source> {
        let content = ring.content(&key)?;
        Ok(Source { repo: self.id(), id: ring.source, key, content, ring: ring.generation })
    }

    /// All lineages of a source, the oldest first.
    pub async fn lineages(&self, source: &Source) -> Result<Vec<Lineage>> {
        let mut lineages = Vec::new();
        for lineage in self.lineage_ids(source.id).await? {
            let stream = Stream { source: source.id, lineage };
            let name = stream.lineage_record();
            // Written before the first claim, so without it nothing else counts.
            let Some(bytes) = read(&*self.sink, &name, RECORD_MAX).await? else { continue };
            lineages.push(Lineage { stream, record: LineageRecord::open(&source.key, stream, &bytes)? });
        }
        lineages.sort_by_key(|lineage| lineage.record.created);
        Ok(lineages)
    }

    /// Every lineage of a source of which anything is stored.
    pub async fn lineage_ids(&self, source: SourceId) -> Result<Vec<LineageId>> {
        let prefix = format!("{source}/");
        let mut lineages = Vec::new();
        let mut after: Option<String> = None;
        // One object of each folder tells its name; then past all that begins with it ('0' follows '/').
        loop {
            let page = self.sink.list(&prefix, after.as_deref(), 1).await?;
            let Some(entry) = page.entries.first() else { return Ok(lineages) };
            let folder =
                entry.name.get(prefix.len()..).and_then(|rest| rest.split('/').next()).unwrap_or_default();
            after = Some(format!("{prefix}{folder}0"));
            lineages.extend(folder.parse::<LineageId>().ok());
        }
    }

    /// What reads one stream of a source.
    pub fn access(&self, source: &Source, stream: Stream) -> Access {
        Access { sink: self.sink.clone(), stream, source_key: source.key.clone() }
    }

    /// Opens a lineage: `None` when it was never begun. Without an identity contents and log bytes stay closed.
    pub async fn view(
        &self,
        source: &Source,
        stream: Stream,
        identity: Option<Identity>,
    ) -> Result<Option<LineageView>> {
        let access = self.access(source, stream);
        let keys = DataKeys::new(access.clone(), self.id(), identity);
        LineageView::open(access, Arc::new(keys)).await
    }

    async fn newest(&self, prefix: &str) -> Result<Option<u64>> {
        let listed = list_all(&*self.sink, prefix, None).await?;
        let Some(last) = listed.last() else { return Ok(None) };
        match last.name.parse()? {
            Name::Ring(generation) | Name::SourceRing { generation, .. } => Ok(Some(generation)),
            _ => Err(Error::corrupt(format!("«{}» lies where only rings belong", last.name))),
        }
    }

    fn no_ring(&self, name: &str) -> Error {
        Error::corrupt(format!(
            "{name} is missing from {}: without a ring nothing can be trusted",
            self.sink.address()
        ))
    }
}

async fn read(sink: &dyn Sink, name: &str, max: usize) -> Result<Option<Bytes>> {
    sink.read(name, Range::Part { from: 0, length: max as u64 + 1 }).await
}
