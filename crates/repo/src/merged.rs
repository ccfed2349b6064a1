//! The merged object: many log objects of one epoch as one, their sealed bytes unchanged. All fronts (prelude,
//! sealed header, check sum) lie together at the beginning, so that one read gives all headers.
//!
//! Invariants: it holds each number from `from` to `to` once, in order, chained by digest. Nothing is opened to
//! make it; what it adds is authenticated under the source key. It can itself be merged.

use bytes::Bytes;
use holdfast_core::{
    Epoch, Error, LineageId, Result,
    sink::{Body, OBJECT_MAX},
};

use crate::{
    names::Stream,
    object::{self, Kind, ObjectId, Prelude},
    seal::{Key, purpose},
    wire::{Reader, put_epoch},
};

const MAGIC: [u8; 8] = *b"HFmerge\0";
const VERSION: u16 = 1;
/// Bytes of a head before its rows.
const CLEAR: usize = 116;
const ROW: usize = 8;
const HASH: usize = 32;
/// Objects of one merged object of the first level, and how many of those the second level takes.
pub const FAN_IN: u64 = 64;
/// Most objects of one merged object (second level).
pub const OBJECTS_MAX: u64 = FAN_IN * FAN_IN;
/// A read of this length from the front holds head and fronts of 64 objects with few spans.
pub const HEAD_READ: u64 = 64 << 10;

/// The head of a merged object: where each original lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub lineage: LineageId,
    pub epoch: Epoch,
    pub from: u64,
    /// The last number.
    pub to: u64,
    /// Digest of the object before the first.
    pub previous: [u8; 32],
    /// Digest of the last object: where the chain goes on.
    pub last: [u8; 32],
    /// Lengths of front and body, per original.
    rows: Vec<(u32, u32)>,
    /// BLAKE3 of all fronts.
    fronts_digest: [u8; 32],
}

/// Where an original lies within its merged object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Original {
    pub number: u64,
    pub front: std::ops::Range<u64>,
    pub body: std::ops::Range<u64>,
}

impl Head {
    /// Length of a head that holds `count` originals.
    fn len_of(count: usize) -> usize {
        CLEAR + count * ROW + HASH + HASH
    }
    /// Bytes of the head; the fronts follow.
    pub fn len(&self) -> usize {
        Self::len_of(self.rows.len())
    }
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
    /// Where all fronts lie.
    pub fn fronts(&self) -> std::ops::Range<u64> {
        let from = self.len() as u64;
        from..from + self.rows.iter().map(|row| u64::from(row.0)).sum::<u64>()
    }
    /// Length of the whole object.
    pub fn object_len(&self) -> u64 {
        self.fronts().end + self.rows.iter().map(|row| u64::from(row.1)).sum::<u64>()
    }
    /// Each original, in order.
    pub fn originals(&self) -> impl Iterator<Item = Original> {
        let mut front = self.len() as u64;
        let mut body = self.fronts().end;
        self.rows.iter().zip(self.from..=self.to).map(move |(row, number)| {
            let original = Original {
                number,
                front: front..front + u64::from(row.0),
                body: body..body + u64::from(row.1),
            };
            front = original.front.end;
            body = original.body.end;
            original
        })
    }
    pub fn original(&self, number: u64) -> Option<Original> {
        let index = usize::try_from(number.checked_sub(self.from)?).ok()?;
        self.originals().nth(index)
    }

    /// How many first bytes of the object must be read to parse the head; `bytes` holds all before its rows.
    pub fn needed(bytes: &[u8]) -> Result<usize> {
        let mut reader = Reader::new(bytes);
        let count = Clear::read(&mut reader)?.count()?;
        Ok(Self::len_of(count))
    }

    /// Reads and proves the head of what was found as merged object `from`-`to` of `epoch`. `bytes` holds at
    /// least [`Head::needed`].
    pub fn open(
        source_key: &Key,
        stream: Stream,
        epoch: Epoch,
        from: u64,
        to: u64,
        bytes: &[u8],
    ) -> Result<Self> {
        let name = || stream.merged(epoch, from, to);
        let head = Self::read(Some(source_key), bytes)
            .map_err(|e| e.during(format!("{} cannot be read", name())))?;
        if (head.lineage, head.epoch, head.from, head.to) == (stream.lineage, epoch, from, to) {
            Ok(head)
        } else {
            Err(Error::corrupt(format!("{} holds other objects than its name says", name())))
        }
    }

