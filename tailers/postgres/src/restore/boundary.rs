//! Where WAL records begin and end, found from any page on: page headers say how much of a record that began
//! earlier is still to come. Pure; looks at lengths only (bytes were authenticated when they were opened).
//!
//! Layout of a record's header: Postgres `access/xlogrecord.h`.

use crate::wal::{Lsn, PAGE, PageHeader};

/// Record header: total length u32, xid u32, previous u64, info u8, resource manager u8, padding, crc u32.
const RECORD_HEADER: usize = 24;
const SWITCH: u8 = 0x40;

/// A whole record: `end` is where the next one may begin. A switch ends its segment, even where the padding behind it
/// is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub begin: u64,
    pub end: u64,
}

/// Walks over the whole records of `bytes`, which begin at position `start`: a page boundary, or where a
/// record begins.
#[derive(Debug)]
pub struct Entries<'a> {
    bytes: &'a [u8],
    start: u64,
    next: u64,
    segment: u64,
}

impl<'a> Entries<'a> {
    pub fn new(bytes: &'a [u8], start: u64, segment: u64) -> Self {
        Self { bytes, start, next: start, segment }
    }

    /// Where the walk goes on: beyond the bytes when a switch leads there.
    pub fn position(&self) -> u64 {
        self.next
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }

    fn at<const N: usize>(&self, position: u64) -> Option<[u8; N]> {
        let at = usize::try_from(position.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..)?.first_chunk().copied()
    }

    /// The header of the page at `position` and the position after it; `None` where there is none.
    fn page(&self, position: u64) -> Option<(PageHeader, u64)> {
        let at = usize::try_from(position.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(at..)?;
        let header = PageHeader::parse(bytes, Lsn(position)).ok()?;
        let length = PageHeader::length(bytes)? as u64;
        Some((header, position.checked_add(length)?))
    }

    /// The first position at or after `next` at which a record may begin; passes what is left of one that
    /// began earlier.
    fn seek(&mut self) -> Option<u64> {
        while self.next.is_multiple_of(PAGE) {
            let Some((page, body)) = self.page(self.next) else {
                // Padding behind a switch is zeros up to the end of the segment.
                if self.at::<8>(self.next)? != [0; 8] {
                    return None;
                }
                self.next =
                    (self.next.checked_add(self.segment)? / self.segment).checked_mul(self.segment)?;
                continue;
            };
            let boundary = self.next.checked_add(PAGE)?;
            self.next = aligned(body.checked_add(u64::from(page.remaining))?)?.min(boundary);
        }
        Some(self.next)
    }

    /// Reads the record at `begin`. `Some(Err(page))` when it was given up there.
    fn read(&self, begin: u64) -> Option<Result<Entry, u64>> {
        let total = u64::from(u32::from_le_bytes(self.at(begin)?));
        if total < RECORD_HEADER as u64 {
            return None;
        }
        let mut head = [0; RECORD_HEADER];
        let (mut filled, mut at, mut rest) = (0usize, begin, total);
        loop {
            let share = rest.min(PAGE - at % PAGE);
            if filled < RECORD_HEADER {
                let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
                let take = usize::try_from(share).ok()?.min(RECORD_HEADER - filled);
                let part = self.bytes.get(from..from.checked_add(take)?)?;
                head.get_mut(filled..filled + take)?.copy_from_slice(part);
                filled += take;
            }
            rest -= share;
            at = at.checked_add(share)?;
            if rest == 0 {
                break;
            }
            let (page, body) = self.page(at)?;
            if page.overwrites || u64::from(page.remaining) != rest {
                return Some(Err(at));
            }
            at = body;
        }
        if at > self.end() {
            return None;
        }
        let [info, manager] = [head[16], head[17]];
        let end = if manager == 0 && info & 0xf0 == SWITCH {
            at.checked_add(self.segment - 1).map(|past| past - past % self.segment)?
        } else {
            aligned(at)?
        };
        Some(Ok(Entry { begin, end }))
    }
}

impl Iterator for Entries<'_> {
    type Item = Entry;
    fn next(&mut self) -> Option<Entry> {
        loop {
            let begin = self.seek()?;
            match self.read(begin)? {
                Ok(entry) => {
                    self.next = entry.end;
                    return Some(entry);
                }
                Err(page) => self.next = page,
            }
        }
    }
}

