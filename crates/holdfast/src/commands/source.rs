//! `source add` and `source adopt`: what the root key must sign.

use holdfast_core::{Clock, Error, Random, Result, Sink, Tailer, sink::Created};
use holdfast_postgres::Postgres;
use holdfast_repo::{
    keys::SourceKey,
    names::Name,
    ring::{SourceContent, SourceEntry, SourceRingDraft},
};

use crate::{
    cli::{IdentityArgs, Kind, Source},
    config::Config,
    keys, output, reading,
};

pub async fn run(args: &Source, config: &Config, json: bool) -> Result<()> {
    match args {
        Source::Add { name, kind, out, identity } => {
            let out = match out {
                Some(out) => out.clone(),
                None => config.source(name)?.common.key_file.clone(),
            };
            add(name, *kind, &out, identity, config, json).await
        }
        Source::Adopt { name, identity } => adopt(name, identity, config, json).await,
    }
}

async fn add(
    name: &str,
    kind: Kind,
    out: &std::path::Path,
    identity: &IdentityArgs,
    config: &Config,
    json: bool,
) -> Result<()> {
    let (clock, random) = (Clock::system(), Random::system());
    let (store, repository) = reading::repository(config).await?;
    let identity = keys::identity(identity, &repository).await?;
    let ring = repository.ring().await?;
    let secrets = ring.secrets(&identity)?;
    if secrets.content.sources.iter().any(|known| known.name == name) {
        return Err(Error::configure(format!(
            "the repository has a source «{name}» already; its key is in the ring, sealed to the recipients"
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
    if json {
        return output::json(&serde_json::json!({ "source": key.source.to_string(), "key_file": out }));
    }
    output::line(format!("source {name} is {}; its key is in {}", key.source, out.display()));
    Ok(())
}

async fn create(sink: &dyn Sink, name: Name, bytes: Vec<u8>) -> Result<()> {
    match sink.create(&name.to_string(), bytes.clone().into()).await? {
        Created::New => Ok(()),
        // An earlier attempt of ours whose answer was lost, or somebody else's change.
        Created::Exists => {
            let held = sink.read(&name.to_string(), holdfast_core::sink::Range::All).await?;
            if held.is_some_and(|held| held == bytes) {
                return Ok(());
            }
            Err(Error::configure(format!("somebody else wrote {name} meanwhile; give the command again")))
        }
    }
}

/// Accepts the source as it is now: its identity joins those that may write.
async fn adopt(name: &str, identity: &IdentityArgs, config: &Config, json: bool) -> Result<()> {
    let (clock, random) = (Clock::system(), Random::system());
    let configured = config.source(name)?;
    let (store, repository) = reading::repository(config).await?;
    let identity = keys::identity(identity, &repository).await?;
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
    let key = SourceKey { repo: repository.id(), source: source.id, key: source.key };
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
