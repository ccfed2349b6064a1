//! Which stream a source writes to, and to whom its writer seals: the signed ring and the lineage record.

use holdfast_core::{
    Error, Identity, Result,
    sink::{Body, Range, list_all},
};
use holdfast_repo::{
    keys::RootPublic,
    names::{Name, REPO, Stream, lineage_id, source_rings_prefix},
    record::{LineageRecord, Origin, RECORD_MAX},
    ring::{RING_MAX, RepoRecord, SourceRing},
};

use crate::{parts::Tools, store::create_ours};

/// Bytewise after everything that lies in one folder of a source.
const AFTER_ALL: char = 'z';

/// The root key's public half, as `repo.json` proves it.
pub(crate) async fn root(tools: &Tools) -> Result<RootPublic> {
    let range = Range::Part { from: 0, length: RING_MAX as u64 + 1 };
    let bytes = tools.sink.read(REPO, range).await?.ok_or_else(|| {
        Error::configure(format!(
            "{} holds no repository: wrong address, or `init` was not run",
            tools.sink.address()
        ))
    })?;
    RepoRecord::read(&bytes, tools.repo).map(|record| record.root)
}

/// The newest ring of the source whose signature holds.
pub(crate) async fn newest_ring(tools: &Tools, root: &RootPublic) -> Result<SourceRing> {
    let generation = newest_generation(tools).await?.ok_or_else(|| {
        Error::configure(format!(
            "the repository has no source {}: run `holdfast source add`, or check which source key this host has",
            tools.source
        ))
    })?;
    let name = Name::SourceRing { source: tools.source, generation }.to_string();
    let range = Range::Part { from: 0, length: RING_MAX as u64 + 1 };
    let bytes = tools.sink.read(&name, range).await?;
    let bytes = bytes.ok_or_else(|| Error::corrupt(format!("{name} was listed and is gone")))?;
    SourceRing::open(root, tools.source, generation, &bytes)
}

pub(crate) async fn newest_generation(tools: &Tools) -> Result<Option<u64>> {
    let listed = list_all(&*tools.sink, &source_rings_prefix(tools.source), None).await?;
    let generations = listed.iter().map(|entry| match entry.name.parse()? {
        Name::SourceRing { generation, .. } => Ok(generation),
        _ => Err(Error::corrupt(format!("«{}» lies where it does not belong", entry.name))),
    });
    Ok(generations.collect::<Result<Vec<_>>>()?.into_iter().max())
}

/// The stream of the source that calls itself `identity`. The first lineage of a source is made here; any
/// other must have been adopted.
pub(crate) async fn stream(tools: &Tools, ring: &SourceRing, identity: &Identity) -> Result<Stream> {
    let lineage = lineage_id(&tools.source_key, tools.repo, tools.source, &identity.text);
    let stream = Stream { source: tools.source, lineage };
    let content = ring.content(&tools.source_key)?;
    let adopted = content.lineages.contains(&identity.text);
    let refused = |known: &str| {
        Error::lost_lineage(format!(
            "the source says it is «{}», which is not the one this stream was written from, «{known}». If it was \
             replaced on purpose (a major upgrade, a new cluster), run `holdfast source adopt`; if not, the \
             configuration points at the wrong server",
            identity.text
        ))
    };
    if !adopted && let Some(newest) = content.lineages.last() {
        return Err(refused(newest));
    }
    let name = stream.lineage_record();
    let range = Range::Part { from: 0, length: RECORD_MAX as u64 + 1 };
    if let Some(bytes) = tools.sink.read(&name, range).await? {
        let record = LineageRecord::open(&tools.source_key, stream, &bytes)?;
        if record.identity != identity.text {
            return Err(Error::corrupt(format!("{name} speaks of another source")));
        }
        return Ok(stream);
    }
    if !adopted && let Some(other) = other_lineage(tools, stream).await? {
        let bytes = tools.sink.read(&other.lineage_record(), range).await?;
        let known = bytes.and_then(|bytes| LineageRecord::open(&tools.source_key, other, &bytes).ok());
        return Err(refused(&known.map_or_else(|| other.lineage.to_string(), |record| record.identity)));
    }
    let origin = if adopted { Origin::Adopted { by: "source adopt".to_owned() } } else { Origin::FirstStart };
    let record = LineageRecord { identity: identity.text.clone(), created: tools.clock.wall(), origin };
    let body = Body::from(record.seal(&tools.source_key, stream, &tools.random)?);
    if let Err(error) = create_ours(&*tools.sink, &name, &body).await {
        // Two first starts at once: both say the same of the same source.
        let bytes = tools.sink.read(&name, range).await?.ok_or(error)?;
        LineageRecord::open(&tools.source_key, stream, &bytes)?;
    }
    Ok(stream)
}

/// A lineage of this source beside `stream`, if there is one. Skips from folder to folder.
async fn other_lineage(tools: &Tools, stream: Stream) -> Result<Option<Stream>> {
    let prefix = format!("{}/", tools.source);
    let mut after: Option<String> = None;
    loop {
        let page = tools.sink.list(&prefix, after.as_deref(), 1).await?;
        let Some(entry) = page.entries.first() else { return Ok(None) };
        match entry.name.parse()? {
            Name::Lineage(other) | Name::Epoch { stream: other, .. } if other != stream => {
                return Ok(Some(other));
            }
            _ => {}
        }
        let folder =
            entry.name.get(prefix.len()..).and_then(|rest| rest.split_once('/')).map(|(folder, _)| folder);
        let Some(folder) = folder else {
            return Err(Error::corrupt(format!("«{}» lies where it does not belong", entry.name)));
        };
        if folder != "holds" && folder != "ring" && format!("{prefix}{folder}/") != stream.prefix() {
            return Ok(Some(Stream { source: tools.source, lineage: folder.parse()? }));
        }
        after = Some(format!("{prefix}{folder}/{AFTER_ALL}"));
    }
}
