//! Reads marks and record boundaries of one line from a view, in windows: never all marks in memory.

use std::collections::VecDeque;

use holdfast_core::{Error, Mark, MarkKind, Result, Span, Timestamp, View};

use super::{
    boundary::{Entries, Entry},
    timelines::{Line, Stretch, number},
};
use crate::wal::{Lsn, PAGE};

/// WAL read to find a record's boundary: grows from the first to the last of these.
const WALK: [u64; 4] = [64 << 10, 1 << 20, 8 << 20, 64 << 20];

/// Zeros read at once.
const STEP: u64 = 16 << 20;

/// One line of timelines as a view shows it.
pub struct Search<'a> {
    pub view: &'a dyn View,
    pub line: &'a Line,
    /// In the order of the line.
    samples: Vec<Known>,
}

/// What a sample says of one timeline of the line: no mark before `position` is newer than `time`.
#[derive(Clone, Copy)]
struct Known {
    part: usize,
    position: u64,
    time: Timestamp,
    /// The sample lies beyond the switch, so its time may be of what the line does not hold.
    clipped: bool,
}

impl<'a> Search<'a> {
    pub fn new(view: &'a dyn View, line: &'a Line) -> Self {
        let mut samples = Vec::new();
        for sample in &view.catalog().samples {
            let here = |part: &super::timelines::Part| number(sample.place.branch) == Some(part.timeline);
            let Some(at) = line.parts.iter().position(here) else { continue };
            let Some(part) = line.parts.get(at) else { continue };
            let position = sample.place.position.min(part.to.map_or(u64::MAX, |to| to.0));
            if position > part.from.0 {
                let clipped = position < sample.place.position;
                samples.push(Known { part: at, position, time: sample.time, clipped });
            }
        }
        samples.sort_unstable_by_key(|known| (known.part, known.position, known.time));
        Self { view, line, samples }
    }

    /// Where the first mark newer than `most` may begin at the earliest, from `from` on. A timeline is passed
    /// only when samples vouch for all of it.
    fn passed(&self, from: u64, most: Timestamp) -> u64 {
        let mut at = from;
        for (number, part) in self.line.parts.iter().enumerate() {
            let old = |known: &&Known| known.part == number && known.time <= most;
            at = at.max(self.samples.iter().rfind(old).map_or(0, |known| known.position));
            if part.to.is_none_or(|to| at < to.0) {
                break;
            }
        }
        at
    }

    /// Marks that end in `(from, to]` of the line, in order.
    pub fn marks(&self, from: u64, to: u64) -> MarkScan<'a> {
        MarkScan {
            view: self.view,
            spans: self.line.path(from, to).into(),
            after: from,
            to,
            ready: Vec::new().into_iter(),
        }
    }

    /// The first mark of a stretch that `wanted` likes. `at_most` tells the newest time that may be passed
    /// over unread: `wanted` must like no mark that is not newer.
    pub async fn first(
        &self,
        stretch: Stretch,
        at_most: Option<Timestamp>,
        mut wanted: impl FnMut(&Mark) -> bool + Send,
    ) -> Result<Option<Mark>> {
        let from = at_most.map_or(stretch.from, |most| self.passed(stretch.from, most));
        let mut scan = self.marks(from, stretch.to);
        while let Some(mark) = scan.next().await? {
            if wanted(&mark) {
                return Ok(Some(mark));
            }
        }
        Ok(None)
    }

    /// The last mark that ends in `(from, to]` of the line and that `wanted` likes; reads windows backwards.
    pub async fn last(
        &self,
        from: u64,
        to: u64,
        wanted: impl FnMut(&Mark) -> bool + Send,
    ) -> Result<Option<Mark>> {
        self.last_unless(from, to, wanted, |_| false).await
    }

    /// As [`Self::last`]; `hopeless` is asked with the last commit of each window that held nothing wanted, and ends
    /// the search.
    pub async fn last_unless(
        &self,
        from: u64,
        to: u64,
        mut wanted: impl FnMut(&Mark) -> bool + Send,
        hopeless: impl Fn(&Mark) -> bool + Send,
    ) -> Result<Option<Mark>> {
        let mut end = to;
        while end > from {
            let window = self.samples.iter().rfind(|known| known.position < end);
            let begin = window.map_or(from, |known| known.position).max(from);
            let mut scan = self.marks(begin, end);
            let (mut found, mut newest) = (None, None);
            while let Some(mark) = scan.next().await? {
                if wanted(&mark) {
                    found = Some(mark);
                } else if matches!(mark.kind, MarkKind::Commit { .. }) {
                    newest = Some(mark);
                }
            }
            if found.is_some() {
                return Ok(found);
            }
            if newest.is_some_and(|mark| hopeless(&mark)) {
                return Ok(None);
            }
            end = begin;
        }
        Ok(None)
    }

    /// Newest time that a sample or a commit within the stretch tells.
    pub async fn known_until(&self, stretch: Stretch) -> Result<Option<Timestamp>> {
        let within = |known: &&Known| !known.clipped && (stretch.from..=stretch.to).contains(&known.position);
        let mut newest = self.samples.iter().filter(within).map(|known| known.time).max();
        let from = self.samples.iter().rfind(within).map_or(stretch.from, |known| known.position);
        let mut scan = self.marks(from, stretch.to);
        while let Some(mark) = scan.next().await? {
            newest = newest.max(Some(mark.time));
        }
        Ok(newest)
    }

    /// WAL of the line, `[from, to)`.
    pub async fn wal(&self, from: u64, to: u64) -> Result<Vec<u8>> {
        let (all, broken) = self.readable(from, to).await;
        broken.map_or(Ok(all), Err)
    }

    /// As [`Self::wal`], up to the first byte that cannot be read, and why it cannot.
    async fn readable(&self, from: u64, to: u64) -> (Vec<u8>, Option<Error>) {
        let mut all = Vec::with_capacity(usize::try_from(to.saturating_sub(from)).unwrap_or(0).min(64 << 20));
        for span in self.line.path(from, to) {
            if let Err(broken) = read_log(self.view, span, &mut all).await {
                return (all, Some(broken));
            }
        }
        (all, None)
    }

    /// The last whole record that ends at or before `limit`. `known` is a place at or before which a record
    /// begins (the start of the replay); nothing before it is read.
    pub async fn last_record(&self, known: u64, limit: u64, segment: u64) -> Result<Option<Entry>> {
        let end = self.without_padding(known, limit, segment).await?;
        for walk in WALK {
            let page = end.saturating_sub(walk) / PAGE * PAGE;
            let from = page.max(known);
            let wal = self.wal(from, end).await?;
            if let Some(entry) = Entries::new(&wal, from, segment).last() {
                return Ok(Some(Entry { end: entry.end.min(limit), ..entry }));
            }
            if from == known {
                return Ok(None);
            }
        }
        Err(too_long(limit))
    }

    /// A switch leaves the rest of its segment, up to 1 GiB, as zeros: `limit` without most of them.
    async fn without_padding(&self, known: u64, limit: u64, segment: u64) -> Result<u64> {
        let mut end = limit;
        while end > known && limit - end < segment {
            let from = (end.saturating_sub(STEP) / PAGE * PAGE).max(known);
            if let Some(last) = self.wal(from, end).await?.iter().rposition(|byte| *byte != 0) {
                // A record's own end may be zeros, but no page that it reaches is.
                let page = (from + last as u64) / PAGE * PAGE;
                return Ok(page.saturating_add(PAGE).min(end));
            }
            end = from;
        }
        Ok(end)
    }

    /// The first whole record that begins at or after `position` and ends at or before `to`.
    pub async fn record_from(
        &self,
        known: u64,
        position: u64,
        to: u64,
        segment: u64,
    ) -> Result<Option<Entry>> {
        let mut from = (position / PAGE * PAGE).max(known);
        for walk in WALK {
            let end = position.max(from).saturating_add(walk).min(to);
            if end <= from {
                return Ok(None);
            }
            // What lies behind the record is looked at, not needed: it may be damaged.
            let (wal, broken) = self.readable(from, end).await;
            let mut entries = Entries::new(&wal, from, segment);
            if let Some(entry) = entries.find(|entry| entry.begin >= position) {
                return Ok(Some(Entry { end: entry.end.min(to), ..entry }));
            }
            if let Some(broken) = broken {
                return Err(broken);
            }
            if end == to {
                return Ok(None);
            }
            if entries.position() > end {
                from = entries.position();
            }
        }
        Err(too_long(position))
    }
}

