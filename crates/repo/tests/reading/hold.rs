use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Act, Clock, Error, Random, Result, Sink, SourceId, Timestamp,
    sink::{Body, Capabilities, Created, Page, Range},
};
use holdfast_repo::{
    hold::{Holds, LIFE, Placed},
    record::Hold,
    seal::Key,
};
use holdfast_testkit::MemorySink;

/// The store's clock is the paused one; writing may be forbidden.
struct Timed {
    inner: MemorySink,
    clock: Clock,
    read_only: bool,
    times: std::sync::Mutex<std::collections::BTreeMap<String, Timestamp>>,
}

#[async_trait]
impl Sink for Timed {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        if self.read_only {
            return Err(Error::configure("the credentials may not write"));
        }
        self.times.lock().unwrap().insert(name.to_owned(), self.clock.wall());
        self.inner.create(name, body).await
    }
    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        self.inner.read(name, range).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        let mut page = self.inner.list(prefix, after, limit).await?;
        for entry in &mut page.entries {
            entry.modified = self.times.lock().unwrap()[&entry.name];
        }
        Ok(page)
    }
    async fn remove(&self, names: &[String]) -> Result<()> {
        self.inner.remove(names).await
    }
    fn address(&self) -> String {
        "memory".to_owned()
    }
}

fn holds(read_only: bool) -> (Holds, Clock) {
    let clock = Clock::set(Timestamp(1_000_000_000));
    let sink = Timed {
        inner: MemorySink::create_only(),
        clock: clock.clone(),
        read_only,
        times: std::sync::Mutex::default(),
    };
    (Holds { sink: Arc::new(sink), source: SourceId([1; 8]), source_key: Key::new([2; 32]) }, clock)
}

fn record() -> Hold {
    Hold { host: "h".into(), purpose: "restore".into(), written: Timestamp(0) }
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_renewed_as_long_as_it_is_kept() {
    let (holds, clock) = holds(false);
    let Placed::Held(holder) = holds.place(record(), &clock, &Random::seeded(1)).await.unwrap() else {
        panic!("unheld")
    };
    let kept = holder.keep();
    clock.sleep(LIFE * 3).await;
    kept.check().unwrap();
    let seen = &holds.list().await.unwrap()[0];
    assert!(seen.newest >= 70, "{seen:?}");
    assert_eq!(seen.began, Timestamp(1_000_000_000), "as old as its k = 0");
    assert!(seen.holds(clock.wall()));
    assert!(!seen.holds(clock.wall().plus(LIFE)));
    assert_eq!(seen.record.as_ref().unwrap().purpose, "restore");
    kept.release().await.unwrap();
    assert!(holds.list().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_slept_too_long_needs_a_new_plan() {
    let (holds, clock) = holds(false);
    let Placed::Held(mut holder) = holds.place(record(), &clock, &Random::seeded(1)).await.unwrap() else {
        panic!("unheld")
    };
    clock.sleep(Duration::from_secs(3600)).await;
    holder.renew().await.unwrap();
    clock.sleep(LIFE + Duration::from_secs(3600)).await;
    let error = holder.renew().await.unwrap_err();
    assert_eq!(error.act(), Act::Unreachable);
    assert!(error.to_string().contains("Plan it again"), "{error}");
    assert!(holder.renew().await.is_err(), "a lapse does not heal");
}

#[tokio::test(start_paused = true)]
async fn who_may_not_write_is_told_what_that_means() {
    let (holds, clock) = holds(true);
    let Placed::Unheld(error) = holds.place(record(), &clock, &Random::seeded(1)).await.unwrap() else {
        panic!("held")
    };
    assert!(error.to_string().contains("expiry"), "{error}");
    assert!(error.chain().contains("may not write"), "{}", error.chain());
}
