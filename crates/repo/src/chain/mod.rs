//! How readers see a stream (R5). Begins at the highest epoch that has a number 0 and follows what it took
//! over. Objects behind an END, of epochs nobody took over, or at numbers that a merged object covers, do not
//! exist here.
//!
//! Invariants: every front is proved under the source key and every object names the digest of the one before
//! it, across epochs too, so a swap, a cut or a hole shows; a listing whose front is missing is refused; what
//! is not found is planned again once, since a merge may have moved it, and only then is it missing.

mod access;
mod fetch;
mod head;
mod object;
mod tail;
mod walk;

use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt, stream};
use holdfast_core::{Act, Catalog, Cursor, Epoch, Error, Result, Timestamp};

pub use access::{Access, MergedRange, Opening, Plain};
pub use head::{END_MAX, Head};
use head::{find_head, highest_opening};
pub use object::{Depth, Object};
pub use tail::{Tail, WINDOW};
pub use walk::{Found, Walk};

use crate::{catalog, entry::Entry};

/// Requests in flight for one reader.
const IN_FLIGHT: usize = 16;
/// How many objects a search for an undamaged catalog goes back over.
const CATALOG_BACK: usize = 64;

/// A place in a stream; ordered as the stream is.
pub type At = (Epoch, u64);

/// One epoch of the history that counts, up to the last number that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub epoch: Epoch,
    /// Last number that counts, and its digest.
    pub last: u64,
    pub digest: [u8; 32],
}

/// What a lineage knows about itself, as of one of its objects.
#[derive(Debug, Default)]
pub struct Known {
    pub catalog: Catalog,
    /// The newest cursor.
    pub cursor: Option<Cursor>,
    /// Newest time that the source vouched for.
    pub vouched: Option<Timestamp>,
    /// When the writer's host wrote that down first.
    pub vouched_at: Option<Timestamp>,
    /// Objects that should have told more and are damaged, one sentence each.
    pub damage: Vec<String>,
    /// Was there a whole catalog, or the beginning of the lineage, to bring up to date?
    pub based: bool,
    /// What is wrong with the last of the objects.
    pub last: Option<Error>,
}

/// One stream as of the moment when it was opened.
pub struct Chain {
    access: Access,
    head: Head,
    damage: Vec<String>,
    /// Newest first; read backwards as far as somebody asked.
    tenures: tokio::sync::Mutex<Tenures>,
    merged: Mutex<Vec<(Epoch, Arc<Vec<MergedRange>>)>>,
}

struct Tenures {
    known: Vec<Tenure>,
    /// Epochs below the oldest known one, ascending.
    below: Vec<Epoch>,
    /// Number 0 of the oldest known one, and of those that were read ahead.
    oldest: Opening,
    ahead: Vec<(Epoch, Result<Option<Opening>>)>,
}