fn aligned(position: u64) -> Option<u64> {
    position.checked_add(7).map(|past| past & !7)
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes records of the given lengths as the server lays them out, from position 0 of a segment on.
    pub fn written(lengths: &[u32], segment: u64) -> (Vec<u8>, Vec<Entry>) {
        let (mut wal, mut entries) = (Vec::new(), Vec::new());
        let header = |wal: &mut Vec<u8>, rest: u32| {
            let at = wal.len() as u64;
            let long = at.is_multiple_of(segment);
            let flags = u16::from(rest > 0) | if long { 2 } else { 0 };
            wal.extend(0xd110u16.to_le_bytes());
            wal.extend(flags.to_le_bytes());
            wal.extend(1u32.to_le_bytes());
            wal.extend(at.to_le_bytes());
            wal.extend(rest.to_le_bytes());
            wal.extend(0u32.to_le_bytes());
            if long {
                wal.extend(1u64.to_le_bytes());
                wal.extend((segment as u32).to_le_bytes());
                wal.extend((PAGE as u32).to_le_bytes());
            }
        };
        for (number, length) in lengths.iter().enumerate() {
            if (wal.len() as u64).is_multiple_of(PAGE) {
                header(&mut wal, 0);
            }
            let begin = wal.len() as u64;
            let mut record = vec![number as u8; *length as usize];
            record[..4].copy_from_slice(&length.to_le_bytes());
            record[16..18].copy_from_slice(&[0x10, 5]);
            let mut rest = &record[..];
            while !rest.is_empty() {
                if (wal.len() as u64).is_multiple_of(PAGE) {
                    header(&mut wal, rest.len() as u32);
                }
                let (now, later) = rest.split_at(rest.len().min((PAGE - wal.len() as u64 % PAGE) as usize));
                wal.extend(now);
                rest = later;
            }
            wal.resize(wal.len().next_multiple_of(8), 0);
            entries.push(Entry { begin, end: wal.len() as u64 });
        }
        (wal, entries)
    }

    proptest! {
        #[test]
        fn records_are_found_from_any_page_on(
            lengths in proptest::collection::vec(prop_oneof![24u32..200, 24u32..40_000], 1..40),
            from in 0u64..40,
            cut in 0usize..64,
        ) {
            let (mut wal, entries) = written(&lengths, 1 << 20);
            let whole = wal.len();
            wal.truncate(whole.saturating_sub(cut));
            let start = (from * PAGE).min(wal.len() as u64 / PAGE * PAGE);
            let found: Vec<Entry> = Entries::new(&wal[start as usize..], start, 1 << 20).collect();
            let expected: Vec<Entry> = entries
                .into_iter()
                .filter(|entry| entry.begin >= start && entry.end.saturating_sub(7) <= wal.len() as u64)
                .collect();
            // A record whose padding alone is cut may count or not.
            let same = found.len().min(expected.len());
            prop_assert!(expected.len() - same <= 1 && found.len() == same, "{found:?} {expected:?}");
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert_eq!(found.begin, expected.begin);
            }
        }

        #[test]
        fn hostile_bytes_end_the_walk(bytes in proptest::collection::vec(any::<u8>(), 0..20_000), start in 0u64..4) {
            let _ = Entries::new(&bytes, start * PAGE, 1 << 20).count();
            let _ = Entries::new(&bytes, u64::MAX - 9_000, 1 << 20).count();
        }
    }

    #[test]
    fn a_switch_ends_its_segment_and_a_given_up_record_is_no_record() {
        let (mut wal, entries) = written(&[100, 24], 1 << 20);
        wal[entries[1].begin as usize + 16..][..2].copy_from_slice(&[SWITCH, 0]);
        wal.resize(1 << 20, 0);
        let found: Vec<Entry> = Entries::new(&wal, 0, 1 << 20).collect();
        assert_eq!(found[1], Entry { begin: entries[1].begin, end: 1 << 20 });
        let mut padding = Entries::new(&wal[3 * 8192..], 3 * 8192, 1 << 20);
        assert_eq!((padding.next(), padding.position()), (None, 1 << 20));

        let (mut wal, entries) = written(&[8000, 9000, 50], 1 << 20);
        wal[8192 + 2] = 8;
        wal[8192 + 16..][..4].fill(0);
        let found: Vec<Entry> = Entries::new(&wal, 0, 1 << 20).take(1).collect();
        assert_eq!(found, entries[..1]);
    }
}
