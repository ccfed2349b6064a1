//! Joins steps of a stream into batches. Pure: time and flights are told to it.
//!
//! Invariants: steps leave in the order in which they came; a batch ends where a record ends whenever one
//! ends in it; nothing closes early unless somebody waits.

use std::{collections::VecDeque, time::Duration};

use holdfast_core::{Cursor, Instant, Item, Step, Timestamp};

/// Steps, and marks, of one object at most: far below what a reader takes of entries and marks.
const STEPS_MAX: usize = 16_384;
const MARKS_MAX: usize = 256 << 10;
/// What a step costs in memory beside its bytes.
const STEP_COST: usize = 256;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: usize,
    pub max_lag: Duration,
    pub put_spacing: Duration,
    pub in_flight: usize,
}

#[derive(Debug)]
pub struct Batcher {
    limits: Limits,
    taken: VecDeque<Taken>,
    cost: usize,
    marks: usize,
    /// Steps here that somebody waits for.
    waiting: usize,
}

#[derive(Debug)]
struct Taken {
    step: Step,
    at: Instant,
}

/// When the open batch closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Now,
    At(Instant),
    /// Not before something else happens.
    Never,
}

/// Steps that become one object.
#[derive(Debug)]
pub struct Batch {
    pub steps: Vec<Step>,
    /// What they take in memory until they are stored.
    pub cost: usize,
}

impl Batch {
    /// Bytes of the source.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|step| bytes(step) as u64).sum()
    }
    pub fn waits(&self) -> bool {
        self.steps.iter().any(|step| step.waits)
    }
    /// Where a writer goes on that took this batch in.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.steps.last().map(|step| &step.cursor)
    }
    pub fn vouched(&self) -> Option<(Instant, Timestamp)> {
        self.steps.iter().rev().find_map(|step| step.vouched)
    }
}

/// Bytes of the source that a step carries.
pub fn bytes(step: &Step) -> usize {
    match &step.item {
        Item::Log { bytes, .. } => bytes.len(),
        Item::Note(note) => note.body.len(),
        _ => 0,
    }
}

fn cost(step: &Step) -> usize {
    bytes(step) + STEP_COST
}

fn marks(step: &Step) -> usize {
    match &step.item {
        Item::Log { marks, .. } => marks.len(),
        _ => 0,
    }
}

/// Does a record end with this step?
fn is_whole(step: &Step) -> bool {
    !matches!(step.item, Item::Log { whole: false, .. })
}

