//! Which numbers of an epoch that may still be written to count: pure, from a list of what is there. Readers and
//! the claimant who ends the epoch (R3) ask the same.

use super::Plain;

/// No create of a writer is begun so far above its lowest one without an answer. So a number this far below one
/// that is there was answered, hence stored: it is lost, not in flight.
pub const WINDOW: u64 = 16;

/// What a list of an epoch's log objects tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The objects that count, ascending; an END may be among them.
    pub run: Vec<Plain>,
    /// Numbers below [`Self::end`] that were stored and are gone: first and last of each hole.
    pub lost: Vec<(u64, u64)>,
    /// The lowest number that is free and was not proven to have been there.
    pub end: u64,
    /// The highest object that stands behind [`Self::end`]: something below it is in flight, or was lost just now.
    pub behind: Option<u64>,
}

impl Tail {
    /// `listed` is all that is there from `first` on, ascending; `merged`: `first` follows a merged object, so that
    /// it was stored (the newest object is never merged).
    pub fn new(listed: &[Plain], first: u64, merged: bool) -> Self {
        let newest = listed.last().map_or(first, |plain| plain.number);
        let answered = newest.checked_sub(WINDOW).map_or(0, |number| number + 1);
        let proven = answered.max(first.saturating_add(u64::from(merged)));
        let mut tail = Self { end: first, ..Self::default() };
        for plain in listed {
            if tail.end < plain.number {
                let to = proven.max(tail.end).min(plain.number);
                if tail.end < to {
                    tail.lost.push((tail.end, to - 1));
                }
                tail.end = to;
                if to < plain.number {
                    tail.behind = Some(newest);
                    break;
                }
            }
            tail.run.push(*plain);
            tail.end = plain.number.saturating_add(1);
        }
        tail
    }

    /// Does anything about it need a second look? A merge or a create may have come between two lists.
    pub fn is_gapless(&self) -> bool {
        self.lost.is_empty() && self.behind.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(numbers: impl IntoIterator<Item = u64>, first: u64, merged: bool) -> (Vec<u64>, Tail) {
        let listed: Vec<Plain> = numbers.into_iter().map(|number| Plain { number, size: 300 }).collect();
        let tail = Tail::new(&listed, first, merged);
        (tail.run.iter().map(|plain| plain.number).collect(), tail)
    }

    #[test]
    fn a_hole_is_lost_once_an_object_stands_a_window_above_it() {
        let (run, whole) = tail(0..=5, 0, false);
        assert_eq!((run.len(), whole.end, whole.is_gapless()), (6, 6, true));
        let near = (0..5).chain(6..5 + WINDOW);
        let (run, near) = tail(near, 0, false);
        assert_eq!(run, (0..5).collect::<Vec<_>>());
        assert_eq!((near.end, near.behind, near.lost.len()), (5, Some(4 + WINDOW), 0));
        let far = (0..5).chain(6..=5 + WINDOW);
        let (run, far) = tail(far, 0, false);
        assert_eq!((run.len() as u64, far.end, far.behind), (5 + WINDOW, 6 + WINDOW, None));
        assert_eq!(far.lost, [(5, 5)]);
    }

    #[test]
    fn of_one_hole_the_lower_part_may_be_lost_and_the_upper_in_flight() {
        let (run, tail) = tail([0, 1, 20], 0, false);
        assert_eq!(run, [0, 1]);
        assert_eq!((tail.lost, tail.end, tail.behind), (vec![(2, 4)], 5, Some(20)));
    }

    #[test]
    fn what_follows_a_merged_object_was_stored() {
        let (run, after) = tail([66, 67], 65, true);
        assert_eq!((run, after.lost), (vec![66, 67], vec![(65, 65)]));
        let (run, first) = tail([66, 67], 65, false);
        assert_eq!((run.len(), first.end, first.behind), (0, 65, Some(67)));
        let (_, highest) = tail([0, u64::MAX], 0, false);
        assert_eq!((highest.end, highest.behind), (u64::MAX - WINDOW + 1, Some(u64::MAX)));
    }
}
