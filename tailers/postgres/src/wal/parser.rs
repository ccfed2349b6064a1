//! A push parser over the bytes of one timeline: finds records by page headers and understands the few
//! that matter. It knows its position, so it can begin anywhere and be fed in any chunks.
//!
//! Invariants: the same bytes in any chunking give the same finds; it never fails: bytes that make no sense
//! are reported as [`Found`] damage and it finds its way again at the next page. Memory is bounded by the
//! longest record head it looks into (1 MiB).

use serde::{Deserialize, Serialize};

use super::{
    Lsn, SegmentSize,
    page::{HEADER, LONG_HEADER, PAGE, PageHeader},
    record::{self, Entry, HEAD},
};

/// Something found. `begin` is where the record begins, `end` the position after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub begin: Lsn,
    pub end: Lsn,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Entry(Entry),
    /// No WAL at `begin`, and why; goes on at the next page.
    Damage(String),
}

/// Where a parser begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// A record begins there (perhaps after a page header).
    Record,
    /// Anywhere: the next page header shows the way.
    Anywhere,
}

/// A record of which the first bytes were seen; what a cursor keeps of one that is not whole yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    begin: u64,
    /// 0 while the length is not known.
    total: u32,
    got: u32,
    head: Vec<u8>,
}

/// What a parser must remember from one start to the next, at a record's end or at a page's start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    open: Option<Open>,
    /// Bytes still to pass of a record whose head was not seen.
    passing: u32,
    /// Padding behind a switch ends there.
    padding: Option<u64>,
    lost: bool,
    newest_xid: Option<u64>,
    major: u32,
}

#[derive(Clone, Debug)]
enum State {
    /// Until the next page.
    Lost,
    /// Padding behind a switch, up to the end of the segment.
    Padding(Lsn),
    /// Where the next record begins, after alignment.
    Between,
    /// Inside a record whose head was not seen: bytes left.
    Passing(u32),
    Inside(Open),
}

/// See the module page.
#[derive(Clone, Debug)]
pub struct Parser {
    position: Lsn,
    segment: SegmentSize,
    state: State,
    /// The page header being read, when in one.
    header: Vec<u8>,
    /// Bytes of the header still to come; 0 outside of headers.
    header_left: usize,
    /// End of the newest whole record.
    boundary: Lsn,
    newest_xid: Option<u64>,
    major: u32,
}

impl Memory {
    /// Nothing is known but that the next page header shows the way.
    pub fn lost() -> Self {
        Self { lost: true, ..Self::default() }
    }
    /// The same server's ids and version, at the beginning of a record.
    pub fn between(&self) -> Self {
        Self { newest_xid: self.newest_xid, major: self.major, ..Self::default() }
    }
    pub fn with_newest_xid_of(self, other: &Self) -> Self {
        Self { newest_xid: other.newest_xid, ..self }
    }
    pub fn with_newest_xid(mut self, xid: u64) -> Self {
        self.newest_xid = Some(xid);
        self
    }
}

impl Parser {
    pub fn new(position: Lsn, start: Start, segment: SegmentSize) -> Self {
        let state = match start {
            Start::Record => State::Between,
            Start::Anywhere => State::Lost,
        };
        Self {
            position,
            segment,
            state,
            header: Vec::with_capacity(LONG_HEADER),
            header_left: 0,
            boundary: position,
            newest_xid: None,
            major: 0,
        }
    }

    /// Goes on where `memory` was taken, at `position`.
    pub fn resume(position: Lsn, segment: SegmentSize, memory: &Memory) -> Self {
        let state = match memory {
            Memory { lost: true, .. } => State::Lost,
            Memory { padding: Some(until), .. } => State::Padding(Lsn(*until)),
            Memory { open: Some(open), .. } => State::Inside(open.clone()),
            Memory { passing, .. } if *passing > 0 => State::Passing(*passing),
            _ => State::Between,
        };
        let newest_xid = memory.newest_xid;
        Self { state, newest_xid, major: memory.major, ..Self::new(position, Start::Record, segment) }
    }