    pub(crate) fn read(source_key: Option<&Key>, bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let clear = Clear::read(&mut reader)?;
        let count = clear.count()?;
        let mut rows = Vec::with_capacity(count);
        for _ in 0..count {
            rows.push((reader.u32()?, reader.u32()?));
        }
        let fronts_digest = reader.array()?;
        let mac = reader.array::<HASH>()?;
        let authenticated = bytes.get(..Self::len_of(count) - HASH).unwrap_or_default();
        if source_key.is_some_and(|key| !key.derive(purpose::MERGED, &[]).check(authenticated, &mac)) {
            return Err(Error::corrupt("it was not written with this source's key, or is damaged"));
        }
        let Clear { lineage, epoch, from, to, previous, last } = clear;
        let head = Self { lineage, epoch, from, to, previous, last, rows, fronts_digest };
        if head.object_len() > OBJECT_MAX as u64 {
            return Err(Error::corrupt("it claims lengths that no object has"));
        }
        Ok(head)
    }
}

/// A merged object, ready to be created as `merged/<epoch>/<from>-<to>`.
#[derive(Clone, Debug)]
pub struct SealedMerged {
    pub epoch: Epoch,
    pub from: u64,
    pub to: u64,
    pub body: Body,
}

/// Takes originals in order and makes them one.
#[derive(Debug, Default)]
pub struct Merger {
    /// Of the first original, with which the merger begins.
    begin: Option<(ObjectId, [u8; 32])>,
    last: [u8; 32],
    rows: Vec<(u32, u32)>,
    fronts: Vec<Bytes>,
    bodies: Vec<Bytes>,
    bytes: usize,
}

impl Merger {
    pub fn count(&self) -> u64 {
        self.rows.len() as u64
    }
    /// Length of the object that would come out now.
    pub fn len(&self) -> usize {
        Head::len_of(self.rows.len()) + self.bytes
    }
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes a log object, as it was stored. Checks its digests and that it follows the one before.
    ///
    /// # Errors
    /// `Corrupt` when it is damaged or does not follow; `Bug` when it no longer fits (ask [`Merger::len`] and
    /// [`Merger::count`] first).
    pub fn push(&mut self, object: &Body) -> Result<()> {
        let whole = Bytes::new();
        let first = object.0.first().unwrap_or(&whole);
        let prelude = object::parse_prelude(first)?;
        let front = prelude.front_len();
        if first.len() == front {
            return self.take(&prelude, first.clone(), &object.0[1..]);
        }
        let whole = object.concat();
        if whole.len() < front {
            return Err(Error::corrupt(format!("{} is cut short", prelude.id)));
        }
        self.take(&prelude, whole.slice(..front), &[whole.slice(front..)])
    }

    /// Takes all originals of a merged object, whole.
    pub fn push_merged(&mut self, merged: &Bytes) -> Result<()> {
        let head = Head::read(None, merged)?;
        if head.object_len() != merged.len() as u64 {
            return Err(Error::corrupt("a merged object has another length than its head says"));
        }
        for original in head.originals() {
            let slice = |range: std::ops::Range<u64>| merged.slice(range.start as usize..range.end as usize);
            let front = slice(original.front);
            self.take(&object::parse_prelude(&front)?, front, &[slice(original.body)])?;
        }
        Ok(())
    }

    /// The merged object of all that was pushed.
    pub fn finish(self, source_key: &Key) -> Result<SealedMerged> {
        let (first, previous) = self.begin.ok_or_else(|| Error::bug("nothing was merged"))?;
        let (from, to) = (first.number, first.number.saturating_add(self.rows.len() as u64 - 1));
        let mut head = Vec::with_capacity(Head::len_of(self.rows.len()));
        Clear { lineage: first.lineage, epoch: first.epoch, from, to, previous, last: self.last }
            .write(&mut head);
        for (front, body) in &self.rows {
            head.extend_from_slice(&front.to_le_bytes());
            head.extend_from_slice(&body.to_le_bytes());
        }
        let mut digest = blake3::Hasher::new();
        self.fronts.iter().for_each(|front| _ = digest.update(front));
        head.extend_from_slice(digest.finalize().as_bytes());
        let mac = source_key.derive(purpose::MERGED, &[]).mac(&head);
        head.extend_from_slice(&mac);
        let mut parts = vec![Bytes::from(head)];
        parts.extend(self.fronts);
        parts.extend(self.bodies);
        Ok(SealedMerged { epoch: first.epoch, from, to, body: Body(parts) })
    }

