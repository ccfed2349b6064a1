//! What the repository already holds of a file: looked up by the same key, read ahead in key order.

use std::{collections::HashMap, sync::Arc};

use holdfast_core::{Bytes, Catalog, Held, Layer, Result, Row, State};

/// Rows read at once: few at the beginning of a file, since most are small and come in no order; many within a
/// large one.
const FIRST: usize = 8;
const AHEAD: usize = 256;
/// Pages of rows remembered: the server sends a folder's files in no order.
const PAGES: usize = 64;

/// Rows of the last checkpoint and of unfinished runs.
pub(super) struct Known {
    state: Arc<dyn State>,
    layers: Vec<Layer>,
    pages: HashMap<u64, Page>,
    uses: u64,
}

struct Page {
    from: Bytes,
    rows: Vec<Row>,
    /// Nothing follows the rows.
    last: bool,
    used: u64,
}

impl Page {
    fn covers(&self, key: &[u8]) -> bool {
        let end = self.rows.last().map(|row| row.key.as_ref());
        *self.from <= *key && (self.last || end.is_some_and(|end| key <= end))
    }
}

impl Known {
    pub fn new(state: Arc<dyn State>, catalog: &Catalog) -> Self {
        let newest = catalog.checkpoints.iter().max_by_key(|one| one.ended);
        let layers = newest
            .map(|one| one.layers.as_slice())
            .into_iter()
            .chain(catalog.runs.iter().map(|run| run.layers.as_slice()))
            .flatten()
            .cloned()
            .collect();
        Self { state, layers, pages: HashMap::new(), uses: 0 }
    }

    /// The extent kept under `key`, if its bytes have this hash and length.
    pub async fn find(&mut self, key: &[u8], hash: &[u8; 32], length: usize) -> Result<Option<Held>> {
        if self.layers.is_empty() {
            return Ok(None);
        }
        self.uses += 1;
        let id = match self.pages.iter().find(|(_, page)| page.covers(key)) {
            Some((id, _)) => *id,
            None => self.read(key).await?,
        };
        let Some(page) = self.pages.get_mut(&id) else { return Ok(None) };
        page.used = self.uses;
        let Ok(at) = page.rows.binary_search_by(|row| row.key.as_ref().cmp(key)) else { return Ok(None) };
        let held = page.rows.get(at).and_then(|row| row.held.first()).copied();
        Ok(held.filter(|held| held.hash == *hash && held.extent.opened as usize == length))
    }

    async fn read(&mut self, key: &[u8]) -> Result<u64> {
        // The last four bytes number the piece.
        let begins = key.last_chunk::<4>() == Some(&[0; 4]);
        let rows = self.state.rows(&self.layers, key, if begins { FIRST } else { AHEAD }).await?;
        if self.pages.len() >= PAGES {
            let oldest = self.pages.iter().min_by_key(|(_, page)| page.used).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                self.pages.remove(&oldest);
            }
        }
        let page = Page { from: Bytes::copy_from_slice(key), last: rows.is_empty(), rows, used: self.uses };
        self.pages.insert(self.uses, page);
        Ok(self.uses)
    }
}
