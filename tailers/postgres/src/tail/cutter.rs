//! Cuts the received log into stream items: at record ends, with the marks of the records that end there.
//!
//! Pure. Invariants: cuts join without overlap or hole; every cut ends at a record end or at a page's start,
//! where a cursor can be taken; what is held back (the beginning of a record) stays below 64 KiB and a page.

use std::collections::VecDeque;

use holdfast_core::{Bytes, BytesMut, Error, Item, Mark, MarkKind, Place, Result, Span, Timestamp};

use crate::{
    cursor::{OpenPage, Position},
    records::{NoteBody, place},
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
    /// What a restore must know of the records that end here, with the places behind them.
    pub notes: Vec<(Place, NoteBody)>,
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
        let (mut marks, mut notes) = (Vec::new(), Vec::new());
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
                What::Entry(Entry::Parameters(changed)) => {
                    notes.push((behind, NoteBody::Parameters(changed)))
                }
                // One without a location lies in the data folder.
                What::Entry(Entry::Tablespace { oid, location }) if !location.is_empty() => {
                    notes.push((behind, NoteBody::Tablespace { oid, location }));
                }
                _ => {}
            }
        }
        let span = Span { branch: place(self.timeline, from).branch, from: from.0, to: self.at.0 };
        Cut { span, bytes, whole, marks, notes, after: self.position() }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wal::tests::{SEGMENT, sample, size};

    const BEGIN: Lsn = Lsn(5 * SEGMENT);

    fn start() -> Position {
        let page = OpenPage::new(BEGIN);
        Position {
            system_identifier: 77,
            timeline: 1,
            lsn: BEGIN,
            proof: page.proof(),
            memory: Memory::lost(),
        }
    }

    /// Feeds `bytes`, which begin at `position`, in chunks.
    fn run(position: &Position, page: OpenPage, bytes: &[u8], chunks: &[usize]) -> (Vec<Cut>, Cutter) {
        let mut cutter = Cutter::new(position, page, size());
        let (mut cuts, mut rest, mut at) = (Vec::new(), bytes, position.lsn);
        let mut chunks = chunks.iter();
        while !rest.is_empty() {
            let take = chunks.next().copied().unwrap_or(rest.len()).clamp(1, rest.len());
            let (head, tail) = rest.split_at(take);
            cutter.receive(at, Bytes::copy_from_slice(head), &mut cuts).unwrap();
            at = at.saturating_add(take as u64);
            rest = tail;
        }
        (cuts, cutter)
    }

    fn ids(cuts: &[Cut]) -> Vec<u64> {
        let marks = cuts.iter().flat_map(|cut| &cut.marks);
        marks.map(|mark| if let MarkKind::Commit { id } = mark.kind { id } else { 0 }).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn cuts_join_and_every_one_is_a_place_to_go_on(
            sizes in proptest::collection::vec((0u32..300_000, proptest::bool::weighted(0.1)), 1..8),
            chunks in proptest::collection::vec(1usize..140_000, 0..40),
            stop in any::<prop::sample::Index>(),
        ) {
            let (writer, expected) = sample(&sizes);
            let (cuts, cutter) = run(&start(), OpenPage::new(BEGIN), &writer.bytes, &chunks);
            let joined: Vec<u8> = cuts.iter().flat_map(|cut| cut.bytes.to_vec()).collect();
            prop_assert_eq!(&joined, &writer.bytes);
            prop_assert_eq!(cutter.at(), cutter.received());
            prop_assert_eq!(ids(&cuts).len(), expected.len());
            for cut in &cuts {
                prop_assert!(cut.bytes.len() <= Item::BYTES_MAX && cut.span.len() == cut.bytes.len() as u64);
                prop_assert!(cut.whole || cut.span.to % PAGE == 0);
                prop_assert!(cut.marks.iter().all(|mark| mark.place.position <= cut.span.to));
            }
            // A new life behind any cut finds the rest.
            let at = stop.index(cuts.len());
            let cursor = cuts[at].after.encode().unwrap();
            let position = Position::decode(&cursor).unwrap();
            let done = position.lsn.since(BEGIN) as usize;
            let mut page = OpenPage::new(position.proof.from);
            page.push(&writer.bytes[position.proof.from.since(BEGIN) as usize..done]);
            prop_assert_eq!(page.proof(), position.proof);
            let (rest, _) = run(&position, page, &writer.bytes[done..], &[]);
            prop_assert_eq!([ids(&cuts[..=at]), ids(&rest)].concat(), ids(&cuts));
        }

        #[test]
        fn a_switch_cuts_what_lies_behind_it(
            sizes in proptest::collection::vec((0u32..60_000, Just(false)), 1..8),
            stop in any::<prop::sample::Index>(),
            more in 0usize..100_000,
        ) {
            let (writer, expected) = sample(&sizes);
            let last = &expected[stop.index(expected.len())];
            let switch = last.end;
            let sent = (switch.since(BEGIN) as usize + more).min(writer.bytes.len());
            let (mut cuts, mut cutter) = run(&start(), OpenPage::new(BEGIN), &writer.bytes[..sent], &[]);
            let beyond = cutter.at() > switch;
            cuts.extend(cutter.switch(2, switch).unwrap());
            prop_assert_eq!((cutter.at(), cutter.received(), cutter.timeline()), (switch, switch, 2));
            if !beyond {
                prop_assert_eq!(cuts.last().unwrap().span.to, switch.0);
            }
            // The new timeline goes on from there, in the same bytes.
            let mut after = Vec::new();
            let rest = Bytes::copy_from_slice(&writer.bytes[switch.since(BEGIN) as usize..]);
            cutter.receive(switch, rest, &mut after).unwrap();
            let behind = expected.iter().filter(|one| one.begin >= switch).count();
            prop_assert_eq!(ids(&after).len(), behind);
        }
    }

    #[test]
    fn a_hole_is_refused() {
        let (writer, _) = sample(&[(100, false)]);
        let mut cutter = Cutter::new(&start(), OpenPage::new(BEGIN), size());
        let error = cutter.receive(Lsn(BEGIN.0 + 8), writer.bytes.into(), &mut Vec::new()).unwrap_err();
        assert!(error.is_passing() && error.to_string().contains("was due"), "{error}");
    }
}
