//! Pages: about 64 KiB of rows, the unit that is compressed, sealed, read and cached. Pure.

use bytes::Bytes;
use holdfast_core::{Error, Result, Row};

use super::row;

/// A page is closed when its rows reach this many bytes; one row may exceed it by [`row::ROW_MAX`].
pub const PAGE_BYTES: usize = 64 << 10;
/// Largest opened page that a reader accepts.
pub const PAGE_MAX: usize = PAGE_BYTES + row::ROW_MAX;

/// Collects rows, in ascending order of their keys.
#[derive(Debug, Default)]
pub struct PageBuilder {
    raw: Vec<u8>,
    first: Bytes,
    last: Bytes,
    rows: u32,
}

impl PageBuilder {
    /// # Errors
    /// `Bug` when the key does not ascend; `Configure` when the row is too large for a layer.
    pub fn push(&mut self, row: &Row) -> Result<()> {
        if self.rows > 0 && row.key <= self.last {
            return Err(Error::bug("rows came to a table layer out of order"));
        }
        // An empty page shares nothing, so that it can be read by itself.
        let before = if self.rows == 0 { &[][..] } else { &self.last[..] };
        row::encode(row, before, &mut self.raw)?;
        if self.rows == 0 {
            self.first = row.key.clone();
        }
        self.last = row.key.clone();
        self.rows += 1;
        Ok(())
    }
    pub fn is_full(&self) -> bool {
        self.raw.len() >= PAGE_BYTES
    }
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }
    /// Bytes collected so far.
    pub fn len(&self) -> usize {
        self.raw.len()
    }
    /// First key, number of rows and bytes of the page; the builder begins anew.
    pub fn take(&mut self) -> (Bytes, u32, Vec<u8>) {
        let first = std::mem::take(&mut self.first);
        let rows = std::mem::take(&mut self.rows);
        (first, rows, std::mem::replace(&mut self.raw, Vec::with_capacity(PAGE_BYTES)))
    }
}

/// Reads the rows of an opened page in order, decoding one at a time.
#[derive(Clone, Debug)]
pub struct PageRows {
    raw: Bytes,
    key: Vec<u8>,
    first: bool,
}

impl PageRows {
    pub fn new(raw: Bytes) -> Self {
        Self { raw, key: Vec::new(), first: true }
    }
    /// # Errors
    /// `Corrupt` when the page does not hold rows in order.
    #[allow(clippy::should_implement_trait, reason = "a page can turn out to be damaged at any row")]
    pub fn next(&mut self) -> Result<Option<Row>> {
        if self.raw.is_empty() {
            return Ok(None);
        }
        let (row, rest) = row::decode(&self.raw, &mut self.key, self.first)?;
        self.first = false;
        self.raw = self.raw.slice_ref(rest);
        Ok(Some(row))
    }
}