impl Chain {
    /// Finds the head; `None` for a stream that nobody began. Damage at the head is not fatal: what is before
    /// it can still be read, and [`Self::damage`] says what was skipped.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when nothing can be read, or when a list is not what it must be.
    pub async fn open(access: Access) -> Result<Option<Self>> {
        let mut refused = None;
        // Each round may be overtaken by a merge or by a new epoch; a live stream does neither three times
        // within a few requests.
        for _ in 0..3 {
            let mut damage = Vec::new();
            let epochs = access.epochs().await?;
            let Some(opening) = highest_opening(&access, &epochs, &mut damage).await? else {
                return Ok(None);
            };
            let head = match find_head(&access, &opening, &mut damage).await {
                Ok(head) => head,
                Err(error) if error.act() == Act::Corrupt => {
                    refused = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Without ENDs, what an epoch above took over tells where this one ended: look once more.
            let above = access.epochs_above(opening.epoch).await?;
            if highest_opening(&access, &above, &mut Vec::new()).await.is_ok_and(|above| above.is_some()) {
                refused = None;
                continue;
            }
            let tenure = Tenure { epoch: opening.epoch, last: head.at.1, digest: head.digest };
            let below = epochs.into_iter().filter(|epoch| *epoch < opening.epoch).collect();
            let tenures = Tenures { known: vec![tenure], below, oldest: opening, ahead: Vec::new() };
            return Ok(Some(Self {
                access,
                head,
                damage,
                tenures: tokio::sync::Mutex::new(tenures),
                merged: Mutex::default(),
            }));
        }
        Err(refused.unwrap_or_else(|| {
            Error::retry(format!("the stream {} changes hands right now: ask again", access.stream))
        }))
    }

    pub fn access(&self) -> &Access {
        &self.access
    }
    pub fn head(&self) -> &Head {
        &self.head
    }
    /// Objects at the head that cannot be read, one sentence each: what they held is lost.
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Objects from `from` on, that one included, up to the head.
    pub fn walk(&self, from: At, depth: Depth) -> Walk<'_> {
        Walk::new(self, from, self.head.at, depth)
    }
    /// Objects from `from` to `until`, both included.
    pub fn walk_until(&self, from: At, until: At, depth: Depth) -> Walk<'_> {
        Walk::new(self, from, until.min(self.head.at), depth)
    }

    /// Is an object that somebody remembers still part of this stream? A cut tail or a forged past shows here.
    ///
    /// # Errors
    /// `Corrupt` when it is not.
    pub async fn expect(&self, at: At, digest: [u8; 32]) -> Result<()> {
        let id = self.access.id(at.0, at.1);
        if at > self.head.at {
            let head = self.access.id(self.head.at.0, self.head.at.1);
            return Err(Error::corrupt(format!(
                "the stream ends at {head}, but once it reached {id}: its tail was cut or rolled back"
            )));
        }
        match self.walk_until(at, at, Depth::Front).next_object().await? {
            Some(object) if object.digest == digest => Ok(()),
            _ => Err(Error::corrupt(format!("{id} is not the object that it was: the past was forged"))),
        }
    }

    /// Where the lineage begins.
    pub async fn begin(&self) -> Result<At> {
        Ok((self.first_tenure().await?.epoch, 0))
    }

    /// The first number of the oldest epoch that could be read so far: where a damaged history begins.
    pub async fn oldest_known(&self) -> At {
        let tenures = self.tenures.lock().await;
        tenures.known.last().map_or(self.head.at, |tenure| (tenure.epoch, 0))
    }

    /// The object before one; `None` before the first.
    pub async fn before(&self, (epoch, number): At) -> Result<Option<At>> {
        if let Some(before) = number.checked_sub(1) {
            return Ok(Some((epoch, before)));
        }
        let mut tenures = self.tenures.lock().await;
        while tenures.known.last().is_some_and(|oldest| oldest.epoch >= epoch) {
            if !tenures.go_back(&self.access).await? {
                return Ok(None);
            }
        }
        let lower = tenures.known.iter().find(|tenure| tenure.epoch < epoch);
        Ok(lower.map(|tenure| (tenure.epoch, tenure.last)))
    }

    /// What is known as of the head.
    pub async fn catalog(&self) -> Result<Known> {
        let mut known = self.known(self.head.at).await?;
        let at_end = std::mem::take(&mut known.damage);
        known.damage = self.damage.iter().cloned().chain(at_end).collect();
        known.damage.dedup();
        Ok(known)
    }

