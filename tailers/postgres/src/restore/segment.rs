//! Files that Postgres asks for while it recovers, put together from byte ranges: segments of WAL and timeline
//! histories.
//!
//! Invariants: a segment has its full size, whatever is known of it, and zeros stand for what is not (B2); a segment
//! of a timeline begins with its parent's bytes up to the switch, as servers write it; «not there» is said only of
//! what lies wholly beyond what the path holds, and everything else that cannot be had is an error (E1).

use std::{
    fs::File,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use holdfast_core::{Bytes, Error, Result, Span, View, task};

use super::{
    journal::failed,
    search::read_log,
    timelines::{Timelines, number},
};
use crate::wal::{Lsn, PAGE, SegmentSize, major};

/// Log asked of the view at once: more than a segment, since each question costs several round trips to the store.
const READ: u64 = 32 << 20;
/// Page headers: `access/xlog_internal.h`.
const LONG: u16 = 2;

/// What a name asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Segment {
        timeline: u32,
        number: u64,
    },
    History {
        timeline: u32,
    },
    /// Backup labels, partial segments: nothing that recovery needs.
    Other,
}

impl Asked {
    pub fn parse(name: &str, size: SegmentSize) -> Self {
        if let Some((timeline, number)) = size.parse_name(name) {
            return Self::Segment { timeline, number };
        }
        let digits = name.strip_suffix(".history").filter(|digits| digits.len() == 8);
        match digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
            Some(timeline) => Self::History { timeline },
            None => Self::Other,
        }
    }
}

/// What a restore's WAL is made from.
pub struct SegmentSource {
    view: Arc<dyn View>,
    /// One span a timeline, each beginning where the one before ends.
    path: Vec<Span>,
    size: SegmentSize,
    identity: u64,
    version: u32,
    timelines: Timelines,
    /// What was read last; the next segment mostly begins in it.
    read: Mutex<Option<(Span, Bytes)>>,
}

impl SegmentSource {
    pub fn new(
        view: Arc<dyn View>,
        path: Vec<Span>,
        size: SegmentSize,
        identity: u64,
        version: u32,
    ) -> Result<Self> {
        let timelines = Timelines::read(view.catalog(), &view.heads())?;
        Ok(Self { view, path, size, identity, version, timelines, read: Mutex::default() })
    }

    pub fn size(&self) -> SegmentSize {
        self.size
    }

    /// First position behind all that can be served.
    pub fn end(&self) -> u64 {
        self.path.last().map_or(0, |span| span.to)
    }

    pub fn history(&self, timeline: u32) -> Option<Bytes> {
        self.timelines.file(timeline)
    }

    /// The timeline under whose name recovery asks for segment `number`: the newest that has begun in it.
    pub fn timeline_of(&self, segment: u64) -> Option<u32> {
        let holds = |span: &&Span| {
            self.size.number(Lsn(span.from)) <= segment
                && self.size.number(Lsn(span.to.saturating_sub(1))) >= segment
        };
        self.path.iter().rev().find(holds).and_then(|span| number(span.branch))
    }

    /// The spans that make up a segment, oldest first; empty when it is not there.
    fn parts(&self, timeline: u32, segment: u64) -> Vec<Span> {
        let Some(at) = self.path.iter().position(|span| number(span.branch) == Some(timeline)) else {
            return Vec::new();
        };
        let from = self.size.start(segment).unwrap_or(Lsn(u64::MAX)).0;
        let to = from.saturating_add(self.size.bytes());
        let clip = |span: &Span| Span { from: span.from.max(from), to: span.to.min(to), ..*span };
        let parts: Vec<Span> =
            self.path.iter().take(at + 1).map(clip).filter(|span| span.from < span.to).collect();
        let own = parts.last().is_some_and(|span| number(span.branch) == Some(timeline));
        if own { parts } else { Vec::new() }
    }

