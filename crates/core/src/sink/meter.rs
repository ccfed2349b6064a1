//! What the store was asked for and how it answered. [`Metered`] counts every attempt; [`Meter`] is read by
//! whoever shows figures. Counters are single atomics: reading costs nothing and blocks nobody, so two
//! counters of one snapshot may differ by the calls that were just ending.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Body, Capabilities, Created, Page, Range, Sink};
use crate::{Act, Clock, Instant, Result, Timestamp};

/// The calls of a [`Sink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Probe,
    Create,
    Read,
    List,
    Remove,
}

impl Operation {
    pub const ALL: [Self; 5] = [Self::Probe, Self::Create, Self::Read, Self::List, Self::Remove];

    pub fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Create => "create",
            Self::Read => "read",
            Self::List => "list",
            Self::Remove => "remove",
        }
    }
}

/// Upper bounds of the latency classes, in milliseconds; a last class takes what was slower.
pub const LATENCY_MS: [u64; 16] =
    [1, 2, 5, 10, 20, 35, 50, 75, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000];

#[derive(Debug, Default)]
struct Counters {
    done: AtomicU64,
    exists: AtomicU64,
    passing: AtomicU64,
    slow_down: AtomicU64,
    failed: AtomicU64,
    retries: AtomicU64,
    bytes: AtomicU64,
    busy: AtomicU64,
    micros: AtomicU64,
    classes: [AtomicU64; LATENCY_MS.len() + 1],
    /// Seconds since the meter began at which the last answer came that was no passing error; -1: none yet.
    answered: AtomicI64,
}

/// Counters of all operations of one sink.
#[derive(Debug)]
pub struct Meter {
    operations: [Counters; Operation::ALL.len()],
    clock: Clock,
    began: crate::Instant,
}

/// One operation's counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    pub operation: Operation,
    /// Attempts that succeeded («exists» included).
    pub done: u64,
    /// Creates that found the name taken.
    pub exists: u64,
    /// Attempts that failed in a passing way, and those of them in which the store asked for less.
    pub passing: u64,
    pub slow_down: u64,
    /// Attempts that failed for good.
    pub failed: u64,
    /// Attempts that were made because an earlier one of the same call had failed.
    pub retries: u64,
    /// Body bytes of successful creates or reads.
    pub bytes: u64,
    /// Attempts in flight.
    pub busy: u64,
    /// Sum of the time that ended attempts took, failed ones included.
    pub time: Duration,
    /// Ended attempts per class of [`LATENCY_MS`], not cumulative.
    pub classes: [u64; LATENCY_MS.len() + 1],
    /// How long ago the last answer came that was no passing error; `None`: never.
    pub answered: Option<Duration>,
}

impl Meter {
    pub fn new(clock: Clock) -> Arc<Self> {
        let operations: [Counters; Operation::ALL.len()] = Default::default();
        for counters in &operations {
            counters.answered.store(-1, Relaxed);
        }
        Arc::new(Self { operations, began: clock.now(), clock })
    }

    pub fn figures(&self) -> Vec<Figures> {
        let now = self.clock.now().saturating_duration_since(self.began);
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        Operation::ALL
            .into_iter()
            .map(|operation| {
                let counters = self.of(operation);
                Figures {
                    operation,
                    done: read(&counters.done),
                    exists: read(&counters.exists),
                    passing: read(&counters.passing),
                    slow_down: read(&counters.slow_down),
                    failed: read(&counters.failed),
                    retries: read(&counters.retries),
                    bytes: read(&counters.bytes),
                    busy: read(&counters.busy),
                    time: Duration::from_micros(read(&counters.micros)),
                    classes: std::array::from_fn(|at| counters.classes.get(at).map_or(0, read)),
                    answered: u64::try_from(counters.answered.load(Relaxed))
                        .ok()
                        .map(|at| now.saturating_sub(Duration::from_secs(at))),
                }
            })
            .collect()
    }

