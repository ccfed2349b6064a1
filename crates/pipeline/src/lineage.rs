//! Which stream a source writes to: by its own identity, the signed ring and the lineage record.

use holdfast_core::{
    Act, Error, Identity, Result,
    sink::{Body, Range, create_same},
};
use holdfast_repo::{
    names::{Stream, lineage_id},
    record::{LineageRecord, Origin, RECORD_MAX},
    view::Repository,
};

use crate::parts::Tools;

/// The stream of the source that calls itself `identity`. The first lineage of a source is made here; any
/// other must have been adopted.
pub(crate) async fn stream(tools: &Tools, repository: &Repository, identity: &Identity) -> Result<Stream> {
    let lineage = lineage_id(&tools.source_key, tools.repo, tools.source, &identity.text);
    let stream = Stream { source: tools.source, lineage };
    let content = repository.source_ring(tools.source).await?.content(&tools.source_key)?;
    let known = repository.lineage_ids(tools.source).await?;
    if !content.accepts(&identity.text, lineage, &known) {
        let known = match (content.lineages.last(), known.last()) {
            (Some(adopted), _) => adopted.clone(),
            (None, Some(other)) => {
                identity_of(tools, Stream { source: tools.source, lineage: *other }).await?
            }
            (None, None) => "another".to_owned(),
        };
        return Err(Error::lost_lineage(format!(
            "the source says it is «{}», which is not the one this stream was written from, «{known}». If it was \
             replaced on purpose (a major upgrade, a new cluster), run `holdfast source adopt`; if not, the \
             configuration points at the wrong server",
            identity.text
        )));
    }
    let name = stream.lineage_record();
    let range = Range::Part { from: 0, length: RECORD_MAX as u64 + 1 };
    if let Some(bytes) = tools.sink.read(&name, range).await? {
        match LineageRecord::open(&tools.source_key, stream, &bytes) {
            Ok(record) if record.identity != identity.text => {
                return Err(Error::corrupt(format!("{name} speaks of another source")));
            }
            // The lineage's id is made of the identity, so the stream is ours whatever became of its record.
            Err(error) if error.act() == Act::Corrupt => {
                tracing::warn!(error = error.chain(), "the record of the lineage is damaged");
            }
            opened => {
                opened?;
            }
        }
        return Ok(stream);
    }
    let adopted = content.lineages.contains(&identity.text);
    let origin = if adopted { Origin::Adopted { by: "source adopt".to_owned() } } else { Origin::FirstStart };
    let record = LineageRecord { identity: identity.text.clone(), created: tools.clock.wall(), origin };
    let body = Body::from(record.seal(&tools.source_key, stream, &tools.random)?);
    if !create_same(&*tools.sink, &name, &body).await? {
        // Two first starts at once: both say the same of the same source.
        let bytes = tools.sink.read(&name, range).await?;
        let bytes = bytes.ok_or_else(|| Error::corrupt(format!("{name} came and went")))?;
        LineageRecord::open(&tools.source_key, stream, &bytes)?;
    }
    Ok(stream)
}

/// Refuses a key file that belongs to another source of the repository: its ring would get the lineage of a stranger.
pub(crate) async fn is_meant(tools: &Tools, repository: &Repository) -> Result<()> {
    let Some(name) = &tools.settings.source else { return Ok(()) };
    let known = repository.source_ring(tools.source).await?.content(&tools.source_key)?.name;
    if *name == known {
        return Ok(());
    }
    Err(Error::configure(format!(
        "the key file of «{name}» holds the key of source «{known}»: set key_file in [source.{name}] to the key of \
         «{name}», which «holdfast source key {name}» writes again"
    )))
}

/// What the source of a lineage calls itself; its number where the record cannot be read.
async fn identity_of(tools: &Tools, other: Stream) -> Result<String> {
    let range = Range::Part { from: 0, length: RECORD_MAX as u64 + 1 };
    let bytes = tools.sink.read(&other.lineage_record(), range).await?;
    let record = bytes.and_then(|bytes| LineageRecord::open(&tools.source_key, other, &bytes).ok());
    Ok(record.map_or_else(|| other.lineage.to_string(), |record| record.identity))
}