    fn take(&mut self, prelude: &Prelude, front: Bytes, body: &[Bytes]) -> Result<()> {
        let id = prelude.id;
        if prelude.kind != Kind::Data {
            return Err(Error::bug(format!("{id} is an END, which is never merged")));
        }
        let digest = object::check_parts(prelude, &front, body)?;
        let (begin, follows) = match self.begin {
            None => ((id, prelude.previous), true),
            Some((first, before)) => {
                let expected = ObjectId { number: first.number.saturating_add(self.count()), ..first };
                ((first, before), id == expected && prelude.previous == self.last)
            }
        };
        if !follows {
            return Err(Error::corrupt(format!("{id} does not follow the object merged before it")));
        }
        let row = (front.len() as u32, body.iter().map(Bytes::len).sum::<usize>() as u32);
        let more = front.len() + row.1 as usize;
        if self.count() >= OBJECTS_MAX || self.len() + ROW + more > OBJECT_MAX {
            return Err(Error::bug(format!("{id} does not fit into the merged object")));
        }
        self.begin = Some(begin);
        self.last = digest;
        self.rows.push(row);
        self.bytes += more;
        self.fronts.push(front);
        self.bodies.extend(body.iter().filter(|part| !part.is_empty()).cloned());
        Ok(())
    }
}

/// Checks a whole merged object for rot, without a key: every digest in it and the chain.
pub fn check_merged(bytes: &Bytes) -> Result<Head> {
    let head = Head::read(None, bytes)?;
    let mut again = Merger::default();
    again.push_merged(bytes)?;
    let mut digest = blake3::Hasher::new();
    again.fronts.iter().for_each(|front| _ = digest.update(front));
    let begin = again.begin.map(|(id, previous)| (id.lineage, id.epoch, id.number, previous));
    if begin == Some((head.lineage, head.epoch, head.from, head.previous))
        && again.last == head.last
        && *digest.finalize().as_bytes() == head.fronts_digest
    {
        Ok(head)
    } else {
        Err(Error::corrupt("a merged object's head does not fit what it holds"))
    }
}

/// The part of a head before the rows.
struct Clear {
    lineage: LineageId,
    epoch: Epoch,
    from: u64,
    to: u64,
    previous: [u8; 32],
    last: [u8; 32],
}

