//! What a pipeline says of itself: cheap to write in the pipeline, cheap to read from outside. PUT latencies and
//! retries are counted by the sink's own meter.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use holdfast_core::{Epoch, Instant, Timestamp};

use crate::ledger::Counts;

/// Upper bounds of the batch size histogram, in bytes; one more class above the last.
pub const BATCH_BYTES: [u64; 8] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];

/// Shared with whoever shows it.
#[derive(Debug)]
pub struct Gauges {
    inner: Mutex<Inner>,
    batches: [AtomicU64; BATCH_BYTES.len() + 1],
    objects_put: AtomicU64,
    fenced: AtomicU64,
    turns: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    since: Instant,
    phase: Phase,
    sentence: String,
    store_trouble: Option<String>,
    source_trouble: Option<String>,
    epoch: Option<Epoch>,
    /// Of epochs of this process that have ended.
    before: Counts,
    counts: Counts,
    in_flight: usize,
    content: Content,
    vouched: Option<(Instant, Timestamp)>,
    gaps: u64,
    checkpoint: Option<(Timestamp, Timestamp)>,
    restorable_to: Option<Timestamp>,
}

/// Bulk content so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub received: u64,
    /// In packs and layers that are durable, as sealed.
    pub stored: u64,
    pub packs: u64,
    pub layers: u64,
}

/// Where a writer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The source has not answered yet.
    Starting,
    /// Another writer has the stream.
    Standby,
    Claiming,
    Streaming,
    /// Flushes before it ends.
    Stopping,
    Ended,
    /// Stands still until a person acts; the sentence says on what.
    Failed,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Standby => "standby",
            Self::Claiming => "claiming",
            Self::Streaming => "streaming",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// All gauges at one moment.
#[derive(Clone, Debug)]
pub struct Figures {
    pub phase: Phase,
    /// Why it stands there, when there is something to say.
    pub sentence: String,
    pub store_trouble: Option<String>,
    pub source_trouble: Option<String>,
    pub epoch: Option<Epoch>,
    pub counts: Counts,
    pub content: Content,
    /// Log objects that are sealed or on their way.
    pub in_flight: usize,
    pub objects_put: u64,
    /// Turns of the loop that streams: one that stands still while the phase says «streaming» is stuck.
    pub turns: u64,
    /// Counts per class of [`BATCH_BYTES`], not cumulative.
    pub batches: [u64; BATCH_BYTES.len() + 1],
    /// Since the newest instant of which all that the source held is durable, an earlier process's included; since
    /// the start while there is none. Grows while source or store are out of sight.
    pub at_risk: Duration,
    /// Bytes received and not durable.
    pub at_risk_bytes: u64,
    /// How often another writer took the stream from this one.
    pub fenced: u64,
    pub gaps: u64,
    /// When the newest checkpoint began and ended (the source's clock).
    pub checkpoint: Option<(Timestamp, Timestamp)>,
    /// Newest mark or vouched time that is durable.
    pub restorable_to: Option<Timestamp>,
}

impl Gauges {
    pub fn new(now: Instant) -> Self {
        Self {
            inner: Mutex::new(Inner {
                since: now,
                phase: Phase::Starting,
                sentence: String::new(),
                store_trouble: None,
                source_trouble: None,
                epoch: None,
                before: Counts::default(),
                counts: Counts::default(),
                in_flight: 0,
                content: Content::default(),
                vouched: None,
                gaps: 0,
                checkpoint: None,
                restorable_to: None,
            }),
            batches: Default::default(),
            objects_put: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            turns: AtomicU64::new(0),
        }
    }

    pub fn figures(&self, now: Instant) -> Figures {
        let inner = self.lock();
        let counts = sum(inner.before, inner.counts);
        let newest = inner.vouched.map_or(inner.since, |(at, _)| at);
        Figures {
            phase: inner.phase,
            sentence: inner.sentence.clone(),
            store_trouble: inner.store_trouble.clone(),
            source_trouble: inner.source_trouble.clone(),
            epoch: inner.epoch,
            counts,
            content: inner.content,
            in_flight: inner.in_flight,
            objects_put: self.objects_put.load(Relaxed),
            turns: self.turns.load(Relaxed),
            batches: std::array::from_fn(|class| self.batches.get(class).map_or(0, |n| n.load(Relaxed))),
            at_risk: now.saturating_duration_since(newest),
            at_risk_bytes: counts.received.bytes.saturating_sub(counts.stored.bytes),
            fenced: self.fenced.load(Relaxed),
            gaps: inner.gaps,
            checkpoint: inner.checkpoint,
            restorable_to: inner.restorable_to,
        }
    }