impl Batcher {
    pub fn new(limits: Limits) -> Self {
        Self { limits, taken: VecDeque::new(), cost: 0, marks: 0, waiting: 0 }
    }
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }
    /// What the open batch takes in memory.
    pub fn cost(&self) -> usize {
        self.cost
    }

    pub fn push(&mut self, step: Step, now: Instant) {
        self.cost += cost(&step);
        self.marks += marks(&step);
        self.waiting += usize::from(step.waits);
        self.taken.push_back(Taken { step, at: now });
    }

    /// The source says that the newest step here is all that it held at `vouched`. False: nothing is open.
    pub fn vouch(&mut self, vouched: (Instant, Timestamp)) -> bool {
        let Some(last) = self.taken.back_mut() else { return false };
        last.step.vouched = Some(vouched);
        true
    }
    /// Somebody waits for what is open. False: nothing is.
    pub fn hurry(&mut self) -> bool {
        let Some(last) = self.taken.back_mut() else { return false };
        self.waiting += usize::from(!std::mem::replace(&mut last.step.waits, true));
        true
    }

    /// `started` is when the newest create began.
    pub fn due(&self, now: Instant, in_flight: usize, started: Option<Instant>) -> Due {
        let Some(first) = self.taken.front() else { return Due::Never };
        if self.cost >= self.limits.bytes || self.taken.len() >= STEPS_MAX || self.marks >= MARKS_MAX {
            return Due::Now;
        }
        if in_flight >= self.limits.in_flight {
            return Due::Never;
        }
        let mut at = first.at + self.limits.max_lag;
        if self.waiting > 0 {
            at = at.min(started.map_or(now, |started| started + self.limits.put_spacing));
        }
        if at <= now { Due::Now } else { Due::At(at) }
    }

    /// Closes the open batch after the last whole record; after the last step when no record ends in it.
    pub fn close(&mut self) -> Batch {
        let ends = self.taken.iter().rposition(|taken| is_whole(&taken.step));
        let count = ends.map_or(self.taken.len(), |last| last + 1);
        let steps: Vec<Step> = self.taken.drain(..count).map(|taken| taken.step).collect();
        let cost = steps.iter().map(cost).sum();
        self.cost = self.cost.saturating_sub(cost);
        self.marks = self.marks.saturating_sub(steps.iter().map(marks).sum());
        self.waiting -= steps.iter().filter(|step| step.waits).count();
        Batch { steps, cost }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use bytes::Bytes;
    use holdfast_core::{Branch, Span};
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        bytes: 64 << 10,
        max_lag: Duration::from_secs(1),
        put_spacing: Duration::from_millis(5),
        in_flight: 8,
    };

    /// Readers refuse objects of more entries or marks than they would hold in memory.
    #[test]
    fn a_batch_closes_before_it_has_more_than_a_reader_takes() {
        let roomy = Limits { bytes: 64 << 20, max_lag: Duration::from_secs(3600), ..LIMITS };
        let now = holdfast_core::Clock::system().now();
        let mut batcher = Batcher::new(roomy);
        for from in 0..STEPS_MAX as u64 - 1 {
            batcher.push(log(from, 1, true, false), now);
        }
        assert_ne!(batcher.due(now, 0, None), Due::Now);
        batcher.push(log(STEPS_MAX as u64, 1, true, false), now);
        assert_eq!(batcher.due(now, 0, None), Due::Now);
        let mut batcher = Batcher::new(roomy);
        let mut step = log(0, 9, true, false);
        if let Item::Log { marks, span, .. } = &mut step.item {
            let mark = holdfast_core::Mark {
                begin: 0,
                place: span.end(),
                time: Timestamp(1),
                kind: holdfast_core::MarkKind::Tick,
            };
            *marks = vec![mark; MARKS_MAX];
        }
        batcher.push(step, now);
        assert_eq!(batcher.due(now, 0, None), Due::Now);
        batcher.close();
        batcher.push(log(9, 1, true, false), now);
        assert_ne!(batcher.due(now, 0, None), Due::Now);
        const { assert!(STEPS_MAX * 3 < holdfast_repo::entry::ENTRIES_MAX) };
        const { assert!(MARKS_MAX * 2 < holdfast_repo::entry::MARKS_MAX) };
    }

    fn log(from: u64, length: usize, whole: bool, waits: bool) -> Step {
        let to = from + length as u64;
        Step {
            item: Item::Log {
                span: Span { branch: Branch(1), from, to },
                bytes: Bytes::from(vec![7; length]),
                whole,
                marks: Vec::new(),
            },
            cursor: Cursor(Bytes::from(to.to_le_bytes().to_vec())),
            vouched: None,
            waits,
        }
    }

    #[test]
    fn nothing_closes_before_max_lag_unless_somebody_waits() {
        let start = Instant::now();
        let mut batcher = Batcher::new(LIMITS);
        assert_eq!(batcher.due(start, 0, None), Due::Never);
        batcher.push(log(0, 100, true, false), start);
        assert_eq!(batcher.due(start, 0, None), Due::At(start + LIMITS.max_lag));
        assert_eq!(batcher.due(start + LIMITS.max_lag, 0, None), Due::Now);
        batcher.push(log(100, 100, true, true), start);
        assert_eq!(batcher.due(start, 0, None), Due::Now);
        let spaced = Due::At(start + LIMITS.put_spacing);
        assert_eq!(batcher.due(start, 1, Some(start)), spaced);
        assert_eq!(batcher.due(start, 8, Some(start)), Due::Never);
        assert_eq!(batcher.close().steps.len(), 2);
        assert_eq!(batcher.due(start, 0, None), Due::Never);
    }

    #[test]
    fn a_record_is_split_only_where_none_ends() {
        let start = Instant::now();
        let mut batcher = Batcher::new(LIMITS);
        batcher.push(log(0, 10, false, false), start);
        batcher.push(log(10, 10, true, false), start);
        batcher.push(log(20, 10, false, true), start);
        let batch = batcher.close();
        assert_eq!(batch.steps.len(), 2);
        assert_eq!(batch.cursor().unwrap().0.as_ref(), &20u64.to_le_bytes());
        assert_eq!(batcher.close().steps.len(), 1);
        assert!(batcher.is_empty());
        assert_eq!(batcher.cost(), 0);
    }

    proptest! {
        #[test]
        fn steps_leave_in_order_and_none_is_lost(
            sizes in prop::collection::vec((1usize..20_000, any::<bool>(), any::<bool>(), 0u64..400), 1..80),
        ) {
            let mut now = Instant::now();
            let mut batcher = Batcher::new(LIMITS);
            let (mut at, mut out, mut taken) = (0, 0, 0);
            for (size, whole, waits, pause) in sizes {
                let first = batcher.taken.front().map(|t| t.at);
                now += Duration::from_millis(pause);
                if let Some(first) = first && now >= first + LIMITS.max_lag {
                    prop_assert_eq!(batcher.due(now, 0, Some(now)), Due::Now);
                }
                batcher.push(log(at, size, whole, waits), now);
                at += size as u64;
                while batcher.due(now, 0, Some(now)) == Due::Now {
                    let batch = batcher.close();
                    prop_assert!(!batch.steps.is_empty());
                    for step in &batch.steps {
                        let Item::Log { span, .. } = &step.item else { unreachable!() };
                        prop_assert_eq!(span.from, out);
                        out = span.to;
                        taken += 1;
                    }
                    let ends = batch.steps.iter().any(is_whole);
                    prop_assert!(!ends || batch.steps.last().is_some_and(is_whole));
                }
                prop_assert!(batcher.cost() < LIMITS.bytes);
            }
            while !batcher.is_empty() {
                taken += batcher.close().steps.len();
            }
            prop_assert!(taken > 0);
        }
    }
}