    /// Writes a whole segment to `to`, which must not exist; false when it is not there.
    pub async fn write(&self, timeline: u32, segment: u64, to: &Path) -> Result<bool> {
        let parts = self.parts(timeline, segment);
        let Some(start) = self.size.start(segment).filter(|_| !parts.is_empty()) else {
            // Not the end of WAL but before its beginning: a server that goes on from there would lose what lies between.
            return match self.path.first() {
                Some(first) if segment < self.size.number(Lsn(first.from)) => {
                    Err(Error::unreachable(format!(
                        "segment {} lies before {}, where the WAL of this restore begins: was backup_label removed?",
                        self.size.file_name(timeline, segment),
                        Lsn(first.from)
                    )))
                }
                _ => Ok(false),
            };
        };
        let (path, length) = (to.to_owned(), self.size.bytes());
        let file = task::blocking(move || {
            let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
            let made = file.and_then(|file| file.set_len(length).map(|()| file));
            made.map_err(|cause| failed("written", &path, cause))
        })
        .await??;
        let file = Arc::new(file);
        for part in parts {
            let mut at = part.from;
            while at < part.to {
                let bytes = self.log(Span { from: at, ..part }).await?;
                let (file, path, offset) = (Arc::clone(&file), to.to_owned(), at - start.0);
                at += bytes.len() as u64;
                let wrote = task::blocking(move || file.write_all_at(&bytes, offset)).await?;
                wrote.map_err(|cause| failed("written", &path, cause))?;
            }
        }
        for (position, header) in self.first_headers(start.0) {
            let wrote = file.write_all_at(&header, position - start.0);
            wrote.map_err(|cause| failed("written", to, cause))?;
        }
        Ok(true)
    }

    /// Log from `wanted.from` on, not beyond its end.
    async fn log(&self, wanted: Span) -> Result<Bytes> {
        let kept = self.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(bytes) = kept.and_then(|(span, bytes)| within(span, &bytes, wanted)) {
            return Ok(bytes);
        }
        let held =
            |span: &&Span| span.branch == wanted.branch && span.from <= wanted.from && wanted.to <= span.to;
        let end = self.path.iter().find(held).map_or(wanted.to, |span| span.to);
        let ask = Span { to: end.min(wanted.from.saturating_add(READ)), ..wanted };
        let mut bytes = Vec::new();
        match read_log(&*self.view, ask, &mut bytes).await {
            // What lies before the trouble is an answer; asked again, the next one is the error.
            Err(error) if bytes.is_empty() => return Err(error),
            _ => {}
        }
        let (span, bytes) =
            (Span { to: ask.from.saturating_add(bytes.len() as u64), ..ask }, Bytes::from(bytes));
        let answer = within(span, &bytes, wanted);
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some((span, bytes));
        answer.ok_or_else(|| Error::bug("log was read that was not asked for"))
    }

    /// Where the path begins within a segment, the server still reads the header of the segment's first page and of
    /// the page in which it begins: both are made here.
    fn first_headers(&self, start: u64) -> Vec<(u64, Vec<u8>)> {
        let Some(first) = self.path.first() else { return Vec::new() };
        if first.from <= start || first.from >= start.saturating_add(self.size.bytes()) {
            return Vec::new();
        }
        let page = first.from - first.from % PAGE;
        let mut headers = vec![(start, self.header(start, first, true))];
        if page != start && page != first.from {
            headers.push((page, self.header(page, first, false)));
        }
        headers
    }

    fn header(&self, position: u64, first: &Span, long: bool) -> Vec<u8> {
        let magic = (0xd000..0xd200).find(|magic| major(*magic) == Some(self.version / 10_000)).unwrap_or(0);
        let mut out = Vec::with_capacity(40);
        out.extend(magic.to_le_bytes());
        out.extend(if long { LONG } else { 0 }.to_le_bytes());
        out.extend(number(first.branch).unwrap_or(1).to_le_bytes());
        out.extend(position.to_le_bytes());
        // No record goes on from an earlier page; padding.
        out.extend(0u64.to_le_bytes());
        if long {
            out.extend(self.identity.to_le_bytes());
            out.extend(u32::from(self.size).to_le_bytes());
            out.extend((PAGE as u32).to_le_bytes());
        }
        out
    }
}

/// The part of `bytes`, which lie at `span`, from `wanted.from` on; `None` when there is none.
fn within(span: Span, bytes: &Bytes, wanted: Span) -> Option<Bytes> {
    if span.branch != wanted.branch {
        return None;
    }
    let from = usize::try_from(wanted.from.checked_sub(span.from)?).ok()?;
    let to = usize::try_from(wanted.to.min(span.to).checked_sub(span.from)?).ok()?;
    (from < to && to <= bytes.len()).then(|| bytes.slice(from..to))
}