    /// What to keep for [`Self::resume`]; only exact outside of page headers.
    pub fn memory(&self) -> Memory {
        let mut memory = Memory { newest_xid: self.newest_xid, major: self.major, ..Memory::default() };
        match &self.state {
            State::Lost => memory.lost = true,
            State::Padding(until) => memory.padding = Some(until.0),
            State::Between => {}
            State::Passing(left) => memory.passing = *left,
            State::Inside(open) => memory.open = Some(open.clone()),
        }
        memory
    }

    /// What to keep for [`Self::resume`] at [`Self::boundary`].
    pub fn memory_at_boundary(&self) -> Memory {
        if self.boundary == self.position && self.header_left == 0 {
            self.memory()
        } else {
            Memory { newest_xid: self.newest_xid, major: self.major, ..Memory::default() }
        }
    }

    /// The next byte to be pushed lies there.
    pub fn position(&self) -> Lsn {
        self.position
    }
    /// End of the newest whole record, or a place in the padding behind one (or where the parser began).
    pub fn boundary(&self) -> Lsn {
        self.boundary
    }
    /// Takes the bytes at [`Self::position`] and adds what they complete to `found`.
    pub fn push(&mut self, mut bytes: &[u8], found: &mut Vec<Found>) {
        while !bytes.is_empty() {
            let used = self.step(bytes, found).max(1);
            bytes = bytes.get(used..).unwrap_or_default();
        }
        self.settle_boundary();
    }

    fn page_left(&self) -> usize {
        (PAGE - self.position.0 % PAGE) as usize
    }

    fn advance(&mut self, bytes: usize) -> usize {
        self.position = self.position.saturating_add(bytes as u64);
        bytes
    }

    /// Consumes at least one byte.
    fn step(&mut self, bytes: &[u8], found: &mut Vec<Found>) -> usize {
        if let State::Padding(until) = self.state {
            let left = usize::try_from(until.since(self.position)).unwrap_or(usize::MAX);
            let used = self.advance(left.min(bytes.len()));
            if self.position >= until {
                self.state = State::Between;
                self.boundary = self.position;
            }
            return used;
        }
        if self.header_left > 0 || self.position.0.is_multiple_of(PAGE) {
            return self.header(bytes, found);
        }
        match &mut self.state {
            State::Lost => self.advance(self.page_left().min(bytes.len())),
            State::Between => {
                let pad = self.position.aligned().since(self.position) as usize;
                if pad > 0 {
                    return self.advance(pad.min(bytes.len()));
                }
                self.boundary = self.position;
                if let Some(record) = self.whole(bytes) {
                    let begin = self.position;
                    let used = self.advance(record.len());
                    self.close(begin, record, found);
                    return used;
                }
                self.state = State::Inside(Open { begin: self.position.0, ..Open::default() });
                self.inside(bytes, found)
            }
            State::Passing(left) => {
                let take = (*left as usize).min(bytes.len()).min((PAGE - self.position.0 % PAGE) as usize);
                *left -= take as u32;
                if *left == 0 {
                    self.state = State::Between;
                }
                self.advance(take)
            }
            State::Inside(_) => self.inside(bytes, found),
            State::Padding(_) => self.advance(bytes.len()),
        }
    }

    fn header(&mut self, bytes: &[u8], found: &mut Vec<Found>) -> usize {
        if self.header_left == 0 {
            self.header.clear();
            self.header_left = HEADER;
        }
        let take = self.header_left.min(bytes.len());
        self.header.extend_from_slice(bytes.get(..take).unwrap_or_default());
        self.header_left -= take;
        self.advance(take);
        if self.header_left > 0 {
            return take;
        }
        if self.header.len() == HEADER && PageHeader::length(&self.header) == Some(LONG_HEADER) {
            self.header_left = LONG_HEADER - HEADER;
            return take;
        }
        let at = Lsn(self.position.0.saturating_sub(self.header.len() as u64));
        match PageHeader::parse(&self.header, at) {
            Ok(header) => self.enter(header, at, found),
            Err(why) => self.damage(at, why, found),
        }
        take
    }

