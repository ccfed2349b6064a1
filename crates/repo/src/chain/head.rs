//! The newest object that counts.

use futures::{StreamExt, stream};
use holdfast_core::{Act, Epoch, Error, Result};

use super::{Access, At, IN_FLIGHT, Opening, Tail};
use crate::object::{Front, Header, OpenFront};

/// Nothing larger than this is an END (an epoch and a time, sealed, take 221 bytes with what is around them).
pub const END_MAX: u64 = 256;
/// Looks at an epoch that shows a hole.
const LOOKS: usize = 3;

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
    epochs: &[Epoch],
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

/// The last number of the newest epoch: the end of what counts, or what stands before an END. What is damaged at
/// the end, lost within, or stands behind a hole is named in `damage`.
pub(super) async fn find_head(access: &Access, opening: &Opening, damage: &mut Vec<String>) -> Result<Head> {
    let epoch = opening.epoch;
    let tail = look(access, epoch, damage).await?;
    let end = ended(access, epoch, &tail, damage).await?;
    let counts = tail.run.iter().map(|plain| plain.number).filter(|number| *number > 0 && *number < end);
    for last in counts.rev() {
        match access.front(epoch, last).await {
            Ok(Some(OpenFront { front: Front::Data(header), digest, .. })) => {
                return Ok(Head { at: (epoch, last), digest, header });
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err(access.missing(epoch, last)),
            Err(error) if error.act() == Act::Corrupt => damage.push(error.chain()),
            Err(error) => return Err(error),
        }
    }
    if tail.run.first().is_some_and(|plain| plain.number == 0) {
        return Ok(Head { at: (epoch, 0), digest: opening.digest, header: opening.header.clone() });
    }
    Err(Error::corrupt(format!(
        "nothing behind the merged objects of {} can be read: {}",
        access.stream.log_prefix(epoch),
        damage.join("; ")
    )))
}

/// What counts of an epoch. A hole is believed when a second look finds it: merges move objects, and creates land.
async fn look(access: &Access, epoch: Epoch, damage: &mut Vec<String>) -> Result<Tail> {
    let mut before: Option<Tail> = None;
    let mut looks = 0;
    loop {
        let merged = access.merged(epoch).await?.iter().map(|range| range.to).max();
        let listed = access.plain(epoch, merged, true).await?;
        let first = merged.map_or(0, |end| end.saturating_add(1));
        let tail = Tail::new(&listed, first, merged.is_some());
        looks += 1;
        if tail.run.is_empty() {
            // The newest object of an open epoch is never merged, so a tail there must be.
            return Err(access.missing(epoch, first).during(format!(
                "the store's list of {} begins too late: {} is not in it",
                access.stream.log_prefix(epoch),
                access.stream.log(epoch, first)
            )));
        }
        let same = before.as_ref().is_some_and(|before| (&before.lost, before.end) == (&tail.lost, tail.end));
        if !tail.is_gapless() && !same && looks < LOOKS {
            before = Some(tail);
            continue;
        }
        damage.extend(tail.lost.iter().map(|(from, _)| access.missing(epoch, *from).to_string()));
        if let Some(behind) = tail.behind.filter(|_| same) {
            damage.push(format!(
                "{} is missing, and objects up to number {behind} stand behind it: it is in flight, or lost, and the \
                 stream is read up to it only; ask again in a minute",
                access.stream.log(epoch, tail.end)
            ));
        }
        return Ok(tail);
    }
}

/// The number that ends what counts: of an END, or the lowest free one.
async fn ended(access: &Access, epoch: Epoch, tail: &Tail, damage: &mut Vec<String>) -> Result<u64> {
    let newest = tail.run.last().map_or(0, |plain| plain.number);
    let small = tail.run.iter().filter(|plain| plain.size <= END_MAX && plain.number > 0);
    let small: Vec<u64> = small.map(|plain| plain.number).collect();
    let reads: Vec<_> = small.iter().map(|number| access.front(epoch, *number)).collect();
    let mut fronts = stream::iter(reads).buffered(IN_FLIGHT);
    for number in small {
        match fronts.next().await {
            Some(Ok(Some(OpenFront { front: Front::End(_), .. }))) => return Ok(number),
            Some(Ok(None)) => return Err(access.missing(epoch, number)),
            // At the end who looks for the head meets it; before the end it may have been one.
            Some(Err(error)) if error.act() == Act::Corrupt && number < newest => damage.push(format!(
                "{}; if it was an END, objects {} to {newest} behind it do not count",
                error.chain(),
                number.saturating_add(1)
            )),
            Some(Err(error)) if error.act() != Act::Corrupt => return Err(error),
            _ => {}
        }
    }
    Ok(tail.end)
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
