//! Where in a stream a place lies: samples say near which object, headers say in which.

use std::sync::{Mutex, PoisonError};

use holdfast_core::{Branch, Error, Result, Sample, Span};
use lru::LruCache;

use crate::chain::{At, Chain, Depth, Found, Object};

/// Places whose object is remembered.
const REMEMBERED: usize = 256;

/// An object to begin at from which everything at or behind `position` of a branch is reached; `None` when
/// no sample knows the branch.
pub fn near(samples: &[Sample], branch: Branch, position: u64) -> Option<At> {
    let mut of_branch = samples.iter().filter(|sample| sample.place.branch == branch);
    let first = of_branch.next()?;
    if position < first.place.position {
        // The first object of a branch is always sampled.
        return Some((first.epoch, first.number));
    }
    let before = of_branch.take_while(|sample| sample.place.position <= position).last().unwrap_or(first);
    Some((before.epoch, before.number.saturating_add(1)))
}

/// The part of `span`'s branch that an object holds, as one range.
pub fn held(object: &Object, branch: Branch) -> Option<Span> {
    let of_branch = || object.header.spans.iter().filter(|span| span.branch == branch);
    let from = of_branch().map(|span| span.from).min()?;
    let to = of_branch().map(|span| span.to).max()?;
    Some(Span { branch, from, to })
}

/// Finds objects by place and remembers them, so that reading on finds its way at once.
pub struct Locator {
    known: Mutex<LruCache<(Branch, u64), At>>,
}

impl Locator {
    pub fn new() -> Self {
        Self { known: Mutex::new(LruCache::unbounded()) }
    }

    /// What follows behind `position` begins at or behind `at`.
    pub fn remember(&self, branch: Branch, position: u64, at: At) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.put((branch, position), at);
        while known.len() > REMEMBERED {
            known.pop_lru();
        }
    }

    /// The first object that holds something of `span`, by headers alone; `None` when there is none.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when one that cannot be read may hold the beginning of the span.
    pub async fn find(&self, chain: &Chain, samples: &[Sample], span: Span) -> Result<Option<At>> {
        let key = (span.branch, span.from);
        if let Some(at) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(Some(*at));
        }
        let Some(from) = near(samples, span.branch, span.from) else { return Ok(None) };
        let mut walk = chain.walk(from, Depth::Front);
        let mut lost: Option<Error> = None;
        while let Some(found) = walk.next().await? {
            let object = match found {
                Found::Object(object) => object,
                Found::Lost { error, .. } => {
                    lost.get_or_insert(error);
                    continue;
                }
            };
            let Some(part) = held(&object, span.branch).filter(|part| part.to > span.from) else { continue };
            if part.from > span.from
                && let Some(error) = lost
            {
                return Err(error);
            }
            if part.from >= span.to {
                return Ok(None);
            }
            let at = (object.id().epoch, object.id().number);
            self.remember(span.branch, span.from, at);
            return Ok(Some(at));
        }
        lost.map_or(Ok(None), Err)
    }
}