    /// Matches a page header with what we believed.
    fn enter(&mut self, header: PageHeader, at: Lsn, found: &mut Vec<Found>) {
        self.major = header.major;
        if let Some(long) = header.long
            && long.segment != self.segment
        {
            return self.damage(at, format!("segments are {} bytes long there", long.segment.bytes()), found);
        }
        let expected = match &self.state {
            State::Inside(open) => open.total.saturating_sub(open.got),
            State::Passing(left) => *left,
            _ => 0,
        };
        let fresh = match &self.state {
            State::Lost => true,
            _ if header.remaining == expected => return,
            State::Inside(_) | State::Passing(_) if header.overwrites => true,
            _ => {
                let why = format!("{} bytes of a record go on there, {expected} should", header.remaining);
                self.note(at, why, found);
                true
            }
        };
        if fresh {
            self.state = match header.remaining {
                0 => State::Between,
                left => State::Passing(left),
            };
        }
    }

    fn note(&self, at: Lsn, why: String, found: &mut Vec<Found>) {
        found.push(Found { begin: at, end: self.position, what: What::Damage(why) });
    }

    fn damage(&mut self, at: Lsn, why: String, found: &mut Vec<Found>) {
        self.note(at, why, found);
        self.state = State::Lost;
    }

    /// The record that begins here, if it lies whole in these bytes and this page: nearly all do, and are passed
    /// without a copy.
    fn whole<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let total = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
        bytes.get(..total).filter(|_| (HEAD..=self.page_left()).contains(&total))
    }

    fn inside(&mut self, bytes: &[u8], found: &mut Vec<Found>) -> usize {
        let page_left = self.page_left();
        let State::Inside(open) = &mut self.state else { return 0 };
        let mut want = match open.head.len() {
            0..4 => 4,
            4..HEAD => HEAD,
            _ => record::wanted(&open.head, open.total as usize),
        };
        if open.total > 0 {
            want = want.min(open.total as usize);
        }
        let left = match open.total {
            0 => 4usize.saturating_sub(open.got as usize),
            total => total.saturating_sub(open.got) as usize,
        };
        let mut take = left.min(page_left).min(bytes.len());
        if open.head.len() < want {
            take = take.min(want - open.head.len());
            open.head.extend_from_slice(bytes.get(..take).unwrap_or_default());
        }
        open.got = open.got.saturating_add(take as u32);
        self.position = self.position.saturating_add(take as u64);
        if open.total == 0 && open.got >= 4 {
            open.total = open.head.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            if (open.total as usize) < HEAD {
                let (begin, total) = (Lsn(open.begin), open.total);
                self.damage(begin, format!("a record of {total} bytes begins there"), found);
                return take;
            }
        }
        if open.total > 0 && open.got >= open.total {
            let open = std::mem::take(open);
            self.close(Lsn(open.begin), &open.head, found);
        }
        take
    }

    /// A record is whole. `head` shows at least what [`record::wanted`] asks for.
    fn close(&mut self, begin: Lsn, head: &[u8], found: &mut Vec<Found>) {
        self.state = State::Between;
        let end = self.position.aligned();
        let mut entry = record::parse(head, self.major);
        match &mut entry {
            Some(Entry::Checkpoint { next_xid }) => self.newest_xid = Some(*next_xid),
            Some(Entry::Commit { xid, .. }) => *xid = self.widen(*xid),
            Some(Entry::Switch) => {
                let next = self.segment.number(Lsn(end.0.saturating_sub(1))).saturating_add(1);
                if let Some(until) = self.segment.start(next)
                    && until > self.position
                {
                    self.state = State::Padding(until);
                }
            }
            _ => {}
        }
        if matches!(self.state, State::Padding(_)) {
            self.boundary = self.position;
        }
        if let Some(entry) = entry {
            found.push(Found { begin, end, what: What::Entry(entry) });
        }
    }

    /// Transaction ids in records are 32 bits wide and wrap; the newest one tells the rest.
    fn widen(&mut self, xid: u64) -> u64 {
        let Some(newest) = self.newest_xid else { return xid };
        let ahead = (xid as u32).wrapping_sub(newest as u32) as i32;
        let wide = newest.saturating_add_signed(i64::from(ahead));
        self.newest_xid = Some(newest.max(wide));
        wide
    }

    fn settle_boundary(&mut self) {
        let between = matches!(self.state, State::Between) && self.position == self.position.aligned();
        if self.header_left == 0 && (between || matches!(self.state, State::Padding(_))) {
            self.boundary = self.position;
        }
    }
}
