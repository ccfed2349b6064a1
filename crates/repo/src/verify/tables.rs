//! The tables: every layer object that a checkpoint or an unfinished run names, every row in it, and every
//! piece that a row names, against the lists of the packs.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::{
    Error, Extent, Held, PackId, Progress, Result, RunId, StateObject,
    sink::{OBJECT_MAX, Range},
};
use lru::LruCache;

use super::{Closes, Level, Problem, Verification, damage};
use crate::{
    chain::Access,
    layer::{self, END_READ, End, PageRows, StateIndex},
    pack,
    view::LineageView,
};

/// Packs whose lists are held at once.
const LISTS: usize = 64;
/// Opened bytes and pieces of one read of contents.
const BATCH_BYTES: u64 = 16 << 20;
const BATCH_PIECES: usize = 256;

struct Tables<'a> {
    view: &'a LineageView,
    access: &'a Access,
    level: Level,
    progress: &'a dyn Progress,
    /// Pieces of packs, by offset; or that the pack is damaged, which was said once.
    lists: LruCache<PackId, Option<BTreeMap<u32, Extent>>>,
    sizes: BTreeMap<PackId, u64>,
    damaged: BTreeSet<PackId>,
    checked: BTreeSet<PackId>,
}

pub(super) async fn verify(
    view: &LineageView,
    level: Level,
    progress: &dyn Progress,
    found: &mut Verification,
) -> Result<()> {
    let catalog = holdfast_core::View::catalog(view);
    let mut named: BTreeMap<(holdfast_core::Epoch, u64), (StateObject, Vec<RunId>)> = BTreeMap::new();
    let checkpoints = catalog.checkpoints.iter().map(|checkpoint| (checkpoint.id, &checkpoint.layers));
    let runs = catalog.runs.iter().map(|run| (run.id, &run.layers));
    for (id, layers) in checkpoints.chain(runs) {
        for object in layers.iter().flat_map(|layer| &layer.objects) {
            let key = (object.epoch, object.number);
            let (known, ids) = named.entry(key).or_insert_with(|| (object.clone(), Vec::new()));
            ids.push(id);
            if known != object {
                found.problems.push(Problem {
                    what: format!(
                        "{} is described in two ways",
                        view.chain().access().stream.state(key.0, key.1)
                    ),
                    closes: Closes::Checkpoints(vec![id]),
                });
            }
        }
    }
    let mut tables = Tables {
        view,
        access: view.chain().access(),
        level,
        progress,
        lists: LruCache::unbounded(),
        sizes: BTreeMap::new(),
        damaged: BTreeSet::new(),
        checked: BTreeSet::new(),
    };
    for (object, ids) in named.into_values() {
        let problems = found.problems.len();
        tables.object(&object, found).await?;
        for problem in found.problems.iter_mut().skip(problems) {
            problem.closes = Closes::Checkpoints(ids.clone());
        }
    }
    Ok(())
}

fn report(found: &mut Verification, what: String) {
    found.problems.push(Problem { what, closes: Closes::Nothing });
}

