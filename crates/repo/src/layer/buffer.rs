//! Rows that are not yet in a layer: sorted in memory, bounded, later ones winning. Pure.

use std::{collections::BTreeMap, mem::size_of, ops::Bound};

use bytes::Bytes;
use holdfast_core::{Held, Row};

/// A buffer that holds this much is cut into a layer.
pub const BUFFER_BYTES: usize = 24 << 20;

/// What a row costs beside its own bytes: map node, two shared slices, one vector.
const ROW_COST: usize = 160;

#[derive(Debug, Default)]
pub struct RowBuffer {
    rows: BTreeMap<Bytes, (Bytes, Vec<Held>)>,
    bytes: usize,
}

impl RowBuffer {
    /// Adds a row; one of the same key is replaced. Bytes are copied, so that a row does not keep alive the
    /// larger buffer that it was cut from.
    pub fn push(&mut self, row: &Row) {
        let value = (Bytes::copy_from_slice(&row.value), row.held.clone());
        self.bytes += cost(&row.key, &value);
        let key = Bytes::copy_from_slice(&row.key);
        if let Some(old) = self.rows.insert(key, value) {
            self.bytes = self.bytes.saturating_sub(cost(&row.key, &old));
        }
    }
    /// Memory that the rows take, roughly.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    pub fn is_full(&self) -> bool {
        self.bytes >= BUFFER_BYTES
    }
    pub fn len(&self) -> usize {
        self.rows.len()
    }
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
    /// Rows with keys from `from` on, in order.
    pub fn range<'a>(&'a self, from: &[u8]) -> impl Iterator<Item = Row> + 'a {
        self.rows
            .range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
            .map(|(key, (value, held))| Row { key: key.clone(), value: value.clone(), held: held.clone() })
    }
    /// Takes the row with the smallest key off.
    pub fn pop(&mut self) -> Option<Row> {
        let (key, value) = self.rows.pop_first()?;
        self.bytes = self.bytes.saturating_sub(cost(&key, &value));
        Some(Row { key, value: value.0, held: value.1 })
    }
}

fn cost(key: &Bytes, (value, held): &(Bytes, Vec<Held>)) -> usize {
    ROW_COST + key.len() + value.len() + held.len() * size_of::<Held>()
}