    pub(crate) fn phase(&self, phase: Phase, sentence: impl Into<String>) {
        let mut inner = self.lock();
        inner.phase = phase;
        inner.sentence = sentence.into();
    }
    /// The writer ended by an error, or by a fault that it could not say itself.
    pub fn failed(&self, sentence: String) {
        self.phase(Phase::Failed, sentence);
    }
    pub fn store_answered(&self) {
        self.lock().store_trouble = None;
    }
    pub fn store_failed(&self, sentence: String) {
        self.lock().store_trouble = Some(sentence);
    }
    pub(crate) fn source(&self, trouble: Option<String>) {
        self.lock().source_trouble = trouble;
    }
    pub(crate) fn begin_epoch(&self, epoch: Epoch) {
        let mut inner = self.lock();
        // What an epoch that ended had not stored was never settled: its successor receives it again.
        let ended = Counts { received: inner.counts.stored, sealed: inner.counts.stored, ..inner.counts };
        inner.before = sum(inner.before, ended);
        inner.counts = Counts::default();
        inner.epoch = Some(epoch);
    }
    pub(crate) fn counts(&self, counts: Counts, in_flight: usize) {
        let mut inner = self.lock();
        inner.counts = counts;
        inner.in_flight = in_flight;
    }
    pub(crate) fn vouched(&self, vouched: Option<(Instant, Timestamp)>) {
        let mut inner = self.lock();
        inner.vouched = inner.vouched.max(vouched);
        let time = inner.vouched.map(|(_, time)| time);
        inner.restorable_to = inner.restorable_to.max(time);
    }
    /// What an earlier life left durable, by the source's clock and by its host's when it wrote that down: what was
    /// written since then is at risk, also before this process began. Clocks differ; the longer time is believed.
    pub(crate) fn inherited(
        &self,
        vouched: Timestamp,
        written: Option<Timestamp>,
        wall: Timestamp,
        now: Instant,
    ) {
        let mut inner = self.lock();
        let ago = wall.since(vouched).max(written.map_or(Duration::ZERO, |written| wall.since(written)));
        let then = now.checked_sub(ago).unwrap_or(now);
        inner.since = inner.since.min(then);
    }
    pub(crate) fn catalog(&self, gaps: usize, checkpoint: Option<(Timestamp, Timestamp)>) {
        let mut inner = self.lock();
        inner.gaps = gaps as u64;
        inner.checkpoint = checkpoint;
    }
    pub(crate) fn batch(&self, bytes: usize) {
        let class = BATCH_BYTES.iter().position(|bound| bytes as u64 <= *bound).unwrap_or(BATCH_BYTES.len());
        if let Some(count) = self.batches.get(class) {
            count.fetch_add(1, Relaxed);
        }
    }
    pub(crate) fn fenced(&self) {
        self.fenced.fetch_add(1, Relaxed);
    }
    pub(crate) fn turned(&self) {
        self.turns.fetch_add(1, Relaxed);
    }
    pub(crate) fn object_put(&self) {
        self.objects_put.fetch_add(1, Relaxed);
    }
    pub(crate) fn content(&self, change: impl FnOnce(&mut Content)) {
        change(&mut self.lock().content);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum(a: Counts, b: Counts) -> Counts {
    let add = |a: crate::ledger::Amount, b: crate::ledger::Amount| crate::ledger::Amount {
        bytes: a.bytes + b.bytes,
        objects: a.objects + b.objects,
    };
    Counts {
        received: add(a.received, b.received),
        sealed: add(a.sealed, b.sealed),
        stored: add(a.stored, b.stored),
        settled: add(a.settled, b.settled),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_life_left_is_as_old_as_the_older_of_two_clocks_says() {
        let start = holdfast_core::Clock::system().now() + Duration::from_secs(10_000);
        let at = |seconds: i64| Timestamp(seconds * 1_000_000);
        let at_risk = |vouched, written: Option<i64>, wall| {
            let gauges = Gauges::new(start);
            gauges.inherited(at(vouched), written.map(at), at(wall), start);
            gauges.figures(start).at_risk.as_secs()
        };
        assert_eq!(at_risk(1000, None, 1030), 30);
        // The host runs ten minutes behind its source, and wrote 30 s ago.
        assert_eq!(at_risk(1600, Some(1000), 1030), 30);
        assert_eq!(at_risk(400, Some(1000), 1030), 630);
        assert_eq!(at_risk(1600, Some(1500), 1030), 0, "a clock that was set back tells nothing");
    }
}
