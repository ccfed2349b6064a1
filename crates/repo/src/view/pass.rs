//! A pass: what one restore's helper processes need to read its log, and nothing more. Holds the source key
//! and single data keys, never an identity. Its text belongs into a file of mode 0600.

use std::collections::BTreeMap;

use holdfast_core::{Act, Epoch, Error, RepoId, Result, Sink, Span};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{DataKeys, LineageView};
use crate::{chain::Access, names::Stream, seal::Key};

#[derive(Clone, Debug)]
pub struct Pass {
    pub repo: RepoId,
    pub stream: Stream,
    source_key: Key,
    data_keys: BTreeMap<Epoch, Key>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    holdfast_pass: u32,
    repository: String,
    source: String,
    lineage: String,
    source_key: String,
    data_keys: BTreeMap<String, String>,
}

impl Drop for Json {
    fn drop(&mut self) {
        self.source_key.zeroize();
        self.data_keys.values_mut().for_each(Zeroize::zeroize);
    }
}

impl Pass {
    /// One line of JSON.
    pub fn text(&self) -> Result<Zeroizing<String>> {
        let json = Json {
            holdfast_pass: 1,
            repository: self.repo.to_string(),
            source: self.stream.source.to_string(),
            lineage: self.stream.lineage.to_string(),
            source_key: hex::encode(self.source_key.bytes()),
            data_keys: self
                .data_keys
                .iter()
                .map(|(epoch, key)| (epoch.to_string(), hex::encode(key.bytes())))
                .collect(),
        };
        serde_json::to_string(&json)
            .map(Zeroizing::new)
            .map_err(|cause| Error::bug("a pass could not be written").because(cause))
    }

    /// # Errors
    /// `Configure` when the text is no pass of this version.
    pub fn parse(text: &str) -> Result<Self> {
        let json: Json = serde_json::from_str(text)
            .map_err(|cause| Error::configure("this is no pass of a restore").because(cause))?;
        if json.holdfast_pass != 1 {
            return Err(Error::configure("the pass was written by another version of holdfast"));
        }
        let data_keys = json.data_keys.iter().map(|(epoch, text)| Ok((epoch.parse()?, key(text)?)));
        Ok(Self {
            repo: json.repository.parse()?,
            stream: Stream { source: json.source.parse()?, lineage: json.lineage.parse()? },
            source_key: key(&json.source_key)?,
            data_keys: data_keys.collect::<Result<_>>()?,
        })
    }

    /// Opens the lineage as it is now; `None` when nobody began it.
    pub async fn view(&self, sink: std::sync::Arc<dyn Sink>) -> Result<Option<LineageView>> {
        let access = Access { sink, stream: self.stream, source_key: self.source_key.clone() };
        let keys = DataKeys::with_keys(access.clone(), self.repo, self.data_keys.clone());
        LineageView::open(access, std::sync::Arc::new(keys)).await
    }
}

fn key(text: &str) -> Result<Key> {
    let mut raw = [0; 32];
    hex::decode_to_slice(text, &mut raw).map_err(|_| Error::configure("a key of a pass is damaged"))?;
    let key = Key::new(raw);
    raw.zeroize();
    Ok(key)
}

impl LineageView {
    /// The keys that open the log along `path` and whatever is written after it. A later epoch whose object is
    /// damaged does not close earlier moments: its key is left out.
    ///
    /// # Errors
    /// `Configure` without an identity; `Corrupt`, naming the epoch object, for an epoch of the path itself.
    pub async fn pass(&self, path: &[Span]) -> Result<Pass> {
        let mut data_keys = BTreeMap::new();
        for span in path {
            let Some((epoch, _)) = self.start(*span).await? else { continue };
            let end = Span { from: span.to.saturating_sub(1), ..*span };
            let last = match self.start(end).await {
                Err(error) if error.act() == Act::Corrupt => None,
                found => found?.map(|(epoch, _)| epoch),
            };
            let mut tenure = self.chain().tenure(epoch).await?;
            while let Some(known) = tenure {
                match self.keys().get(known.epoch).await {
                    Ok(key) => drop(data_keys.insert(known.epoch, key)),
                    Err(error)
                        if error.act() == Act::Corrupt && last.is_some_and(|last| known.epoch > last) => {}
                    Err(error) => return Err(error),
                }
                tenure = self.chain().next_tenure(known.epoch).await?;
            }
        }
        let access = self.chain().access();
        Ok(Pass {
            repo: self.keys().repo(),
            stream: access.stream,
            source_key: access.source_key.clone(),
            data_keys,
        })
    }
}
