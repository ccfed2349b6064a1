//! Bounds the bytes that are uploaded per second. Over any stretch of time at most `rate * seconds + burst`
//! bytes are started, urgent objects counted in but not held back by others.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Body, Capabilities, Created, Page, Range, Sink, Urgent};
use crate::{Clock, Instant, Result, Timestamp};

/// Unused allowance that may be spent at once.
const BURST: Duration = Duration::from_secs(1);

/// Delays `create` until its bytes fit the rate. Urgent objects wait for urgent ones alone but charge both
/// accounts: a pack of 16 MiB at 1 MiB/s never delays a commit, and the sum still keeps to the rate.
pub struct Limited {
    inner: Arc<dyn Sink>,
    /// Bytes per second, at least 1.
    rate: u64,
    urgent: Urgent,
    clock: Clock,
    accounts: Mutex<Accounts>,
}

/// When the bytes that were let through so far will have been paid for.
#[derive(Clone, Copy, Debug, Default)]
struct Accounts {
    urgent: Option<Instant>,
    all: Option<Instant>,
}

impl Limited {
    pub fn new(inner: Arc<dyn Sink>, rate: u64, urgent: Urgent, clock: Clock) -> Self {
        Self { inner, rate: rate.max(1), urgent, clock, accounts: Mutex::default() }
    }

    /// Charges `bytes` and says when they may start.
    fn charge(&self, bytes: usize, urgent: bool) -> Instant {
        let now = self.clock.now();
        let cost = Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = |account: Option<Instant>| account.map_or(earliest, |paid| paid.max(earliest));
        let all = begin(accounts.all);
        accounts.all = all.checked_add(cost);
        if !urgent {
            return all;
        }
        let own = begin(accounts.urgent);
        accounts.urgent = own.checked_add(cost);
        own
    }
}

#[async_trait]
impl Sink for Limited {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        let start = self.charge(body.len(), (self.urgent)(name));
        self.clock.sleep_until(start).await;
        self.inner.create(name, body).await
    }
    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        self.inner.read(name, range).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.inner.list(prefix, after, limit).await
    }
    async fn remove(&self, names: &[String]) -> Result<()> {
        self.inner.remove(names).await
    }
    fn address(&self) -> String {
        self.inner.address()
    }
    fn clock(&self) -> Option<(Instant, Timestamp)> {
        self.inner.clock()
    }
}
