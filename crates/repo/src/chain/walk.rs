//! Goes along a stream from any object on, over merged and plain ones and across epochs.

use std::collections::VecDeque;

use holdfast_core::{Act, Epoch, Error, Result};

use super::{
    At, Chain, Depth, IN_FLIGHT, MergedRange, Object, Plain,
    fetch::{self, Fetched, OpenMerged, STEP_BYTES},
};

/// What a walk meets.
#[derive(Debug)]
pub enum Found {
    Object(Box<Object>),
    /// Numbers `from` to `to` of an epoch cannot be read: why, and which object is to blame.
    Lost {
        epoch: Epoch,
        from: u64,
        to: u64,
        error: Error,
    },
}

impl Found {
    /// The object, or the error for who needs it.
    pub fn object(self) -> Result<Object> {
        match self {
            Self::Object(object) => Ok(*object),
            Self::Lost { error, .. } => Err(error),
        }
    }
}

/// Objects in stream order. Holds at most 16 MiB of sealed bytes, or one object.
pub struct Walk<'a> {
    chain: &'a Chain,
    at: Option<At>,
    until: At,
    depth: Depth,
    ready: VecDeque<Found>,
    /// Digest of the object before, when it was read.
    link: Option<[u8; 32]>,
    listed: VecDeque<Plain>,
    open: Option<(Epoch, OpenMerged)>,
    /// Merged objects that cannot be read; their originals may still be there.
    damaged: Vec<(Epoch, MergedRange, Option<Error>)>,
    /// Where something was not found and everything was listed again.
    again: Option<At>,
    /// Sealed bytes of one step.
    step_bytes: u64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(chain: &'a Chain, from: At, until: At, depth: Depth) -> Self {
        Self {
            chain,
            at: Some(from),
            until,
            depth,
            ready: VecDeque::new(),
            link: None,
            listed: VecDeque::new(),
            open: None,
            damaged: Vec::new(),
            again: None,
            step_bytes: STEP_BYTES,
        }
    }

    /// Reads no more than about `bytes` ahead.
    pub fn bounded(mut self, bytes: u64) -> Self {
        self.step_bytes = bytes.min(STEP_BYTES);
        self
    }

    /// # Errors
    /// `Unreachable` when the epoch is not part of the history; whatever the store says. Damage is no error
    /// here but a [`Found::Lost`].
    pub async fn next(&mut self) -> Result<Option<Found>> {
        while self.ready.is_empty() {
            let Some(at) = self.at else { return Ok(None) };
            self.fill(at).await?;
        }
        Ok(self.ready.pop_front().map(|found| self.check_link(found)))
    }

    /// As [`Self::next`], for who needs every object.
    pub async fn next_object(&mut self) -> Result<Option<Object>> {
        self.next().await?.map(Found::object).transpose()
    }

    fn check_link(&mut self, found: Found) -> Found {
        let Found::Object(object) = found else {
            self.link = None;
            return found;
        };
        let expected = self.link.replace(object.digest);
        if expected.is_none_or(|digest| digest == object.prelude.previous) {
            return Found::Object(object);
        }
        let id = object.id();
        let error = Error::corrupt(format!(
            "{id} does not follow the object before it: one of the two was swapped or rolled back"
        ));
        Found::Lost { epoch: id.epoch, from: id.number, to: id.number, error }
    }

    async fn fill(&mut self, at: At) -> Result<()> {
        let (epoch, number) = at;
        let Some(tenure) = self.chain.tenure(epoch).await? else {
            return Err(Error::unreachable(format!(
                "epoch {epoch} is not part of the history of {}: nobody took it over",
                self.chain.access.stream
            )));
        };
        let last = if self.until.0 == epoch { tenure.last.min(self.until.1) } else { tenure.last };
        if number > last || epoch > self.until.0 {
            let next = if epoch < self.until.0 { self.chain.next_tenure(epoch).await? } else { None };
            self.at = next.map(|tenure| (tenure.epoch, 0));
            self.listed.clear();
            return Ok(());
        }
        let afresh = self.again == Some(at);
        let ranges = self.chain.merged(epoch, afresh).await?;
        let sound =
            |range: &&MergedRange| !self.damaged.iter().any(|(of, bad, _)| *of == epoch && bad == *range);
        let covering = ranges.iter().filter(|range| fetch::covers(range, number)).filter(sound);
        match covering.max_by_key(|range| range.to).copied() {
            Some(range) => self.fill_merged(at, last, range).await,
            None => {
                let next_merged = ranges.iter().map(|range| range.from).filter(|from| *from > number).min();
                self.fill_plain(at, last, next_merged, afresh).await
            }
        }
    }

    async fn fill_merged(&mut self, at: At, last: u64, range: MergedRange) -> Result<()> {
        let (epoch, number) = at;
        let access = &self.chain.access;
        let known = self.open.take().filter(|(of, open)| *of == epoch && open.range == range);
        let open = match known {
            Some((_, open)) => Ok(Some(open)),
            None => fetch::open_merged(access, epoch, range, self.depth).await,
        };
        let open = match open {
            Ok(Some(open)) => open,
            Ok(None) => return self.not_found(at, range),
            Err(error) if error.act() == Act::Corrupt => {
                self.damaged.push((epoch, range, Some(error)));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let to = range.to.min(last);
        let Some(fetched) = open.fetch(access, epoch, number, to, self.depth, self.step_bytes).await? else {
            return self.not_found(at, range);
        };
        self.open = Some((epoch, open));
        let mut next = number;
        for fetched in fetched {
            match fetched {
                Fetched::Object(object) => self.ready.push_back(Found::Object(object)),
                Fetched::Damaged(error) => {
                    self.ready.push_back(Found::Lost { epoch, from: next, to: next, error });
                }
                Fetched::Gone => return self.not_found((epoch, next), range),
            }
            next += 1;
        }
        self.at = Some((epoch, next));
        Ok(())
    }

    /// A merged object that was listed is gone: a larger one may have taken its place.
    fn not_found(&mut self, at: At, range: MergedRange) -> Result<()> {
        if self.again.replace(at) == Some(at) {
            let access = &self.chain.access;
            let name = access.stream.merged(at.0, range.from, range.to);
            let error = Error::corrupt(format!("{name} is missing from {}", access.sink.address()));
            self.damaged.push((at.0, range, Some(error)));
        }
        Ok(())
    }

    async fn fill_plain(&mut self, at: At, last: u64, next_merged: Option<u64>, afresh: bool) -> Result<()> {
        let (epoch, number) = at;
        let access = &self.chain.access;
        while self.listed.front().is_some_and(|plain| plain.number < number) {
            self.listed.pop_front();
        }
        if self.listed.is_empty() || afresh {
            self.listed = access.plain(epoch, number.checked_sub(1), false).await?.into();
        }
        let mut run = Vec::new();
        let mut bytes = 0;
        for (plain, expected) in self.listed.iter().zip(number..=last) {
            bytes += if self.depth == Depth::Whole { plain.size } else { 0 };
            let end = plain.number != expected
                || next_merged == Some(expected)
                || run.len() == 4 * IN_FLIGHT
                || (!run.is_empty() && bytes > self.step_bytes);
            if end {
                break;
            }
            run.push(*plain);
        }
        if run.is_empty() {
            if self.again.replace(at) != Some(at) {
                return Ok(());
            }
            let beyond = self.listed.front().map(|plain| plain.number).into_iter().chain(next_merged).min();
            let to = beyond.map_or(last, |beyond| beyond.saturating_sub(1).min(last)).max(number);
            self.lose(epoch, number, to);
            return Ok(());
        }
        let fetched = fetch::plain(access, epoch, &run, self.depth).await?;
        for (plain, fetched) in run.iter().zip(fetched) {
            match fetched {
                Fetched::Object(object) => self.ready.push_back(Found::Object(object)),
                Fetched::Damaged(error) => {
                    let number = plain.number;
                    self.ready.push_back(Found::Lost { epoch, from: number, to: number, error });
                }
                Fetched::Gone => {
                    let at = (epoch, plain.number);
                    self.listed.clear();
                    self.at = Some(at);
                    if self.again.replace(at) == Some(at) {
                        self.lose(epoch, plain.number, plain.number);
                    }
                    return Ok(());
                }
            }
            self.at = Some((epoch, plain.number + 1));
        }
        Ok(())
    }

    fn lose(&mut self, epoch: Epoch, from: u64, to: u64) {
        let blamed =
            self.damaged.iter_mut().find(|(of, range, _)| *of == epoch && fetch::covers(range, from));
        let error = blamed
            .and_then(|(_, _, error)| error.take())
            .unwrap_or_else(|| self.chain.access.missing(epoch, from));
        self.ready.push_back(Found::Lost { epoch, from, to, error });
        self.at = Some((epoch, to + 1));
    }
}