impl Tables<'_> {
    async fn object(&mut self, object: &StateObject, found: &mut Verification) -> Result<()> {
        let access = self.access;
        let name = access.stream.state(object.epoch, object.number);
        found.layer_objects += 1;
        let range = Range::Part { from: 0, length: OBJECT_MAX as u64 };
        let Some(bytes) = access.sink.read(&name, range).await? else {
            report(found, format!("{name} is missing from {}", access.sink.address()));
            return Ok(());
        };
        found.read(bytes.len() as u64, self.progress);
        let index = layer::check_digest(&name, &bytes).and_then(|()| {
            let mut length = END_READ.min(object.bytes);
            loop {
                let end = bytes.get(bytes.len().saturating_sub(length as usize)..).unwrap_or_default();
                match StateIndex::read(&access.source_key, access.stream, object, end)? {
                    End::Index(index) => return Ok(index),
                    End::More(more) if more > length => length = more,
                    End::More(_) => return Err(Error::corrupt(format!("{name} is cut short"))),
                }
            }
        });
        let index = match damage(index)? {
            Ok(index) => index,
            Err(what) => {
                report(found, what);
                return Ok(());
            }
        };
        let mut batch = Vec::new();
        let mut rows = 0;
        for page in 0..index.pages() {
            let (from, length) = index.extent(page).unwrap_or_default();
            let sealed = bytes.get(from as usize..(from + length) as usize).unwrap_or_default();
            let opened = index.open(page, sealed).map(PageRows::new);
            let mut page = match damage(opened)? {
                Ok(page) => page,
                Err(what) => {
                    report(found, what);
                    continue;
                }
            };
            loop {
                match damage(page.next())? {
                    Ok(Some(row)) => {
                        rows += 1;
                        for held in row.held {
                            self.piece(held, &mut batch, found).await?;
                        }
                    }
                    Ok(None) => break,
                    Err(what) => {
                        report(found, format!("{name}: {what}"));
                        break;
                    }
                }
            }
        }
        found.rows += rows;
        if rows != object.rows {
            report(found, format!("{name} holds {rows} rows where {} were promised", object.rows));
        }
        self.contents(&mut batch, found).await
    }

    async fn piece(&mut self, held: Held, batch: &mut Vec<Held>, found: &mut Verification) -> Result<()> {
        found.pieces += 1;
        let extent = held.extent;
        if !self.lists.contains(&extent.pack) {
            let list = self.list(extent.pack, found).await?;
            self.lists.put(extent.pack, list);
            while self.lists.len() > LISTS {
                self.lists.pop_lru();
            }
        }
        let listed = match self.lists.get(&extent.pack) {
            Some(Some(list)) => list.get(&extent.offset) == Some(&extent),
            _ => return Ok(()),
        };
        if !listed {
            let name = self.access.stream.pack(extent.pack.epoch, extent.pack.number);
            report(found, format!("{name} does not hold piece {} where a row says it lies", extent.piece));
            return Ok(());
        }
        if self.level == Level::Contents {
            batch.push(held);
            let bytes: u64 = batch.iter().map(|held| u64::from(held.extent.opened)).sum();
            if batch.len() >= BATCH_PIECES || bytes >= BATCH_BYTES {
                self.contents(batch, found).await?;
            }
        }
        Ok(())
    }

    /// Opens and hashes; when that fails, one by one, so that each damaged piece is named.
    async fn contents(&self, batch: &mut Vec<Held>, found: &mut Verification) -> Result<()> {
        let batch = std::mem::take(batch);
        if batch.is_empty() {
            return Ok(());
        }
        let sealed = batch.iter().map(|held| u64::from(held.extent.length)).sum();
        if damage(self.view.contents().read(&batch).await)?.is_err() {
            for held in &batch {
                if let Err(what) = damage(self.view.contents().read(std::slice::from_ref(held)).await)? {
                    report(found, what);
                }
            }
        }
        found.read(sealed, self.progress);
        Ok(())
    }

    /// The pieces of a pack; `None`, and a problem once, when it is missing or damaged.
    async fn list(
        &mut self,
        pack: PackId,
        found: &mut Verification,
    ) -> Result<Option<BTreeMap<u32, Extent>>> {
        if self.damaged.contains(&pack) {
            return Ok(None);
        }
        let first = self.checked.insert(pack);
        let listed = match damage(self.read_list(pack, first, found).await)? {
            Ok(listed) => listed,
            Err(what) => {
                report(found, what);
                self.damaged.insert(pack);
                return Ok(None);
            }
        };
        found.packs += u64::from(first);
        Ok(Some(listed.into_iter().map(|extent| (extent.offset, extent)).collect()))
    }

    async fn read_list(
        &mut self,
        pack: PackId,
        first: bool,
        found: &mut Verification,
    ) -> Result<Vec<Extent>> {
        let access = self.access;
        let name = access.stream.pack(pack.epoch, pack.number);
        let missing = || Error::corrupt(format!("{name} is missing from {}", access.sink.address()));
        if self.level >= Level::Digests && first {
            let range = Range::Part { from: 0, length: OBJECT_MAX as u64 };
            let bytes = access.sink.read(&name, range).await?.ok_or_else(missing)?;
            if self.level == Level::Digests {
                found.read(bytes.len() as u64, self.progress);
            }
            pack::check_digest(&name, &bytes)?;
            self.sizes.insert(pack, bytes.len() as u64);
            return match pack::read_end(&access.source_key, access.stream, pack, bytes.len() as u64, &bytes)?
            {
                pack::End::Pieces(pieces) => Ok(pieces),
                pack::End::More(_) => Err(Error::corrupt(format!("{name} is cut short"))),
            };
        }
        let size = self.size(pack).await?.ok_or_else(missing)?;
        let mut length = pack::END_READ.min(size);
        loop {
            let range = Range::Part { from: size - length, length };
            let end = access.sink.read(&name, range).await?.ok_or_else(missing)?;
            match pack::read_end(&access.source_key, access.stream, pack, size, &end)? {
                pack::End::Pieces(pieces) => return Ok(pieces),
                pack::End::More(more) if more > length && more <= size => length = more,
                pack::End::More(_) => return Err(Error::corrupt(format!("{name} is cut short"))),
            }
        }
    }

    /// The size of a pack, by a list that also tells its neighbours'.
    async fn size(&mut self, pack: PackId) -> Result<Option<u64>> {
        if let Some(size) = self.sizes.get(&pack) {
            return Ok(Some(*size));
        }
        let stream = self.access.stream;
        let after = pack.number.checked_sub(1).map(|before| stream.pack(pack.epoch, before));
        let page = self.access.sink.list(&stream.packs_prefix(pack.epoch), after.as_deref(), 1000).await?;
        for entry in page.entries {
            if let Ok(crate::names::Name::Pack { epoch, number, .. }) = entry.name.parse() {
                self.sizes.insert(PackId { epoch, number }, entry.size);
            }
        }
        Ok(self.sizes.get(&pack).copied())
    }
}
