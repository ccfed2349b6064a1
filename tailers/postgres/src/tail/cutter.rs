//! Cuts the received log into stream items: at record ends, with the marks of the records that end there.
//!
//! Pure. Invariants: cuts join without overlap or hole; every cut ends at a record end or at a page's start,
//! where a cursor can be taken; what is held back (the beginning of a record) stays below 64 KiB and a page.

use std::collections::VecDeque;

use holdfast_core::{Bytes, BytesMut, Error, Item, Mark, MarkKind, Place, Result, Span, Timestamp};

use crate::{
    cursor::{OpenPage, Position},
    records::{NoteBody, Parameters, place},
    wal::{Entry, Found, Lsn, Memory, PAGE, Parser, SegmentSize, What},
};

/// The beginning of a record is held back up to this size: a batch then need not split it.
const HOLD_MAX: usize = 64 << 10;
/// Received bytes are looked at in slices of this size, so no cut is larger than an item may be.
const SLICE: usize = Item::BYTES_MAX / 4;

/// A stretch of log that is ready to be yielded, and the position behind it.
#[derive(Clone, Debug)]
pub struct Cut {
    pub span: Span,
    pub bytes: Bytes,
    pub whole: bool,
    pub marks: Vec<Mark>,
    /// Parameter changes among the records that end here, with the places behind them.
    pub parameters: Vec<(Place, Parameters)>,
    pub after: Position,
}

/// See the module page.
pub struct Cutter {
    system_identifier: u64,
    timeline: u32,
    segment: SegmentSize,
    /// All before was cut.
    at: Lsn,
    held: BytesMut,
    parser: Parser,
    /// What the parser knew at the newest page start.
    page_memory: (Lsn, Memory),
    page: OpenPage,
    found: VecDeque<Found>,
    memory: Memory,
    damage: Option<(Lsn, String)>,
}

impl Cutter {
    /// Goes on at `position`, of whose open page `page` holds the bytes.
    pub fn new(position: &Position, page: OpenPage, segment: SegmentSize) -> Self {
        Self {
            system_identifier: position.system_identifier,
            timeline: position.timeline,
            segment,
            at: position.lsn,
            held: BytesMut::new(),
            parser: Parser::resume(position.lsn, segment, &position.memory),
            page_memory: (position.lsn, position.memory.clone()),
            page,
            found: VecDeque::new(),
            memory: position.memory.clone(),
            damage: None,
        }
    }

    pub fn timeline(&self) -> u32 {
        self.timeline
    }
    /// All before was cut.
    pub fn at(&self) -> Lsn {
        self.at
    }
    /// The next byte to be received lies there.
    pub fn received(&self) -> Lsn {
        self.at.saturating_add(self.held.len() as u64)
    }
    /// Where a writer goes on that took in all that was cut.
    pub fn position(&self) -> Position {
        Position {
            system_identifier: self.system_identifier,
            timeline: self.timeline,
            lsn: self.at,
            proof: self.page.proof(),
            memory: self.memory.clone(),
        }
    }
    /// The first bytes since the last call that made no sense to the parser.
    pub fn take_damage(&mut self) -> Option<(Lsn, String)> {
        self.damage.take()
    }

    /// Takes bytes that begin at `start` and adds what can be yielded to `cuts`.
    pub fn receive(&mut self, start: Lsn, mut bytes: Bytes, cuts: &mut Vec<Cut>) -> Result<()> {
        if start != self.received() {
            return Err(Error::retry(format!(
                "the server sent its log from {start} on where {} was due; the stream is begun anew",
                self.received()
            )));
        }
        while !bytes.is_empty() {
            let slice = bytes.split_to(bytes.len().min(SLICE));
            self.parse(&slice);
            self.hold(slice, cuts);
        }
        Ok(())
    }