    /// What is known as of the object at `until`: the newest whole catalog, brought up to date object by object.
    /// Where that is damaged, an older one is taken and brought over the damage.
    ///
    /// # Errors
    /// What the store says, and `Configure` for entries of a newer holdfast. Damage is no error here.
    pub async fn known(&self, until: At) -> Result<Known> {
        let mut known = Known::default();
        let mut tries = 0;
        let mut start = match until == self.head.at {
            true => self.head.header.catalog,
            false => self.catalog_of(until).await?,
        };
        let from = loop {
            // A catalog behind `until` is none of its past.
            if start.is_some_and(|at| at > until) {
                start = None;
            }
            let Some(at) = start else { break self.begin().await? };
            let found = self.walk_until(at, at, Depth::Entries).next().await?;
            let whole = match found {
                Some(Found::Object(object)) => object
                    .entries(&self.access.source_key)
                    .map(|entries| entries.iter().any(|entry| matches!(entry, Entry::Catalog(_)))),
                Some(Found::Lost { error, .. }) => Err(error),
                None => Ok(false),
            };
            match whole {
                Ok(true) => break at,
                Ok(false) => known.damage.push(format!(
                    "{} holds no catalog, although a later object says so",
                    self.access.id(at.0, at.1)
                )),
                Err(error) if error.act() != Act::Corrupt => return Err(error),
                Err(error) => known.damage.push(error.chain()),
            }
            start = self.catalog_before(at, &mut tries).await?;
        };
        let mut walk = self.walk_until(from, until, Depth::Entries);
        while let Some(found) = walk.next().await? {
            let applied = found.object().and_then(|object| {
                let entries = object.entries(&self.access.source_key)?;
                let at = (object.id().epoch, object.id().number);
                known.based |= at == from || entries.iter().any(|entry| matches!(entry, Entry::Catalog(_)));
                catalog::apply(&mut known.catalog, object.id(), &object.header, &entries);
                // Number 0 repeats what it took over.
                if object.header.vouched > known.vouched && object.id().number > 0 {
                    known.vouched_at = Some(object.header.written);
                }
                known.vouched = known.vouched.max(object.header.vouched);
                for entry in entries {
                    if let Entry::Cursor(newer) = entry {
                        known.cursor = Some(newer);
                    }
                }
                Ok(())
            });
            known.last = match applied {
                Err(error) if error.act() != Act::Corrupt => return Err(error),
                Err(error) => {
                    known.damage.push(error.chain());
                    Some(error)
                }
                Ok(()) => None,
            };
        }
        known.damage.dedup();
        Ok(known)
    }

    /// The catalog that the object at `at` points to, or, where that cannot be read, one before it.
    async fn catalog_of(&self, at: At) -> Result<Option<At>> {
        match self.walk_until(at, at, Depth::Front).next().await? {
            Some(Found::Object(object)) => Ok(object.header.catalog),
            _ => self.catalog_before(at, &mut 0).await,
        }
    }

    /// The catalog that the objects before `at` point to.
    async fn catalog_before(&self, mut at: At, tries: &mut usize) -> Result<Option<At>> {
        while *tries < CATALOG_BACK {
            *tries += 1;
            let Some(before) = self.before(at).await? else { return Ok(None) };
            if let Some(Found::Object(object)) = self.walk_until(before, before, Depth::Front).next().await? {
                return Ok(object.header.catalog);
            }
            at = before;
        }
        Ok(None)
    }

    /// The tenure of an epoch; `None` when it is not part of the history.
    pub async fn tenure(&self, epoch: Epoch) -> Result<Option<Tenure>> {
        let mut tenures = self.tenures.lock().await;
        while tenures.known.last().is_some_and(|oldest| oldest.epoch > epoch) {
            if !tenures.go_back(&self.access).await? {
                break;
            }
        }
        Ok(tenures.known.iter().find(|tenure| tenure.epoch == epoch).copied())
    }

    /// The tenure that took over from an epoch of the history; `None` for the newest.
    pub async fn next_tenure(&self, epoch: Epoch) -> Result<Option<Tenure>> {
        self.tenure(epoch).await?;
        let tenures = self.tenures.lock().await;
        let later = tenures.known.iter().take_while(|tenure| tenure.epoch > epoch);
        Ok(later.last().copied())
    }

    /// The oldest tenure: where the lineage began.
    pub async fn first_tenure(&self) -> Result<Tenure> {
        let mut tenures = self.tenures.lock().await;
        while tenures.go_back(&self.access).await? {}
        tenures.known.last().copied().ok_or_else(|| Error::bug("a chain without a tenure"))
    }