#[cfg(test)]
mod tests {
    use holdfast_core::Branch;
    use holdfast_testkit::MemoryView;

    use super::*;
    use crate::wal::PageHeader;

    const MIB: u64 = 1 << 20;

    fn span(timeline: u64, from: u64, to: u64) -> Span {
        Span { branch: Branch(timeline), from, to }
    }

    /// Timeline 1 up to 2.5 MiB, then timeline 2 up to 3.25 MiB; each byte tells its timeline.
    fn source() -> SegmentSource {
        let mut view = MemoryView::default();
        view.add_log(Branch(1), MIB + 9000, Bytes::from(vec![1; (3 * MIB - 9000) as usize]));
        view.add_log(Branch(2), 5 * MIB / 2, Bytes::from(vec![2; (3 * MIB / 4) as usize]));
        let path = vec![span(1, MIB + 9000, 5 * MIB / 2), span(2, 5 * MIB / 2, 13 * MIB / 4)];
        SegmentSource::new(Arc::new(view), path, SegmentSize::new(MIB).unwrap(), 77, 150_018).unwrap()
    }

    async fn segment(source: &SegmentSource, timeline: u32, number: u64) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("s");
        source.write(timeline, number, &to).await.unwrap().then(|| std::fs::read(&to).unwrap())
    }

    #[tokio::test]
    async fn segments_are_whole_and_hold_the_parents_bytes_up_to_the_switch() {
        let source = source();
        let half = MIB as usize / 2;
        let one = segment(&source, 1, 2).await.unwrap();
        assert!(
            one[..half].iter().all(|b| *b == 1) && one[half..].iter().all(|b| *b == 0),
            "cut at the switch"
        );
        let two = segment(&source, 2, 2).await.unwrap();
        assert!(two[..half].iter().all(|b| *b == 1) && two[half..].iter().all(|b| *b == 2));
        let last = segment(&source, 2, 3).await.unwrap();
        assert_eq!(last.len() as u64, MIB);
        assert!(last[..half / 2].iter().all(|b| *b == 2) && last[half / 2..].iter().all(|b| *b == 0));
        for (timeline, number) in [(1, 3), (2, 1), (2, 4), (3, 2)] {
            assert!(segment(&source, timeline, number).await.is_none(), "{timeline} {number}");
        }
        let folder = tempfile::tempdir().unwrap();
        let error = source.write(1, 0, &folder.path().join("s")).await.unwrap_err();
        assert!(error.to_string().contains("backup_label"), "{error}");
        let names: Vec<_> = (0..5).map(|number| source.timeline_of(number)).collect();
        assert_eq!(names, [None, Some(1), Some(2), Some(2), None]);
    }

    #[tokio::test]
    async fn the_first_segment_gets_the_headers_that_the_server_looks_at() {
        let one = segment(&source(), 1, 1).await.unwrap();
        let long = PageHeader::parse(&one, Lsn(MIB)).unwrap().long.unwrap();
        assert_eq!((long.system_identifier, long.segment.bytes()), (77, MIB));
        let page = PageHeader::parse(&one[8192..], Lsn(MIB + 8192)).unwrap();
        assert_eq!((page.timeline, page.remaining, page.major), (1, 0, 15));
        assert!(one[9000..].iter().all(|b| *b == 1));
    }

    #[tokio::test]
    async fn log_that_should_be_there_and_is_not_is_an_error() {
        let mut view = MemoryView::default();
        view.add_log(Branch(1), MIB, Bytes::from(vec![1; 100]));
        let size = SegmentSize::new(MIB).unwrap();
        let source =
            SegmentSource::new(Arc::new(view), vec![span(1, MIB, MIB + 101)], size, 7, 150_018).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let error = source.write(1, 1, &folder.path().join("s")).await.unwrap_err();
        assert!(error.to_string().contains("is not in the repository"), "{error}");
    }

    #[test]
    fn names_are_told_apart() {
        let size = SegmentSize::DEFAULT;
        assert_eq!(Asked::parse("000000020000000000000003", size), Asked::Segment { timeline: 2, number: 3 });
        assert_eq!(Asked::parse("0000000A.history", size), Asked::History { timeline: 10 });
        for other in ["000000010000000000000002.00000028.backup", "000000010000000000000002.partial", "x"] {
            assert_eq!(Asked::parse(other, size), Asked::Other, "{other}");
        }
    }
}
