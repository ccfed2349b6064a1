//! Content and the tables that name it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Epoch, PackId, PieceId};

/// Where a piece lies. Made by the pipeline once the pack is durable (rule R1), or read back from a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Extent {
    pub pack: PackId,
    /// Bytes from the start of the pack object, and sealed length.
    pub offset: u32,
    pub length: u32,
    /// Bytes once opened: caps the allocation.
    pub opened: u32,
    /// Whose data key opens it; stays when a piece is moved to another pack.
    pub key_epoch: Epoch,
    pub piece: PieceId,
}

/// An extent and the BLAKE3 hash of its opened bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub extent: Extent,
    pub hash: [u8; 32],
}

/// An entry of a table. Order is by key, bytewise. `value` is the tailer's own; `held` is what the row keeps
/// alive in packs, so that expiry can see it without knowing the tailer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub key: Bytes,
    pub value: Bytes,
    pub held: Vec<Held>,
}

/// A sorted, immutable part of a table: objects by key range, in key order, not overlapping each other.
/// Layers of one table may overlap; the later layer wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    pub objects: Vec<StateObject>,
}

/// A table-layer object, `state/<epoch>/<number>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateObject {
    pub epoch: Epoch,
    pub number: u64,
    pub first: Bytes,
    pub last: Bytes,
    pub rows: u64,
    pub bytes: u64,
}

/// Hash of plain content, as it stands in [`Held::hash`]. Lies inside sealed rows only.
pub fn digest(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