    fn parse(&mut self, bytes: &[u8]) {
        let mut found = Vec::new();
        let end = self.parser.position().saturating_add(bytes.len() as u64);
        let page = end.page_start(PAGE);
        let (head, tail) =
            bytes.split_at(page.since(self.parser.position()).min(bytes.len() as u64) as usize);
        if page >= self.parser.position() {
            self.parser.push(head, &mut found);
            self.page_memory = (page, self.parser.memory());
        }
        self.parser.push(tail, &mut found);
        for one in found {
            match one.what {
                What::Damage(why) => {
                    self.damage.get_or_insert((one.begin, why));
                }
                What::Entry(_) => self.found.push_back(one),
            }
        }
    }

    fn hold(&mut self, slice: Bytes, cuts: &mut Vec<Cut>) {
        let end = self.received().saturating_add(slice.len() as u64);
        let boundary = self.parser.boundary().min(end);
        let (until, whole, memory) = if boundary > self.at {
            (boundary, true, self.parser.memory_at_boundary())
        } else if self.page_memory.0 > self.at && self.held.len() + slice.len() > HOLD_MAX {
            (self.page_memory.0, false, self.page_memory.1.clone())
        } else {
            self.held.extend_from_slice(&slice);
            return;
        };
        let take = until.since(self.at) as usize;
        let bytes = if self.held.is_empty() {
            self.held.extend_from_slice(slice.get(take..).unwrap_or_default());
            slice.slice(..take.min(slice.len()))
        } else {
            self.held.extend_from_slice(&slice);
            self.held.split_to(take.min(self.held.len())).freeze()
        };
        self.memory = memory;
        cuts.push(self.cut(bytes, whole));
    }

    fn cut(&mut self, bytes: Bytes, whole: bool) -> Cut {
        let from = self.at;
        self.at = from.saturating_add(bytes.len() as u64);
        self.page.push(&bytes);
        let (mut marks, mut parameters) = (Vec::new(), Vec::new());
        while let Some(one) = self.found.pop_front_if(|one| one.end <= self.at) {
            let behind = place(self.timeline, one.end);
            let mark = |time: Timestamp, kind| Mark { begin: one.begin.0, place: behind, time, kind };
            match one.what {
                What::Entry(Entry::Commit { xid, time }) => {
                    marks.push(mark(time, MarkKind::Commit { id: xid }));
                }
                What::Entry(Entry::RestorePoint { name, time }) => {
                    marks.push(mark(time, MarkKind::Name(name)))
                }
                What::Entry(Entry::Parameters(changed)) => parameters.push((behind, changed)),
                _ => {}
            }
        }
        let span = Span { branch: place(self.timeline, from).branch, from: from.0, to: self.at.0 };
        Cut { span, bytes, whole, marks, parameters, after: self.position() }
    }

    /// The timeline ended at `switch` and `next` begins there: yields what is left of the old one and drops
    /// what lies behind. What was cut already stays on the old timeline, where no line of timelines reaches it.
    pub fn switch(&mut self, next: u32, switch: Lsn) -> Result<Option<Cut>> {
        if switch > self.received() {
            return Err(Error::retry(format!(
                "the server ended timeline {} at {switch} but sent it only up to {}; the stream is begun anew",
                self.timeline,
                self.received()
            )));
        }
        let mut last = None;
        self.memory = self.parser.memory().between();
        if switch > self.at {
            let bytes = self.held.split_to(switch.since(self.at) as usize).freeze();
            last = Some(self.cut(bytes, true));
        }
        self.held.clear();
        self.found.clear();
        self.page.cut(switch);
        self.at = switch;
        self.timeline = next;
        self.parser = Parser::resume(switch, self.segment, &self.memory);
        self.page_memory = (switch, self.memory.clone());
        Ok(last)
    }
}

impl NoteBody {
    /// As an item at `place`.
    pub(crate) fn note(&self, place: Place, time: Timestamp) -> Result<Item> {
        Ok(Item::Note(holdfast_core::Note { place, time, body: self.encode()? }))
    }
}
