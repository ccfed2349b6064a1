//! Reading one lineage's objects by name: lists, fronts, numbers 0. Every answer is checked against the name
//! that was asked for. Knows nothing of which objects count; that is the chain's.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_core::{
    Epoch, Error, Result, Sink,
    sink::{Entry as Listed, Range, list_all},
};

use super::Object;
use crate::{
    entry::{Entry, Took},
    names::{Name, Stream},
    object::{self, FRONT_READ, Front, Header, ObjectId, OpenFront},
    seal::Key,
};

/// The store, one stream in it, and the key that its objects prove themselves with.
#[derive(Clone)]
pub struct Access {
    pub sink: Arc<dyn Sink>,
    pub stream: Stream,
    pub source_key: Key,
}

/// A merged object by its name: numbers `from` to `to`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergedRange {
    pub from: u64,
    pub to: u64,
    pub size: u64,
}

/// A log object (or END) by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    pub number: u64,
    pub size: u64,
}

/// Number 0 of an epoch.
#[derive(Clone, Debug)]
pub struct Opening {
    pub epoch: Epoch,
    pub took: Took,
    pub header: Header,
    /// Digest of the object itself, and of the one before it.
    pub digest: [u8; 32],
    pub previous: [u8; 32],
}

impl Access {
    pub fn id(&self, epoch: Epoch, number: u64) -> ObjectId {
        ObjectId { lineage: self.stream.lineage, epoch, number }
    }

    /// All epochs of the lineage, ascending; whether they ever had a number 0 is not said.
    pub async fn epochs(&self) -> Result<Vec<Epoch>> {
        self.epochs_after(None).await
    }

    /// Epochs above one.
    pub async fn epochs_above(&self, epoch: Epoch) -> Result<Vec<Epoch>> {
        self.epochs_after(Some(epoch)).await
    }

    async fn epochs_after(&self, above: Option<Epoch>) -> Result<Vec<Epoch>> {
        let after = above.map(|epoch| self.stream.epoch(epoch));
        let listed = list_all(&*self.sink, &self.stream.epochs_prefix(), after.as_deref()).await?;
        let mut epochs = Vec::with_capacity(listed.len());
        for entry in listed {
            match entry.name.parse()? {
                Name::Epoch { epoch, .. } => epochs.push(epoch),
                _ => return Err(stranger(&entry.name)),
            }
        }
        // Bytewise order of names is not order of epochs where a writer id follows the number.
        epochs.sort_unstable();
        epochs.retain(|epoch| above.is_none_or(|above| *epoch > above));
        Ok(epochs)
    }

    /// The merged objects of an epoch, ascending by `from`.
    pub async fn merged(&self, epoch: Epoch) -> Result<Vec<MergedRange>> {
        let mut ranges = Vec::new();
        for Listed { name, size, .. } in
            list_all(&*self.sink, &self.stream.merged_prefix(epoch), None).await?
        {
            match name.parse()? {
                Name::Merged { from, to, .. } if from <= to => ranges.push(MergedRange { from, to, size }),
                _ => return Err(stranger(&name)),
            }
        }
        ranges.sort_unstable();
        Ok(ranges)
    }

    /// Log objects and ENDs of an epoch, ascending, from after number `after` on; all of them, or one page of
    /// about a thousand.
    pub async fn plain(&self, epoch: Epoch, after: Option<u64>, all: bool) -> Result<Vec<Plain>> {
        let prefix = self.stream.log_prefix(epoch);
        let after = after.map(|number| self.stream.log(epoch, number));
        let listed = if all {
            list_all(&*self.sink, &prefix, after.as_deref()).await?
        } else {
            self.sink.list(&prefix, after.as_deref(), 1000).await?.entries
        };
        let number = |Listed { name, size, .. }: Listed| match name.parse()? {
            Name::Log { number, .. } => Ok(Plain { number, size }),
            _ => Err(stranger(&name)),
        };
        listed.into_iter().map(number).collect()
    }

    /// The front of a log object or END; `None` when there is none under this name.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when it is not what its name says or was not written with our key.
    pub async fn front(&self, epoch: Epoch, number: u64) -> Result<Option<OpenFront>> {
        Ok(self.front_bytes(epoch, number).await?.map(|(front, _)| front))
    }

    /// The front, and the first bytes of the object that came with it.
    pub(super) async fn front_bytes(&self, epoch: Epoch, number: u64) -> Result<Option<(OpenFront, Bytes)>> {
        let name = self.stream.log(epoch, number);
        let range = Range::Part { from: 0, length: FRONT_READ };
        let Some(mut bytes) = self.sink.read(&name, range).await? else { return Ok(None) };
        let damaged = |error: Error| error.during(format!("{name} is damaged"));
        let prelude = object::parse_prelude(&bytes).map_err(damaged)?;
        let length = prelude.front_len();
        if bytes.len() < length && bytes.len() as u64 == FRONT_READ {
            let range = Range::Part { from: 0, length: length as u64 };
            let Some(more) = self.sink.read(&name, range).await? else { return Ok(None) };
            bytes = more;
        }
        let front = object::open_front(&self.source_key, &bytes).map_err(damaged)?;
        front.prelude.expect(self.id(epoch, number))?;
        Ok(Some((front, bytes)))
    }

    /// Number 0 of an epoch, if it has one. An END there means that it has none.
    pub async fn opening(&self, epoch: Epoch) -> Result<Option<Opening>> {
        let Some((front, bytes)) = self.front_bytes(epoch, 0).await? else { return Ok(None) };
        let OpenFront { prelude, front: Front::Data(header), digest } = front else { return Ok(None) };
        let range = prelude.key_range();
        let key_half = match bytes.get(range.clone()) {
            Some(half) => bytes.slice_ref(half),
            None => {
                let part = Range::Part { from: range.start as u64, length: range.len() as u64 };
                self.sink
                    .read(&self.stream.log(epoch, 0), part)
                    .await?
                    .ok_or_else(|| self.missing(epoch, 0))?
            }
        };
        let object = Object::new(prelude, header, digest, Some(key_half), None);
        let mut entries = object.entries(&self.source_key)?.into_iter();
        let Some(Entry::Took(took)) = entries.next() else {
            return Err(Error::corrupt(format!(
                "{} does not begin with what its epoch took over",
                self.id(epoch, 0)
            )));
        };
        let expected = took.predecessor.map_or([0; 32], |predecessor| predecessor.digest);
        let previous = object.prelude.previous;
        if previous != expected || took.predecessor.is_some_and(|p| p.epoch >= epoch) {
            return Err(Error::corrupt(format!(
                "{} contradicts itself about what came before it",
                self.id(epoch, 0)
            )));
        }
        Ok(Some(Opening { epoch, took, header: object.header, digest, previous }))
    }

    pub(super) fn missing(&self, epoch: Epoch, number: u64) -> Error {
        Error::corrupt(format!(
            "{} is missing from {}, and no merged object holds it: moments that need it cannot be restored",
            self.stream.log(epoch, number),
            self.sink.address()
        ))
    }
}

fn stranger(name: &str) -> Error {
    Error::corrupt(format!("«{name}» lies where it does not belong"))
}