    /// Sealed bytes and number of stored objects from `from` to `until`, by lists alone; merged objects count
    /// whole.
    pub async fn size(&self, from: At, until: At) -> Result<(u64, u64)> {
        let (mut bytes, mut objects) = (0, 0);
        let mut tenure = self.tenure(from.0).await?;
        while let Some(Tenure { epoch, last, .. }) = tenure.filter(|tenure| tenure.epoch <= until.0) {
            let first = if epoch == from.0 { from.1 } else { 0 };
            let last = if epoch == until.0 { last.min(until.1) } else { last };
            let merged = self.merged(epoch, false).await?;
            let mut next = first;
            let mut listed = Vec::new().into_iter();
            while next <= last {
                let covering =
                    merged.iter().filter(|range| fetch::covers(range, next)).max_by_key(|range| range.to);
                if let Some(range) = covering {
                    bytes += range.size;
                    objects += 1;
                    next = range.to.saturating_add(1);
                    continue;
                }
                let plain = loop {
                    match listed.next() {
                        Some(Plain { number, .. }) if number < next => {}
                        Some(plain) => break Some(plain),
                        None => {
                            let page = self.access.plain(epoch, next.checked_sub(1), false).await?;
                            if page.is_empty() {
                                break None;
                            }
                            listed = page.into_iter();
                        }
                    }
                };
                match plain {
                    Some(plain) if plain.number == next => {
                        bytes += plain.size;
                        objects += 1;
                        next += 1;
                    }
                    // A hole; whoever reads there will say so.
                    Some(plain) => {
                        let merged_next = merged.iter().map(|range| range.from).find(|from| *from > next);
                        next = plain.number.min(merged_next.unwrap_or(u64::MAX));
                        listed = Vec::new().into_iter();
                    }
                    None => match merged.iter().map(|range| range.from).find(|from| *from > next) {
                        Some(from) => next = from,
                        None => break,
                    },
                }
            }
            tenure = self.next_tenure(epoch).await?;
        }
        Ok((bytes, objects))
    }

    /// The merged objects of an epoch, from memory unless `afresh`.
    async fn merged(&self, epoch: Epoch, afresh: bool) -> Result<Arc<Vec<MergedRange>>> {
        if !afresh {
            let list = self.merged.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, ranges)) = list.iter().find(|(of, _)| *of == epoch) {
                return Ok(ranges.clone());
            }
        }
        let ranges = Arc::new(self.access.merged(epoch).await?);
        let mut list = self.merged.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(of, _)| *of != epoch);
        list.push((epoch, ranges.clone()));
        // A walk needs one epoch at a time.
        if list.len() > 8 {
            list.remove(0);
        }
        Ok(ranges)
    }
}

impl Tenures {
    /// Adds the tenure that the oldest known one took over; false when it was the first.
    async fn go_back(&mut self, access: &Access) -> Result<bool> {
        let Some(predecessor) = self.oldest.took.predecessor else { return Ok(false) };
        let at = loop {
            if let Some(at) = self.ahead.iter().position(|(epoch, _)| *epoch == predecessor.epoch) {
                break at;
            }
            self.below.retain(|epoch| *epoch <= predecessor.epoch);
            let from = self.below.len().saturating_sub(IN_FLIGHT);
            let mut batch = self.below.split_off(from);
            // Number 0 is never removed, whatever the list of epochs says.
            if !batch.contains(&predecessor.epoch) {
                batch.push(predecessor.epoch);
            }
            let read = batch.into_iter().map(|epoch| async move { (epoch, access.opening(epoch).await) });
            self.ahead = stream::iter(read).buffered(IN_FLIGHT).collect().await;
        };
        let (epoch, opening) = self.ahead.remove(at);
        let opening = opening?.ok_or_else(|| access.missing(epoch, 0))?;
        self.known.push(Tenure { epoch, last: predecessor.last, digest: predecessor.digest });
        self.oldest = opening;
        Ok(true)
    }
}
