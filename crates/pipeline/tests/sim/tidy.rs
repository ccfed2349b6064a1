//! Merging in a store that lets the writer remove nothing.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_core::{
    Error, Result, Sink,
    sink::{Body, Capabilities, Created, Page, Range},
};
use holdfast_pipeline::{Gauges, Outcome, Parts, Writer};
use holdfast_repo::epoch::InstanceId;
use holdfast_testkit::CruelSink;
use tokio::sync::watch;

use crate::{
    simulate,
    world::{SCRIPT, World},
};

/// Refuses each removal, and counts what it was asked.
struct Keeps {
    inner: CruelSink,
    asked: AtomicU64,
}

#[async_trait]
impl Sink for Keeps {
    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
    async fn create(&self, name: &str, body: Body) -> Result<Created> {
        self.inner.create(name, body).await
    }
    async fn read(&self, name: &str, range: Range) -> Result<Option<Bytes>> {
        self.inner.read(name, range).await
    }
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.inner.list(prefix, after, limit).await
    }
    async fn remove(&self, _: &[String]) -> Result<()> {
        self.asked.fetch_add(1, Relaxed);
        Err(Error::configure("403: this credential may not remove"))
    }
    fn address(&self) -> String {
        self.inner.address()
    }
}

#[test]
fn a_writer_that_may_not_remove_asks_once_an_epoch() {
    simulate(async {
        let world = World::new(11, true, SCRIPT).await;
        let store = Arc::new(Keeps { inner: world.sink.clone(), asked: AtomicU64::new(0) });
        for epoch in 1..=2_u64 {
            let (stop, stopped) = watch::channel(false);
            let writer = Writer::new(Parts {
                settings: world.settings.clone(),
                source_key: world.key.clone(),
                capabilities: Capabilities { create_only: true, history: String::new() },
                sink: store.clone(),
                tailer: world.source.tailer("keeps"),
                pool: world.pool.clone(),
                clock: world.clock.clone(),
                random: world.random.clone(),
                instance: InstanceId([1; 16]),
                gauges: Arc::new(Gauges::new(world.clock.now())),
                stop: stopped,
            });
            let merged = || world.sink.names().iter().filter(|name| name.contains("/merged/")).count() as u64;
            let before = merged();
            let stop = async {
                world.sleep(55.0).await;
                stop.send_replace(true);
            };
            let (outcome, ()) = tokio::join!(writer.run(), stop);
            assert!(matches!(outcome, Outcome::Stopped), "{outcome:?}");
            let merges = merged() - before;
            assert!(merges >= 3, "{merges}");
            assert_eq!(store.asked.load(Relaxed), epoch);
        }
        let restored = world.restore().await;
        assert_eq!(restored.to, world.source.settled());
    });
}
