//! Brings objects as deep as they are wanted: plain ones side by side, merged ones by few ranged reads.

use std::ops::Range as Bounds;

use bytes::Bytes;
use futures::{StreamExt, stream};
use holdfast_core::{
    Act, Epoch, Error, Result,
    sink::{OBJECT_MAX, Range},
};

use super::{Access, Depth, IN_FLIGHT, MergedRange, Object, Plain};
use crate::{
    merged::{self, HEAD_READ, Head, Original},
    object::{self, OpenFront, Prelude},
};

/// A merged object up to this size is read in one.
const WHOLE_MAX: u64 = 8 << 20;
/// Bytes of one ranged read within a merged object.
const READ_MAX: u64 = 8 << 20;
/// A hole of this size is read along rather than asked for apart.
const HOLE_MAX: u64 = 32 << 10;
/// Bytes that one step of a walk holds, at most, unless a single object is larger.
pub(super) const STEP_BYTES: u64 = 16 << 20;

/// What became of one object.
pub(super) enum Fetched {
    Object(Box<Object>),
    Damaged(Error),
    /// The store has no such name.
    Gone,
}

/// Damage is an answer; other errors are not.
fn settle(result: Result<Option<Object>>) -> Result<Fetched> {
    match result {
        Ok(Some(object)) => Ok(Fetched::Object(Box::new(object))),
        Ok(None) => Ok(Fetched::Gone),
        Err(error) if error.act() == Act::Corrupt => Ok(Fetched::Damaged(error)),
        Err(error) => Err(error),
    }
}

pub(super) async fn plain(
    access: &Access,
    epoch: Epoch,
    run: &[Plain],
    depth: Depth,
) -> Result<Vec<Fetched>> {
    let reads: Vec<_> = run.iter().map(|plain| one(access, epoch, plain.number, depth)).collect();
    let fetched: Vec<Result<Option<Object>>> = stream::iter(reads).buffered(IN_FLIGHT).collect().await;
    fetched.into_iter().map(settle).collect()
}

async fn one(access: &Access, epoch: Epoch, number: u64, depth: Depth) -> Result<Option<Object>> {
    let name = access.stream.log(epoch, number);
    if depth == Depth::Whole {
        let all = Range::Part { from: 0, length: OBJECT_MAX as u64 + 1 };
        let Some(bytes) = access.sink.read(&name, all).await? else { return Ok(None) };
        let front = object::open_front(&access.source_key, &bytes)
            .map_err(|error| error.during(format!("{name} is damaged")))?;
        front.prelude.expect(access.id(epoch, number))?;
        if bytes.len() != front.prelude.object_len() {
            return Err(Error::corrupt(format!(
                "{name} has {} bytes instead of {}",
                bytes.len(),
                front.prelude.object_len()
            )));
        }
        let key = part(&bytes, front.prelude.key_range());
        let closed = part(&bytes, front.prelude.closed_range());
        return data(front, key, closed).map(Some);
    }
    let Some((front, bytes)) = access.front_bytes(epoch, number).await? else { return Ok(None) };
    let mut key = None;
    if depth == Depth::Entries {
        let range = front.prelude.key_range();
        key = part(&bytes, range.clone());
        if key.is_none() {
            let range = Range::Part { from: range.start as u64, length: range.len() as u64 };
            key = access.sink.read(&name, range).await?;
            if key.is_none() {
                return Ok(None);
            }
        }
    }
    data(front, key, None).map(Some)
}

fn data(front: OpenFront, key: Option<Bytes>, closed: Option<Bytes>) -> Result<Object> {
    let OpenFront { prelude, front, digest } = front;
    match front {
        object::Front::Data(header) => Ok(Object::new(prelude, header, digest, key, closed)),
        object::Front::End(end) => Err(Error::corrupt(format!(
            "{} is the END that epoch {} wrote, where data was taken over",
            prelude.id, end.by
        ))),
    }
}

fn part(bytes: &Bytes, range: Bounds<usize>) -> Option<Bytes> {
    bytes.get(range).map(|part| bytes.slice_ref(part))
}

/// An opened merged object: its head, and its bytes from the beginning on, at least up to the last front.
pub(super) struct OpenMerged {
    pub range: MergedRange,
    name: String,
    head: Head,
    bytes: Bytes,
}

/// Opens a merged object; `None` when the store has no such name.
pub(super) async fn open_merged(
    access: &Access,
    epoch: Epoch,
    range: MergedRange,
    depth: Depth,
) -> Result<Option<OpenMerged>> {
    let MergedRange { from, to, size } = range;
    let name = access.stream.merged(epoch, from, to);
    let whole = depth == Depth::Whole && size <= WHOLE_MAX;
    let mut bytes = Bytes::new();
    let mut needed = if whole { size } else { HEAD_READ.min(size) };
    // First the fixed part, then the rows, then the fronts, each read telling how long the next must be.
    for _ in 0..4 {
        let part = Range::Part { from: 0, length: needed };
        let Some(read) = access.sink.read(&name, part).await? else { return Ok(None) };
        bytes = read;
        let damaged = |error: Error| error.during(format!("{name} is damaged"));
        let rows = Head::needed(&bytes).map_err(damaged)? as u64;
        if rows <= bytes.len() as u64 {
            let head = Head::open(&access.source_key, access.stream, epoch, from, to, &bytes)?;
            if head.object_len() != size {
                return Err(Error::corrupt(format!(
                    "{name} has {size} bytes instead of {}",
                    head.object_len()
                )));
            }
            needed = head.fronts().end;
            if needed <= bytes.len() as u64 {
                return Ok(Some(OpenMerged { range, name, head, bytes }));
            }
        } else {
            needed = rows;
        }
        if needed > size {
            break;
        }
    }
    Err(Error::corrupt(format!("{name} is cut short: {} bytes came where {needed} are needed", bytes.len())))
}

