//! `source add` and `source adopt`: what the root key must sign. `source key`: what the ring keeps.

use std::path::{Path, PathBuf};

use holdfast_core::{Clock, Error, Random, Result, Sink, SourceId, Tailer, sink::create_same};
use holdfast_postgres::Postgres;
use holdfast_repo::{
    keys::SourceKey,
    names::Name,
    ring::{SourceContent, SourceEntry, SourceRingDraft},
    view::{self, Repository},
};

use crate::{
    cli::{IdentityArgs, Kind, Source},
    config::Config,
    keys, output, reading,
};

pub async fn run(args: &Source, config: &Config, json: bool) -> Result<()> {
    match args {
        Source::Add { name, kind, out, identity } => {
            add(name, *kind, &key_file(name, out.as_ref(), config)?, identity, config, json).await
        }
        Source::Key { name, out, identity } => {
            write_key(name, &key_file(name, out.as_ref(), config)?, identity, config, json).await
        }
        Source::Adopt { name, identity } => adopt(name, identity, config, json).await,
    }
}

fn key_file(name: &str, out: Option<&PathBuf>, config: &Config) -> Result<PathBuf> {
    match out {
        Some(out) => Ok(out.clone()),
        None => Ok(config.source(name)?.common.key_file.clone()),
    }
}

fn key_of(repository: &Repository, source: &view::Source) -> SourceKey {
    SourceKey { repo: repository.id(), source: source.id, key: source.key.clone() }
}

/// The key that a host lost.
async fn write_key(
    name: &str,
    out: &Path,
    identity: &IdentityArgs,
    config: &Config,
    json: bool,
) -> Result<()> {
    let (_, repository) = reading::repository(config).await?;
    let identity = keys::needed(identity, &repository).await?;
    let source = repository.source(name, &identity).await?;
    keys::write_secret(out, &key_of(&repository, &source).file(name))?;
    told(name, source.id, out, json)
}

fn told(name: &str, source: SourceId, out: &Path, json: bool) -> Result<()> {
    if json {
        return output::json(&serde_json::json!({ "source": source.to_string(), "key_file": out }));
    }
    output::line(format!("source {name} is {source}; its key is in {}", out.display()));
    Ok(())
}

async fn add(
    name: &str,
    kind: Kind,
    out: &Path,
    identity: &IdentityArgs,
    config: &Config,
    json: bool,
) -> Result<()> {
    let (clock, random) = (Clock::system(), Random::system());
    let (store, repository) = reading::repository(config).await?;
    let identity = keys::needed(identity, &repository).await?;
    let ring = repository.ring().await?;
    let secrets = ring.secrets(&identity)?;
    if secrets.content.sources.iter().any(|known| known.name == name) {
        return Err(Error::configure(format!(
            "the repository has a source «{name}» already; «holdfast source key {name}» writes its key file again"
        )));
    }
    let key = SourceKey::generate(repository.id(), &random);
    let kind = match kind {
        Kind::Postgres => "postgres",
    };
    let content = SourceContent { name: name.to_owned(), kind: kind.to_owned(), lineages: Vec::new() };
    let now = clock.wall();
    let draft = SourceRingDraft {
        generation: 1,
        created: now,
        recipients: &ring.recipients,
        key: &key,
        content: &content,
    };
    let source_ring = draft.seal(&secrets.root, &random)?;
    let mut all = secrets.content.clone();
    all.sources.push(SourceEntry { id: key.source, name: name.to_owned(), kind: kind.to_owned() });
    let next = ring.generation + 1;
    let ring = all.seal(&secrets.root, next, now, &random)?;
    // The key file first: a source whose key nobody has would be a dead entry. The list of sources last.
    keys::write_secret(out, &key.file(name))?;
    let source_name = Name::SourceRing { source: key.source, generation: 1 };
    let written = async {
        create(&*store.sink, source_name, source_ring).await?;
        create(&*store.sink, Name::Ring(next), ring).await
    };
    if let Err(error) = written.await {
        let _ = std::fs::remove_file(out);
        return Err(error);
    }
    told(name, key.source, out, json)
}

async fn create(sink: &dyn Sink, name: Name, bytes: Vec<u8>) -> Result<()> {
    if create_same(sink, &name.to_string(), &bytes.into()).await? {
        Ok(())
    } else {
        Err(Error::configure(format!("somebody else wrote {name} meanwhile; give the command again")))
    }
}

/// Accepts the source as it is now: its identity joins those that may write.
async fn adopt(name: &str, identity: &IdentityArgs, config: &Config, json: bool) -> Result<()> {
    let (clock, random) = (Clock::system(), Random::system());
    let configured = config.source(name)?;
    let (store, repository) = reading::repository(config).await?;
    let identity = keys::needed(identity, &repository).await?;
    let root = repository.ring().await?.secrets(&identity)?.root;
    let source = repository.source(name, &identity).await?;
    let tailer = Postgres::new(configured.postgres.clone(), name, clock.clone())?;
    let now = tailer.identity().await?.text;
    let mut content = source.content.clone();
    for lineage in repository.lineages(&source).await? {
        if !content.lineages.contains(&lineage.record.identity) {
            content.lineages.push(lineage.record.identity);
        }
    }
    if content.lineages.contains(&now) {
        output::line(format!("«{now}» may write already; nothing was changed"));
        return Ok(());
    }
    content.lineages.push(now.clone());
    let ring = repository.source_ring(source.id).await?;
    let key = key_of(&repository, &source);
    let generation = ring.generation + 1;
    let draft = SourceRingDraft {
        generation,
        created: clock.wall(),
        recipients: &ring.recipients,
        key: &key,
        content: &content,
    };
    let bytes = draft.seal(&root, &random)?;
    create(&*store.sink, Name::SourceRing { source: source.id, generation }, bytes).await?;
    if json {
        return output::json(&serde_json::json!({ "source": source.id.to_string(), "adopted": now }));
    }
    output::line(format!(
        "«{now}» may write from its next start on, as a new lineage; the older ones stay restorable"
    ));
    Ok(())
}