impl Clear {
    fn count(&self) -> Result<usize> {
        match self.to.checked_sub(self.from) {
            Some(more) if more < OBJECTS_MAX => Ok(more as usize + 1),
            _ => Err(Error::corrupt("it claims more objects than one merged object has")),
        }
    }
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        reader.begin(MAGIC, VERSION, "a merged object")?;
        if reader.u16()? != 0 {
            return Err(Error::corrupt("reserved bytes are not zero"));
        }
        Ok(Self {
            lineage: reader.lineage()?,
            epoch: reader.epoch()?,
            from: reader.u64()?,
            to: reader.u64()?,
            previous: reader.array()?,
            last: reader.array()?,
        })
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.lineage.0);
        put_epoch(out, self.epoch);
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&self.to.to_le_bytes());
        out.extend_from_slice(&self.previous);
        out.extend_from_slice(&self.last);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use holdfast_core::{SourceId, Timestamp};

    use super::*;
    use crate::{entry::Entry, object::Header};

    const STREAM: Stream = Stream { source: SourceId([1; 8]), lineage: LineageId([2; 8]) };
    const EPOCH: Epoch = Epoch::numbered(5);
    static KEY: LazyLock<Key> = LazyLock::new(|| Key::new([3; 32]));

    fn objects(from: u64, count: u64) -> Vec<(Body, [u8; 32])> {
        let mut previous = [7; 32];
        let mut out = Vec::new();
        for number in from..from + count {
            let id = ObjectId { lineage: STREAM.lineage, epoch: EPOCH, number };
            let closed = Bytes::from(vec![number as u8; 10 + number as usize]);
            let body =
                object::seal_body(&KEY, &KEY, id, [number as u8; 16], &[Entry::Release], &[closed]).unwrap();
            let header = Header {
                spans: vec![],
                written: Timestamp(0),
                uptime: 0,
                vouched: None,
                marks: None,
                mark_count: 0,
                heartbeat: 0,
                catalog: None,
                release: false,
            };
            let sealed = object::seal_header(&KEY, &header, &body, previous).unwrap();
            previous = sealed.digest;
            out.push((sealed.body, sealed.digest));
        }
        out
    }

    fn merge(objects: &[(Body, [u8; 32])]) -> SealedMerged {
        let mut merger = Merger::default();
        objects.iter().for_each(|(body, _)| merger.push(body).unwrap());
        let length = merger.len();
        let merged = merger.finish(&KEY).unwrap();
        assert_eq!(merged.body.len(), length);
        merged
    }

    #[test]
    fn originals_come_out_byte_by_byte_and_twice_merged_is_merged_once() {
        let all = objects(1, 12);
        let (low, high) = (merge(&all[..5]), merge(&all[5..]));
        let mut second = Merger::default();
        // From the store one slice, from memory many.
        second.push_merged(&low.body.concat()).unwrap();
        second.push_merged(&high.body.concat()).unwrap();
        let twice = second.finish(&KEY).unwrap().body.concat();
        assert_eq!(twice, merge(&all).body.concat());

        let head =
            Head::open(&KEY, STREAM, EPOCH, 1, 12, &twice[..Head::needed(&twice[..CLEAR]).unwrap()]).unwrap();
        assert_eq!(head, check_merged(&twice).unwrap());
        assert_eq!((head.previous, head.last), ([7; 32], all[11].1));
        assert_eq!(head.object_len(), twice.len() as u64);
        for (original, (body, digest)) in head.originals().zip(&all) {
            let part = |range: std::ops::Range<u64>| &twice[range.start as usize..range.end as usize];
            let whole = [part(original.front.clone()), part(original.body.clone())].concat();
            assert_eq!(whole, body.concat());
            assert_eq!(object::open_front(&KEY, &whole).unwrap().digest, *digest);
            assert_eq!(head.original(original.number), Some(original));
        }
        assert!(head.fronts().end <= HEAD_READ);
        assert!(head.original(0).is_none() && head.original(13).is_none());
    }

    #[test]
    fn holes_swaps_and_strangers_are_refused() {
        let all = objects(1, 4);
        for order in [&[0, 2][..], &[1, 0], &[0, 0]] {
            let mut merger = Merger::default();
            let pushed: Result<Vec<()>> = order.iter().map(|i| merger.push(&all[*i].0)).collect();
            assert!(pushed.is_err(), "{order:?}");
        }
        let merged = merge(&all).body.concat();
        assert!(Head::open(&Key::new([4; 32]), STREAM, EPOCH, 1, 4, &merged).is_err());
        for (epoch, from, to) in [(Epoch::numbered(6), 1, 4), (EPOCH, 1, 5), (EPOCH, 0, 4)] {
            assert!(Head::open(&KEY, STREAM, epoch, from, to, &merged).is_err());
        }
        let end = object::End { by: EPOCH, written: Timestamp(0) };
        let id = ObjectId { lineage: STREAM.lineage, epoch: EPOCH, number: 5 };
        let end = object::seal_end(&KEY, id, [1; 16], end, all[3].1).unwrap();
        assert!(Merger::default().push(&end.body).is_err());
    }

    #[test]
    fn every_flip_and_every_cut_shows() {
        let merged = merge(&objects(1, 3)).body.concat();
        let head = Head::needed(&merged).unwrap();
        let mac = head - HASH..head;
        for at in 0..merged.len() {
            let mut flipped = merged.to_vec();
            flipped[at] ^= 1;
            let flipped = Bytes::from(flipped);
            // The authenticator needs the key; all else shows without it.
            assert!(mac.contains(&at) || check_merged(&flipped).is_err(), "byte {at}");
            assert!(at >= head || Head::open(&KEY, STREAM, EPOCH, 1, 3, &flipped).is_err(), "byte {at}");
            assert!(check_merged(&merged.slice(..at)).is_err(), "cut at {at}");
        }
    }
}
