//! The newest object that counts.

use futures::{StreamExt, stream};
use holdfast_core::{Act, Error, Result};

use super::{Access, At, IN_FLIGHT, Opening, Plain};
use crate::object::{Front, Header, OpenFront};

/// Nothing larger than this is an END (an epoch and a time, sealed, take 221 bytes with what is around them).
const END_MAX: u64 = 256;
/// A hole with an object so far behind it is no create in flight (at most 8 are): the object was there, was
/// settled, and is lost.
const WINDOW: u64 = 64;

#[derive(Clone, Debug)]
pub struct Head {
    pub at: At,
    pub digest: [u8; 32],
    pub header: Header,
}

/// Number 0 of the highest of `epochs` that has one. A damaged one is stepped over and named in `damage`.
///
/// # Errors
/// The first damage, when nothing else is left.
pub(super) async fn highest_opening(
    access: &Access,
    epochs: &[holdfast_core::Epoch],
    damage: &mut Vec<String>,
) -> Result<Option<Opening>> {
    let read: Vec<_> = epochs.iter().rev().map(|epoch| access.opening(*epoch)).collect();
    let mut openings = stream::iter(read).buffered(4);
    let mut first = None;
    while let Some(opening) = openings.next().await {
        match opening {
            Ok(Some(opening)) => return Ok(Some(opening)),
            Ok(None) => {}
            Err(error) if error.act() == Act::Corrupt => {
                damage.push(error.chain());
                first.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    first.map_or(Ok(None), Err)
}

/// The last number of the newest epoch: the end of the gapless run, or what stands before an END. Damaged
/// objects at the end, and lost ones within, are stepped over and named in `damage`.
pub(super) async fn find_head(access: &Access, opening: &Opening, damage: &mut Vec<String>) -> Result<Head> {
    let epoch = opening.epoch;
    let merged = access.merged(epoch).await?;
    let end = merged.iter().map(|range| range.to).max();
    let tail = access.plain(epoch, end, true).await?;
    let first = end.map_or(0, |end| end.saturating_add(1));
    if tail.first().is_none_or(|plain| plain.number != first) {
        // The newest object of an open epoch is never merged, so a tail there must be.
        return Err(access.missing(epoch, first).during(format!(
            "the store's list of {} begins too late: {} is not in it",
            access.stream.log_prefix(epoch),
            access.stream.log(epoch, first)
        )));
    }
    let newest = tail.last().map_or(first, |plain| plain.number);
    let mut next = first;
    let mut run: Vec<Plain> = Vec::with_capacity(tail.len());
    for plain in tail {
        if plain.number != next {
            if newest - next < WINDOW {
                break;
            }
            damage.push(access.missing(epoch, next).to_string());
        }
        next = plain.number.saturating_add(1);
        run.push(plain);
    }
    let small: Vec<u64> = run
        .iter()
        .filter(|plain| plain.size <= END_MAX && plain.number > 0)
        .map(|plain| plain.number)
        .collect();
    let reads: Vec<_> = small.iter().map(|number| access.front(epoch, *number)).collect();
    let mut fronts = stream::iter(reads).buffered(IN_FLIGHT);
    let mut last = run.last().map_or(first, |plain| plain.number);
    for number in small {
        match fronts.next().await {
            Some(Ok(Some(OpenFront { front: Front::End(_), .. }))) => {
                last = number.saturating_sub(1);
                break;
            }
            Some(Ok(None)) => return Err(access.missing(epoch, number)),
            Some(Err(error)) if error.act() != Act::Corrupt => return Err(error),
            // Data; or damage, which who reads it will meet.
            _ => {}
        }
    }
    drop(fronts);
    while last >= first.max(1) {
        match access.front(epoch, last).await {
            Ok(Some(OpenFront { front: Front::Data(header), digest, .. })) => {
                return Ok(Head { at: (epoch, last), digest, header });
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err(access.missing(epoch, last)),
            Err(error) if error.act() == Act::Corrupt => damage.push(error.chain()),
            Err(error) => return Err(error),
        }
        last -= 1;
    }
    if first == 0 {
        return Ok(Head { at: (epoch, 0), digest: opening.digest, header: opening.header.clone() });
    }
    Err(Error::corrupt(format!(
        "nothing behind the merged objects of {} can be read: {}",
        access.stream.log_prefix(epoch),
        damage.join("; ")
    )))
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Epoch, LineageId, Timestamp, WriterId};

    use super::END_MAX;
    use crate::{
        object::{End, ObjectId, seal_end},
        seal::Key,
    };

    #[test]
    fn the_largest_end_is_still_taken_for_one() {
        let epoch = Epoch { number: u64::MAX, writer: WriterId([0xff; 8]) };
        let id = ObjectId { lineage: LineageId([0xff; 8]), epoch, number: u64::MAX };
        let end = End { by: epoch, written: Timestamp(i64::MIN) };
        let sealed = seal_end(&Key::new([1; 32]), id, [2; 16], end, [3; 32]).unwrap();
        assert!(sealed.body.len() as u64 <= END_MAX, "{}", sealed.body.len());
    }
}
