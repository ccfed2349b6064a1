//! Opened contents of extents, by ranged reads: neighbours of one pack come in one.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use holdfast_core::{Error, Held, PackId, Result, digest, sink::Range};

use super::DataKeys;
use crate::{chain::Access, pack, seal::sealed_max};

/// A hole of this size is read along rather than asked for apart.
const HOLE_MAX: u64 = 128 << 10;
/// One read, at most (a single piece may be all of it).
const READ_MAX: u64 = 8 << 20;
/// Reads in flight for one call.
const IN_FLIGHT: usize = 4;

pub struct Contents {
    access: Access,
    keys: Arc<DataKeys>,
}

/// Neighbours that one read brings: their places in the caller's list.
struct Stretch {
    pack: PackId,
    from: u64,
    to: u64,
    members: Vec<usize>,
}

impl Contents {
    pub fn new(access: Access, keys: Arc<DataKeys>) -> Self {
        Self { access, keys }
    }

    /// Opened bytes of each, in the caller's order.
    ///
    /// # Errors
    /// `Corrupt`, naming pack and piece, when one is missing, damaged or not what its hash says;
    /// `Configure` without a fitting identity.
    pub async fn read(&self, held: &[Held]) -> Result<Vec<Bytes>> {
        for held in held {
            if held.extent.length as usize > sealed_max(pack::PIECE_MAX) {
                return Err(Error::corrupt(format!(
                    "a row says that piece {} is larger than any piece",
                    held.extent.piece
                )));
            }
        }
        let reads = stretches(held).into_iter().map(|stretch| self.stretch(stretch, held));
        let read: Vec<Vec<(usize, Bytes)>> =
            stream::iter(reads).buffer_unordered(IN_FLIGHT).try_collect().await?;
        let mut all = vec![Bytes::new(); held.len()];
        for (at, bytes) in read.into_iter().flatten() {
            if let Some(place) = all.get_mut(at) {
                *place = bytes;
            }
        }
        Ok(all)
    }

    async fn stretch(&self, stretch: Stretch, held: &[Held]) -> Result<Vec<(usize, Bytes)>> {
        let Stretch { pack, from, to, members } = stretch;
        let name = self.access.stream.pack(pack.epoch, pack.number);
        let range = Range::Part { from, length: to - from };
        let bytes = self.access.sink.read(&name, range).await?.ok_or_else(|| {
            Error::corrupt(format!(
                "{name} is missing from {}: what lies in it cannot be restored",
                self.access.sink.address()
            ))
        })?;
        let mut opened = Vec::with_capacity(members.len());
        for at in members {
            let Some(held) = held.get(at) else { continue };
            let start = (u64::from(held.extent.offset) - from) as usize;
            let sealed = bytes.get(start..start + held.extent.length as usize).unwrap_or_default();
            let key = self.keys.get(held.extent.key_epoch).await?;
            let plain = pack::open_piece(&key, &held.extent, sealed)
                .map_err(|error| error.during(format!("piece {} in {name} is damaged", held.extent.piece)))?;
            if digest(&plain) != held.hash {
                return Err(Error::corrupt(format!(
                    "piece {} in {name} is not the content that its row promises",
                    held.extent.piece
                )));
            }
            opened.push((at, plain));
        }
        Ok(opened)
    }
}

fn stretches(held: &[Held]) -> Vec<Stretch> {
    let mut order: Vec<usize> = (0..held.len()).collect();
    order.sort_by_key(|at| held.get(*at).map(|held| (held.extent.pack, held.extent.offset)));
    let mut all: Vec<Stretch> = Vec::new();
    for at in order {
        let Some(extent) = held.get(at).map(|held| held.extent) else { continue };
        let (from, to) = (u64::from(extent.offset), u64::from(extent.offset) + u64::from(extent.length));
        match all.last_mut() {
            Some(last)
                if last.pack == extent.pack
                    && from <= last.to + HOLE_MAX
                    && to.max(last.to) - last.from <= READ_MAX =>
            {
                last.to = last.to.max(to);
                last.members.push(at);
            }
            _ => all.push(Stretch { pack: extent.pack, from, to, members: vec![at] }),
        }
    }
    all
}