fn too_long(at: u64) -> Error {
    Error::unreachable(format!(
        "no WAL record boundary was found within 64 MiB of {}: choose a moment by time or by --xid instead",
        Lsn(at)
    ))
}

/// Appends the log of `span`; an error when the view holds less.
pub async fn read_log(view: &dyn View, span: Span, out: &mut Vec<u8>) -> Result<()> {
    let mut at = span.from;
    while at < span.to {
        let chunks = view.log(Span { from: at, ..span }).await?;
        let before = at;
        for chunk in chunks {
            if chunk.span.branch != span.branch
                || chunk.span.from > at
                || chunk.span.len() != chunk.bytes.len() as u64
            {
                return Err(Error::bug(format!(
                    "log of {:?} came where {} was asked for",
                    chunk.span,
                    Lsn(at)
                )));
            }
            let skip = usize::try_from(at - chunk.span.from).unwrap_or(usize::MAX);
            let want = usize::try_from(span.to - at).unwrap_or(usize::MAX);
            let part = chunk.bytes.get(skip..).unwrap_or_default();
            let part = part.get(..want.min(part.len())).unwrap_or_default();
            out.extend_from_slice(part);
            at += part.len() as u64;
        }
        if at == before {
            return Err(Error::unreachable(format!(
                "WAL of timeline {} from {} to {} is not in the repository",
                span.branch.0,
                Lsn(at),
                Lsn(span.to)
            )));
        }
    }
    Ok(())
}

/// See [`Search::marks`].
pub struct MarkScan<'a> {
    view: &'a dyn View,
    spans: VecDeque<Span>,
    /// Marks up to here were yielded.
    after: u64,
    to: u64,
    ready: std::vec::IntoIter<Mark>,
}

impl MarkScan<'_> {
    pub async fn next(&mut self) -> Result<Option<Mark>> {
        loop {
            for mark in self.ready.by_ref() {
                if mark.place.position > self.after && mark.place.position <= self.to {
                    self.after = mark.place.position;
                    return Ok(Some(mark));
                }
            }
            let Some(span) = self.spans.front_mut() else { return Ok(None) };
            let end = span.to;
            let read = self.view.marks(*span).await?;
            let branch = span.branch;
            if read.covered.is_empty() || read.covered.to <= span.from || read.covered.to >= end {
                self.spans.pop_front();
            } else {
                span.from = read.covered.to;
            }
            let mut marks = read.marks;
            marks.retain(|mark| mark.place.branch == branch && mark.place.position <= end);
            self.ready = marks.into_iter();
        }
    }
}
