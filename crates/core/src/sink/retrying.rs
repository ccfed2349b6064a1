//! Makes passing errors pass: the same call again after a pause that doubles, drawn at random below its bound
//! so that many writers do not come back at once. All other errors go up at once.
//!
//! Safe for `create` because a body never changes between attempts: an attempt whose answer was lost may make
//! a later one answer `Exists`, which is handed up; the caller reads back and compares.

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Body, Capabilities, Created, Meter, Operation, Page, Range, Sink, Urgent, limit::Limit};
use crate::{Act, Clock, Error, Instant, Random, Result, Timestamp, text::show_duration};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Bound of the first pause; doubles with each further attempt up to `pause_max`.
    pub pause: Duration,
    pub pause_max: Duration,
    /// How long one call is tried for, from its first attempt; `None`: for ever.
    pub patience: Option<Duration>,
    /// Calls in flight at most, of each of the two classes (urgent or not).
    pub in_flight: usize,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(10),
            patience: None,
            in_flight: 64,
        }
    }
}

/// Retries and lowers concurrency while the store throttles. Urgent objects have a limit of their own, so a
/// slow pack never holds the slot that a commit waits for.
pub struct Retrying {
    inner: Arc<dyn Sink>,
    settings: RetrySettings,
    clock: Clock,
    random: Random,
    meter: Arc<Meter>,
    urgent: Urgent,
    urgent_limit: Limit,
    limit: Limit,
}

impl Retrying {
    pub fn new(
        inner: Arc<dyn Sink>,
        settings: RetrySettings,
        urgent: Urgent,
        clock: Clock,
        random: Random,
        meter: Arc<Meter>,
    ) -> Self {
        let urgent_limit = Limit::new(settings.in_flight);
        let limit = Limit::new(settings.in_flight);
        Self { inner, settings, clock, random, meter, urgent, urgent_limit, limit }
    }

    /// Calls that may be in flight now, urgent ones and others.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.urgent_limit.now(), self.limit.now())
    }

    async fn call<T, F>(
        &self,
        operation: Operation,
        name: &str,
        attempt: impl Fn() -> F + Send + Sync,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let limit = if (self.urgent)(name) { &self.urgent_limit } else { &self.limit };
        let began = self.clock.now();
        let mut tries: u32 = 0;
        loop {
            let permit = limit.enter().await?;
            let result = attempt().await;
            let throttled = matches!(&result, Err(error) if error.act() == Act::SlowDown);
            limit.leave(permit, throttled, self.clock.now());
            let error = match result {
                Err(error) if error.is_passing() => error,
                other => return other,
            };
            tries = tries.saturating_add(1);
            let pause = self.pause(tries);
            let spent = self.clock.now().saturating_duration_since(began);
            if self.settings.patience.is_some_and(|patience| spent.saturating_add(pause) > patience) {
                return Err(gave_up(error, operation, name, tries, spent));
            }
            if tries.is_power_of_two() && tries > 1 {
                tracing::warn!(operation = operation.name(), name, tries, spent = %show_duration(spent),
                    "the store fails, trying again: {}", error.chain());
            } else {
                tracing::debug!(operation = operation.name(), name, tries, "{}", error.chain());
            }
            self.meter.retried(operation);
            self.clock.sleep(pause).await;
        }
    }

    fn pause(&self, tries: u32) -> Duration {
        let factor = 1_u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX);
        let bound = self.settings.pause.saturating_mul(factor).min(self.settings.pause_max);
        let micros = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.random.below(micros.saturating_add(1)))
    }
}

fn gave_up(error: Error, operation: Operation, name: &str, tries: u32, spent: Duration) -> Error {
    let what = if name.is_empty() { "the store".to_owned() } else { format!("«{name}»") };
    error.during(format!(
        "{} of {what} failed {tries} times within {} and was given up",
        operation.name(),
        show_duration(spent)
    ))
}

#[async_trait]
impl Sink for Retrying {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.call(Operation::Probe, "", || self.inner.capabilities()).await
    }
    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        self.call(Operation::Create, name, || self.inner.create(name, body.clone())).await
    }
    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        self.call(Operation::Read, name, || self.inner.read(name, range)).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.call(Operation::List, prefix, || self.inner.list(prefix, after, limit)).await
    }
    async fn remove(&self, names: &[String]) -> Result<()> {
        let first = names.first().map_or("", String::as_str);
        self.call(Operation::Remove, first, || self.inner.remove(names)).await
    }
    fn address(&self) -> String {
        self.inner.address()
    }
    fn clock(&self) -> Option<(Instant, Timestamp)> {
        self.inner.clock()
    }
}