impl OpenMerged {
    /// Numbers from `from` on, at most to `to`, and no more than one step holds.
    pub(super) async fn fetch(
        &self,
        access: &Access,
        epoch: Epoch,
        from: u64,
        to: u64,
        depth: Depth,
        step_bytes: u64,
    ) -> Result<Option<Vec<Fetched>>> {
        let mut wanted = Vec::new();
        let mut held = 0;
        for original in self.head.originals() {
            if original.number < from || original.number > to {
                continue;
            }
            let front = self.front(access, epoch, &original);
            let body = match &front {
                Ok(front) => wanted_body(&front.prelude, &original, depth),
                Err(_) => original.body.start..original.body.start,
            };
            held += original.front.end - original.front.start + (body.end - body.start);
            if !wanted.is_empty() && held > step_bytes {
                break;
            }
            wanted.push((front, body));
        }
        let ranges: Vec<Bounds<u64>> = wanted.iter().map(|(_, body)| body.clone()).collect();
        let Some(bodies) = self.bodies(access, &ranges).await? else { return Ok(None) };
        let objects = wanted.into_iter().zip(bodies);
        let fetched = objects.map(|((front, _), body)| {
            settle(front.and_then(|front| {
                let key = front.prelude.key_half as usize;
                let (key_half, closed_half) = match depth {
                    Depth::Front => (None, None),
                    Depth::Entries => (part(&body, 0..key), None),
                    Depth::Whole => (part(&body, 0..key), part(&body, key..body.len())),
                };
                data(front, key_half, closed_half).map(Some)
            }))
        });
        fetched.collect::<Result<Vec<_>>>().map(Some)
    }

    fn front(&self, access: &Access, epoch: Epoch, original: &Original) -> Result<OpenFront> {
        let within =
            |error: Error| error.during(format!("{} within {} is damaged", original.number, self.name));
        let bytes = usize_range(&original.front).and_then(|range| self.bytes.get(range)).unwrap_or_default();
        let front = object::open_front(&access.source_key, bytes).map_err(within)?;
        front.prelude.expect(access.id(epoch, original.number)).map_err(within)?;
        Ok(front)
    }

    /// The bytes of each range, read along where they lie close together.
    async fn bodies(&self, access: &Access, ranges: &[Bounds<u64>]) -> Result<Option<Vec<Bytes>>> {
        let here = |range: &Bounds<u64>| usize_range(range).and_then(|range| part(&self.bytes, range));
        let mut reads: Vec<Bounds<u64>> = Vec::new();
        for range in ranges.iter().filter(|range| !range.is_empty() && here(range).is_none()) {
            match reads.last_mut() {
                Some(last) if range.start <= last.end + HOLE_MAX && range.end - last.start <= READ_MAX => {
                    last.end = last.end.max(range.end);
                }
                _ => reads.push(range.clone()),
            }
        }
        let read = reads.iter().map(|range| async {
            let part = Range::Part { from: range.start, length: range.end - range.start };
            access.sink.read(&self.name, part).await
        });
        let read: Vec<_> = read.collect();
        let got: Vec<Result<Option<Bytes>>> = stream::iter(read).buffered(4).collect().await;
        let mut pieces = Vec::with_capacity(reads.len());
        for (range, bytes) in reads.iter().zip(got) {
            let Some(bytes) = bytes? else { return Ok(None) };
            pieces.push((range.clone(), bytes));
        }
        let find = |range: &Bounds<u64>| {
            let there = || {
                let (of, bytes) =
                    pieces.iter().find(|(of, _)| of.start <= range.start && range.end <= of.end)?;
                part(bytes, usize_range(&(range.start - of.start..range.end - of.start))?)
            };
            // A cut object gives too few bytes; the digest of the half will say so.
            here(range).or_else(there).unwrap_or_default()
        };
        Ok(Some(ranges.iter().map(find).collect()))
    }
}

fn wanted_body(prelude: &Prelude, original: &Original, depth: Depth) -> Bounds<u64> {
    let start = original.body.start;
    match depth {
        Depth::Front => start..start,
        Depth::Entries => start..(start + u64::from(prelude.key_half)).min(original.body.end),
        Depth::Whole => original.body.clone(),
    }
}

fn usize_range(range: &Bounds<u64>) -> Option<Bounds<usize>> {
    Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// Does a merged object hold this number, if its name is to be believed?
pub(super) fn covers(range: &MergedRange, number: u64) -> bool {
    range.from <= number && number <= range.to && range.to - range.from < merged::OBJECTS_MAX
}
