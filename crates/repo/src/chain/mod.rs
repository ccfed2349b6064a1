//! How readers see a stream (R5). Begins at the highest epoch that has a number 0 and follows what it took
//! over. Objects behind an END, of epochs nobody took over, or at numbers that a merged object covers, do not
//! exist here.
//!
//! Invariants: every front is proved under the source key and every object names the digest of the one before
//! it, across epochs too, so a swap, a cut or a hole shows; a listing whose front is missing is refused; what
//! is not found is planned again once, since a merge may have moved it, and only then is it missing.

mod access;
mod object;

use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt, TryStreamExt, stream};
use holdfast_core::{Epoch, Error, Result};

pub use access::{Access, MergedRange, Opening, Plain};
pub use object::{Depth, Object};

use crate::object::{Front, Header};

/// Requests in flight for one reader.
const IN_FLIGHT: usize = 16;
/// Nothing larger than this is an END.
const END_MAX: u64 = 1024;

/// A place in a stream; ordered as the stream is.
pub type At = (Epoch, u64);

/// The newest object that counts.
#[derive(Clone, Debug)]
pub struct Head {
    pub at: At,
    pub digest: [u8; 32],
    pub header: Header,
}

/// One epoch of the history that counts, up to the last number that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenure {
    pub epoch: Epoch,
    /// Last number that counts, and its digest.
    pub last: u64,
    pub digest: [u8; 32],
}

/// One stream as of the moment when it was opened.
pub struct Chain {
    access: Access,
    head: Head,
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
    ahead: Vec<(Epoch, Option<Opening>)>,
}

impl Chain {
    /// Finds the head; `None` for a stream that nobody began.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when what must be there is damaged or missing.
    pub async fn open(access: Access) -> Result<Option<Self>> {
        let mut refused = None;
        // Each round may be overtaken by a merge or by a new epoch; a live stream does neither three times
        // within a few requests.
        for _ in 0..3 {
            let epochs = access.epochs().await?;
            let Some(opening) = highest_opening(&access, &epochs).await? else { return Ok(None) };
            let head = match find_head(&access, &opening).await {
                Ok(head) => head,
                Err(error) if error.act() == holdfast_core::Act::Corrupt => {
                    refused = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Without ENDs, what an epoch above took over tells where this one ended: look once more.
            let above = access.epochs_above(opening.epoch).await?;
            if highest_opening(&access, &above).await?.is_some() {
                refused = None;
                continue;
            }
            let tenure = Tenure { epoch: opening.epoch, last: head.at.1, digest: head.digest };
            let below = epochs.into_iter().filter(|epoch| *epoch < opening.epoch).collect();
            let tenures = Tenures { known: vec![tenure], below, oldest: opening, ahead: Vec::new() };
            return Ok(Some(Self {
                access,
                head,
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

    /// The merged objects of an epoch, from memory unless `afresh`.
    async fn merged(&self, epoch: Epoch, afresh: bool) -> Result<Arc<Vec<MergedRange>>> {
        let known = |list: &Mutex<Vec<(Epoch, Arc<Vec<MergedRange>>)>>| {
            let list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.iter().find(|(of, _)| *of == epoch).map(|(_, ranges)| ranges.clone())
        };
        if let Some(ranges) = known(&self.merged).filter(|_| !afresh) {
            return Ok(ranges);
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
            let read = batch.into_iter().map(|epoch| async move { Ok((epoch, access.opening(epoch).await?)) });
            self.ahead = stream::iter(read).buffered(IN_FLIGHT).try_collect().await?;
        };
        let (epoch, opening) = self.ahead.remove(at);
        let opening = opening.ok_or_else(|| access.missing(epoch, 0))?;
        self.known.push(Tenure { epoch, last: predecessor.last, digest: predecessor.digest });
        self.oldest = opening;
        Ok(true)
    }
}

/// Number 0 of the highest of `epochs` that has one.
async fn highest_opening(access: &Access, epochs: &[Epoch]) -> Result<Option<Opening>> {
    let read = epochs.iter().rev().map(|epoch| access.opening(*epoch));
    let mut openings = stream::iter(read).buffered(4);
    while let Some(opening) = openings.next().await {
        if let Some(opening) = opening? {
            return Ok(Some(opening));
        }
    }
    Ok(None)
}

/// The last number of the newest epoch: the end of the gapless run, or what stands before an END.
async fn find_head(access: &Access, opening: &Opening) -> Result<Head> {
    let epoch = opening.epoch;
    let merged = access.merged(epoch).await?;
    let end = merged.iter().map(|range| range.to).max();
    let tail = access.plain(epoch, end, true).await?;
    let first = end.map_or(0, |end| end.saturating_add(1));
    if tail.first().is_none_or(|plain| plain.number != first) {
        // The newest object of an open epoch is never merged, so a tail there must be.
        return Err(access.missing(epoch, first).during(format!(
            "the store's list of {} begins too late: {} is not in it",
            access.stream.log_prefix(epoch),
            access.stream.log(epoch, first)
        )));
    }
    let gapless = tail.iter().zip(first..).take_while(|(plain, number)| plain.number == *number);
    let run: Vec<Plain> = gapless.map(|(plain, _)| *plain).collect();
    let small = run.iter().filter(|plain| plain.size <= END_MAX && plain.number > 0);
    let mut fronts =
        stream::iter(small.map(|plain| async { (plain.number, access.front(epoch, plain.number).await) }))
            .buffered(IN_FLIGHT);
    let mut last = run.last().map_or(first, |plain| plain.number);
    while let Some((number, front)) = fronts.next().await {
        let front = front?.ok_or_else(|| access.missing(epoch, number))?;
        if matches!(front.front, Front::End(_)) {
            last = number.saturating_sub(1);
            break;
        }
    }
    if last == 0 {
        return Ok(Head { at: (epoch, 0), digest: opening.digest, header: opening.header.clone() });
    }
    if end == Some(last) {
        return Err(Error::corrupt(format!(
            "{} is an END right behind a merged object: the newest object of an open epoch is never merged",
            access.stream.log(epoch, first)
        )));
    }
    let front = access.front(epoch, last).await?.ok_or_else(|| access.missing(epoch, last))?;
    match front.front {
        Front::Data(header) => Ok(Head { at: (epoch, last), digest: front.digest, header }),
        Front::End(_) => Err(Error::corrupt(format!("{} is an END of data size", access.id(epoch, last)))),
    }
}