    pub(super) fn retried(&self, operation: Operation) {
        self.of(operation).retries.fetch_add(1, Relaxed);
    }

    fn of(&self, operation: Operation) -> &Counters {
        match operation {
            Operation::Probe => &self.operations[0],
            Operation::Create => &self.operations[1],
            Operation::Read => &self.operations[2],
            Operation::List => &self.operations[3],
            Operation::Remove => &self.operations[4],
        }
    }

    fn begin(&self, operation: Operation) -> Attempt<'_> {
        self.of(operation).busy.fetch_add(1, Relaxed);
        Attempt { meter: self, operation, began: self.clock.now() }
    }
}

/// One attempt in flight; a dropped one (its caller gave up) leaves nothing but its end.
struct Attempt<'a> {
    meter: &'a Meter,
    operation: Operation,
    began: crate::Instant,
}

impl Attempt<'_> {
    fn end<T>(self, result: &Result<T>, bytes: impl FnOnce(&T) -> usize, exists: bool) {
        let counters = self.meter.of(self.operation);
        let now = self.meter.clock.now();
        let took = now.saturating_duration_since(self.began);
        let class = LATENCY_MS.partition_point(|bound| Duration::from_millis(*bound) < took);
        if let Some(class) = counters.classes.get(class) {
            class.fetch_add(1, Relaxed);
        }
        counters.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        let passing = match result {
            Ok(value) => {
                counters.done.fetch_add(1, Relaxed);
                counters.bytes.fetch_add(bytes(value) as u64, Relaxed);
                if exists {
                    counters.exists.fetch_add(1, Relaxed);
                }
                false
            }
            Err(error) if error.is_passing() => {
                counters.passing.fetch_add(1, Relaxed);
                if error.act() == Act::SlowDown {
                    counters.slow_down.fetch_add(1, Relaxed);
                }
                true
            }
            Err(_) => {
                counters.failed.fetch_add(1, Relaxed);
                false
            }
        };
        if !passing {
            let at = now.saturating_duration_since(self.meter.began).as_secs();
            counters.answered.store(i64::try_from(at).unwrap_or(i64::MAX), Relaxed);
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.meter.of(self.operation).busy.fetch_sub(1, Relaxed);
    }
}

/// Counts what passes through to `inner`. Stands directly above the store, below [`super::Retrying`], so that
/// each attempt is one entry and no pause of ours is taken for the store's latency.
#[derive(Clone)]
pub struct Metered {
    inner: Arc<dyn Sink>,
    meter: Arc<Meter>,
}

impl Metered {
    pub fn new(inner: Arc<dyn Sink>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

#[async_trait]
impl Sink for Metered {
    async fn capabilities(&self) -> Result<Capabilities> {
        let attempt = self.meter.begin(Operation::Probe);
        let result = self.inner.capabilities().await;
        attempt.end(&result, |_| 0, false);
        result
    }
    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        let attempt = self.meter.begin(Operation::Create);
        let length = body.len();
        let result = self.inner.create(name, body).await;
        let sent = |created: &Created| if *created == Created::New { length } else { 0 };
        attempt.end(&result, sent, matches!(result, Ok(Created::Exists)));
        result
    }
    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        let attempt = self.meter.begin(Operation::Read);
        let result = self.inner.read(name, range).await;
        attempt.end(&result, |bytes| bytes.as_ref().map_or(0, Bytes::len), false);
        result
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let attempt = self.meter.begin(Operation::List);
        let result = self.inner.list(prefix, after, limit).await;
        attempt.end(&result, |_| 0, false);
        result
    }
    async fn remove(&self, names: &[String]) -> Result<()> {
        let attempt = self.meter.begin(Operation::Remove);
        let result = self.inner.remove(names).await;
        attempt.end(&result, |()| 0, false);
        result
    }
    fn address(&self) -> String {
        self.inner.address()
    }
    fn clock(&self) -> Option<(Instant, Timestamp)> {
        self.inner.clock()
    }
}
