//! The parser on WAL written here, in any chunking, and on hostile bytes.

use holdfast_core::Timestamp;
use proptest::prelude::*;

use super::{Entry, Found, Lsn, PAGE, Parser, SegmentSize, Start, What};

pub(crate) const SEGMENT: u64 = 1 << 20;
const EPOCH: i64 = 946_684_800_000_000;

/// Writes pages and records as the server does.
pub(crate) struct Writer {
    pub bytes: Vec<u8>,
    start: u64,
}

impl Writer {
    fn new(start: u64) -> Self {
        let mut writer = Self { bytes: Vec::new(), start };
        writer.page(0, 0);
        writer
    }
    fn at(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
    fn page(&mut self, remaining: u32, extra: u16) {
        let at = self.at();
        assert_eq!(at % PAGE, 0);
        let long = at.is_multiple_of(SEGMENT);
        let flags = u16::from(remaining > 0) | if long { 2 } else { 0 } | extra;
        self.bytes.extend(0xD110u16.to_le_bytes());
        self.bytes.extend(flags.to_le_bytes());
        self.bytes.extend(1u32.to_le_bytes());
        self.bytes.extend(at.to_le_bytes());
        self.bytes.extend(u64::from(remaining).to_le_bytes());
        if long {
            self.bytes.extend(77u64.to_le_bytes());
            self.bytes.extend((SEGMENT as u32).to_le_bytes());
            self.bytes.extend((PAGE as u32).to_le_bytes());
        }
    }
    fn align(&mut self) {
        while !self.at().is_multiple_of(8) {
            self.bytes.push(0);
        }
        if self.at().is_multiple_of(PAGE) {
            self.page(0, 0);
        }
    }
    /// Returns begin and end.
    fn record(&mut self, manager: u8, info: u8, xid: u32, main: &[u8]) -> (u64, u64) {
        let mut body = Vec::new();
        match u8::try_from(main.len()) {
            Ok(length) => body.extend([255, length]),
            Err(_) => {
                body.push(254);
                body.extend((main.len() as u32).to_le_bytes());
            }
        }
        body.extend(main);
        let total = 24 + body.len() as u32;
        let mut record = Vec::new();
        record.extend(total.to_le_bytes());
        record.extend(xid.to_le_bytes());
        record.extend([0; 8]);
        record.extend([info, manager, 0, 0, 0, 0, 0, 0]);
        record.extend(&body);
        self.align();
        let begin = self.at();
        for (index, byte) in record.iter().enumerate() {
            if self.at().is_multiple_of(PAGE) {
                self.page(total - index as u32, 0);
            }
            self.bytes.push(*byte);
        }
        while !self.at().is_multiple_of(8) {
            self.bytes.push(0);
        }
        (begin, self.at())
    }
    fn commit(&mut self, xid: u32, micros: i64) -> (u64, u64) {
        self.record(1, 0, xid, &micros.to_le_bytes())
    }
    fn switch(&mut self) {
        self.record(0, 0x40, 0, &[]);
        while !self.at().is_multiple_of(SEGMENT) {
            self.bytes.push(0);
        }
        self.page(0, 0);
    }
}

pub(crate) fn size() -> SegmentSize {
    SegmentSize::new(SEGMENT).unwrap()
}

fn parse(bytes: &[u8], at: u64, start: Start, chunks: impl Iterator<Item = usize>) -> (Vec<Found>, Parser) {
    let mut parser = Parser::new(Lsn(at), start, size());
    let (mut found, mut rest) = (Vec::new(), bytes);
    for chunk in chunks {
        let (head, tail) = rest.split_at(chunk.clamp(1, rest.len().max(1)).min(rest.len()));
        parser.push(head, &mut found);
        assert!(parser.boundary() <= parser.position());
        rest = tail;
    }
    parser.push(rest, &mut found);
    assert_eq!(parser.position().0, at + bytes.len() as u64);
    (found, parser)
}

fn commit(begin: u64, end: u64, xid: u64, micros: i64) -> Found {
    let time = Timestamp(micros + EPOCH);
    Found { begin: Lsn(begin), end: Lsn(end), what: What::Entry(Entry::Commit { xid, time }) }
}

#[test]
fn commits_names_and_widened_ids() {
    let mut writer = Writer::new(SEGMENT);
    let mut checkpoint = vec![0; 24];
    checkpoint.extend(((7u64 << 32) + 5).to_le_bytes());
    writer.record(0, 0x10, 0, &checkpoint);
    let before = writer.commit(u32::MAX, 1);
    let after = writer.commit(6, 2);
    let mut point = 3i64.to_le_bytes().to_vec();
    point.extend(b"before the big change");
    point.resize(72, 0);
    writer.record(0, 0x70, 0, &point);
    writer.switch();
    let last = writer.commit(8, 4);
    let (found, parser) = parse(&writer.bytes, SEGMENT, Start::Record, std::iter::empty());
    let commits: Vec<_> =
        found.iter().filter(|f| matches!(f.what, What::Entry(Entry::Commit { .. }))).cloned().collect();
    assert_eq!(
        commits,
        [
            commit(before.0, before.1, (6 << 32) + u64::from(u32::MAX), 1),
            commit(after.0, after.1, (7 << 32) + 6, 2),
            commit(last.0, last.1, (7 << 32) + 8, 4),
        ]
    );
    assert!(found.iter().any(|f| matches!(&f.what, What::Entry(Entry::RestorePoint { name, .. })
        if name == "before the big change")));
    assert_eq!(parser.boundary().0, writer.at());
    assert!(!found.iter().any(|f| matches!(f.what, What::Damage(_))));
}

#[test]
fn the_id_of_a_prepared_transaction_stands_behind_its_lists() {
    let mut writer = Writer::new(SEGMENT);
    let mut main = 9i64.to_le_bytes().to_vec();
    main.extend((1u32 | 2 | 4 | 8 | 16 | 256).to_le_bytes());
    main.extend([0; 8]);
    for (count, item) in [(3000u32, 4), (2, 12), (1, 12), (5, 16)] {
        main.extend(count.to_le_bytes());
        main.extend(vec![1; count as usize * item]);
    }
    main.extend(4711u32.to_le_bytes());
    main.extend(b"gid\0");
    let (begin, end) = writer.record(1, 0x80 | 0x30, 0, &main);
    let (found, _) = parse(&writer.bytes, SEGMENT, Start::Record, std::iter::empty());
    assert_eq!(found, [commit(begin, end, 4711, 9)]);
}

#[test]
fn a_record_given_up_in_a_crash_is_passed_over() {
    let mut writer = Writer::new(SEGMENT);
    writer.record(10, 0, 1, &vec![7; 20_000]);
    let keep = writer.bytes.len() - 12_000;
    let keep = keep - keep % PAGE as usize;
    writer.bytes.truncate(keep);
    writer.page(0, 8);
    let (begin, end) = writer.commit(3, 1);
    let (found, _) = parse(&writer.bytes, SEGMENT, Start::Record, std::iter::empty());
    assert_eq!(found, [commit(begin, end, 3, 1)]);
}

/// Each size makes a record of that many bytes and a commit; a switch may follow. Begins at segment 5.
pub(crate) fn sample(sizes: &[(u32, bool)]) -> (Writer, Vec<Found>) {
    let mut writer = Writer::new(5 * SEGMENT);
    let mut expected = Vec::new();
    for (index, (size, switch)) in sizes.iter().enumerate() {
        writer.record(10, 0, 1, &vec![0xd1; *size as usize]);
        let (begin, end) = writer.commit(index as u32 + 3, index as i64);
        expected.push(commit(begin, end, index as u64 + 3, index as i64));
        if *switch {
            writer.switch();
        }
    }
    (writer, expected)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_chunking_finds_the_same(
        sizes in proptest::collection::vec((0u32..65_536, proptest::bool::weighted(0.1)), 1..20),
        chunks in proptest::collection::vec(1usize..40_000, 0..60),
    ) {
        let (writer, expected) = sample(&sizes);
        let (found, parser) = parse(&writer.bytes, 5 * SEGMENT, Start::Record, chunks.into_iter());
        let commits: Vec<_> =
            found.into_iter().filter(|f| !matches!(f.what, What::Entry(Entry::Switch))).collect();
        prop_assert_eq!(commits, expected);
        prop_assert_eq!(parser.boundary().0, writer.at());
    }

    #[test]
    fn stopping_at_any_page_or_boundary_loses_nothing(
        sizes in proptest::collection::vec((0u32..65_536, proptest::bool::weighted(0.1)), 1..12),
        stop in any::<prop::sample::Index>(),
        at_page in any::<bool>(),
    ) {
        let (writer, expected) = sample(&sizes);
        let cut = stop.index(writer.bytes.len());
        let (mut found, parser) = parse(&writer.bytes[..cut], 5 * SEGMENT, Start::Record, std::iter::empty());
        let cut = if at_page { cut - cut % PAGE as usize } else { (parser.boundary().0 - 5 * SEGMENT) as usize };
        found.clear();
        let mut parser = Parser::new(Lsn(5 * SEGMENT), Start::Record, size());
        parser.push(&writer.bytes[..cut], &mut found);
        let memory = parser.memory();
        let memory = postcard::from_bytes(&postcard::to_stdvec(&memory).unwrap()).unwrap();
        let mut parser = Parser::resume(Lsn(5 * SEGMENT + cut as u64), size(), &memory);
        parser.push(&writer.bytes[cut..], &mut found);
        found.retain(|f| !matches!(f.what, What::Entry(Entry::Switch)));
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn beginning_anywhere_finds_all_that_begins_behind_the_next_page(
        sizes in proptest::collection::vec((0u32..65_536, Just(false)), 1..12),
        from in any::<prop::sample::Index>(),
    ) {
        let (writer, expected) = sample(&sizes);
        let from = from.index(writer.bytes.len());
        let page = (from as u64).next_multiple_of(PAGE) + 5 * SEGMENT;
        let (found, _) =
            parse(&writer.bytes[from..], 5 * SEGMENT + from as u64, Start::Anywhere, std::iter::empty());
        let expected: Vec<_> = expected.into_iter().filter(|f| f.begin.0 >= page).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn hostile_bytes_are_survived(
        noise in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..200),
        chunks in proptest::collection::vec(1usize..9_000, 0..40),
    ) {
        let (mut writer, _) = sample(&[(9000, false), (100, true), (30_000, false)]);
        for (at, byte) in noise {
            let at = at.index(writer.bytes.len());
            writer.bytes[at] = byte;
        }
        let (whole, _) = parse(&writer.bytes, 5 * SEGMENT, Start::Record, std::iter::empty());
        let (cut, _) = parse(&writer.bytes, 5 * SEGMENT, Start::Record, chunks.into_iter());
        prop_assert_eq!(whole, cut);
    }
}

#[test]
fn tablespaces_made_and_dropped() {
    let mut writer = Writer::new(SEGMENT);
    let made = |location: &str| [&16_385u32.to_le_bytes()[..], location.as_bytes(), b"\0"].concat();
    let (begin, end) = writer.record(5, 0x00, 0, &made("/mnt/fast disk"));
    writer.record(5, 0x10, 0, &16_385u32.to_le_bytes());
    writer.record(5, 0x00, 0, &[1, 2]);
    let long = "x".repeat(1023);
    writer.record(5, 0x00, 0, &made(&long));
    let (found, _) = parse(&writer.bytes, SEGMENT, Start::Record, std::iter::repeat_n(7, 100));
    let spaces: Vec<_> =
        found.iter().filter(|f| matches!(f.what, What::Entry(Entry::Tablespace { .. }))).cloned().collect();
    let space =
        |location: &str| What::Entry(Entry::Tablespace { oid: 16_385, location: location.to_owned() });
    assert_eq!(spaces.len(), 2);
    assert_eq!(spaces[0], Found { begin: Lsn(begin), end: Lsn(end), what: space("/mnt/fast disk") });
    assert_eq!(spaces[1].what, space(&long));
}
